"""CPU-bound cells of many sessions at once beside one: `python bench/cores.py`.

One session per core runs the same cell at the same time. Plain processes do the same work in turn with them, because
cores that share caches, clocks or hardware threads do not add up for any program.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import median
from ingle.service import Service
from ingle.settings import Settings

WORK = "n = 0\nwhile n < {turns}:\n    n += 1"
TURNS = 20_000_000
ROUNDS = 5

TARGET = 13.0
"""How many times the pace of one session sixteen must have on sixteen cores."""

TARGET_CORES = 16


async def sessions(service: Service, names: list[str], code: str) -> float:
    """Return the seconds until the cells of all these sessions have ended."""
    began = time.perf_counter()
    results = await asyncio.gather(*(service.execute(name, code, wait=300) for name in names))
    assert all(each.success for each in results), results
    return time.perf_counter() - began


def processes(count: int, code: str) -> float:
    began = time.perf_counter()
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    assert [each.wait() for each in started] == [0] * count
    return time.perf_counter() - began


async def measure(level: str, cores: int, turns: int) -> dict[str, list[float]]:
    """Return, for sessions and for plain processes, how many times the pace of one all of them had."""
    code = WORK.format(turns=turns)
    settings = Settings(isolation=level, preload=[], network="none" if level == "sandbox" else "full", max_sessions=64)
    times: dict[str, list[float]] = {"sessions": [], "processes": []}
    with tempfile.TemporaryDirectory() as folder:
        async with Service.local(settings, Path(folder) / "home") as service:
            names = [f"s{number}" for number in range(cores)]
            for name in names:
                await service.create_session(name)
                await service.execute(name, "1")
            for _ in range(ROUNDS):
                one = await sessions(service, names[:1], code)
                times["sessions"].append(cores * one / await sessions(service, names, code))
                one = await asyncio.to_thread(processes, 1, code)
                times["processes"].append(cores * one / await asyncio.to_thread(processes, cores, code))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--isolation", default="none")
    given = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    times = asyncio.run(measure(given.isolation, cores, TURNS // 10 if given.quick else TURNS))
    for name, row in times.items():
        told = f"{name:10} {cores} at once: {median(row):5.2f} times one   (from {min(row):.2f} to {max(row):.2f})"
        if name == "sessions" and cores == TARGET_CORES:
            told += f"  >= {TARGET:g} {'met' if median(row) >= TARGET else 'MISSED'}"
        print(told, flush=True)


if __name__ == "__main__":
    main()
