"""Moments of failure: expressions are evaluated in the frames of a cell that has failed, while the session goes on."""

import asyncio
import os
import signal

import pytest

from ingle import errors
from ingle.service import Service
from ingle.settings import Settings
from support.internals import session_of
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("failure.kept")]

FAILS = """
def inner(rows):
    total = sum(rows)
    return total / (len(rows) - 3)
def outer(factor):
    rows = [factor, 2, 3]
    return inner(rows)
outer(7)
"""


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, keep_failures=2)


@pytest.fixture
async def session(service: Service) -> Service:
    await service.create_session("s")
    await service.execute("s", "x = 1")
    return service


async def value(service: Service, expression: str, *, cell: int | None = None, frame: int = -1) -> str | None:
    return (await service.inspect_failure("s", expression, cell=cell, frame=frame)).value


async def test_expressions_see_the_frames_of_a_failed_cell(session: Service) -> None:
    result = await session.execute("s", FAILS)
    assert result.error is not None
    assert [each for each in result.notices if "inspect_failure" in each]
    # The session goes on, and what it does is not seen there.
    await session.execute("s", "x = 2; del inner, outer")
    (kept,) = await session.failures("s")
    assert (kept.cell, kept.error) == (2, "ZeroDivisionError: division by zero")
    assert [(each.index, each.function, each.file, each.line) for each in kept.frames] == [
        (0, "<module>", "<cell 2>", 8),
        (1, "outer", "<cell 2>", 7),
        (2, "inner", "<cell 2>", 4),
    ]
    assert kept.frames[1].names == ["factor", "rows"]
    assert kept.memory is not None
    assert await value(session, "total") == "12"
    assert await value(session, "[each * x for each in rows]", frame=1) == "[7, 2, 3]"
    assert await value(session, "sorted(name for name in ('inner', 'outer') if name in globals())", frame=0) == (
        "['inner', 'outer']"
    )
    told = await session.inspect_failure("s", "print('seen') or rows.pop()", cell=2)
    assert (told.type, told.value, told.output, told.frame.function) == ("int", "3", "seen\n", "inner")
    told = await session.inspect_failure("s", "missing", cell=2)
    assert (told.value, told.type, told.error) == (None, None, "NameError: name 'missing' is not defined")
    assert (await session.execute("s", "x")).result == {"text/plain": "2"}


async def test_a_cell_that_times_out_is_kept(session: Service) -> None:
    result = await session.execute("s", "def spin():\n    n = 41\n    while True: pass\nspin()", timeout=0.3)
    assert result.timed_out
    assert await value(session, "n + 1") == "42"


async def test_frames_and_cells_that_are_not_there_are_refused(session: Service) -> None:
    with pytest.raises(errors.FailureNotFound, match="no cell has failed"):
        await session.inspect_failure("s", "x")
    await session.execute("s", "1 / 0")
    with pytest.raises(errors.InvalidRequest, match="there is no frame 4: cell 2 has 1"):
        await session.inspect_failure("s", "x", frame=4)
    with pytest.raises(errors.FailureNotFound, match="it has those of the cells 2"):
        await session.inspect_failure("s", "x", cell=1)
    with pytest.raises(errors.InvalidRequest):
        await session.inspect_failure("s", " ")
    # A cell that does not compile has no frame.
    await session.execute("s", "1 +")
    assert [each.cell for each in await session.failures("s")] == [2]


async def test_the_oldest_goes_first(session: Service) -> None:
    for number in range(3):
        await session.execute("s", f"n = {number}; 1 / 0")
    assert [each.cell for each in await session.failures("s")] == [3, 4]
    assert (await value(session, "n", cell=3), await value(session, "n")) == ("1", "2")


async def test_an_expression_that_never_ends_is_stopped(session: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingle.service.trials.VALUE_SECONDS", 0.3)
    await session.execute("s", "1 / 0")
    with pytest.raises(errors.VariableUntold, match="took longer than"):
        await session.inspect_failure("s", "[1 for _ in iter(int, 1)]")
    assert await value(session, "x") == "1"


async def test_a_failure_whose_process_was_killed_is_told(session: Service) -> None:
    await session.execute("s", "1 / 0")
    (copy,) = session_of(session, "s").failures.workers
    assert copy.pid is not None
    os.kill(copy.pid, signal.SIGKILL)
    assert await until(lambda: not session_of(session, "s").failures.any, 10)
    result = await session.execute("s", "x")
    assert [each for each in result.notices if each.startswith("the failure of cell 2 is not kept any more")]


async def test_memory_that_runs_short_takes_failures_first(session: Service) -> None:
    await session.execute("s", "1 / 0")
    with open(f"/proc/{session_of(session, 's').failures.workers[0].pid}/oom_score_adj") as file:
        assert file.read() == "1000\n"
    session_of(session, "s").on_breach("memory limit 2 GiB")
    result = await session.execute("s", "x")
    assert result.result == {"text/plain": "1"}
    assert "the failures of cell 2 were dropped: memory limit 2 GiB: reached" in result.notices
    assert await session.failures("s") == []


async def test_kept_failures_have_a_bound_of_memory(service: Service) -> None:
    await service.create_session("s")
    await service.execute("s", "1 / 0")
    failures = session_of(service, "s").failures
    failures._most_bytes = 1
    await failures.check()
    result = await service.execute("s", "1")
    assert "the failure of cell 1 was dropped: kept failures use too much memory" in result.notices


async def test_nothing_is_kept_unless_asked_for(service: Service) -> None:
    await service.create_session("s", keep_failures=0)
    await service.execute("s", "1 / 0")
    assert await service.failures("s") == []
    with pytest.raises(errors.FailureNotFound, match="make a session with keep_failures"):
        await service.inspect_failure("s", "1")


async def test_failures_end_with_their_session(session: Service) -> None:
    await session.execute("s", "1 / 0")
    (copy,) = session_of(session, "s").failures.workers
    await session.end_session("s")
    await asyncio.wait_for(asyncio.shield(copy.gone), 10)


class TestMemory:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(
            preload=[], pool=0, keep_failures=2, isolation="limits", limit_memory=400 * 1024**2, soft_memory=0.5
        )

    async def test_a_cell_that_passes_the_soft_memory_limit_is_kept(self, service: Service) -> None:
        await service.create_session("s")
        await service.execute("s", "import time; x = 1")
        # It takes memory slowly, as a loop over data does.
        grow = (
            "def grow(parts):\n"
            "    while len(parts) < 390:\n"
            "        parts.append(b'x' * 1_000_000); time.sleep(0.005)\n"
            "grow([])"
        )
        result = await service.execute("s", grow)
        assert result.error is not None, result
        assert (result.error.name, result.error.value) == (
            "MemoryError",
            "the session has reached its soft memory limit",
        )
        assert "soft memory limit 200 MiB: reached by this cell" in result.notices
        assert await value(service, "len(parts) > 50") == "True"
        assert (await service.execute("s", "x")).result == {"text/plain": "1"}
