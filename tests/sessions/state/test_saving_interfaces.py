"""Saving and loading over HTTP, the client, the command line and MCP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingle import Client, errors
from ingle.mcp.handlers import Tools
from ingle.service import Service
from support.server import PATIENCE, Server, problem

pytestmark = [pytest.mark.req("state.save"), pytest.mark.req("state.load")]


@pytest.fixture
def in_home(home: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INGLE_HOME", str(home))
    for name in ("INGLE_URL", "INGLE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return home


def ingle(*args: str) -> tuple[int, str, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", *args], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


def test_http_saves_lists_loads_and_deletes(server: Server) -> None:
    server.make_session()
    server.execute("x = [1]\ny = (i for i in x); next(y)")
    answer = server.client.post("/v1/sessions/main/save", json={"name": "calc"})
    assert answer.status_code == 200
    saved: dict[str, Any] = answer.json()
    assert (saved["snapshot"], saved["variables"], [each["name"] for each in saved["skipped"]]) == ("calc", 1, ["y"])
    assert 0 < saved["paused"] < saved["execution_time"]
    (listed,) = server.client.get("/v1/snapshots").json()["snapshots"]
    assert (listed["name"], listed["variables"], listed["problem"]) == ("calc", [{"name": "x", "type": "list"}], None)
    problem(server.client.post("/v1/snapshots/calc/load", json={}), 409, "session_exists")
    answer = server.client.post("/v1/snapshots/calc/load", json={"session_id": "two"})
    assert (answer.status_code, answer.headers["location"]) == (201, "/v1/sessions/two")
    assert answer.json()["session"]["variables"] == ["x"]
    assert server.execute("x.append(2); x", "two")["result"]["text/plain"] == "[1, 2]"
    answer = server.client.post("/v1/snapshots/calc/load", json={"session_id": "whole", "rerun": True})
    told: dict[str, Any] = answer.json()
    assert (told["skipped"], told["notices"]) == ([], ["cell 1 was run again for y"])
    assert told["session"]["variables"] == ["x", "y"]
    assert server.client.delete("/v1/snapshots/calc").status_code == 204
    problem(server.client.post("/v1/snapshots/calc/load", json={}), 404, "snapshot_not_found")
    problem(server.client.delete("/v1/snapshots/calc"), 404, "snapshot_not_found")
    problem(server.client.post("/v1/sessions/main/save", json={"name": "../x"}), 422, "invalid_request")


def test_a_file_goes_from_one_server_to_another_and_is_loaded_if_trusted(
    start: Callable[..., Server], apart: Path
) -> None:
    one = start()
    one.make_session()
    one.execute("x = 'taken along'")
    one.client.post("/v1/sessions/main/save", json={"name": "calc"})
    file = one.client.get("/v1/snapshots/calc/file")
    assert file.headers["content-type"] == "application/octet-stream"
    other = Server(apart / "other")
    try:
        kept = other.client.put("/v1/snapshots/mine/file", content=file.content)
        assert (kept.status_code, kept.json()["name"], kept.json()["size"] > 0) == (201, "mine", True)
        assert "was not written by this ingle" in other.client.get("/v1/snapshots").json()["snapshots"][0]["problem"]
        problem(other.client.post("/v1/snapshots/mine/load", json={}), 403, "snapshot_untrusted")
        assert other.client.post("/v1/snapshots/mine/load", json={"trust": True}).status_code == 201
        assert other.execute("x")["result"]["text/plain"] == "'taken along'"
        for bad in (b"", b"PK\3\4", file.content[:-1], file.content[:1000]):
            problem(other.client.put("/v1/snapshots/bad/file", content=bad), 422, "snapshot_damaged")
        assert [each["name"] for each in other.client.get("/v1/snapshots").json()["snapshots"]] == ["mine"]
        # Taken in where it comes from, it is known again.
        assert one.client.put("/v1/snapshots/again/file", content=file.content).status_code == 201
        assert one.client.post("/v1/snapshots/again/load", json={"session_id": "again"}).status_code == 201
    finally:
        other.stop()


def test_the_client_saves_and_loads(in_home: Path, server: Server) -> None:
    with Client() as client:
        with client.session("main") as session:
            session.run("def double(n): return 2 * n")
            session.run("g = (n for n in 'ab'); next(g)")
            saved = session.save("calc")
            assert (saved.variables, [each.made_by for each in saved.skipped]) == (1, ["<cell 2>"])
        assert [each.name for each in client.snapshots()] == ["calc"]
        with client.load("calc", "second", keep=False) as second:
            assert second.run("double(21)").text == "42"
            assert second.restored is not None
            assert second.restored.variables == 1
        with client.load("calc", "whole", rerun=True, keep=False) as whole:
            assert whole.run("double(n) if (n := next(g)) else 0").text == "'bb'"
        assert client.sessions() == []
        client.delete_snapshot("calc")
        with pytest.raises(errors.SnapshotNotFound):
            client.load("calc")


def test_the_command_line_saves_and_loads(in_home: Path, server: Server, tmp_path: Path) -> None:
    server.make_session()
    server.execute("x = 5\ng = (i for i in 'ab'); next(g)")
    code, out, _ = ingle("save", "main", "calc", "--to", str(tmp_path / "calc.ingle"))
    assert code == 0
    assert re.fullmatch(
        r"saved 1 variable of main as calc: .* kB\n"
        r"  without g \(generator\): a generator that has started: its position in the code cannot be saved "
        r"\(made by cell 1\)\n",
        out,
    )
    assert [name for name in os.listdir(tmp_path) if name != "home"] == ["calc.ingle"]
    code, out, _ = ingle("load")
    assert (code, out.split()[0], out.split()[-4:]) == (0, "calc", ["1", "variable", "of", "main"])
    code, out, err = ingle("load", "calc")
    assert (code, "exists already" in err) == (2, True)
    code, out, _ = ingle("load", "calc", "-s", "two")
    assert (code, out.splitlines()[0]) == (0, "session two is ready with 1 variable of calc")
    assert out.splitlines()[-1] == "  g: made by cell 1; load it with rerun to run it again"
    code, out, _ = ingle("load", "calc", "-s", "whole", "--rerun")
    assert (code, out) == (
        0,
        "session whole is ready with 2 variables of calc\n  cell 1 was run again for g\n",
    )
    assert server.execute("x", "two")["result"]["text/plain"] == "5"
    code, out, _ = ingle("load", "again", "--from", str(tmp_path / "calc.ingle"), "-s", "three", "--json")
    assert (code, json.loads(out)["session"]["session_id"]) == (0, "three")
    assert ingle("load", "calc", "--delete")[:2] == (0, "calc is deleted\n")
    assert ingle("load", "calc")[0] == 2


async def ignore(seconds: float, line: str) -> None:
    """Progress that nobody looks at."""


async def test_a_model_saves_below_the_start_folder_and_loads_from_there(service: Service, tmp_path: Path) -> None:
    start = tmp_path / "project"
    start.mkdir()
    tools = Tools(service, cwd=str(start))

    async def call(tool: str, **given: Any) -> str:
        answer = await tools.call(tool, given, ignore)
        return "\n".join(each.text for each in answer.parts if hasattr(each, "text"))

    await call("python_session", code="total = 40\ndef add(n):\n    global total\n    total += n")
    await call("python_session", code="g = (i for i in 'ab'); next(g);")
    told = await call("save_repl_session", filepath="private/sessions/calc.pkl", session_id="main")
    assert re.fullmatch(
        r"session main is saved as private/sessions/calc.pkl.ingle: 2 variables, \d.* kB; "
        r"the session was blocked for \d+ ms\.\n"
        r"not saved: g \(generator\): a generator that has started: its position in the code cannot be saved "
        r"\(made by cell 2\)\n"
        r"load_repl_session\(filepath='private/sessions/calc.pkl.ingle'\) restores it\.",
        told,
    ), told
    assert (start / "private" / "sessions" / "calc.pkl.ingle").is_file()
    taken = await call("load_repl_session", filepath="private/sessions/calc.pkl", session_id="main")
    assert taken.startswith("a session 'main' exists already. ")
    # Without a name, the call that a save recommends works while `main` lives.
    told = await call("load_repl_session", filepath="private/sessions/calc.pkl")
    assert told.startswith("session calc.pkl is ready with 2 variables")
    await call("destroy_repl_session", session_id="main")
    told = await call("load_repl_session", filepath="private/sessions/calc.pkl", session_id="main")
    assert told.startswith("session main is ready with 2 variables of private/sessions/calc.pkl.ingle: Python 3.")
    assert f" in {start}." in told
    assert told.endswith("g: made by cell 2; load it with rerun to run it again")
    told = await call("load_repl_session", filepath="private/sessions/calc.pkl", session_id="whole", rerun=True)
    assert told.endswith("\ncell 2 was run again for g")
    assert "42" in await call("python_session", code="add(2); total")
    assert "is outside of" in await call("save_repl_session", filepath="/nowhere/calc.pkl")
    assert "relative to that folder" in await call("save_repl_session", filepath="../calc.pkl")
    assert "no snapshot 'other'" in await call("load_repl_session", filepath="other", session_id="new")
