"""Measurements of `%time` and `%timeit`."""

import gc
import math
import resource
import time
from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

from ingle_worker.magics.subshell import say

MIN_RUN_SECONDS = 0.2
"""Minimum seconds of one `%timeit` run, unless the number of loops is given."""


class Moment(NamedTuple):
    wall: float
    user: float
    system: float


def now() -> Moment:
    """Return the time, and the CPU time of this process and of the commands it waited for."""
    used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Moment(time.perf_counter(), sum(each.ru_utime for each in used), sum(each.ru_stime for each in used))


def report(began: Moment, value: Any = None) -> Any:
    """Print the time since `began` and return the value."""
    wall, user, system = (after - before for before, after in zip(began, now(), strict=True))
    total = user + system
    say(f"CPU times: user {in_words(user)}, sys: {in_words(system)}, total: {in_words(total)}")
    say(f"Wall time: {in_words(wall)}")
    return value


def measure(inner: Callable[[Any, Callable[[], float]], float], loops: int, runs: int, quiet: bool) -> None:
    """Run `inner(iterator, timer)`, which returns its seconds, several times. Print mean and deviation."""

    def take(count: int) -> float:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return inner(repeat(None, count), time.perf_counter)
        finally:
            if was_enabled:
                gc.enable()

    if not loops:
        loops = 1
        while take(loops) < MIN_RUN_SECONDS and loops < 10**9:
            loops *= 10
    times = [take(loops) / loops for _ in range(runs)]
    if quiet:
        return
    mean = math.fsum(times) / runs
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in times) / runs)
    say(
        f"{in_words(mean)} ± {in_words(deviation)} per loop (mean ± std. dev. of {runs} run{'s' * (runs != 1)}, "
        f"{loops:,} loop{'s' * (loops != 1)} each)"
    )


def in_words(seconds: float) -> str:
    """Return three digits and a unit. From a minute on, return minutes, hours and days."""
    if seconds >= 60:
        parts = []
        left = round(seconds)
        for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
            count, left = divmod(left, size)
            if count:
                parts.append(f"{count}{unit}")
        return " ".join(parts)
    for name, least in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= least:
            return f"{seconds / least:.3g} {name}"
    return f"{max(seconds, 0.0) * 1e9:.3g} ns"
