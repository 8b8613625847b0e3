"""Upkeep of a node's sessions: raw reads of standard input, idle sessions, limits that the kernel does not keep."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from ingle.isolation.gpu_usage import GpuUse, Nvml
from ingle.isolation.limits.cgroup_mounts import MEMORY, PROCESSES
from ingle.isolation.limits.usage_samples import INTERVAL_SECONDS, MachineSamples
from ingle.isolation.limits.watchdog import Watchdog, Watched
from ingle.requests import SessionLimits
from ingle.sessions.descriptors import Descriptors
from ingle.sessions.metrics import Telemetry
from ingle.sessions.persistence.hibernation import Hibernation
from ingle.sessions.process.session_folders import OUTPUTS, SHELL
from ingle.sessions.session import Session
from ingle.sessions.usage import Usage
from ingle.support.background import run_forever
from ingle.workers.io import blocked_readers

WATCH_INTERVAL_SECONDS = 0.1
"""How often running cells are checked for raw reads of standard input."""

EXPIRE_INTERVAL_SECONDS = 1.0

GPU_INTERVAL_SECONDS = 2.0
"""How often the driver of GPUs is asked."""


def note_gpus(nvml: Nvml, watched: list[Usage]) -> None:
    """Tell these sessions what they use of GPUs. Blocks."""
    used = nvml.measure()
    for usage in watched:
        usage.note_gpu(used)


class Upkeep:
    def __init__(
        self,
        sessions: Callable[[], Iterable[Session]],
        with_hidden: Callable[[], list[Session]],
        hibernation: Hibernation,
        descriptors: Descriptors,
        telemetry: Telemetry,
    ) -> None:
        """`with_hidden` also returns the sessions that no listing shows. Their limits hold too."""
        self._sessions = sessions
        self._with_hidden = with_hidden
        self._hibernation = hibernation
        self._descriptors = descriptors
        self._telemetry = telemetry
        self._watchdog = Watchdog(self._watched)
        self.machine = MachineSamples()
        self._loops: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._loops = [
            loop.create_task(run_forever("looking for reads of standard input", self._watch_raw_reads)),
            loop.create_task(run_forever("looking for idle sessions", self._expire)),
            loop.create_task(run_forever("looking at what sessions use", self._watchdog.run)),
            loop.create_task(run_forever("sampling what sessions use", self._sample)),
            loop.create_task(run_forever("asking what sessions use of GPUs", self._ask_gpus)),
        ]

    async def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)

    async def _watch_raw_reads(self) -> None:
        """Find cells that have run for a moment and block on standard input."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_SECONDS)
            # Most often no cell runs, and to look at thousands of sessions takes milliseconds.
            if self._telemetry.running_cells:
                await self._find_raw_reads()

    async def _find_raw_reads(self) -> None:
        watched = {}
        for session in self._sessions():
            cell, worker = session.running, session.worker
            if cell is None or worker is None:
                continue
            session.runner.show_next_wait()
            if worker.pid is None or cell.waits:
                continue
            if cell.age >= WATCH_INTERVAL_SECONDS:
                watched[worker.pid] = (session, cell, worker.stdin.inode, cell.answers)
        if not watched:
            return
        roots = {pid: inode for pid, (_, _, inode, _) in watched.items()}
        blocked = await asyncio.to_thread(blocked_readers.find_blocked, roots)
        for pid, (session, cell, _, answers) in watched.items():
            # An answer that came meanwhile makes the observation out of date.
            if cell.answers == answers:
                session.runner.on_raw_read(cell, pid in blocked)

    def _watched(self, only_running: bool) -> Iterator[Watched]:
        """Yield the sessions with limits that the kernel does not keep, or not all of them."""
        if only_running and not self._telemetry.running_cells:
            return
        sessions = self._with_hidden()
        if only_running:
            busy = {each.worker.init_pid for each in sessions if each.running is not None and each.worker is not None}
            if not busy:
                return
            sessions = [each for each in sessions if each.worker is not None and each.worker.init_pid in busy]
        for session in sessions:
            worker, grant = session.worker, session.spec.grant
            if worker is None or worker.init_pid is None or grant.limits == SessionLimits():
                continue
            places = () if worker.group is None else worker.group.places
            yield Watched(
                worker.init_pid if not worker.siblings.shared else worker.pid or worker.init_pid,
                grant.limits,
                session.on_breach,
                memory=MEMORY not in places,
                processes=PROCESSES not in places,
                soft_memory=session.runner.soft_memory,
                on_soft=session.runner.on_soft_memory,
                network=session.launcher.confinement is not None and session.launcher.confinement.has_own_root,
                folder=session.folders.root,
                init=worker.init_pid,
                kept=(*OUTPUTS, SHELL),
                user=worker.birth.user,
            )

    async def _sample(self) -> None:
        """Sample the machine, and the sessions that have run a cell since their last sample."""
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            busy = [session for session in self._sessions() if session.usage.has_run]
            await asyncio.gather(self.machine.sample(), *(session.usage.sample() for session in busy))

    def gpu_use(self) -> GpuUse:
        """Return what all sessions use of GPUs."""
        return sum((each.usage.gpu for each in self._sessions() if each.usage.gpu is not None), GpuUse())

    async def _ask_gpus(self) -> None:
        """Ask the driver what sessions use, while one may use a GPU. A driver that hangs costs one thread."""
        nvml: Nvml | None = None
        while True:
            await asyncio.sleep(GPU_INTERVAL_SECONDS)
            watched = [session.usage for session in self._sessions() if session.usage.may_use_gpu]
            if not watched:
                continue
            if nvml is None:
                nvml = await asyncio.to_thread(Nvml)
            if nvml.cards:
                await asyncio.to_thread(note_gpus, nvml, watched)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_SECONDS)
            self._hibernation.check()
            for session in list(self._sessions()):
                if session.failures.any:
                    await session.failures.check()
            self._descriptors.lend()
