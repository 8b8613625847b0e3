"""Bad input on every route of another server's API: its own form of an error, and never an internal one."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import httpx
import pytest

from ingle.compat.daytona.translation import ROUTES
from support.server import Server

pytestmark = pytest.mark.req("compat.errors")

JSON = "application/json"
BODIES = [
    (JSON, b"["),
    (JSON, b'{"path": 3, "process": 3, "timeout": "x", "code": 3, "name": 3, "count": "x"}'),
    (JSON, b"\xff\xfe"),
    (JSON, b'{"a":' * 2000),
    ("application/connect+json", struct.pack(">BI", 0, 2) + b"[]"),
    ("multipart/form-data", b"x"),
    ("multipart/form-data; boundary=x", b"--x\r\nno end"),
]
"""Types and bodies that no route takes."""

E2B_ROUTES = [
    ("POST", "/v2/sandboxes"),
    ("GET", "/v2/sandboxes?limit=x"),
    ("POST", "/execute"),
    ("POST", "/contexts"),
    ("POST", "/contexts/x/restart"),
    ("DELETE", "/contexts/x"),
    ("GET", "/files?path=%00"),
    ("POST", "/files?path=../../etc/passwd"),
    ("POST", "/files?path=" + "a" * 5000),
    *(
        ("POST", f"/filesystem.Filesystem/{verb}")
        for verb in ("Stat", "ListDir", "MakeDir", "Move", "Remove", "WatchDir", "CreateWatcher", "GetWatcherEvents")
    ),
    *(
        ("POST", f"/process.Process/{verb}")
        for verb in ("Start", "Connect", "SendInput", "StreamInput", "CloseStdin", "SendSignal", "Update")
    ),
]
QUERIES = ["", "path=%00", "path=../../etc/passwd&source=%00&destination=x"]
SANDBOX_ROUTES = ["", "/timeout", "/fork", "/snapshots", "/connect", "/nothing"]


@pytest.fixture
def e2b(shared_server: Server) -> Iterator[tuple[httpx.Client, str]]:
    headers = {"X-API-Key": shared_server.token}
    with httpx.Client(base_url=shared_server.url, headers=headers, timeout=30) as client:
        made = client.post("/v2/sandboxes", json={"templateID": "base"}).json()
        client.headers["E2b-Sandbox-Id"] = made["sandboxID"]
        yield client, made["sandboxID"]
        client.delete(f"/sandboxes/{made['sandboxID']}")


def is_refusal_of_e2b(answer: httpx.Response, path: str) -> bool:
    """Return whether the answer is an error in the form that this route has, or no error at all."""
    assert answer.status_code < 500 or answer.status_code == 502, (path, answer.text)
    assert "problem+json" not in answer.headers.get("content-type", "")
    if answer.status_code < 300:
        return True
    if path.startswith(("/execute", "/contexts")):
        return answer.headers["content-type"].startswith("text/plain")
    return "message" in answer.json() and "code" in answer.json()


def test_e2b_refuses_bad_input_in_its_own_form(e2b: tuple[httpx.Client, str]) -> None:
    client, sandbox_id = e2b
    routes = [*E2B_ROUTES, *(("POST", f"/sandboxes/{sandbox_id}{each}") for each in SANDBOX_ROUTES)]
    for method, path in routes:
        for kind, body in BODIES:
            answer = client.request(method, path, content=body, headers={"Content-Type": kind})
            assert is_refusal_of_e2b(answer, path), (path, body, answer.text)
    assert '"text":"2"' in client.post("/execute", json={"code": "1 + 1"}).text


def test_daytona_refuses_bad_input_in_its_own_form(shared_server: Server) -> None:
    client = shared_server.client
    made = client.post("/api/sandbox", json={}).json()
    toolbox = f"/toolbox/{made['id']}"
    routes = [(method, toolbox + path.replace("{shell}", "x").replace("{command}", "y")) for method, path, _ in ROUTES]
    routes += [("POST", "/api/sandbox"), ("PUT", f"/api/sandbox/{made['id']}/labels"), ("GET", "/api/sandbox?limit=x")]
    for method, path in routes:
        for number, (kind, body) in enumerate(BODIES):
            query = QUERIES[number % len(QUERIES)]
            answer = client.request(method, f"{path}?{query}", content=body, headers={"Content-Type": kind})
            assert answer.status_code < 500, (path, body, answer.text)
            if answer.status_code >= 300:
                assert answer.json()["statusCode"] == answer.status_code, (path, answer.text)
    client.delete(f"/api/sandbox/{made['id']}")
