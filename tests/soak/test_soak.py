"""The long runs: thousands of sessions, hundreds of thousands of cells, random kills; and nothing may grow.

Each test works until its share of SOAK_SECONDS is used up or its full number is reached, and says how far it came.
"""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from processes.test_density import create_use_and_end, memory, open_files
from sessions.rich.test_rendering import read_a_flood
from support.internals import manager_of, session_folders
from support.processes import marked_processes
from support.service import make_settings
from support.shell_commands import run_crowd

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
pytestmark = pytest.mark.soak


@pytest.fixture
def settings() -> Settings:
    return make_settings(preload=[], pool=2, idle_timeout=3600)


class Clock:
    def __init__(self, share: float) -> None:
        self._end = time.monotonic() + SECONDS * share

    @property
    def over(self) -> bool:
        return time.monotonic() > self._end


def zombies(mark: str) -> int:
    return sum(state == "Z" for _, state in marked_processes(mark))


async def test_ten_thousand_sessions_come_and_go(service: Service, home: Path, mark: str) -> None:
    clock = Clock(0.3)
    await create_use_and_end(service, 100)
    files, before, made = open_files(service), memory(), 0
    while made < 10_000 and not clock.over:
        await create_use_and_end(service, 100)
        made += 100
        assert open_files(service) <= files + 20
    print(f"{made} sessions; memory {before:.0f} -> {memory():.0f} MB, files {files} -> {open_files(service)}")
    assert memory() - before < 30
    assert session_folders(service, home) == []
    assert zombies(mark) == 0


async def test_a_thousand_sessions_ten_times_over(service: Service) -> None:
    clock = Clock(0.2)
    await create_use_and_end(service, 1000)
    files, before, rounds = open_files(service), memory(), 0
    while rounds < 10 and not clock.over:
        await create_use_and_end(service, 1000)
        rounds += 1
    print(f"{rounds} rounds of 1,000; memory {before:.0f} -> {memory():.0f} MB, files {files} -> {open_files(service)}")
    assert open_files(service) <= files + 20
    assert memory() - before < 30


async def test_two_hundred_thousand_cells(service: Service) -> None:
    clock = Clock(0.25)
    names = [f"c{number}" for number in range(8)]
    for name in names:
        await service.create_session(name)
    counts = dict.fromkeys(names, 0)

    async def work(name: str) -> None:
        while counts[name] < 25_000 and not clock.over:
            counts[name] += 1
            result = await service.execute(name, f"print({counts[name]})\n{counts[name]}")
            assert (result.stdout, result.result) == (f"{counts[name]}\n", {"text/plain": str(counts[name])})

    await asyncio.gather(*(service.execute(name, "0") for name in names))
    before = memory()
    await asyncio.gather(*(work(name) for name in names))
    total = sum(counts.values())
    print(f"{total} cells; memory {before:.0f} -> {memory():.0f} MB")
    # Each session keeps its newest events in memory, up to 4 MB of them, and a few bytes for each older cell.
    assert memory() - before < 8 * 8 + total * 32 / 2**20


async def test_a_gigabyte_is_shown_short_and_searched_in_little_memory(service: Service) -> None:
    await service.create_session("s")
    await read_a_flood(service, 1024)


class TestCommands:
    @pytest.fixture
    def settings(self) -> Settings:
        # Where they share a sandbox, they are counted together: an init, a bash and a sleep each.
        return make_settings(preload=[], pool=1, limit_processes=2000)

    async def test_five_hundred_at_once_each_with_its_own_output(self, service: Service, tmp_path: Path) -> None:
        await run_crowd(service, tmp_path, 500)


async def test_random_kills(service: Service, home: Path, mark: str) -> None:
    clock = Clock(0.25)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    names = [f"k{number}" for number in range(6)]
    for name in names:
        await service.create_session(name)
    manager = manager_of(service)
    done, killed, stop = 0, 0, False

    async def work(name: str) -> None:
        nonlocal done
        while not stop:
            result = await service.execute(name, "import time\nfor _ in range(20): time.sleep(0.0005)\n'whole'")
            if result.status == "ok":
                assert result.result == {"text/plain": "'whole'"}
            else:
                assert result.status == "exit"
                assert result.exit is not None
            done += 1

    async def kill() -> None:
        nonlocal killed, stop
        while not clock.over:
            await asyncio.sleep(chance.uniform(0.0, 0.05))
            session = manager.get(chance.choice(names))
            worker = session.worker
            launcher = next(iter(manager._launchers.all))
            victims = [worker.pid, worker.init_pid] if worker is not None else []
            if chance.random() < 0.1:
                victims.append(launcher.zygote_pid)
            victims = [pid for pid in victims if pid]
            if victims and worker is not None and worker.alive:
                try:
                    os.kill(chance.choice(victims), signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    continue
        stop = True

    files, before = open_files(service), memory()
    await asyncio.gather(kill(), *(work(name) for name in names))
    for name in names:
        assert (await service.execute(name, "1 + 1")).result == {"text/plain": "2"}
    print(
        f"{killed} kills, {done} cells; memory {before:.0f} -> {memory():.0f} MB, "
        f"files {files} -> {open_files(service)}"
    )
    assert killed > 0
    assert memory() - before < 40
    assert zombies(mark) == 0
