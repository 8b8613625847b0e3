"""Launchers of workers: one for each interpreter, level of isolation, set of mounts and set of GPUs."""

import asyncio
import functools
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ingle.isolation.gpus import GpuGrant
from ingle.isolation.levels import Confinement
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.policy import Grant, Mount
from ingle.sessions.process.prepared_workers import PreparedWorkers
from ingle.settings import Settings
from ingle.workers.launch.launcher import Launcher
from ingle.workers.worker import Worker

CONFINED_LEVELS = ("restricted", "sandbox")
"""Levels at which a worker sees the granted folders only. It cannot get more of them later."""

NO_GPUS = GpuGrant()


class Launchers:
    def __init__(self, settings: Settings, home: Path, prepared: PreparedWorkers) -> None:
        self._settings = settings
        self._prepared = prepared
        self._home = os.path.realpath(home)
        self._data = Mount(self._home)
        self._loop = asyncio.get_running_loop()
        self._launchers: dict[tuple[str, str, tuple[Mount, ...], GpuGrant], Launcher] = {}
        self._retired: list[Launcher] = []
        """Launchers with grants of the past. Processes of live sessions may have come from them."""

    def get(self, grant: Grant, bounding: LimitApplier) -> Launcher:
        """Return the launcher of workers that are confined as the grant says."""
        confined = grant.isolation in CONFINED_LEVELS
        gpus = grant.gpus if confined else NO_GPUS
        key = (grant.python, grant.isolation, self._outer(grant.mounts) if confined else (), gpus)
        if key not in self._launchers:
            confinement = None
            if grant.isolation != "none":
                confinement = self._confinement(grant.isolation, self._outer(grant.mounts), gpus, bounding)
            launcher = self._launchers[key] = Launcher(self._loop, grant.python, self._settings, bounding, confinement)
            if grant.isolation != "restricted":
                # At "restricted" a worker's access rules name its session's folders, and cannot be changed later.
                launcher.prepare = functools.partial(self._prepare, self._usual(grant, bounding), launcher, bounding)
        return self._launchers[key]

    def _outer(self, mounts: tuple[Mount, ...]) -> tuple[Mount, ...]:
        """Return the mounts outside of the data folder. The others are mounted for each session."""
        return tuple(mount for mount in mounts if not self._data.holds(mount.folder))

    def _usual(self, grant: Grant, bounding: LimitApplier) -> Grant:
        """Return the grant of workers in the pool: what this one has for all sessions, and nothing for one of them."""
        own = self._prepared.own_mounts(grant)
        network = self._settings.network if grant.isolation == "sandbox" else "full"
        mounts = tuple(mount for mount in grant.mounts if mount not in own)
        return replace(grant, network=network, limits=bounding.defaults, cwd=None, mounts=mounts)

    async def _prepare(self, grant: Grant, launcher: Launcher, bounding: LimitApplier, worker: Worker) -> None:
        await self._prepared.prepare(grant, launcher, bounding, worker)

    async def drop(self, launcher: Launcher) -> None:
        """Stop a launcher that cannot confine its workers, and forget it."""
        for key in [key for key, each in self._launchers.items() if each is launcher]:
            del self._launchers[key]
        await launcher.stop()

    def retire(self, valid: Iterable[tuple[Mount, ...]]) -> None:
        """Use launchers of confined workers for no new session, except those with one of these sets of mounts."""
        kept = {self._outer(mounts) for mounts in valid}
        for key in [key for key in self._launchers if key[1] in CONFINED_LEVELS and key[2] not in kept]:
            launcher = self._launchers.pop(key)
            launcher.retire()
            self._retired.append(launcher)

    async def stop_retired(self, used: set[Launcher]) -> None:
        """Stop the retired launchers that no session uses."""
        unused = [launcher for launcher in self._retired if launcher not in used]
        self._retired = [launcher for launcher in self._retired if launcher in used]
        await asyncio.gather(*(launcher.stop() for launcher in unused))

    @property
    def all(self) -> list[Launcher]:
        return [*self._launchers.values(), *self._retired]

    def _confinement(
        self, level: str, mounts: tuple[Mount, ...], gpus: GpuGrant, bounding: LimitApplier
    ) -> Confinement:
        settings = self._settings
        return Confinement(
            level,
            settings.network if level == "sandbox" else "full",
            self._home,
            (*((mount.folder, not mount.read_only) for mount in mounts), *((each, False) for each in gpus.folders)),
            devices=gpus.cards.nodes(),
            gpu_driver="" if gpus.cards.driver is None else gpus.cards.driver.name,
            tmp_size=settings.limit_tmp,
            processes=settings.limit_processes,
            files=settings.limit_files,
            file_size=settings.limit_file_size,
            memory=settings.limit_memory,
            grouped_memory=bounding.memory_by_kernel,
            nice=min(settings.nice, 19),
            kept=tuple(settings.keep_env),
            # Only the kernel can count the memory of such a file.
            memfd=bounding.memory_by_kernel or not settings.limit_memory,
        )

    async def stop(self) -> None:
        await asyncio.gather(*(launcher.stop() for launcher in self.all))
