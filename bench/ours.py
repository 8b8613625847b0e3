"""ingle's engine, driven as a door drives it: through the service."""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bench.measure import together, tree_pss
from ingle import events
from ingle.service import Service
from ingle.settings import Settings


@asynccontextmanager
async def engine(preload: list[str], pool: int) -> AsyncIterator[Service]:
    with tempfile.TemporaryDirectory() as home:
        # As those it is compared with: what isolation costs is measured apart.
        settings = Settings(preload=preload, pool=pool, isolation="none")
        async with Service.local(settings, Path(home)) as service:
            await service.warm()
            if not pool:
                await service.create_session("first")
                await service.end_session("first")
            yield service


async def starts(service: Service, count: int, pause: float) -> tuple[list[float], list[float]]:
    """Request to ready, and request to first result."""
    ready, first = [], []
    for number in range(count):
        await asyncio.sleep(pause)
        began = time.perf_counter()
        await service.create_session(f"start-{number}")
        ready.append(time.perf_counter() - began)
        await service.execute(f"start-{number}", "1")
        first.append(time.perf_counter() - began)
    for number in range(count):
        await service.end_session(f"start-{number}")
    return ready, first


async def round_trips(service: Service, code: str, count: int, pause: float) -> list[float]:
    await service.create_session("trips")
    for _ in range(20):
        await service.execute("trips", code)
    times = []
    for _ in range(count):
        if pause:
            await asyncio.sleep(pause)
        began = time.perf_counter()
        await service.execute("trips", code)
        times.append(time.perf_counter() - began)
    await service.end_session("trips")
    return times


def added_by_display() -> float:
    """Seconds that showing values adds to a bare `1+1`, measured in the guest."""
    program = Path(__file__).with_name("added.py")
    told = subprocess.run([sys.executable, str(program)], check=True, capture_output=True, text=True).stdout.split()
    return float(told[0]) - float(told[1])


async def cells_per_second(service: Service, sessions: int, cells: int) -> tuple[float, float]:
    for number in range(sessions):
        await service.create_session(f"many-{number}")
        await service.execute(f"many-{number}", "x = 1")
    speeds = await together([partial(service.execute, f"many-{number}", "x = 1") for number in range(sessions)], cells)
    for number in range(sessions):
        await service.end_session(f"many-{number}")
    return speeds


async def pour(service: Service, code: str, size: int) -> float:
    """Seconds until all of a cell's output has been seen, by one who follows it live."""
    await service.create_session("pour")
    began = time.perf_counter()
    await service.begin("pour", code)
    seen = 0
    async for event in service.events("pour"):
        if isinstance(event, events.Stdout):
            seen += len(event.text)
        elif isinstance(event, events.Done):
            break
    took = time.perf_counter() - began
    assert seen == size, (seen, size)
    await service.end_session("pour")
    return took


async def print_to_client(service: Service, count: int) -> list[float]:
    """From just before an unflushed print without a newline to its arrival; the cell goes on meanwhile."""
    await service.create_session("prints")
    await service.execute("prints", "import time")
    times = []
    for _ in range(count):
        cell = await service.begin("prints", "print(time.monotonic_ns(), end=''); time.sleep(0.3)")
        async for event in service.events("prints"):
            if isinstance(event, events.Stdout) and event.cell == cell:
                times.append((time.monotonic_ns() - int(event.text)) / 1e9)
            elif isinstance(event, events.Done) and event.cell == cell:
                break
    await service.end_session("prints")
    return times


async def interrupts(service: Service, count: int) -> list[float]:
    """From the request to a session that is ready again."""
    await service.create_session("ints")
    times = []
    for _ in range(count):
        await service.execute("ints", "while True: pass", wait=0.05)
        began = time.perf_counter()
        result = await service.interrupt("ints")
        times.append(time.perf_counter() - began)
        assert result is not None
        assert result.status == "interrupted"
    await service.end_session("ints")
    return times


async def deaths(service: Service, count: int) -> tuple[list[float], list[float]]:
    """From sending a cell that kills its process: to being told, and to the next result."""
    await service.create_session("deaths")
    told, again = [], []
    for _ in range(count):
        await service.execute("deaths", "1")
        began = time.perf_counter()
        result = await service.execute("deaths", "import os; os._exit(1)")
        assert result.status == "exit"
        told.append(time.perf_counter() - began)
        await service.execute("deaths", "1")
        again.append(time.perf_counter() - began)
        await asyncio.sleep(0.05)
    await service.end_session("deaths")
    return told, again


async def memory(service: Service, cells: list[str], count: int) -> list[float]:
    """PSS of a session, its init included, in MB: fresh, then after each of these cells."""
    names = [f"mem-{number}" for number in range(count)]
    for name in names:
        await service.create_session(name)
    sessions = [service._node.manager.get(name) for name in names]

    def average() -> float:
        roots = [session.worker.init_pid for session in sessions]
        return sum(tree_pss(root) for root in roots) / count

    figures = [average()]
    for cell in cells:
        for name in names:
            assert (await service.execute(name, cell)).success
        figures.append(average())
    for name in names:
        await service.end_session(name)
    return figures
