"""What one session uses: CPU and memory over time, and the hosts it asks for."""

import asyncio
import os
import time

from ingle.capacity import NetworkUse, ProcessUse, SessionUsage
from ingle.isolation.gpu_usage import GpuUse
from ingle.isolation.limits import disk_usage
from ingle.isolation.limits.usage_samples import UsageSamples, measure
from ingle.sessions.cells.runner import CellRunner
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.spec import SessionSpec
from ingle.support import processes

NOT_RECORDED = "hosts are recorded only in a sandbox with the network `allowlist`"
SHARED = "the session shares its network with its forks or its original; hosts of all of them are listed"


MAX_PROCESSES = 100
MAX_NAME_CHARS = 64

DISK_SECONDS = 5.0
"""Least time between two counts of the files."""

DISK_SHARE = 20
"""Counting the files takes at most one part of so many of the time."""


class Usage:
    def __init__(self, spec: SessionSpec, slot: ProcessSlot, runner: CellRunner) -> None:
        self._spec = spec
        self._slot = slot
        self._runner = runner
        self._samples = UsageSamples()
        self.gpu: GpuUse | None = None
        """What it uses on GPUs, as of a few seconds ago; None where not known."""
        self._sampled_cells = 0
        """Number of the last cell that had ended at the last sample."""
        self._disk: int | None = None
        self._disk_due = 0.0
        """Time at which the files are counted anew."""

    @property
    def has_run(self) -> bool:
        """Whether a cell runs, or has ended since the last sample."""
        return self._runner.running is not None or self._runner.count > self._sampled_cells

    async def sample(self) -> None:
        """Add a sample of now. A session without a process uses nothing."""
        self._sampled_cells = self._runner.count if self._runner.running is None else self._runner.count - 1
        worker = self._slot.worker
        if worker is None or worker.pid is None:
            return
        measured = await asyncio.to_thread(measure, worker.pid)
        if measured is not None:
            memory, cpu_seconds = measured
            self._samples.add(cpu_seconds, memory)

    @property
    def may_use_gpu(self) -> bool:
        """Whether it has a process that may use a GPU."""
        return bool(self._spec.grant.gpus.cards.numbers) and self._slot.worker is not None

    def note_gpu(self, used: dict[int, GpuUse]) -> None:
        """Add up what its processes use, of all that the driver tells. Blocks."""
        worker = self._slot.worker
        pids = [] if worker is None or worker.pid is None else [worker.pid, *processes.below(worker.pid)]
        self.gpu = sum((used[pid] for pid in pids if pid in used), GpuUse())

    async def read(self) -> SessionUsage:
        """Return the samples of the last half hour, with one of now; its processes and files."""
        await self.sample()
        worker, limit = self._slot.worker, self._spec.grant.limits.memory
        running = [] if worker is None or worker.pid is None else await asyncio.to_thread(_processes, worker.pid)
        samples, disk = self._samples.read(), await self._count_files()
        return SessionUsage(self._spec.session_id, samples, limit, os.cpu_count() or 1, running, disk)

    async def _count_files(self) -> int | None:
        """Return the bytes of the files in the own folder. Many files are counted more rarely."""
        began = time.monotonic()
        if began >= self._disk_due:
            folder = self._slot.workspace.folders.place
            # Other requests that come meanwhile get the count before.
            self._disk_due = began + DISK_SECONDS
            self._disk = await asyncio.to_thread(disk_usage.size, folder)
            ended = time.monotonic()
            self._disk_due = max(self._disk_due, ended + (ended - began) * DISK_SHARE)
        return self._disk

    def network(self) -> NetworkUse:
        """Return the hosts that the session asked for."""
        grant, worker = self._spec.grant, self._slot.worker
        hosts = self._slot.workspace.hosts if worker is None else worker.siblings.hosts
        if hosts is None:
            return NetworkUse(self._spec.session_id, grant.network, [], notices=[NOT_RECORDED])
        shared = worker is not None and worker.siblings.shared
        notices = [SHARED] if shared and self._slot.workspace.folders.shared else []
        return NetworkUse(self._spec.session_id, grant.network, hosts.read(), hosts.forgotten, notices)


def _processes(root: int) -> list[ProcessUse]:
    """Return a process and those below it, the largest first. Blocks for a moment."""
    found = []
    for pid in [root, *processes.below(root)]:
        memory, _ = processes.usage(pid)
        name = processes.read(f"/proc/{pid}/comm", MAX_NAME_CHARS).decode("utf-8", "replace").rstrip("\n")
        if memory is not None and name:
            found.append(ProcessUse(name, memory))
    return sorted(found, key=lambda each: (-each.memory, each.name))[:MAX_PROCESSES]
