"""Debug mode of the SDK: fixed ports of the loopback interface, and no key."""

from __future__ import annotations

import socket
from pathlib import Path

import httpx
import pytest
from e2b_code_interpreter import Sandbox
from serving import running

pytestmark = pytest.mark.req("compat.sandboxes")

PORTS = (49999, 49983)


def is_free(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.skipif(not all(map(is_free, PORTS)), reason="another program has the ports of the debug mode")
def test_the_debug_mode_runs_code_files_and_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("E2B_API_KEY", "E2B_API_URL", "E2B_SANDBOX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("E2B_DEBUG", "true")
    with running(tmp_path / "home", "--e2b-debug"):
        sandbox = Sandbox.create()
        assert sandbox.run_code("x = 1; x").text == "1"
        sandbox.files.write("f", "seen")
        assert sandbox.commands.run("cat f").stdout == "seen"
        context = sandbox.create_code_context()
        assert sandbox.run_code("open('f').read()", context=context).text == "seen"
        with httpx.Client(base_url=f"http://localhost:{PORTS[0]}") as client:
            assert client.get("/v1/sessions").status_code == 404
            assert client.get("/sandboxes").status_code == 404
            assert client.get("/contexts", headers={"Host": "evil.example"}).status_code == 421


def test_the_ports_are_closed_unless_asked_for(server: object) -> None:
    assert all(map(is_free, PORTS))
