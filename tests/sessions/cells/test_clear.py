"""Clearing a session: the namespace is as at the beginning, and everything else is still there."""

import asyncio

import pytest

from ingle import Client, errors
from ingle.events import StateChanged
from ingle.mcp.handlers import Tools
from ingle.service import Service
from ingle.sessions.process import calls
from support.cells import value
from support.internals import session_of
from support.server import Server, problem
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.clear")]

NAMES = "sorted(k for k in globals() if k != '__builtins__')"


async def test_the_namespace_is_the_initial_one_and_the_session_goes_on(service: Service) -> None:
    await service.create_session("s")
    fresh = await value(service, "s", NAMES)
    pid = await value(service, "s", "import os; os.getpid()")
    await service.execute("s", "x = 5\ndef f(): return x\nx")
    await service.execute("s", "1 / 0")
    info = await service.clear_session("s")
    assert (info.state, info.execution_count, info.variables, info.notices) == ("idle", 4, [], [])
    assert await value(service, "s", NAMES) == fresh
    assert await value(service, "s", "__import__('os').getpid()") == pid
    gone = await service.execute("s", "x")
    assert (gone.cell, gone.error and gone.error.name) == (7, "NameError")
    assert (await service.variables("s")).variables == []


async def test_the_code_of_earlier_cells_is_forgotten_and_their_output_kept(service: Service) -> None:
    await service.create_session("s")
    await service.execute("s", "secret = 'in the code'; print('printed')")
    await service.clear_session("s")
    await service.execute("s", "1 + 1")
    cells = await service.cells("s")
    assert [(each.cell, each.code, each.status) for each in cells] == [(1, "", "ok"), (2, "1 + 1", "ok")]
    assert (await service.wait("s", 1)).stdout == "printed\n"
    codes = []
    async for event in service.events("s"):
        if isinstance(event, StateChanged) and event.state == "running":
            codes.append(event.code)
            if event.cell == 2:
                break
    assert codes == [None, "1 + 1"]


async def test_what_only_the_session_remembered_is_gone(service: Service) -> None:
    await service.create_session("s")
    await service.execute("s", "from __future__ import annotations")
    await service.execute("s", "def f(x: int): raise ValueError('kept')\n'last value'")
    await service.execute("s", "f(1)")
    await service.clear_session("s")
    assert await value(service, "s", "import sys, builtins; hasattr(builtins, '_'), hasattr(sys, 'last_value')") == (
        "(False, False)"
    )
    assert await value(service, "s", "import linecache; [n for n in linecache.cache if n.startswith('<cell')]") == (
        "['<cell 5>']"
    )
    assert await value(service, "s", "def g(x: int): pass\ng.__annotations__['x'] is int") == "True"


async def test_memory_is_given_back_and_finalizers_have_run(service: Service) -> None:
    await service.create_session("s")
    await service.execute(
        "s",
        "import sys\nclass Loud:\n    def __del__(self): sys.finalized = sys.__dict__.get('finalized', 0) + 1\n"
        "a = Loud(); b = Loud(); b.me = b",
    )
    await service.clear_session("s")
    assert await value(service, "s", "import sys; sys.finalized") == "2"


async def test_the_library_is_loaded_again_if_the_session_had_it(service: Service) -> None:
    await service.add_to_stdlib("log = []\ndef helper(): return log")
    await service.create_session("s")
    await service.create_session("bare", include_stdlib=False)
    await service.add_to_stdlib("def later(): pass")
    await service.execute("s", "log.append(1); helper = None")
    for name in ("s", "bare"):
        await service.clear_session(name)
    assert await value(service, "s", "helper(), 'later' in globals()") == "([], False)"
    assert (await service.get_session("s")).variables == ["log"]
    assert (await service.execute("bare", "helper")).error is not None


async def test_tasks_of_the_loop_end_and_the_next_await_has_a_new_one(service: Service) -> None:
    await service.create_session("s")
    await service.execute(
        "s",
        "import asyncio, sys\n"
        "async def work():\n"
        "    try:\n        await asyncio.sleep(600)\n"
        "    except asyncio.CancelledError:\n        sys.stopped = True\n        raise\n"
        "task = asyncio.create_task(work())\nawait asyncio.sleep(0)",
    )
    await service.clear_session("s")
    assert await value(service, "s", "import sys, asyncio; sys.stopped") == "True"
    assert await value(service, "s", "await asyncio.sleep(0, 'again')") == "'again'"


async def test_while_a_cell_runs_it_is_busy_and_nothing_is_cleared(service: Service) -> None:
    await service.create_session("s")
    await service.execute("s", "x = 5")
    cell = await service.begin("s", "input()")
    await service.wait("s", cell)
    with pytest.raises(errors.Busy):
        await service.clear_session("s")
    await service.input("s", "go")
    assert await value(service, "s", "x") == "5"


async def test_a_cell_that_comes_while_it_clears_runs_after_that(service: Service) -> None:
    await service.create_session("s")
    await service.execute(
        "s", "import time\nclass Slow:\n    def __del__(self, sleep=time.sleep): sleep(0.3)\ns = Slow(); x = 1"
    )
    clearing = asyncio.create_task(service.clear_session("s"))
    session = session_of(service, "s")
    assert await until(lambda: session.calls._reply)
    after = await service.execute("s", "'x' in globals()")
    assert after.result == {"text/plain": "False"}
    assert clearing.done()
    assert (await clearing).state


async def test_what_does_not_let_go_is_stopped_and_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "NAMESPACE_SECONDS", 0.2)
    await service.create_session("s")
    await service.execute(
        "s",
        "import asyncio\nasync def stubborn():\n    while True:\n        try:\n            await asyncio.sleep(600)\n"
        "        except asyncio.CancelledError: pass\n"
        "task = asyncio.create_task(stubborn())\nawait asyncio.sleep(0)\nx=1",
    )
    info = await service.clear_session("s")
    assert info.notices == ["tasks of the event loop: it took too long and was stopped"]
    assert await value(service, "s", "'x' in globals()") == "False"
    assert await value(service, "s", "import asyncio; await asyncio.sleep(0, 3)") == "3"


async def test_a_worker_that_dies_of_it_leaves_a_cleared_session(service: Service) -> None:
    await service.create_session("s")
    await service.execute("s", "import os\nclass Bad:\n    def __del__(self, end=os._exit): end(3)\nb = Bad()")
    assert (await service.clear_session("s")).variables == []
    assert await value(service, "s", "'b' in globals()") == "False"


async def test_which_session_is_cleared_must_exist(service: Service) -> None:
    with pytest.raises(errors.SessionNotFound):
        await service.clear_session("none")


def test_over_http_and_with_the_client(server: Server) -> None:
    server.make_session()
    server.execute("x = 1")
    with server.make_client() as http:
        cleared = http.post("/v1/sessions/main/clear").json()
        assert (cleared["state"], cleared["execution_count"], cleared["variables"]) == ("idle", 1, [])
        problem(http.post("/v1/sessions/none/clear"), 404, "session_not_found")
    with Client(server.url, server.token) as client, client.session("main") as session:
        session.run("y = 2")
        assert session.clear().variable_count == 0
        assert session.run("'y' in globals()").text == "False"


async def test_a_model_clears_with_a_tool(service: Service) -> None:
    tools = Tools(service)

    async def quiet(seconds: float, line: str) -> None: ...

    await tools.call("python_session", {"code": "x = 1"}, quiet)
    (said,) = (await tools.call("clear_repl_session", {}, quiet)).parts
    assert said.text == "session main is cleared; its next cell is 2."  # type: ignore[union-attr]
    (said,) = (await tools.call("python_session", {"code": "x"}, quiet)).parts
    assert "NameError" in said.text  # type: ignore[union-attr]
