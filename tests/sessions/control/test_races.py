"""Races: interrupts, deaths and answers at random moments, hundreds of times; each answer belongs to its cell.

The moments are drawn from a seed, which every failure names; INGLE_TEST_SEED repeats a run's choices. What is
asserted holds in every order of events, and that the orders really differed is asserted too.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Result
from ingle.requests import SessionLimits
from ingle.service import Service
from ingle.settings import Settings
from support.internals import idle_inits, manager_of, session_of
from support.processes import marked_processes
from support.seeds import new_chance
from support.service import make_settings
from support.waiting import until

ALONGSIDE = 4
"""Sessions that are worked on at the same time."""


@pytest.fixture
def chance() -> random.Random:
    return new_chance()


@pytest.fixture
def settings() -> Settings:
    return make_settings(preload=[], pool=2)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def pause(seconds: float) -> None:
    """A wait much finer than the loop's timers: a random moment inside of a cell of a millisecond."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(0)


async def run(service: Service, sid: str, code: str) -> Result:
    """The cell after the race: it must never be hurt."""
    result = await service.execute(sid, code)
    assert (result.status, result.error, result.stderr) == ("ok", None, ""), result
    return result


# --- an interrupt around the end of a short cell ---


async def race_interrupts(service: Service, chance: random.Random, count: int) -> Counter[str]:
    sid = (await service.create_session()).session_id
    await run(service, sid, "import time")
    seen: Counter[str] = Counter()
    for number in range(count):
        takes = chance.uniform(0, 0.003)
        body = chance.choice(
            [
                f"time.sleep({takes})",
                f"_end = time.perf_counter() + {takes}\nwhile time.perf_counter() < _end: pass",
                f"await __import__('asyncio').sleep({takes})",
                "pass",
            ]
        )
        cell = await service.begin(sid, f"print('token {number}')\n{body}\n{number}")
        await pause(chance.uniform(0, takes + 0.0015))
        interrupted = await service.interrupt(sid)
        result = interrupted or await service.wait(sid, cell)
        assert (result.cell, result.notices, result.stderr) == (cell, [], ""), result
        if result.status == "ok":
            assert (result.stdout, result.error) == (f"token {number}\n", None), result
            assert result.result == {"text/plain": str(number)}
        else:
            assert result.status == "interrupted", result
            assert result.error is not None
            assert result.error.name == "KeyboardInterrupt"
            assert f"token {number}\n".startswith(result.stdout), result
        seen["too late" if interrupted is None else result.status] += 1
        after = await run(service, sid, f"print('next {number}')\n-{number} - 1")
        assert (after.cell, after.stdout, after.result, after.notices) == (
            cell + 1,
            f"next {number}\n",
            {"text/plain": str(-number - 1)},
            [],
        )
    return seen


@pytest.mark.req("int.cell", "int.idle")
async def test_an_interrupt_around_the_end_of_a_cell_hurts_that_cell_or_none(
    service: Service, chance: random.Random
) -> None:
    tasks = [race_interrupts(service, random.Random(chance.random()), 150) for _ in range(ALONGSIDE)]
    seen = sum(await asyncio.gather(*tasks), Counter())
    assert seen.total() == 600
    # It interleaved: the cell was hit, missed by a hair, and over before.
    assert min(seen[outcome] for outcome in ("interrupted", "ok", "too late")) > 5, seen


# --- a worker killed at a random moment ---


async def race_deaths(service: Service, chance: random.Random, count: int) -> Counter[str]:
    sid = (await service.create_session()).session_id
    session = session_of(service, sid)
    seen: Counter[str] = Counter()
    for number in range(count):
        takes = chance.uniform(0, 0.002)
        from_within = chance.random() < 0.3
        code = f"import os, signal, threading, time\nprint('token {number}')\n"
        if from_within:
            code += f"threading.Timer({takes}, os.kill, (os.getpid(), signal.SIGKILL)).start()\n"
        code += f"time.sleep({chance.uniform(0, 2 * takes)})\n{number}"
        pid = session.worker.pid
        cell = await service.begin(sid, code)
        if not from_within:
            await pause(takes)
            if session.worker is not None and session.worker.pid == pid:
                os.kill(pid, signal.SIGKILL)
        result = await service.wait(sid, cell)
        assert result.cell == cell
        if result.status == "ok":
            assert (result.stdout, result.result) == (f"token {number}\n", {"text/plain": str(number)})
        else:
            assert (result.status, result.success, result.error) == ("exit", False, None), result
            assert result.exit is not None
            assert (result.exit.code, result.exit.signal) == (None, "SIGKILL"), result
            assert f"token {number}\n".startswith(result.stdout), result
            assert "are lost, and a new process takes its place" in result.notices[-1]
        seen[result.status] += 1
        # A worker that finished its cell may die a moment later: with the next cell, or before it.
        assert await until(lambda pid=pid: session.worker is None or session.worker.pid != pid), result
        after = await service.execute(sid, f"print('next {number}')\n-{number} - 1")
        assert (after.status, after.cell, after.stdout, after.result) == (
            "ok",
            cell + 1,
            f"next {number}\n",
            {"text/plain": str(-number - 1)},
        ), after
        assert len(after.notices) == 1
        assert after.notices[0].startswith("this is a new process: the one before was killed by SIGKILL")
    await service.end_session(sid)
    return seen


@pytest.mark.req("exit.crash", "exit.tree")
async def test_a_worker_killed_at_any_moment_is_named_replaced_and_leaves_nothing(
    service: Service, chance: random.Random, mark: str
) -> None:
    # Once through everything that is made only once: the zygote, the pool, the threads of the loop.
    await race_deaths(service, random.Random(0), 1)
    manager = manager_of(service)
    (launcher,) = manager._launchers.all
    assert await until(lambda: launcher.prepared == 2)

    def counted() -> tuple[int, int]:
        idle = idle_inits(service)
        return open_descriptors() - idle, len(marked_processes(mark)) - idle

    descriptors, processes = counted()
    tasks = [race_deaths(service, random.Random(chance.random()), 50) for _ in range(ALONGSIDE)]
    seen = sum(await asyncio.gather(*tasks), Counter())
    assert seen.total() == 200
    assert min(seen["exit"], seen["ok"]) > 10, seen
    assert await until(lambda: launcher.prepared == 2)
    assert await until(lambda: counted()[1] == processes), marked_processes(mark)
    # Fewer, where a thread was just at work when they were counted first.
    assert await until(lambda: counted()[0] <= descriptors), (descriptors, counted())


# --- an answer that races an interrupt ---


async def race_answers(service: Service, chance: random.Random, count: int) -> Counter[str]:
    sid = (await service.create_session()).session_id
    seen: Counter[str] = Counter()
    for number in range(count):
        reader = chance.choice(["input()", "__import__('sys').stdin.readline().rstrip()"])
        waiting = await service.execute(sid, f"print('got', {reader})\n{number}")
        assert waiting.status == "waiting_for_input", waiting

        # Three spans, so that each order of events comes up on quick and on slow machines.
        latest = chance.choice([0.0, 0.003, 0.01])

        async def answer(number: int = number, lag: float = chance.uniform(0, latest)) -> Result | None:
            await pause(lag)
            try:
                return await service.input(sid, f"text {number}\nsurplus {number}")
            except errors.NotWaiting:
                return None

        async def stop(lag: float = chance.uniform(0, 0.001)) -> Result | None:
            await pause(lag)
            return await service.interrupt(sid)

        answered, stopped = await asyncio.gather(answer(), stop())
        result = await service.wait(sid, waiting.cell)
        for each in (answered, stopped):
            assert each is None or each == result
        assert (result.cell, result.prompt, result.stderr) == (waiting.cell, None, "")
        if result.status == "ok":
            assert (result.stdout, result.result) == (f"got text {number}\n", {"text/plain": str(number)})
        else:
            assert result.status == "interrupted", result
            assert f"got text {number}\n".startswith(result.stdout)
        if answered is None:
            assert result.notices == []
        else:
            left = f"surplus {number}\n" if result.status == "ok" or result.stdout else ""
            sizes = {len(left)} if left else {len(f"text {number}\nsurplus {number}\n"), len(f"surplus {number}\n")}
            assert result.notices in [
                [f"{size} bytes of input were not read by this cell and were dropped"] for size in sizes
            ], result
        seen[f"{result.status}, {'answered' if answered else 'refused'}"] += 1
        after = await service.execute(sid, f"print(repr(input('next? ')))\n-{number} - 1")
        assert (after.status, after.prompt) == ("waiting_for_input", "next? "), after
        after = await service.input(sid, f"fresh {number}")
        assert (after.status, after.stdout, after.result, after.notices) == (
            "ok",
            f"next? 'fresh {number}'\n",
            {"text/plain": str(-number - 1)},
            [],
        ), after
    return seen


@pytest.mark.req("in.boundary", "in.not-asked", "int.cell")
async def test_an_answer_and_an_interrupt_at_once_leave_nothing_to_the_next_cell(
    service: Service, chance: random.Random
) -> None:
    tasks = [race_answers(service, random.Random(chance.random()), 125) for _ in range(ALONGSIDE)]
    seen = sum(await asyncio.gather(*tasks), Counter())
    assert seen.total() == 500
    for outcome in ("ok, answered", "interrupted, answered", "interrupted, refused"):
        assert seen[outcome] > 5, seen


# --- a zygote killed while sessions are made and used ---


@pytest.mark.req("exit.tree", "cell.once")
async def test_sessions_live_on_and_come_into_being_while_zygotes_die(
    service: Service, chance: random.Random, mark: str
) -> None:
    keeper = (await service.create_session("keeper")).session_id
    await run(service, keeper, "x = 0")
    manager = manager_of(service)
    (launcher,) = manager._launchers.all
    zygotes = [launcher.zygote_pid]
    made = 0
    stop = False

    async def kill_zygotes() -> None:
        while len(zygotes) <= 8:
            await pause(chance.uniform(0, 0.1))
            os.kill(zygotes[-1], signal.SIGKILL)
            assert await until(lambda: launcher.zygote_pid not in (None, zygotes[-1]), 30)
            zygotes.append(launcher.zygote_pid)

    async def use_sessions(chance: random.Random) -> None:
        nonlocal made
        while not stop:
            # One with limits of its own leaves no init to the next, which therefore needs a zygote.
            limits = SessionLimits(files=500) if chance.random() < 0.5 else None
            sid = (await service.create_session(limits=limits)).session_id
            made += 1
            await run(service, sid, f"x = {made}")
            await pause(chance.uniform(0, 0.01))
            one = await run(service, sid, "x += 1\nx")
            two = await run(service, sid, "x += 1\nx")
            assert one.result is not None
            assert two.result == {"text/plain": str(int(one.result["text/plain"]) + 1)}
            assert (one.notices, two.notices) == ([], [])
            await service.end_session(sid)

    async def count_up() -> int:
        total = 0
        while not stop:
            result = await run(service, keeper, "x += 1\nx")
            total += 1
            assert (result.result, result.notices) == ({"text/plain": str(total)}, [])
        return total

    users = [asyncio.create_task(use_sessions(random.Random(chance.random()))) for _ in range(2)]
    counting = asyncio.create_task(count_up())
    await kill_zygotes()
    stop = True
    await asyncio.gather(*users)
    total = await counting
    assert len(set(zygotes)) == 9
    assert made > 8
    assert (await run(service, keeper, "x")).result == {"text/plain": str(total)}
    assert [info.session_id for info in await service.list_sessions()] == ["keeper"]
    # Of all those sessions only idle inits are left: one init is for the keeper, and one for each prepared worker.
    assert await until(lambda: launcher.prepared == 2)
    inits = lambda: _count(mark, "ingle-init") - idle_inits(service)  # noqa: E731
    assert await until(lambda: inits() == 3), inits()


def _count(mark: str, name: str) -> int:
    found = 0
    for pid, _ in marked_processes(mark):
        try:
            found += Path(f"/proc/{pid}/comm").read_text().strip() == name
        except OSError:
            continue
    return found
