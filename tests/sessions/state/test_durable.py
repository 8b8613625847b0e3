"""Sessions that outlive their worker and their server: saved after each cell, and there again at the next call."""

import asyncio
import contextlib
import gc
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingle import Client, errors
from ingle.callers import Caller
from ingle.events import Result, SessionInfo, Stdout
from ingle.service import Service
from ingle.sessions.persistence import autosave, save_store
from ingle.sessions.persistence.autosave import AutoSave
from ingle.settings import Settings
from ingle.snapshots.chunks import ChunkStore
from ingle.snapshots.registry import Registry, Row, Save
from ingle.support import processes
from support.internals import session_of, until_prepared
from support.processes import marked_processes
from support.server import Server
from support.service import make_settings
from support.waiting import until, wait_until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.restart")]

SETTINGS = make_settings(preload=[], pool=1, exit_grace=20.0)
"""On a busy machine the last save may take a while, and the end of a server waits for it so long at most."""


@pytest.fixture
def kept(apart: Path, mark: str) -> Path:
    """A data folder in which sessions stay."""
    return apart / "kept"


@asynccontextmanager
async def serving(home: Path, settings: Settings = SETTINGS, kind: str = "serve") -> AsyncIterator[Service]:
    async with Service.local(settings, home, kind) as service:
        yield service


async def value(service: Service, code: str, name: str = "s") -> str:
    result = await service.execute(name, code)
    assert result.error is None, result.error.traceback
    assert result.result is not None
    return result.result["text/plain"]


async def saved(service: Service, cell: int, name: str = "s") -> SessionInfo:
    """Once it is saved as it was after that cell."""
    end = time.monotonic() + 20
    while True:
        info = await service.get_session(name)
        if (info.saved_cell or 0) >= cell:
            return info
        assert time.monotonic() < end, info
        await asyncio.sleep(0.01)


def came_back(result: Result, cell: int) -> bool:
    return any(notice.startswith(f"this session is as it was after cell {cell}, saved ") for notice in result.notices)


async def test_a_request_in_the_moment_of_the_save_does_not_prevent_it(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autosave, "QUIET_SECONDS", 1.0)
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        await service.execute("s", "x = 1")
        session = session_of(service, "s")
        turn = session.turns.try_take("listing")
        assert turn is not None
        timer = session.saves._timer
        assert timer is not None
        assert await until(lambda: timer.when() < asyncio.get_running_loop().time())
        session.turns.release(turn)
        await saved(service, 1)


async def test_a_session_that_ends_before_its_save_is_noted_leaves_no_save(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(uid: str, save: object) -> None:
        await asyncio.Event().wait()

    def written() -> list[Path]:
        return list((kept / "snapshots").glob("*/sessions/*.json"))

    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        saves = session_of(service, "s").autosave
        assert saves is not None
        monkeypatch.setattr(saves._registry, "saved", never)
        await service.execute("s", "x = 1")
        assert await until(written)
        await service.end_session("s")
        assert written() == []


# --- the next server ---------------------------------------------------------------------------------------


async def test_a_session_ends_while_its_first_save_is_about_to_be_written(kept: Path) -> None:
    """The task that writes may be cancelled before it has begun, and then runs nothing."""
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        saves = session_of(service, "s").autosave
        assert saves is not None
        async with asyncio.timeout(20):
            saves.forget()
            await saves.close(keep=False)
        await service.end_session("s")


async def test_a_durable_session_is_there_again_in_the_next_server(kept: Path) -> None:
    async with serving(kept) as first:
        info = await first.create_session("s", durable=True, env={"KEPT": "yes"})
        assert (info.durable, info.saved_at) == (True, None)
        await first.execute("s", "x = [1, 2]\ny = x\ndef f(): return x")
        await first.execute("s", "open('file', 'w').write('text'); print('shown')")
    async with serving(kept) as second:
        (info,) = await second.list_sessions()
        assert (info.session_id, info.state, info.durable, info.execution_count) == ("s", "hibernated", True, 2)
        assert (info.saved_cell, info.variables) == (2, ["f", "x", "y"])
        assert info.saved_at is not None
        assert info.python.startswith("3.")
        assert "saved" in info.notices[0]
        assert "the next call brings it back" in info.notices[0]
        back = await second.execute("s", "x is y, f() is x, open('file').read(), __import__('os').environ['KEPT']")
        assert back.result == {"text/plain": "(True, True, 'text', 'yes')"}
        assert back.cell == 3
        assert came_back(back, 2)
        assert (await second.execute("s", "1")).notices == []
        assert (await second.get_session("s")).state == "idle"


async def test_listing_its_variables_brings_it_back_too(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 5")
    async with serving(kept) as second:
        listed = await second.variables("s")
        assert [(each.name, each.preview) for each in listed.variables] == [("x", "5")]


async def test_cells_whose_timeline_is_lost_are_told_apart_from_what_never_ran(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "print('gone')")
    (timeline,) = kept.glob("sessions/*/timeline.ndjson")
    timeline.unlink()
    async with serving(kept) as second:
        with pytest.raises(errors.CellForgotten, match="cell 1 was started before the server restarted"):
            await second.wait("s", 1)
        with pytest.raises(errors.CellNotFound, match="has no cell 2"):
            await second.wait("s", 2)
        assert await second.cells("s") == []
        (told,) = (await second.execute("s", "2 + 2")).notices
        assert told.endswith("; what its cells printed before the server was started again is gone")
        assert [(each.cell, each.code) for each in await second.cells("s")] == [(2, "2 + 2")]
        assert [event.type async for event in _events(second, 2)][-1] == "done"  # type: ignore[attr-defined]


async def test_whoever_watched_an_earlier_server_sees_what_comes_now(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        for _ in range(5):
            await first.execute("s", "print('before')")
        last = (await first.wait("s", 5)).next_event
    async with serving(kept) as second:
        watching = second.events("s", last)
        await second.execute("s", "print('now')")
        async for event in watching:
            if isinstance(event, Stdout):
                assert event.text == "now\n"
                break


async def _events(service: Service, cell: int) -> AsyncIterator[object]:
    class Typed:
        def __init__(self, event: object) -> None:
            self.type = type(event).__name__.lower()

    async for event in service.cell_events("s", cell):
        yield Typed(event)


async def test_a_session_that_was_ended_does_not_come_back(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 5")
        await saved(first, 1)
        await first.end_session("s")
        await first.create_session("other")
    assert list((kept / "sessions").iterdir()) == []
    async with serving(kept) as second:
        assert await second.list_sessions() == []


async def test_a_session_that_nobody_has_used_for_long_is_removed(kept: Path) -> None:
    async with serving(kept) as first:
        for name in ("old", "lived"):
            await first.create_session(name, durable=True)
            await first.execute(name, "x = 5")
            await saved(first, 1, name)
        # Not while somebody has it, in whatever place.
        async with serving(kept, make_settings(preload=[], pool=1, durable_age=0.0), kind="other") as other:
            assert await other.list_sessions() == []
        assert await value(first, "x", "lived") == "5"
    async with serving(kept, make_settings(preload=[], pool=1, durable_age=0.0)) as second:
        assert await second.list_sessions() == []
    assert list((kept / "sessions").iterdir()) == []
    assert list(kept.glob("snapshots/*/sessions/*.json")) == []


async def test_sessions_come_back_where_they_were(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kind of server, and those of `ingle mcp` also by the folder it was started in."""
    monkeypatch.chdir(tmp_path)
    for kind in ("serve", "mcp"):
        async with serving(kept, kind=kind) as first:
            assert await first.list_sessions() == []
            await first.create_session("s", durable=True)
            await first.execute("s", f"x = {kind!r}")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with serving(kept, kind="mcp") as other:
        assert await other.list_sessions() == []
    async with serving(kept) as other:
        assert await value(other, "x") == "'serve'"
    monkeypatch.chdir(tmp_path)
    for kind in ("serve", "mcp"):
        async with serving(kept, kind=kind) as again:
            assert await value(again, "x") == repr(kind)


async def test_a_server_that_lives_keeps_what_it_has(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 'first'")
        async with serving(kept) as second:
            assert await second.list_sessions() == []
            await second.create_session("s", durable=True)
            await second.execute("s", "x = 'second'")
        assert await value(first, "x") == "'first'"
    async with serving(kept) as third:
        # Both were called the same; the one that was used last has the name.
        assert sorted(info.session_id for info in await third.list_sessions()) == ["s", "s-2"]
        assert {await value(third, "x", "s"), await value(third, "x", "s-2")} == {"'first'", "'second'"}


async def test_each_tenants_sessions_come_back_to_that_tenant(kept: Path) -> None:
    them = Caller("them", "tenant-a")
    async with serving(kept) as first:
        for service in (first, first.acting_for(them)):
            await service.create_session("s", durable=True)
            await service.execute("s", f"x = {service.caller.tenant!r}")
    async with serving(kept) as second:
        assert await value(second, "x") == "''"
        assert await value(second.acting_for(them), "x") == "'tenant-a'"


async def test_the_library_is_there_for_clearing_and_does_not_undo_what_was_done(kept: Path) -> None:
    async with serving(kept) as first:
        await first.add_to_stdlib("def helper(): return 'library'\ndef gone(): pass")
        await first.create_session("s", durable=True)
        await first.execute("s", "helper = lambda: 'mine'\ndel gone")
    async with serving(kept) as second:
        assert await value(second, "helper(), 'gone' in globals()") == "('mine', False)"
        await second.clear_session("s")
        assert await value(second, "helper(), 'gone' in globals()") == "('library', True)"


async def test_a_cleared_session_comes_back_cleared(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 5")
        await saved(first, 1)
        await first.clear_session("s")
    async with serving(kept) as second:
        assert await value(second, "'x' in globals()") == "False"


async def test_what_cannot_be_saved_is_named(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "def f(): yield 1\nmade = f(); _ = next(made)\nx = 5")
    async with serving(kept) as second:
        back = await second.execute("s", "x, 'made' in globals()")
        assert back.result == {"text/plain": "(5, False)"}
        (notice,) = back.notices
        assert "missing: made (generator: " in notice


@pytest.mark.parametrize("level", ["restricted", "sandbox"])
async def test_a_session_that_is_held_comes_back_as_one_that_is_and_its_files_are_still_its_own(
    kept: Path, level: str
) -> None:
    settings = make_settings(preload=[], pool=1, exit_grace=20.0, isolation=level)
    try:
        async with serving(kept, settings) as first:
            await first.create_session("s", durable=True)
            await first.execute("s", "x = 5; open('file', 'w').write('a')")
            await saved(first, 1)
            await first.execute("s", "__import__('os')._exit(1)")
            assert await value(first, "open('file', 'a').write('b'), x") == "(1, 5)"
    except errors.IsolationUnavailable as error:
        pytest.skip(error.message)
    # A server that holds less by itself does not take what was held for its own.
    async with serving(kept, replace(settings, isolation="none")) as second:
        assert (await second.get_session("s")).isolation == level
        assert await value(second, "open('file', 'a').write('c'), open('file').read(), x") == "(1, 'abc', 5)"


# --- saving ------------------------------------------------------------------------------------------------


async def test_each_cell_is_saved_in_the_background(kept: Path) -> None:
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        for n in range(1, 4):
            await service.execute("s", f"x = {n}")
            info = await saved(service, n)
            assert (info.state, info.saved_cell, info.notices) == ("idle", n, [])


async def test_cells_one_after_the_other_are_saved_together_and_none_is_left_out(kept: Path) -> None:
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        seen: set[int | None] = set()
        n = 0
        while len(seen) < 5:
            # Without a pause: what is saved is saved on the way.
            n += 1
            await service.execute("s", f"x = {n}")
            seen.add((await service.get_session("s")).saved_cell)
            assert n < 20_000
        await saved(service, n)
        assert n > 20


async def test_before_a_long_cell_what_was_there_is_copied(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state before it is saved while it runs."""
    monkeypatch.setattr(autosave, "PAUSE_FACTOR", 0.0)
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        await service.execute("s", "x = 1")
        await saved(service, 1)
        await service.execute("s", "x = 2")
        cell = await service.begin("s", "input()")
        info = await saved(service, 2)
        assert info.state in ("running", "waiting_for_input")
        await service.wait("s", cell)
        await service.input("s", "")


async def test_a_cell_that_follows_at_once_waits_for_no_copy_while_one_is_being_saved(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("QUIET_SECONDS", 3600.0), ("MAX_PAUSE_SECONDS", 3600.0), ("PAUSE_FACTOR", 0.0)):
        monkeypatch.setattr(autosave, name, value)
    on_disk, copied = asyncio.Event(), 0
    write, copy = Registry.saved, AutoSave.copy

    async def write_later(self: Registry, uid: str, save: Save | None) -> None:
        await on_disk.wait()
        await write(self, uid, save)

    async def count(self: AutoSave, worker: Any, cell: int) -> None:
        nonlocal copied
        copied += 1
        await copy(self, worker, cell)

    monkeypatch.setattr(Registry, "saved", write_later)
    monkeypatch.setattr(AutoSave, "copy", count)
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        for n in range(1, 6):
            await service.execute("s", f"x = {n}")
        assert copied == 1
        on_disk.set()
        await saved(service, 1)
        await service.execute("s", "x = 6")
        assert copied == 2


async def test_a_session_that_takes_long_to_save_keeps_no_other_from_it(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(save_store, "SLOW_AFTER_SECONDS", 0.05)
    gate = tmp_path / "gate"
    slow = (
        f"import os, time\nclass Slow:\n    def __reduce__(self):\n        while not os.path.exists({str(gate)!r}):\n"
        "            time.sleep(0.01)\n        return int, ()\nx = Slow()"
    )
    async with serving(kept) as service:
        slow_ones = [f"slow-{n}" for n in range(save_store.AT_ONCE + 1)]
        for name in (*slow_ones, "s"):
            await service.create_session(name, durable=True)
        for name in slow_ones:
            await service.execute(name, slow)
            session = session_of(service, name)
            assert await until(lambda session=session: session.autosave._writing is not None)
        await service.execute("s", "x = 1")
        await saved(service, 1)
        assert [(await service.get_session(name)).saved_cell for name in slow_ones] == [None] * len(slow_ones)
        gate.touch()
        for name in slow_ones:
            await saved(service, 1, name)


async def test_a_session_beyond_the_bound_says_once_that_it_is_saved_on_request_only(kept: Path) -> None:
    async with serving(kept, make_settings(preload=[], pool=1, durable_size=2_000_000)) as service:
        await service.create_session("s", durable=True)
        await service.execute("s", "x = 1")
        await saved(service, 1)
        await service.execute("s", "import os; big = os.urandom(4_000_000)")
        session = session_of(service, "s")
        assert await until(lambda: session.autosave.trouble)
        told = await service.execute("s", "x = 2")
        assert len(told.notices) == 1
        assert "the last save is that after cell 1" in told.notices[0]
        assert (await service.execute("s", "x = 3")).notices == []
        info = await service.get_session("s")
        assert info.saved_cell == 1
        assert "not saved as it is now" in info.notices[0]


async def test_a_server_that_is_warm_has_its_registry_and_one_that_saves_nothing_makes_none(kept: Path) -> None:
    async with serving(kept) as service:
        await service.warm()
    assert (kept / "registry.db").exists()
    other = kept.with_name("other")
    async with serving(other, replace(SETTINGS, durable_size=0)) as service:
        await service.warm()
    assert not (other / "registry.db").exists()


async def test_a_server_that_saves_nothing_by_itself_refuses_durable_sessions(kept: Path) -> None:
    async with serving(kept, make_settings(preload=[], pool=1, durable_size=0)) as service:
        with pytest.raises(errors.InvalidRequest, match="durable_size is 0"):
            await service.create_session("s", durable=True)
        await service.create_session("s")


async def test_a_server_that_saves_nothing_by_itself_leaves_what_there_is_alone(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 5")
    async with serving(kept, make_settings(preload=[], pool=1, durable_size=0)) as second:
        assert await second.list_sessions() == []
    async with serving(kept) as third:
        assert await value(third, "x") == "5"


# --- a worker that ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["import os; os._exit(3)", "import os; os.kill(os.getpid(), 9)"])
async def test_after_a_crash_the_last_save_comes_back_and_the_answer_says_so(kept: Path, end: str) -> None:
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        await service.execute("s", "x = 5")
        await saved(service, 1)
        crashed = await service.execute("s", f"x = 6; {end}")
        assert crashed.status == "exit"
        assert "the session comes back as it was when it was last saved" in crashed.notices[0]
        back = await service.execute("s", "x")
        assert back.result == {"text/plain": "5"}
        assert came_back(back, 1)
        assert back.cell == 3


async def test_a_save_that_is_under_way_when_the_worker_dies_counts(kept: Path) -> None:
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        await service.execute("s", "x = 5")
        # It had no time to be saved by itself; a copy is made before the next cell begins.
        await service.execute("s", "import os; os._exit(3)")
        back = await service.execute("s", "x")
        assert back.result == {"text/plain": "5"}
        assert came_back(back, 1)


async def test_whoever_exits_begins_anew_also_after_a_restart(kept: Path) -> None:
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        await service.execute("s", "x = 5")
        await saved(service, 1)
        await service.execute("s", "exit()")
        assert await value(service, "'x' in globals()") == "False"
        await service.execute("s", "exit()")
    async with serving(kept) as again:
        assert await value(again, "'x' in globals()") == "False"


async def test_what_comes_after_an_exit_is_kept_though_a_save_was_under_way_at_it(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = asyncio.Event()
    write = Registry.saved
    writing = 0

    async def write_later(self: Registry, uid: str, save: Save | None) -> None:
        nonlocal writing
        writing += 1
        await written.wait()
        await write(self, uid, save)

    monkeypatch.setattr(Registry, "saved", write_later)
    async with serving(kept) as service:
        await service.create_session("s", durable=True)
        await service.execute("s", "x = 5")
        assert await until(lambda: writing == 1)
        await service.execute("s", "exit()")
        await service.execute("s", "y = 6")
        autosaved = session_of(service, "s").autosave
        assert await until(lambda: autosaved._waiting is not None)
        written.set()
        await saved(service, 3)
        await autosaved.wait_written()
    async with serving(kept) as again:
        assert await value(again, "y, 'x' in globals()") == "(6, False)"


# --- requests ----------------------------------------------------------------------------------------------


@pytest.mark.req("cell.once")
async def test_a_request_that_is_repeated_after_a_restart_runs_nothing(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = []", key="make")
        await first.execute("s", "x.append(1)", key="add")
    async with serving(kept) as second:
        again = await second.execute("s", "x.append(1)", key="add")
        assert (again.cell, again.status) == (2, "ok")
        with pytest.raises(errors.KeyReused):
            await second.execute("s", "x.append(2)", key="add")
        assert await value(second, "x") == "[1]"
        await second.execute("s", "x.append(3)", key="new")
        assert (await second.execute("s", "x.append(3)", key="new")).cell == 4
        assert await value(second, "x") == "[1, 3]"


@pytest.mark.req("cell.once")
def test_a_request_whose_server_is_killed_is_not_run_by_the_next(start: Callable[..., Server], tmp_path: Path) -> None:
    first = start()
    first.make_session(durable=True)
    marker = tmp_path / "ran"
    body = {"code": f"open({str(marker)!r}, 'a').write('x'); import time; time.sleep(600)", "wait": 0}
    headers = {"Idempotency-Key": "once"}
    with first.make_client() as http:
        assert http.post("/v1/sessions/main/execute", json=body, headers=headers).json()["status"] == "running"
        assert wait_until(marker.exists)
    assert wait_until(lambda: any(b'"code"' in each.read_bytes() for each in first.home.rglob("timeline.ndjson")))
    first.process.kill()
    first.process.wait()
    second = start()
    with second.make_client() as http:
        again = http.post("/v1/sessions/main/execute", json=body, headers=headers).json()
        assert (again["cell"], again["status"]) == (1, "exit")
        assert again["exit"]["message"] == "the server was killed while the cell ran"
        assert second.execute("1 + 1")["result"] == {"text/plain": "2"}
        http.delete("/v1/sessions/main")
    assert marker.read_text() == "x"


async def test_a_clock_that_goes_back_loses_nothing(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 1")
        await saved(first, 1)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 3 * 86400)
    async with serving(kept) as second:
        (info,) = await second.list_sessions()
        assert info.notices == [
            "this session is as it was after cell 1, saved 0.00 s ago; the next call brings it back",
        ]
        assert await value(second, "x") == "1"
        await second.execute("s", "x = 2")
        await saved(second, 3)
    async with serving(kept) as third:
        assert await value(third, "x") == "2"
        await third.end_session("s")


async def test_one_that_was_not_used_for_long_is_removed_and_the_log_says_so(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 1")
        await saved(first, 1)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 31 * 86400)
    async with serving(kept) as second:
        assert await second.list_sessions() == []
        assert "durable sessions that were not used for 720 h 0 min are removed: 1" in caplog.text


# --- damage ------------------------------------------------------------------------------------------------


async def test_a_registry_that_is_damaged_is_put_aside_and_named(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept.mkdir()
    (kept / "registry.db").write_bytes(b"this is no database at all, it only has the name of one" * 100)
    async with serving(kept) as service:
        assert await service.list_sessions() == []
        await service.create_session("s", durable=True)
        assert await value(service, "1 + 1") == "2"
    assert "registry.db is damaged" in caplog.text
    assert [path.name for path in kept.glob("registry.db.broken-*")] != []


async def test_what_a_damaged_registry_knew_is_found_among_the_snapshots(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(kept) as first:
        for name in ("s", "t"):
            await first.create_session(name, durable=True)
            await first.execute(name, f"x = {name!r}")
            await saved(first, 1, name)
    with (kept / "registry.db").open("r+b") as file:
        file.write(b"not a database")
    async with serving(kept) as second:
        assert await second.list_sessions() == []
        found = await second.list_snapshots()
        assert sorted(each.session_id for each in found) == ["s", "t"]
        for each in found:
            assert each.name in caplog.text
            restored = await second.load_session(each.name)
            assert await value(second, "x", restored.session.session_id) == repr(each.session_id)


async def test_a_save_that_nobody_can_vouch_for_is_kept_as_a_snapshot(kept: Path) -> None:
    """After the key is lost: else the saves to come would take its place."""
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        for cell in (1, 2):
            await first.execute("s", f"x = {cell}")
            await saved(first, cell)
    (kept / "signing.key").unlink()
    async with serving(kept) as second:
        result = await second.execute("s", "'x' in globals()")
        assert result.result == {"text/plain": "False"}
        (snapshot,) = await second.list_snapshots()
        (notice,) = result.notices
        assert "no save of this session can be used" in notice
        assert f"it is kept as the snapshot {snapshot.name!r}; the session begins without variables" in notice
        for cell in (4, 5):
            await second.execute("s", "y = 1")
            await saved(second, cell)
        await second.load_session(snapshot.name, session_id="again", trust=True)
        assert await value(second, "x", "again") == "2"
        await second.end_session("s")


async def test_a_key_that_is_none_is_named_and_what_it_signed_waits_for_it(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 1")
        await saved(first, 1)
        await first.save_session("s", "named")
    key = (kept / "signing.key").read_bytes()
    (kept / "signing.key").write_bytes(key[:7])
    async with serving(kept) as second:
        says = "signing.key in the data folder is damaged"
        await second.create_session("other")
        with pytest.raises(errors.DataFolderFailed, match=says):
            await second.save_session("other", "named")
        with pytest.raises(errors.DataFolderFailed, match=says):
            await second.load_session("named", session_id="again")
        assert [says in (each.problem or "") for each in await second.list_snapshots()] == [True]
        await until_prepared(second)
        before = len(processes.below(os.getpid()))
        gc.disable()
        try:
            with pytest.raises(errors.StartFailed, match=f"cannot be brought back: {says}"):
                await second.execute("s", "x")
            # The worker that it was to come back into is not left to the garbage collector.
            assert await until(lambda: len(processes.below(os.getpid())) <= before)
        finally:
            gc.enable()
        (kept / "signing.key").write_bytes(key)
    async with serving(kept) as third:
        assert await value(third, "x") == "1"
        await third.end_session("s")


async def test_a_session_that_the_registry_does_not_know_rightly_costs_no_other(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(kept) as first:
        for name in ("s", "t", "u"):
            await first.create_session(name, durable=True)
            await first.execute(name, "x = 5")
    with contextlib.closing(sqlite3.connect(kept / "registry.db")) as db, db:
        db.execute("UPDATE sessions SET made = '{' WHERE name = 's'")
        db.execute("UPDATE sessions SET save = '[]' WHERE name = 't'")
    async with serving(kept) as second:
        assert [each.session_id for each in await second.list_sessions()] == ["u"]
        assert await value(second, "x", "u") == "5"
    assert "registry.db has unreadable sessions that are not restored: 2" in caplog.text
    with contextlib.closing(sqlite3.connect(kept / "registry.db")) as db:
        assert db.execute("SELECT count(*) FROM sessions").fetchone() == (3,)


async def test_a_registry_that_cannot_be_opened_is_named(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    (kept / "registry.db").mkdir(parents=True)
    async with serving(kept) as service:
        assert "no session comes back: registry.db in the data folder cannot be used" in caplog.text
        with pytest.raises(errors.RegistryBroken, match=r"registry\.db in the data folder cannot be used"):
            await service.create_session("s", durable=True)
        await service.create_session("s")
        assert await value(service, "1") == "1"


async def test_a_session_whose_making_is_called_off_does_not_come_back(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Registry.add
    added = asyncio.Event()

    async def add_slowly(self: Registry, place: str, row: Row) -> None:
        await add(self, place, row)
        added.set()
        await asyncio.sleep(3600)

    monkeypatch.setattr(Registry, "add", add_slowly)
    async with serving(kept) as first:
        making = asyncio.create_task(first.create_session("s", durable=True))
        await added.wait()
        making.cancel()
        await asyncio.wait({making})
    async with serving(kept) as second:
        assert await second.list_sessions() == []


async def test_a_registry_of_a_later_version_is_left_alone(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept.mkdir()
    with sqlite3.connect(kept / "registry.db") as db:
        db.execute("PRAGMA user_version = 99")
    async with serving(kept) as service:
        assert "it was written by a later version of ingle (99)" in caplog.text
        await service.create_session("s")
        with pytest.raises(errors.IngleError, match="later version"):
            await service.create_session("d", durable=True)
        assert await value(service, "1 + 1") == "2"


async def test_a_session_whose_interpreter_is_gone_says_so_and_is_not_lost(kept: Path, apart: Path) -> None:
    python = apart / "interpreter" / "python"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(make_settings().python))
    settings = replace(SETTINGS, pythons=[str(python)])
    async with serving(kept, settings) as first:
        await first.create_session("s", durable=True, python=str(python))
        await first.execute("s", "x = 5")
    python.unlink()
    async with serving(kept, settings) as second:
        assert [info.session_id for info in await second.list_sessions()] in ([], ["s"])
    python.symlink_to(os.path.realpath(make_settings().python))
    async with serving(kept, settings) as third:
        assert await value(third, "x") == "5"


# --- the doors ---------------------------------------------------------------------------------------------


def test_over_http_with_the_client_after_kill_9(start: Callable[..., Server]) -> None:
    first = start()
    with Client(first.url, first.token) as client:
        session = client.session("main", durable=True)
        session.run("x = 41")
        assert wait_until(lambda: session.info().saved_cell == 1)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = start()
    with Client(second.url, second.token) as client, client.session("main") as session:
        assert client.sessions()[0].state == "hibernated"
        result = session.run("x + 1")
        assert (result.text, result.cell) == ("42", 2)
        assert "this session is as it was after cell 1" in result.notices[0]
        session.close()


def test_the_number_of_a_cell_that_was_never_saved_is_not_given_again(
    start: Callable[..., Server],
) -> None:
    first = start()
    with Client(first.url, first.token) as client:
        session = client.session("main", durable=True)
        session.run("x = 1")
        assert wait_until(lambda: session.info().saved_cell == 1)
        assert session.run("import time; time.sleep(600)", wait=0).cell == 2
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = start()
    with Client(second.url, second.token) as client, client.session("main") as session:
        result = session.run("x")
        assert (result.text, result.cell) == ("1", 3)
        session.close()


def test_nothing_outlives_a_killed_server_but_what_is_on_the_disk(start: Callable[..., Server], mark: str) -> None:
    first = start()
    first.make_session(durable=True)
    first.execute("import os; data = os.urandom(30_000_000)")
    first.process.kill()
    first.process.wait()
    assert wait_until(lambda: not marked_processes(mark), 5), marked_processes(mark)
    second = start()
    with second.make_client() as http:
        http.delete("/v1/sessions/main")


# --- the disk ----------------------------------------------------------------------------------------------


def shelf(home: Path) -> dict[str, Path]:
    """The files of the one durable session that there is."""
    found = list(home.glob("snapshots/*/sessions/*.json"))
    return {("previous" if path.name.endswith(".previous.json") else "current"): path for path in found}


@pytest.mark.parametrize("how", ["torn", "changed", "gone"])
async def test_when_the_last_save_is_damaged_the_one_before_it_is_used_and_that_is_said(kept: Path, how: str) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        for n in (1, 2):
            await first.execute("s", f"x = {n}")
            await saved(first, n)
    files = shelf(kept)
    data = files["current"].read_bytes()
    if how == "torn":
        files["current"].write_bytes(data[: len(data) // 2])
    elif how == "changed":
        files["current"].write_bytes(data.replace(b'"cell":2', b'"cell":3'))
    else:
        files["current"].unlink()
    async with serving(kept) as second:
        back = await second.execute("s", "x")
        assert back.result == {"text/plain": "1"}
        assert came_back(back, 1)
        assert any("the last save" in notice and "could not be used" in notice for notice in back.notices)


async def test_when_no_save_is_whole_the_session_begins_anew_and_says_why(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        for n in (1, 2):
            await first.execute("s", f"x = {n}")
            await saved(first, n)
    for path in kept.glob("snapshots/*/sessions/*.json"):
        path.write_bytes(path.read_bytes()[:40])
    async with serving(kept) as second:
        back = await second.execute("s", "'x' in globals()")
        assert back.result == {"text/plain": "False"}
        (notice,) = back.notices
        assert notice.startswith("no save of this session can be used: ")
        assert notice.endswith("the session begins without variables")


BAD = "import os\nclass Bad:\n    def __reduce__(self): return (os._exit, (7,))\nbad = Bad()"


async def test_a_save_that_ends_the_worker_is_set_aside_for_the_one_before(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 1")
        await saved(first, 1)
        await first.execute("s", BAD)
        await saved(first, 2)
    async with serving(kept) as second:
        back = await second.execute("s", "x")
        assert back.result == {"text/plain": "1"}
        assert came_back(back, 1), back.notices
        (told,) = [notice for notice in back.notices if "cannot be used" in notice]
        name = told.partition("it is kept as the snapshot '")[2].rstrip("'")
        assert [each.name for each in await second.list_snapshots()] == [name]
        # However often it is saved after that.
        for n in (1, 2, 3):
            await second.execute("s", f"x = {n}")
            await saved(second, 3 + n)
        assert [each.cell for each in await second.list_snapshots()] == [2]


async def test_when_no_save_can_be_loaded_none_is_lost(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", BAD)
        await saved(first, 1)
    async with serving(kept) as second:
        back = await second.execute("s", "'bad' in globals()")
        assert back.result == {"text/plain": "False"}
        assert any("no save of this session can be used" in notice for notice in back.notices), back.notices
        assert [each.cell for each in await second.list_snapshots()] == [1]


@pytest.fixture
def small_disk(apart: Path, mark: str) -> Iterator[Path]:
    """A data folder on a disk of a few megabytes."""
    folder = apart / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m,mode=0700", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_is_named_and_the_session_goes_on_with_the_last_save_intact(small_disk: Path) -> None:
    async with serving(small_disk) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "x = 1")
        await saved(first, 1)
        await first.execute("s", "import os; x = 2; big = os.urandom(30_000_000)")
        session = session_of(first, "s")
        assert await until(lambda: session.autosave.trouble, 20)
        told = await first.execute("s", "x")
        assert told.result == {"text/plain": "2"}
        assert told.notices == [
            "the session could not be saved: No space left on device; free some disk space, and save again; "
            "the last save is that after cell 1, and the session goes on"
        ]
        assert (await first.get_session("s")).saved_cell == 1
        # What was begun is gone from the disk: there is room for a smaller one.
        await first.execute("s", "del big; x = 3")
        await saved(first, 4)
    async with serving(small_disk) as second:
        assert await value(second, "x") == "3"
        await second.execute("s", "big = __import__('os').urandom(30_000_000)")
        await second.execute("s", "__import__('os')._exit(1)")
        assert await value(second, "x") == "3"
        await second.end_session("s")


async def test_a_disk_without_a_byte_left_is_named_by_whatever_needs_it(small_disk: Path) -> None:
    async with serving(small_disk) as service:
        await service.create_session("s")
        await service.execute("s", "x = 1")
        await service.save_session("s", "before")
        await service.add_to_stdlib("def one(): return 1")
        filler = small_disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        await service.execute("s", "x = 2")
        with pytest.raises(
            errors.SaveFailed, match="could not be saved: No space left on device; free some disk space"
        ):
            await service.save_session("s", "before")
        with pytest.raises(errors.DataFolderFailed, match=r"the library, stdlib.py .* No space left on device"):
            await service.add_to_stdlib("def two(): return 2")
        with pytest.raises(errors.DataFolderFailed, match=r"what is saved .* No space left on device"):
            await service.open_snapshot("before")
        assert [each.name for each in (await service.list_stdlib()).functions] == ["one"]
        await service.load_session("before", session_id="again")
        assert await value(service, "x", "again") == "1"
        filler.unlink()
        await service.save_session("s", "before")
        await service.load_session("before", session_id="later")
        assert await value(service, "x", "later") == "2"


async def test_a_save_is_one_though_nothing_can_be_tidied_after_it(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: ChunkStore, used: object) -> None:
        raise OSError(28, "No space left on device")

    await service.create_session("s")
    await service.execute("s", "x = 1")
    monkeypatch.setattr(ChunkStore, "_collect", fail)
    assert (await service.save_session("s", "kept")).variables == 1
    assert "were not removed" in caplog.text
    await service.delete_snapshot("kept")
    assert await service.list_snapshots() == []


async def test_what_a_later_ingle_has_saved_keeps_its_bytes(service: Service, home: Path) -> None:
    """Its list of contents cannot be read here, but what it names is not thrown away."""
    await service.create_session("s")
    await service.execute("s", "x = 'a' * 100_000")
    await service.save_session("s", "later")
    (path,) = home.glob("snapshots/*/named/later.json")
    now = path.read_bytes()
    path.write_bytes(now.replace(b'"version":2', b'"version":3'))
    await service.execute("s", "x = 1")
    await service.save_session("s", "now")
    assert [each.problem is None for each in await service.list_snapshots()] == [False, True]
    path.write_bytes(now)
    await service.load_session("later", session_id="again")
    assert await value(service, "len(x)", "again") == "100000"


@pytest.mark.req("state.rollback")
async def test_a_process_that_is_killed_before_a_rollback_has_its_own_loses_nothing(kept: Path) -> None:
    """The whole tree ends while the copy of a checkpoint is being made. The session comes back from its save."""
    async with serving(kept) as service:
        await service.create_session("main", durable=True)
        await service.execute("main", "kept = 41")
        await service.checkpoint("main", "base")
        session = session_of(service, "main")
        assert await until(lambda: session.autosave is not None and session.autosave.current, 30)
        (parked,) = session.checkpoints.workers
        assert parked.pid is not None
        assert parked.init_pid is not None
        os.kill(parked.pid, signal.SIGSTOP)
        rollback = asyncio.create_task(service.rollback("main", "base"))
        assert await until(lambda: session.slot.replacing, 30)
        os.kill(parked.init_pid, signal.SIGKILL)
        with pytest.raises(errors.IngleError):
            await rollback
        result = await service.execute("main", "kept + 1")
        assert result.result == {"text/plain": "42"}, result


@pytest.mark.req("state.rollback")
async def test_a_process_that_is_killed_as_a_rollback_begins_loses_nothing(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole tree ends after the rollback is decided, and before it does anything."""
    async with serving(kept) as service:
        await service.create_session("main", durable=True)
        await service.execute("main", "kept = 41")
        await service.checkpoint("main", "base")
        session = session_of(service, "main")
        assert await until(lambda: session.autosave is not None and session.autosave.current, 30)
        slot = session.slot
        replace_process = slot._replace

        async def begin_late(*given: Any) -> None:
            assert slot.worker is not None
            worker = slot.worker
            assert worker.init_pid is not None
            os.kill(worker.init_pid, signal.SIGKILL)
            await worker.gone
            assert slot.worker is None
            await replace_process(*given)

        monkeypatch.setattr(slot, "_replace", begin_late)
        with pytest.raises(errors.IngleError):
            await service.rollback("main", "base")
        result = await service.execute("main", "kept + 1")
        assert result.result == {"text/plain": "42"}, result
        assert came_back(result, 1)
