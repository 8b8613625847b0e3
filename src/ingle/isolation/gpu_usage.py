"""What processes use of NVIDIA's GPUs, as the driver's own library tells it. Every function blocks."""

import ctypes
import time
from collections.abc import Iterable
from dataclasses import dataclass

LIBRARY = "libnvidia-ml.so.1"

MAX_PROCESSES = 1024
RECENT_SECONDS = 5
"""Age up to which a measured utilization counts."""

UNKNOWN = (1 << 64) - 1
"""Memory of a process that the driver does not tell."""


@dataclass(frozen=True)
class GpuUse:
    """Use of all GPUs together."""

    memory: int = 0
    """Bytes."""
    utilization: int = 0
    """Percent of the time in which a GPU computed, added up over the GPUs."""

    def __add__(self, other: "GpuUse") -> "GpuUse":
        return GpuUse(self.memory + other.memory, self.utilization + other.utilization)


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Sample(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("time", ctypes.c_ulonglong),
        ("compute", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class Nvml:
    """The driver's library. Without it, no process uses anything."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._cards: list[ctypes.c_void_p] = []
        try:
            self._library = ctypes.CDLL(library)
            if self._library.nvmlInit_v2() == 0:
                self._cards = self._find_cards()
        except (OSError, AttributeError):
            return

    def _find_cards(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        cards = []
        for number in range(count.value):
            card = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(card)) == 0:
                cards.append(card)
        return cards

    @property
    def cards(self) -> int:
        """Return how many cards it tells of."""
        return len(self._cards)

    def measure(self) -> dict[int, GpuUse]:
        """Return what each process uses, by its process id."""
        used: dict[int, GpuUse] = {}
        for card in self._cards:
            for pid, use in (*self._memory(card), *self._utilization(card)):
                used[pid] = used.get(pid, GpuUse()) + use
        return used

    def _memory(self, card: ctypes.c_void_p) -> Iterable[tuple[int, GpuUse]]:
        found, count = (_Process * MAX_PROCESSES)(), ctypes.c_uint(MAX_PROCESSES)
        if self._library.nvmlDeviceGetComputeRunningProcesses_v3(card, ctypes.byref(count), found) != 0:
            return []
        return [(each.pid, GpuUse(memory=each.memory)) for each in found[: count.value] if each.memory != UNKNOWN]

    def _utilization(self, card: ctypes.c_void_p) -> Iterable[tuple[int, GpuUse]]:
        found, count = (_Sample * MAX_PROCESSES)(), ctypes.c_uint(MAX_PROCESSES)
        since = ctypes.c_ulonglong(int((time.time() - RECENT_SECONDS) * 1e6))
        if self._library.nvmlDeviceGetProcessUtilization(card, found, ctypes.byref(count), since) != 0:
            return []
        latest: dict[int, _Sample] = {}
        for each in found[: count.value]:
            if each.pid not in latest or each.time > latest[each.pid].time:
                latest[each.pid] = each
        return [(pid, GpuUse(utilization=min(each.compute, 100))) for pid, each in latest.items()]
