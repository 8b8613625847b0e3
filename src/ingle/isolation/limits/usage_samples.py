"""CPU and memory of a session or of the machine over the last half hour, as a bounded ring of samples.

A sample is three numbers. A session is sampled while it runs cells, so an idle one costs nothing.
"""

import asyncio
import os
import time
from array import array
from collections.abc import Callable

from ingle.capacity import MachineUsage, UsageSample
from ingle.support import processes

INTERVAL_SECONDS = 5.0
"""Least time between two samples."""

KEPT_SECONDS = 1800.0

MAX_SAMPLES = int(KEPT_SECONDS / INTERVAL_SECONDS)

_FIELDS = 3


class UsageSamples:
    """Samples: time, CPU seconds so far, bytes of memory."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._numbers: array[float] | None = None
        """All samples one after another; None until there is one, as in most sessions."""

    def is_due(self, now: float) -> bool:
        """Return whether the last sample is old enough for another one."""
        return not self._numbers or now - self._numbers[-_FIELDS] >= INTERVAL_SECONDS

    def add(self, cpu_seconds: float, memory: int) -> None:
        """Add a sample, if it is due. Forget those that are too old."""
        now = self._clock()
        if not self.is_due(now):
            return
        if self._numbers is None:
            self._numbers = array("d")
        self._numbers.extend((now, cpu_seconds, memory))
        old = max(0, len(self._numbers) // _FIELDS - MAX_SAMPLES)
        while old * _FIELDS < len(self._numbers) and self._numbers[old * _FIELDS] < now - KEPT_SECONDS:
            old += 1
        del self._numbers[: old * _FIELDS]

    def read(self) -> list[UsageSample]:
        """Return the samples of the last half hour. Each has the CPU use since the sample before it."""
        found: list[UsageSample] = []
        numbers = self._numbers or array("d")
        before: tuple[float, float] | None = None
        for place in range(0, len(numbers), _FIELDS):
            at, cpu_seconds, memory = numbers[place : place + _FIELDS]
            cpus = 0.0
            if before is not None and at > before[0]:
                # A new process begins to count at zero.
                used = cpu_seconds - before[1] if cpu_seconds >= before[1] else cpu_seconds
                cpus = round(used / (at - before[0]), 3)
            before = at, cpu_seconds
            if at >= self._clock() - KEPT_SECONDS:
                found.append(UsageSample(at, cpus, int(memory)))
        return found


class MachineSamples:
    """Samples of this machine."""

    def __init__(self) -> None:
        self._samples = UsageSamples()

    async def sample(self) -> tuple[int, int]:
        """Sample the machine now. Return its memory in bytes, and how much of it is available."""
        total, available, cpu_seconds = await asyncio.to_thread(_measure_machine)
        self._samples.add(cpu_seconds, total - available)
        return total, available

    async def read(self, sessions: int) -> MachineUsage:
        total, available = await self.sample()
        return MachineUsage(self._samples.read(), os.cpu_count() or 1, total, available, sessions)


def measure(pid: int) -> tuple[int, float] | None:
    """Return memory and CPU seconds of a process and all below it; None if it has ended. Blocks for a moment."""
    memory, cpu_seconds = processes.usage(pid)
    if memory is None or cpu_seconds is None:
        return None
    for child in processes.below(pid):
        of_child = processes.usage(child)
        memory += of_child[0] or 0
        cpu_seconds += of_child[1] or 0.0
    return memory, cpu_seconds + processes.waited_for(pid)


def _measure_machine() -> tuple[int, int, float]:
    return *machine_memory(), _cpu_seconds()


def machine_memory() -> tuple[int, int]:
    """Return the bytes of the machine, and those that are available. Blocks."""
    sizes = {}
    for line in processes.read("/proc/meminfo").splitlines():
        name, _, rest = line.partition(b":")
        if name in (b"MemTotal", b"MemAvailable") and rest.split():
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes.get(b"MemTotal", 0), sizes.get(b"MemAvailable", 0)


def _cpu_seconds() -> float:
    """Return the seconds that all CPUs together were busy since the machine was started."""
    fields = processes.read("/proc/stat", 512).split(b"\n", 1)[0].split()[1:]
    busy = [int(each) for place, each in enumerate(fields[:8]) if place not in (3, 4)]
    return sum(busy) / processes.TICKS
