"""What all contestants are measured with: medians, percentiles, memory of a process tree."""

import os
import statistics
from collections.abc import Iterable
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
