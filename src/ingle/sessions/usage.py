"""What one session uses: CPU and memory over time, and the hosts it asks for."""

import asyncio
import os

from ingle.capacity import NetworkUse, SessionUsage
from ingle.isolation.gpu_usage import GpuUse
from ingle.isolation.limits.usage_samples import UsageSamples, measure
from ingle.sessions.cells.runner import CellRunner
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.spec import SessionSpec
from ingle.support import processes

NOT_RECORDED = "hosts are recorded only in a sandbox with the network `allowlist`"
SHARED = "the session shares its network with its forks or its original; hosts of all of them are listed"


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
        """Return the samples of the last half hour, with one of now."""
        await self.sample()
        limit = self._spec.grant.limits.memory
        return SessionUsage(self._spec.session_id, self._samples.read(), limit, os.cpu_count() or 1)

    def network(self) -> NetworkUse:
        """Return the hosts that the session asked for."""
        grant, worker = self._spec.grant, self._slot.worker
        hosts = self._slot.workspace.hosts if worker is None else worker.siblings.hosts
        if hosts is None:
            return NetworkUse(self._spec.session_id, grant.network, [], notices=[NOT_RECORDED])
        shared = worker is not None and worker.siblings.shared
        notices = [SHARED] if shared and self._slot.workspace.folders.shared else []
        return NetworkUse(self._spec.session_id, grant.network, hosts.read(), hosts.forgotten, notices)
