"""Forks, checkpoints and rollback over HTTP, the clients, the command line and MCP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from ingle import AsyncClient, Client, errors
from ingle.mcp.handlers import Tools
from ingle.service import Service
from support.processes import marked_processes
from support.server import PATIENCE, Server, problem
from support.waiting import wait_until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.fork", "state.rollback")]

SESSION = "/v1/sessions/main"
LEVEL = os.environ["INGLE_ISOLATION"]
MOVED = "its files are at another path, and paths of the original lead to its files"


def test_over_http(server: Server) -> None:
    server.make_session()
    server.execute("x = 1")
    answer = server.client.post(f"{SESSION}/fork", json={"session_id": "copy"})
    (made,) = answer.json()["sessions"]
    assert (answer.status_code, made["session_id"], made["execution_count"]) == (201, "copy", 1)
    many = server.client.post(f"{SESSION}/fork", json={"session_id": "more", "count": 3, "reseed": True}).json()
    assert [each["session_id"] for each in many["sessions"]] == ["more-1", "more-2", "more-3"]
    kept = server.client.post(f"{SESSION}/checkpoints", json={"name": "base"})
    assert (kept.status_code, kept.json()["name"], kept.json()["cell"]) == (201, "base", 1)
    server.execute("x = 2")
    (listed,) = server.client.get(f"{SESSION}/checkpoints").json()["checkpoints"]
    assert (listed["name"], listed["auto"], listed["memory"] > 0) == ("base", False, True)
    back = server.client.post(f"{SESSION}/rollback", json={"name": "base"}).json()
    assert back["notice"].startswith("rolled back to checkpoint 'base' of cell 1, ")
    assert (back["checkpoint"]["name"], back["session"]["execution_count"]) == ("base", 2)
    assert [server.execute("print(x)", name)["stdout"] for name in ("main", "copy", "more-2")] == ["1\n"] * 3
    assert server.client.post(f"{SESSION}/rollback").status_code == 200
    server.client.post(f"{SESSION}/checkpoints", json={"name": "spare"})
    assert server.client.delete(f"{SESSION}/checkpoints/spare").status_code == 204
    told = problem(server.client.delete(f"{SESSION}/checkpoints/spare"), 404, "checkpoint_not_found")
    assert "it was dropped" in told["detail"]
    problem(server.client.post(f"{SESSION}/rollback", json={"name": "no"}), 404, "checkpoint_not_found")
    problem(server.client.post(f"{SESSION}/fork", json={"session_id": "copy"}), 409, "session_exists")
    problem(server.client.post(f"{SESSION}/fork", json={"count": 0}), 422, "invalid_request")
    problem(server.client.post(f"{SESSION}/fork", json={"sesion_id": "x"}), 422, "invalid_request")
    problem(server.client.post(f"{SESSION}/checkpoints", json={"name": "../x"}), 422, "invalid_name")
    problem(server.client.get("/v1/sessions/copy/cells/1"), 404, "cell_not_found")
    server.execute("import time; time.sleep(600)", wait=0)
    for verb, body in (("fork", {}), ("checkpoints", {"name": "a"}), ("rollback", {"name": "base"})):
        told = problem(server.client.post(f"{SESSION}/{verb}", json=body), 409, "busy")
        assert "wait, or interrupt" in told["detail"]
    made = server.make_session("auto", checkpoints="auto")
    server.execute("y = 1", "auto")
    assert "before cell 1" in server.client.post("/v1/sessions/auto/rollback").json()["notice"]


@pytest.mark.req("files.state")
def test_a_fork_of_an_earlier_cell(server: Server) -> None:
    """Its variables and files are those right after that cell, as a checkpoint holds them."""
    with Client(server.url, server.token) as client:
        session = client.session("main", checkpoints="auto", create=True)
        write = "x = {0}; log = globals().get('log') or open('log', 'a'); _ = log.write('{0}'); log.flush()"
        for cell in (1, 2, 3):
            session.run(write.format(cell))
            if cell == 1:
                session.checkpoint("first")
        look = "print(x, open('log').read())"
        for cell, seen in ((1, "1 1"), (2, "2 12"), (3, "3 123")):
            with session.fork(at=cell) as fork:
                assert fork.run(look).stdout.split("\n")[0] == seen
                assert fork.run("_ = log.write('!'); log.flush(); " + look).stdout.split("\n")[0] == seen + "!"
        assert session.run(look).stdout == "3 123\n"
        with pytest.raises(errors.CellNotKept, match="after cell 7; it has the state after cells 1, 3, 4"):
            session.fork(at=7)
        # After a rollback the state is that of an earlier cell.
        session.rollback("first")
        with session.fork(at=1) as fork:
            assert fork.run(look).stdout == "1 1\n"
        with pytest.raises(errors.CellNotKept):
            session.fork(at=4)
        session.run("x = 5")
        session.checkpoint("later")
        session.rollback("first")
        session.checkpoint("again")
        session.drop_checkpoint("first")
        with session.fork(at=1) as fork:
            assert fork.run(look).stdout == "1 1\n"
        command = [sys.executable, "-m", "ingle", "fork", "main", "told", "--at", "5", "--url", server.url]
        environment = {**os.environ, "INGLE_TOKEN": server.token}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        assert client.session("told").run("print(x)").stdout == "5\n"
        command[-5:-2] = ["other", "--at", "2"]
        refused = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (refused.returncode, "no checkpoint of its state after cell 2" in refused.stderr) == (2, True)
    problem(server.client.post(f"{SESSION}/fork", json={"at": 2}), 404, "cell_not_kept")
    problem(server.client.post(f"{SESSION}/fork", json={"at": -1}), 422, "invalid_request")


@pytest.mark.req("exit.tree")
def test_forks_and_checkpoints_end_with_a_server_that_was_killed(server: Server, mark: str) -> None:
    server.make_session(checkpoints="auto")
    server.execute("import subprocess; p = subprocess.Popen(['setsid', 'sleep', '600'])")
    server.client.post(f"{SESSION}/fork", json={"session_id": "copy", "count": 5})
    server.client.post(f"{SESSION}/checkpoints", json={"name": "base"})
    server.execute("q = subprocess.Popen(['setsid', 'sleep', '600'])", "copy-3")
    assert len(marked_processes(mark)) > 12
    server.process.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not marked_processes(mark), 1.0), marked_processes(mark)
    server.process.wait(PATIENCE)
    for folder in ("sessions", "run"):
        for left in (server.home / folder).iterdir():
            subprocess.run(["rm", "-r", str(left)], check=True)


def test_the_client(server: Server) -> None:
    with Client(server.url, server.token) as client, client.session("main", checkpoints="auto") as session:
        session.run("x = [1]")
        with session.fork() as copy:
            copy.run("x.append(2)")
            assert (copy.made, copy.run("x").text, session.run("x").text) == (True, "[1, 2]", "[1]")
        with pytest.raises(errors.SessionNotFound):
            copy.info()
        forks = session.forks(2, "try", keep=True)
        assert [fork.name for fork in forks] == ["try-1", "try-2"]
        assert [fork.run("x").text for fork in forks] == ["[1]", "[1]"]
        with pytest.raises(errors.SessionExists):
            session.fork("try-1")
        assert session.checkpoint("base").name == "base"
        session.run("x = None")
        assert [each.name for each in session.checkpoints()] == ["base", ".auto"]
        assert session.rollback().notice.startswith("rolled back to the state before cell 3, ")
        assert session.run("x").text == "[1]"
        assert session.rollback("base").session.session_id == "main"
        session.checkpoint("spare")
        session.drop_checkpoint("spare")
        assert [each.name for each in session.checkpoints()] == ["base", ".auto"]
        with pytest.raises(errors.CheckpointNotFound, match=r"it has '\.auto', 'base'"):
            session.rollback("other")


async def test_the_client_of_an_event_loop(server: Server) -> None:
    async with AsyncClient(server.url, server.token) as client, client.session() as session:
        await session.run("x = 1")
        async with await session.fork(reseed=True) as copy:
            assert (await copy.run("x")).text == "1"


def ingle(server: Server, *args: str) -> tuple[int, str, str]:
    env = {**os.environ, "INGLE_HOME": str(server.home)}
    done = subprocess.run([sys.executable, "-m", "ingle", *args], capture_output=True, text=True, env=env, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_command_line(server: Server) -> None:
    server.make_session()
    server.execute(
        "x = 5\nimport threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='t').start()"
    )
    missing = "not copied: 1 thread of the original: t\n"
    moved = "" if LEVEL == "sandbox" else f"{MOVED}\n"
    assert ingle(server, "fork", "main", "copy") == (0, "copy\n", missing + moved)
    assert ingle(server, "fork", "main", "copy", "-n", "2") == (0, "copy-1\ncopy-2\n", (missing + moved) * 2)
    assert ingle(server, "run", "-s", "copy-2", "x") == (0, "5\n", f"ingle: {missing}" + (moved and f"ingle: {moved}"))
    code, out, _ = ingle(server, "fork", "main", "--json")
    assert (code, len(json.loads(out)["sessions"])) == (0, 1)
    code, out, error = ingle(server, "fork", "main", "copy")
    assert (code, out) == (2, "")
    assert "copy" in error


async def call(tools: Tools, tool: str, **given: Any) -> str:
    async def nothing(seconds: float, line: str) -> None: ...

    answer = await tools.call(tool, given, nothing)
    return "\n".join(part.text for part in answer.parts)  # type: ignore[union-attr]


async def test_over_mcp(service: Service) -> None:
    tools = Tools(service)
    await call(tools, "python_session", code="x = [1]")
    assert await call(tools, "fork_repl_session", new_session_id="try") == (
        "a copy of main as of cell 1: try. Use it with session_id; the next cell is 2."
        + ("" if LEVEL == "sandbox" else f"\n[note: {MOVED}]")
    )
    assert (await call(tools, "fork_repl_session", new_session_id="many", count=2)).startswith(
        "2 copies of main as of cell 1: many-1, many-2. Use them"
    )
    assert "[1, 2]" in await call(tools, "python_session", code="x.append(2); x", session_id="try")
    for name in ("try", "many-1", "many-2"):
        await call(tools, "destroy_repl_session", session_id=name)  # else its files would stay
    told = await call(tools, "rollback_repl_session")
    assert "has no checkpoint" in told
    assert "action='checkpoint'" in told
    assert await call(tools, "rollback_repl_session", action="checkpoint", checkpoint="base") == (
        'stored as \'base\': rollback_repl_session(session_id="main", checkpoint="base") restores this state.'
    )
    assert "needs a name" in await call(tools, "rollback_repl_session", action="checkpoint")
    await call(tools, "python_session", code="del x; open('new.txt', 'w').close()")
    assert (await call(tools, "rollback_repl_session", action="list")).startswith("base: after cell 1, 0.")
    told = await call(tools, "rollback_repl_session", checkpoint="base")
    assert told.startswith("session main: rolled back to checkpoint 'base' of cell 1, 0.")
    assert told.endswith(" s ago. Its next cell is 3.\n[files: deleted new.txt]")
    await call(tools, "rollback_repl_session", action="checkpoint", checkpoint="spare")
    told = await call(tools, "rollback_repl_session", action="drop", checkpoint="spare")
    assert told == "checkpoint spare of main is dropped."
    assert "spare" not in await call(tools, "rollback_repl_session", action="list")
    shown = await call(tools, "python_session", code="x")
    # The model has been told of the rollback.
    assert shown == "[1]"
    await call(tools, "create_repl_session", session_id="auto", checkpoints="auto")
    await call(tools, "python_session", code="import os; os._exit(1)", session_id="auto")
    assert "before cell 1" in await call(tools, "rollback_repl_session", session_id="auto")
