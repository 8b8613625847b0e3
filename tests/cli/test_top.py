"""`ingle top`: the sessions that need a person first, live in a terminal and once elsewhere."""

import json
import os
import subprocess
import sys

import pytest

from support.server import PATIENCE, Server
from support.tmux import MISSING, Tmux, has_tmux


def ingle(server: Server, *args: str) -> str:
    env = {**os.environ, "INGLE_HOME": str(server.home)}
    command = [sys.executable, "-m", "ingle", "top", *args]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout


def test_sessions_that_wait_for_a_person_come_first(server: Server) -> None:
    for name in ("idle", "busy", "asks"):
        server.make_session(name, limits={"memory": 1024**3})
    server.execute("import time; time.sleep(600)", "busy", wait=0)
    assert server.execute("input()", "asks")["status"] == "waiting_for_input"
    head, blank, title, *rows = ingle(server).splitlines()
    assert head.startswith("3 sessions, 1 of them waiting for you; machine: ")
    assert (blank, title.split()) == ("", ["SESSION", "STATE", "CPU", "MEMORY", "LIMIT", "CELLS", "USED", "FOLDER"])
    assert [row.split("  ")[0] for row in rows] == ["asks", "busy", "idle"]
    assert "waits for you" in rows[0]
    assert " 1024 MiB " in rows[0]
    told = json.loads(ingle(server, "--json"))["sessions"]
    assert [(each["session_id"], each["state"]) for each in told] == [
        ("asks", "waiting_for_input"),
        ("busy", "running"),
        ("idle", "idle"),
    ]


@pytest.mark.skipif(not has_tmux(), reason=MISSING)
def test_the_table_follows_the_sessions_until_q(server: Server) -> None:
    server.make_session("first")
    command = (sys.executable, "-m", "ingle", "top", "--interval", "0.5")
    with Tmux(*command, env={"INGLE_HOME": str(server.home)}) as terminal:
        terminal.wait_for("first")
        server.make_session("second")
        terminal.wait_for("second")
        server.execute("while True: pass", "second", wait=0)
        terminal.wait_for("running")
        server.client.delete("/v1/sessions/second")
        terminal.wait_for("1 session;")
        terminal.keys("q")
        terminal.wait_ended()
