"""Thousands of idle sessions on one machine: `python bench/crowd.py --level none --count 10000`.

Each session runs a cell, is idle for a while, and answers a second cell. Reported are memory, the kernel's memory for
them, descriptors of the server, and how long it takes until nothing of them is left. They have no GPU: with one, each
session has a second process, in which copies by value begin.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import median, own_memory, p95, pss, tree
from ingle.service import Service
from ingle.settings import Settings

AT_ONCE = 32
"""Sessions that are created, asked or ended at a time."""

SAMPLE = 200
"""Sessions whose memory is read."""

SETTLE_SECONDS = 10
"""Time for all sessions to be idle for long enough to give their descriptors away."""

KERNEL = ("Slab", "PageTables", "KernelStack")
AVAILABLE = "MemAvailable"


def kernel_memory() -> dict[str, int]:
    """Return kilobytes of kernel memory by kind, and of memory that is left."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {name[:-1]: int(size) for name, size, *_ in lines if name[:-1] in (*KERNEL, AVAILABLE)}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def each(names: list[str], work) -> float:  # type: ignore[no-untyped-def]
    """Do this for each session, some at a time. Return the seconds it took."""
    waiting = iter(names)

    async def worker() -> None:
        for name in waiting:
            await work(name)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return time.perf_counter() - began


async def measure(level: str, preload: list[str], count: int, python: str) -> dict[str, object]:
    settings = Settings(
        preload=preload,
        isolation=level,
        network="none" if level == "sandbox" else "full",
        max_sessions=count + 100,
        idle_timeout=86400,
        python=python,
        gpu="none",
    )
    figures: dict[str, object] = {"level": level, "preload": preload, "sessions": count, "python": python}
    names = [f"s{number}" for number in range(count)]
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with Service.local(settings, Path(folder) / "home") as service:
            await service.warm()
            fds, kernel, processes = descriptors(), kernel_memory(), len(tree(os.getpid()))

            async def create(name: str) -> None:
                await service.create_session(name)
                assert (await service.execute(name, "x = 1")).success

            async def ask(name: str) -> None:
                began = time.perf_counter()
                assert (await service.execute(name, "x + 1")).result == {"text/plain": "2"}
                times.append((time.perf_counter() - began) * 1000)

            async def end(name: str) -> None:
                await service.end_session(name)

            figures["created in s"] = round(await each(names, create), 1)
            print(json.dumps(figures), flush=True)
            await asyncio.sleep(SETTLE_SECONDS)
            figures["descriptors each"] = round((descriptors() - fds) / count, 2)
            now = kernel_memory()
            figures["kernel KB each"] = {name: round((now[name] - kernel[name]) / count, 1) for name in KERNEL}
            figures["memory GiB of all"] = round((kernel[AVAILABLE] - now[AVAILABLE]) / 2**20, 2)
            workers = [service._node.manager.get(name).worker for name in names[:: max(1, count // SAMPLE)]]
            for name, read in (("PSS MB each", pss), ("own MB each", own_memory)):
                sizes = [sum(read(pid) for pid in (worker.pid, worker.init_pid)) for worker in workers]
                figures[name] = round(sum(sizes) / len(sizes), 2)
            figures["answered in s"] = round(await each(names, ask), 1)
            figures["answer ms"] = [round(median(times), 2), round(p95(times), 2)]
            print(json.dumps(figures), flush=True)
            figures["ended in s"] = round(await each(names, end), 1)
            await asyncio.sleep(1)
            # Inits that wait for another session are among them.
            figures["processes left"] = len(tree(os.getpid())) - processes
            figures["descriptors left"] = descriptors() - fds
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", default="none")
    parser.add_argument("--preload", default="")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the sessions (default: this one)")
    given = parser.parse_args()
    preload = [name for name in given.preload.split(",") if name]
    print(json.dumps(asyncio.run(measure(given.level, preload, given.count, given.python)), indent=1))


if __name__ == "__main__":
    main()
