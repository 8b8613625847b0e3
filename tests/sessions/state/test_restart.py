"""What becomes of sessions when `ingle serve` ends and is started again, from any folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.mcp_host import Host
from support.server import PATIENCE, Server
from support.waiting import wait_until

pytestmark = pytest.mark.req("state.restart")


@pytest.fixture
def in_home(home: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGLE_HOME", str(home))
    for name in ("INGLE_URL", "INGLE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return home


def ingle(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ingle", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def saved(server: Server, name: str) -> bool:
    info = server.client.get(f"/v1/sessions/{name}").json()
    return bool(info["saved_cell"] == info["execution_count"])


def call_mcp(server: Server, code: str) -> str:
    """Run code in `main` by MCP over HTTP, and return the text of the answer."""
    call = {"name": "python_session", "arguments": {"code": code}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
    answer = server.client.post("/mcp", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    text = answer.text
    if not text.startswith("{"):
        text = next(line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {"))
    said: dict[str, Any] = json.loads(text)
    return "\n".join(part.get("text", "") for part in said["result"]["content"])


def test_durable_sessions_of_serve_come_back_wherever_it_is_started(
    in_home: Path, tmp_path: Path, start: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    assert ingle("run", "-s", "kept", "--durable", "x = 42").returncode == 0
    assert wait_until(lambda: saved(server, "kept"), PATIENCE)
    assert "40" in call_mcp(server, "y = 40\ny")
    assert wait_until(lambda: saved(server, "main"), PATIENCE)
    assert ingle("run", "-s", "kept", "--durable", "1").stderr == ""
    server.make_session("lost")
    refused = ingle("run", "-s", "lost", "--durable", "1")
    assert "session lost exists and is not durable" in refused.stderr
    assert server.stop() == 0

    listed = ingle("ps")
    lines = [line.split() for line in listed.stdout.splitlines()[1:]]
    assert [(line[0], line[1], line[2], line[3]) for line in lines] == [
        ("serve", "-", "kept", "hibernated,"),
        ("serve", "-", "main", "hibernated,"),
    ], listed.stdout
    for verb in ("stop", "checkpoint", "save"):
        gone = ingle(verb, "kept", *(["monday"] if verb == "save" else []))
        told = "ingle: session 'kept' is saved on disk, and its server has ended; `ingle serve` brings it back\n"
        assert (gone.returncode, gone.stderr) == (2, told)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    server = start()
    assert json.loads(ingle("ps", "--json").stdout)["saved"] == [], "a server has them"
    assert server.execute("x", "kept")["result"]["text/plain"] == "42"
    assert "40" in call_mcp(server, "y")


def keep(server: Server, name: str, **wanted: str) -> None:
    """Make a durable session with a variable, and wait until it is saved."""
    server.client.post("/v1/sessions", json={"session_id": name, "durable": True, **wanted}).raise_for_status()
    server.execute("x = 42", name)
    assert wait_until(lambda: saved(server, name), PATIENCE)


@pytest.mark.level("none", "at the others a folder around the test's own is granted")
@pytest.mark.skipif(os.geteuid() != 0, reason="not every user can have a sandbox")
def test_a_session_comes_back_without_a_folder_that_is_not_granted_any_more(
    in_home: Path, tmp_path: Path, start: Callable[..., Server]
) -> None:
    folder = tmp_path / "project"
    folder.mkdir(mode=0o777)
    keep(server := start("--isolation", "sandbox", "--folder", str(folder)), "kept", cwd=str(folder))
    assert server.stop() == 0
    server = start("--isolation", "sandbox")
    result = server.execute("import os\nx", "kept")
    assert result["result"]["text/plain"] == "42"
    (told,) = [each for each in result["notices"] if "does not grant" in each]
    assert told == (
        f"this server does not grant {folder}, where this session was: it is in its own folder now; "
        f"`ingle grant {folder}` grants it"
    )
    assert server.stop() == 0
    server = start("--isolation", "sandbox", "--folder", str(folder))
    assert server.execute("os.getcwd()", "kept")["result"]["text/plain"] == repr(str(folder)), "it has it again"


def test_a_session_that_may_not_come_back_is_told_before_a_namesake_is_made(
    in_home: Path, start: Callable[..., Server]
) -> None:
    keep(server := start("--isolation", "none"), "open", isolation="none")
    assert server.stop() == 0
    server = start("--isolation", "limits")
    answer = server.client.post("/v1/sessions/open/execute", json={"code": "x"})
    assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")
    assert (
        "session 'open' is saved, and does not come back on this server: isolation 'none' is" in answer.json()["detail"]
    )
    assert [each["session_id"] for each in json.loads(ingle("ps", "--json").stdout)["saved"]] == ["open"]
    made = server.client.post("/v1/sessions", json={"session_id": "open"}).json()
    assert len(made["notices"]) == 1
    assert "a saved session 'open' exists and did not come back" in made["notices"][0]
    assert "this one is new and empty" in made["notices"][0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--durable"], "session 'work' is durable: it comes back with the next server, as it was last saved"),
        ([], "session 'work' was not durable, so it is gone"),
    ],
    ids=["durable", "not"],
)
def test_a_command_whose_server_dies_says_what_becomes_of_the_session(
    in_home: Path, start: Callable[..., Server], options: list[str], told: str
) -> None:
    server = start()
    command = [sys.executable, "-m", "ingle", "run", "-s", "work", *options, "-c"]
    code = "import time\nprint('on', flush=True)\ntime.sleep(3600)"
    with subprocess.Popen([*command, code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "on\n"
        server.process.kill()
        _, said = running.communicate(timeout=PATIENCE)
    assert (running.returncode, told in said) == (2, True), said
    start()  # clears away what the other left


def test_a_name_that_ended_with_the_server_is_told(in_home: Path, start: Callable[..., Server]) -> None:
    server = start()
    for name in ("asked", "made", "ended"):
        server.make_session(name)
    server.client.delete("/v1/sessions/ended")
    server.process.kill()
    server.stop()
    server = start()
    answer = server.client.post("/v1/sessions/asked/execute", json={"code": "x"})
    assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")
    assert "it was not durable, so its variables are gone" in answer.json()["detail"]
    assert "gone" not in server.client.post("/v1/sessions/ended/execute", json={"code": "x"}).json()["detail"]
    server.make_session("made")
    assert server.execute("1", "made")["notices"] == [
        "an earlier session 'made' ended with its server; it was not durable, so its variables are gone"
    ]
    assert server.execute("1", "made")["notices"] == []
    assert ingle("save", "made", "kept").returncode == 0
    server.stop()
    server = start()
    assert ingle("load", "kept", "-s", "made").returncode == 0
    assert server.execute("1", "made")["notices"] == [], "it has the state that was asked for"
    assert "gone" in server.client.post("/v1/sessions/asked/execute", json={"code": "x"}).json()["detail"], "still"


def test_a_namesake_of_another_server_is_told(in_home: Path, tmp_path: Path, start: Callable[..., Server]) -> None:
    with Host(in_home, cwd=tmp_path) as host:
        host.initialize()
        host.call("create_repl_session", session_id="work", durable=True)
        host.call("python_session", session_id="work", code="x = 1")
    server = start()
    server.make_session("work")
    (notice,) = server.execute("1", "work")["notices"]
    assert f"another session 'work' exists, of `ingle mcp` in {tmp_path}" in notice
    assert "this one is new and empty" in notice
    server.make_session("other")
    assert server.execute("1", "other")["notices"] == []
