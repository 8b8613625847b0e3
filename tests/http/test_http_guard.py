"""Token, Host and Origin: asked of every request before any route is looked at."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingle import errors
from ingle.http.auth.credentials import Credentials
from ingle.http.auth.guard import Guard, check_bind
from ingle.http.auth.principals import Principals
from ingle.http.problems import ProblemMiddleware
from ingle.service import Service
from support.processes import marked_processes
from support.server import PATIENCE, Server, problem, raw_exchange
from support.service import make_settings

# The guard


def principals(token: str) -> Principals:
    return Principals(Service(make_settings(), None), token)  # type: ignore[arg-type]


GUARDED = [
    ("GET", "/v1/sessions"),
    ("POST", "/v1/sessions"),
    ("GET", "/v1/sessions/main"),
    ("DELETE", "/v1/sessions/main"),
    ("POST", "/v1/sessions/main/execute"),
    ("POST", "/v1/sessions/main/input"),
    ("POST", "/v1/sessions/main/interrupt"),
    ("GET", "/v1/sessions/main/cells"),
    ("GET", "/v1/sessions/main/cells/1"),
    ("GET", "/v1/sessions/main/cells/1/output"),
    ("GET", "/nowhere"),
    ("GET", "/healthz/"),
]


@pytest.mark.req("safe.token")
@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_every_route_needs_the_token(quiet_server: Server, method: str, path: str) -> None:
    token = quiet_server.token
    for authorization in (
        None,
        "",
        "Bearer",
        f"Basic {token}",
        token,
        f"Bearer {token}x",
        f"Bearer {token[:-1]}",
    ):
        headers = {} if authorization is None else {"Authorization": authorization}
        answer = httpx.request(method, quiet_server.url + path, headers=headers, timeout=PATIENCE)
        problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    in_url = httpx.request(method, f"{quiet_server.url}{path}?token={token}&access_token={token}", timeout=PATIENCE)
    problem(in_url, 401, "unauthorized")
    assert quiet_server.client.get("/v1/sessions/main").json()["execution_count"] == 0


def test_health_is_open(quiet_server: Server) -> None:
    from ingle import __version__

    level = os.environ["INGLE_ISOLATION"]
    held = {"isolation": level, "network": "allowlist" if level == "sandbox" else "full"}
    assert httpx.get(quiet_server.url + "/healthz").json() == {"status": "ok", "version": __version__, **held}


@pytest.mark.req("safe.token")
@pytest.mark.parametrize(("method", "path"), [*GUARDED, ("GET", "/healthz")])
def test_every_route_checks_host_and_origin(quiet_server: Server, method: str, path: str) -> None:
    request = quiet_server.client.request
    for host in (
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "127.0.0.1@evil.example",
        "localhost:1:2",
        "",
    ):
        problem(request(method, path, headers={"Host": host}), 421, "misdirected")
    for origin in ("null", "http://evil.example", "http://localhost.evil.example", "file://", "localhost", ""):
        problem(request(method, path, headers={"Origin": origin}), 403, "forbidden")


@pytest.mark.req("safe.token")
def test_a_request_with_no_host_two_hosts_or_two_tokens_is_refused(quiet_server: Server) -> None:
    bearer = f"Authorization: Bearer {quiet_server.token}\r\n"
    for headers, status in (
        (bearer, 421),
        (bearer + "Host: localhost\r\nHost: evil.example\r\n", 421),
        (bearer + "Host: localhost\r\nAuthorization: Bearer x\r\n", 401),
        (bearer + "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: null\r\n", 403),
        (bearer + "Host: localhost\r\n", 200),
    ):
        request = f"GET /v1/sessions HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"
        assert raw_exchange(quiet_server.port, request.encode()).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.req("safe.token")
def test_loopback_names_are_hosts_and_origins_of_ours(quiet_server: Server) -> None:
    for host in ("localhost", "LOCALHOST:99", "localhost.", "127.0.0.1", "127.1.2.3:8", "[::1]", "[::1]:8377"):
        answer = quiet_server.client.get("/v1/sessions", headers={"Host": host, "Origin": f"http://{host}"})
        assert answer.status_code == 200, host


@pytest.mark.req("safe.token")
def test_other_hosts_are_answered_when_they_are_named(start: Callable[..., Server]) -> None:
    server = start("--host", "0.0.0.0", "--allowed-hosts", "box.example,10.1.2.3")
    named = {"Host": "Box.example:80", "Origin": "https://10.1.2.3"}
    assert server.client.get("/v1/sessions", headers=named).status_code == 200
    problem(server.client.get("/v1/sessions", headers={"Host": "0.0.0.0"}), 421, "misdirected")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "box.example"])
def test_listening_to_other_machines_needs_a_named_host(host: str) -> None:
    with pytest.raises(errors.InvalidRequest, match="--allowed-hosts"):
        check_bind(host, [])
    check_bind(host, ["192.0.2.1", "box.example"])


@pytest.mark.req("safe.token")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example", "authorization": "Bearer secret"}, 421),
        ({"host": "localhost", "origin": "http://evil.example", "authorization": "Bearer secret"}, 403),
        ({"host": "localhost", "origin": "http://localhost"}, 401),
        ({"host": "localhost", "origin": "http://localhost", "authorization": "Bearer wrong"}, 401),
        ({"host": "localhost", "origin": "http://localhost", "authorization": "Bearer secret"}, None),
    ],
)
@pytest.mark.parametrize("extensions", [{}, {"websocket.http.response": {}}], ids=["plain", "with answer"])
async def test_a_websocket_passes_the_same_guard(
    headers: dict[str, str], status: int | None, extensions: dict[str, Any]
) -> None:
    reached, sent = [], []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is to be read")

    scope = {
        "type": "websocket",
        "path": "/v1/sessions/main/events",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "extensions": extensions,
    }
    await ProblemMiddleware(Guard(inner, Credentials(principals("secret"))))(scope, receive, send)
    if status is None:
        assert (reached, sent) == (["/v1/sessions/main/events"], [])
    elif extensions:
        assert (reached, sent[0]["type"], sent[0]["status"]) == ([], "websocket.http.response.start", status)
    else:
        assert (reached, [message["type"] for message in sent]) == ([], ["websocket.close"])


@pytest.mark.req("safe.token")
async def test_tokens_are_compared_in_constant_time_as_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib
    import hmac

    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    known = principals("secret")
    # Of one who is wrong only where the index of digests is right by chance can anything be compared at all.
    digest = hashlib.sha256(b"secret").digest()
    monkeypatch.setattr("ingle.http.auth.principals.INDEX_BYTES", 0)
    known._by_index = {b"": next(iter(known._by_index.values()))}
    found = [await known.find(given) for given in (b"s", b"secret", b"x" * 100_000)]
    assert [each is not None for each in found] == [False, True, False]
    assert [other for _, other in compared] == [digest] * 3
    assert {len(one) for one, _ in compared} == {32}


# The token


@pytest.mark.req("safe.token")
def test_the_token_is_made_once_for_its_owner_alone_and_shown_nowhere(start: Callable[..., Server], mark: str) -> None:
    server = start()
    file = server.home / "token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(server.home.stat().st_mode) == 0o700
    assert re.fullmatch(r"[\w-]{43}", server.token)
    second = start()
    assert second.token == server.token
    assert not list(server.home.glob("token.*"))

    server.make_session()
    seen = server.execute("import os; str(dict(os.environ))")["result"]["text/plain"]
    httpx.get(server.url + "/v1/sessions", headers={"Authorization": f"Bearer {server.token}x"})
    raw_exchange(server.port, f"GET /{server.token} no http\r\n\r\n".encode())
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid, state in marked_processes(mark) if state != "Z"]
    assert len(commands) >= 4
    server.stop()
    assert server.process.returncode == 0
    for shown in (seen, "".join(server.said), str(commands)):
        assert server.token not in shown
    assert str(file) in "".join(server.said)


@pytest.mark.req("safe.token")
def test_the_token_of_the_environment_is_used_and_kept_from_the_sessions(start: Callable[..., Server]) -> None:
    server = start(env={"INGLE_TOKEN": "a-token-of-my-own"})
    assert not (server.home / "token").exists()
    server.make_session()
    assert server.execute("import os; os.environ.get('INGLE_TOKEN')")["result"] is None
    assert "a-token-of-my-own" not in "".join(server.said)
    assert "INGLE_TOKEN" in "".join(server.said)


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [("secret\n", 0o644, "others can read"), ("", 0o600, "holds no token"), ("a b", 0o600, "holds no token")],
)
def test_a_token_that_is_no_secret_is_refused(tmp_path: Path, content: str, mode: int, words: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", "serve", "--port", "0"],
        env={**os.environ, "INGLE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith("ingle: ")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.fresh_service
def test_the_line_to_try_works_as_it_is_printed(server: Server) -> None:
    [line] = [line for line in server.said if line.strip().startswith("try")]
    command = ["sh", "-c", line.strip().removeprefix("try")]
    env = {**os.environ, "INGLE_HOME": str(server.home)}
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout == "42\n"
    assert [each["session_id"] for each in server.client.get("/v1/sessions").json()["sessions"]] == ["main"]
