"""Idle sessions: saved, their processes freed when there is need, and there again at the next call."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import SessionInfo
from ingle.mcp.handlers import Tools
from ingle.service import Service
from ingle.sessions import upkeep
from ingle.sessions.persistence import hibernation
from support.internals import session_of, worker_pid
from support.service import assert_empty, make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.hibernate")]

SOON = 0.15
"""After so many seconds a session of these tests is idle."""


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EXPIRE_INTERVAL_SECONDS", 0.02)


@pytest.fixture
def at_home(apart: Path, mark: str) -> Path:
    return apart / "home"


@asynccontextmanager
async def serving(home: Path, **settings: object) -> AsyncIterator[Service]:
    async with Service.local(make_settings(preload=[], pool=1, exit_grace=20.0, **settings), home, "serve") as service:  # type: ignore[arg-type]
        yield service


async def wait_for(service: Service, condition: Callable[[SessionInfo], object], name: str = "s") -> SessionInfo:
    found: list[SessionInfo] = []

    async def look() -> bool:
        info = await service.get_session(name)
        if condition(info):
            found.append(info)
        return bool(found)

    for _ in range(2000):
        if await look():
            return found[0]
        await asyncio.sleep(0.005)
    raise AssertionError(await service.get_session(name))


def hibernated(info: SessionInfo) -> bool:
    return info.state == "hibernated"


async def value(service: Service, code: str, name: str = "s") -> str:
    result = await service.execute(name, code)
    assert result.error is None, result.error.traceback
    assert result.result is not None
    return result.result["text/plain"]


def process_of(service: Service) -> str:
    """Return the pid of the worker, as the host counts."""
    return str(worker_pid(service, "s"))


def gone(pid: str) -> bool:
    return not os.path.exists(f"/proc/{pid}")


# --- freed at once -----------------------------------------------------------------------------------------


@pytest.mark.req("idle.expire")
async def test_an_idle_session_is_saved_and_its_process_freed_and_the_next_call_brings_it_back(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as service:
        await service.create_session("s", idle_timeout=SOON)
        await value(service, "import os; x = {'a': [1]}; y = x['a']; print('shown'); 1")
        pid = process_of(service)
        info = await wait_for(service, hibernated)
        assert await until(lambda: gone(pid))
        assert (info.memory, info.variables, info.execution_count, info.saved_cell) == (None, ["os", "x", "y"], 1, 1)
        (notice,) = info.notices
        assert notice.startswith("this session is as it was after cell 1, saved ")
        assert notice.endswith(" ago; the next call brings it back")
        back = await service.execute("s", "y is x['a'], y")
        assert back.result == {"text/plain": "(True, [1])"}
        assert process_of(service) != pid
        assert back.notices[0].startswith("this session is as it was after cell 1, saved ")
        # What it had shown is still there: the server is the same.
        assert (await service.wait("s", 1)).stdout == "shown\n"
        assert [each.cell for each in await service.cells("s")] == [1, 2]
        await service.end_session("s")
    assert_empty(at_home)


async def test_a_session_can_be_brought_back_again_and_again(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as service:
        await service.create_session("s", idle_timeout=SOON)
        await service.execute("s", "n = 0")
        for n in range(1, 4):
            await wait_for(service, hibernated)
            assert await value(service, "n += 1\nn") == str(n)


async def test_a_session_that_has_run_nothing_is_freed_too(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as service:
        await service.add_to_stdlib("def helper(): return 5")
        await service.create_session("s", idle_timeout=SOON)
        await wait_for(service, hibernated)
        back = await service.execute("s", "helper()")
        assert (back.result, back.notices) == ({"text/plain": "5"}, [])


async def test_all_who_call_at_once_get_the_same_session(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as service:
        await service.create_session("s", idle_timeout=SOON)
        await service.execute("s", "n = 0")
        await wait_for(service, hibernated)
        results = await asyncio.gather(*(service.execute("s", "n += 1", queue=True) for _ in range(5)))
        assert sorted(result.cell for result in results) == [2, 3, 4, 5, 6]
        assert await value(service, "n") == "5"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def f(): yield 1\ng = f(); _ = next(g)", "generator"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "",
        ),
        ("import subprocess\np = subprocess.Popen(['sleep', '600'])\nn = p.pid\ndel p", ""),
    ],
)
async def test_what_cannot_be_saved_keeps_its_process_and_the_listing_says_why(
    at_home: Path, code: str, why: str
) -> None:
    async with serving(at_home, idle_policy="free") as service:
        await service.create_session("s", idle_timeout=SOON)
        pid = await value(service, f"{code}\nimport os\nos.getpid()")
        info = await wait_for(service, lambda info: info.notices)
        # Looked at once, and not again and again: each look is a copy.
        session = session_of(service, "s")
        forks = session.worker.forks._tickets
        await asyncio.sleep(0.2)
        assert session.worker.forks._tickets == forks
        (notice,) = info.notices
        assert info.state == "idle"
        assert notice.startswith("its process was kept though it was idle: it has what cannot be saved: ")
        assert why in notice
        assert await value(service, "os.getpid()") == pid


async def test_a_session_in_use_is_not_freed(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as service:
        await service.create_session("s", idle_timeout=SOON)
        cell = await service.begin("s", "import time; time.sleep(0.6); 'done'")
        assert (await service.wait("s", cell)).result == {"text/plain": "'done'"}


async def test_a_session_that_hibernates_can_be_cleared_and_ended(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as service:
        for name in ("a", "b"):
            await service.create_session(name, idle_timeout=SOON)
            await service.execute(name, "x = 1")
            await wait_for(service, hibernated, name)
        await service.clear_session("a")
        assert await value(service, "'x' in globals()", "a") == "False"
        assert (await service.interrupt("b")) is None
        assert (await service.end_session("b")).state == "dead"
        with pytest.raises(errors.SessionNotFound):
            await service.get_session("b")
        await service.end_session("a")
    assert_empty(at_home)
    assert list(at_home.glob("snapshots/*/resting/*.json")) == []


async def test_a_model_is_told_when_its_session_has_come_back(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as service:
        tools = Tools(service)

        async def quiet(seconds: float, line: str) -> None: ...

        await service.create_session("main", idle_timeout=SOON)
        await service.execute("main", "x = 5")
        await wait_for(service, hibernated, "main")
        (listed,) = (await tools.call("list_repl_sessions", {}, quiet)).parts
        assert "hibernated" in listed.text
        assert "saved" in listed.text
        (said,) = (await tools.call("python_session", {"code": "x"}, quiet)).parts
        assert "5" in said.text
        assert "this session is as it was after cell 1" in said.text


# --- kept while there is room ------------------------------------------------------------------------------


@pytest.mark.req("idle.expire")
async def test_by_default_an_idle_session_is_saved_and_keeps_its_process(at_home: Path) -> None:
    async with serving(at_home) as service:
        await service.create_session("s", idle_timeout=SOON)
        pid = await value(service, "import os; os.getpid()")
        info = await wait_for(service, lambda info: info.saved_at)
        assert (info.state, info.saved_cell, info.notices) == ("idle", 1, [])
        first = info.saved_at
        assert await value(service, "os.getpid()") == pid
        info = await wait_for(service, lambda info: info.saved_cell == 2)
        assert info.saved_at is not None
        assert first is not None
        assert info.saved_at > first


@pytest.mark.req("idle.expire")
async def test_when_the_number_of_sessions_presses_the_one_used_longest_ago_is_freed(at_home: Path) -> None:
    async with serving(at_home, max_sessions=2) as service:
        for name in ("a", "b"):
            await service.create_session(name, idle_timeout=SOON)
            await service.execute(name, f"x = {name!r}")
        await service.execute("a", "1")
        for name in ("a", "b"):
            await wait_for(service, lambda info: info.saved_at, name)
        await service.create_session("c", idle_timeout=600)
        states = {info.session_id: info.state for info in await service.list_sessions()}
        assert states == {"a": "idle", "b": "hibernated", "c": "idle"}
        # Coming back takes a place too.
        assert await value(service, "x", "b") == "'b'"
        states = {info.session_id: info.state for info in await service.list_sessions()}
        assert states == {"a": "hibernated", "b": "idle", "c": "idle"}


@pytest.mark.req("idle.expire")
async def test_one_that_takes_long_to_be_freed_keeps_nobody_from_the_room_of_another(
    at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hibernation, "FREE_SECONDS", 0.1)
    gate = tmp_path / "gate"
    slow = (
        f"import os, time\nclass Slow:\n    def __reduce__(self):\n        while not os.path.exists({str(gate)!r}):\n"
        "            time.sleep(0.01)\n        return int, ()\nx = Slow()"
    )
    async with serving(at_home, max_sessions=2) as service:
        for name, code in (("slow", slow), ("quick", "x = 1")):
            await service.create_session(name, idle_timeout=SOON)
            await service.execute(name, code)
        await wait_for(service, lambda info: info.saved_at, "quick")
        await service.create_session("c", idle_timeout=600)
        states = {info.session_id: info.state for info in await service.list_sessions()}
        assert states == {"slow": "idle", "quick": "hibernated", "c": "idle"}
        gate.touch()


@pytest.mark.req("idle.expire")
async def test_when_all_are_in_use_there_is_no_room(at_home: Path) -> None:
    async with serving(at_home, max_sessions=1) as service:
        await service.create_session("a", idle_timeout=600)
        with pytest.raises(errors.TooManySessions):
            await service.create_session("b")
        assert await value(service, "1", "a") == "1"
    async with serving(at_home, max_sessions=1) as service:
        await service.create_session("a", idle_timeout=SOON)
        await service.execute("a", "x = 1")
        await wait_for(service, lambda info: info.saved_at, "a")
        await service.create_session("b", idle_timeout=600)
        await service.begin("b", "input()")
        with pytest.raises(errors.TooManySessions):
            await service.execute("a", "x")
        await service.end_session("b")
        assert await value(service, "x", "a") == "1"


@pytest.mark.req("idle.expire")
async def test_when_memory_presses_idle_sessions_are_freed(at_home: Path) -> None:
    async with serving(at_home, memory_floor=1.0) as service:
        await service.create_session("s", idle_timeout=SOON)
        await service.execute("s", "x = 1")
        await wait_for(service, hibernated)
        assert await value(service, "x") == "1"


@pytest.mark.req("idle.expire")
async def test_a_session_too_large_to_be_saved_keeps_its_process(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free", durable_size=1_000_000) as service:
        await service.create_session("s", idle_timeout=SOON)
        await service.execute("s", "import os; big = os.urandom(3_000_000)")
        info = await wait_for(service, lambda info: info.notices and "its process was kept" in info.notices[-1])
        assert info.state == "idle"
        assert "it holds more than 1.0 MB (durable_size)" in info.notices[-1]
        assert await value(service, "len(big)") == "3000000"


# --- the end of the server ---------------------------------------------------------------------------------


async def test_a_session_that_is_not_durable_does_not_outlive_the_server(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as service:
        await service.create_session("s", idle_timeout=SOON)
        await service.execute("s", "x = 1")
        await wait_for(service, hibernated)
    assert list(at_home.glob("snapshots/*/resting/*.json")) == []
    async with serving(at_home) as service:
        assert await service.list_sessions() == []


async def test_what_a_killed_server_had_saved_of_its_own_is_cleared_away(at_home: Path) -> None:
    shelf = at_home / "snapshots" / ".owner" / "resting"
    shelf.mkdir(parents=True)
    (shelf / "0123456789abcdef.0123456789abcdef.json").write_text("left over")
    async with serving(at_home):
        pass
    assert list(shelf.iterdir()) == []


@pytest.mark.req("idle.expire")
async def test_where_idle_sessions_end_durable_ones_are_freed(at_home: Path) -> None:
    async with serving(at_home, idle_policy="end") as service:
        await service.create_session("plain", idle_timeout=SOON)
        await service.create_session("s", durable=True, idle_timeout=SOON)
        await service.execute("s", "x = 1")
        await wait_for(service, hibernated)
        assert await until_listed(service, ["s"])
    async with serving(at_home, idle_policy="end", idle_timeout=SOON) as service:
        await asyncio.sleep(3 * SOON)
        assert await value(service, "x") == "1"
        await service.end_session("s")


async def until_listed(service: Service, names: list[str]) -> bool:
    for _ in range(2000):
        if [info.session_id for info in await service.list_sessions()] == names:
            return True
        await asyncio.sleep(0.005)
    return False


@pytest.mark.req("state.restart")
async def test_a_durable_session_that_hibernates_outlives_the_server(at_home: Path) -> None:
    async with serving(at_home, idle_policy="free") as first:
        await first.create_session("s", durable=True, idle_timeout=SOON)
        await first.execute("s", "x = 1")
        await wait_for(first, hibernated)
    async with serving(at_home, idle_policy="free") as second:
        assert await value(second, "x") == "1"
