"""What all contestants are measured with: medians, percentiles, memory of a process tree."""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def p95(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]


def pss(pid: int) -> float:
    """Proportional set size of one process in MB: its own pages, and its share of those it has in common."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has just ended
    for line in lines:
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def own_memory(pid: int) -> float:
    """Return the MB of one process that it shares with no other."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has just ended
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))) / 1024


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU time that these processes have used, in user and kernel mode. Those that have ended count 0."""
    ticks = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found, todo = [], [pid]
    while todo:
        each = todo.pop()
        found.append(each)
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{each}/task"):
                todo += [int(child) for child in Path(f"/proc/{each}/task/{task}/children").read_text().split()]
    return found


def tree_pss(pid: int) -> float:
    return sum(pss(each) for each in tree(pid))


async def together(cells: list[Callable[[], Awaitable[object]]], times: int) -> tuple[float, float]:
    """Cells a second where so many run theirs so often: as long as all of them are at work, and until the last is done.

    The kernel does not share cores out evenly within a second: some are done long before others.
    """
    done = 0
    ends: list[tuple[int, float]] = []

    async def work(cell: Callable[[], Awaitable[object]]) -> None:
        nonlocal done
        for _ in range(times):
            await cell()
            done += 1
        ends.append((done, time.perf_counter() - began))

    began = time.perf_counter()
    await asyncio.gather(*(work(cell) for cell in cells))
    (first, soon), (last, late) = ends[0], ends[-1]
    return first / soon, last / late
