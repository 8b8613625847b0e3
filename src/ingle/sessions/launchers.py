"""Where the workers of all sessions come from: one launcher for each interpreter and level of isolation.

Which level `auto` means, and whether one that was named can be had, is found out once, by trying.
"""

import asyncio
import os
import shutil
from pathlib import Path

from ingle.isolation import probe
from ingle.isolation.bounding import Bounding
from ingle.isolation.levels import Confinement
from ingle.isolation.policy import Grant, Mount
from ingle.isolation.probe import Verdict
from ingle.settings import Settings
from ingle.workers.launcher import Launcher


class Launchers:
    def __init__(self, settings: Settings, home: Path) -> None:
        self._settings = settings
        self._home = os.path.realpath(home)
        self._loop = asyncio.get_running_loop()
        self._launchers: dict[tuple[str, str, tuple[Mount, ...]], Launcher] = {}
        self._paths: dict[str, str] = {}
        self._tried: dict[str, asyncio.Task[Verdict]] = {}

    async def settle(self, asked: str) -> Verdict:
        """What a level means here; raises IsolationUnavailable where it cannot be had."""
        tried = self._tried.get(asked)
        if tried is None:
            trying = asyncio.to_thread(probe.settle, asked, self._settings.python, Path(self._home))
            tried = self._tried[asked] = self._loop.create_task(trying)
        return tried.result() if tried.done() else await asyncio.shield(tried)

    def get(self, grant: Grant, bounding: Bounding) -> Launcher:
        """Its workers are held as the grant says, but for what differs from session to session."""
        path = self._path(grant.python)
        mounts = tuple(mount for mount in grant.mounts if not Mount(self._home).holds(mount.folder))
        key = (path, grant.isolation, mounts if grant.isolation in ("restricted", "sandbox") else ())
        if key not in self._launchers:
            confinement = None if grant.isolation == "none" else self._confinement(grant.isolation, mounts, bounding)
            self._launchers[key] = Launcher(self._loop, path, self._settings, bounding, confinement)
        return self._launchers[key]

    def _path(self, python: str) -> str:
        """An interpreter by its name. To look for it takes a while, so that what was found is remembered."""
        if python not in self._paths:
            found = shutil.which(python)
            if found is None:
                return python
            self._paths[python] = found
        return self._paths[python]

    @property
    def all(self) -> list[Launcher]:
        return list(self._launchers.values())

    def _confinement(self, level: str, mounts: tuple[Mount, ...], bounding: Bounding) -> Confinement:
        settings = self._settings
        return Confinement(
            level,
            settings.network if level == "sandbox" else "full",
            self._home,
            tuple((mount.folder, not mount.read_only) for mount in mounts),
            tmp_size=settings.limit_tmp,
            processes=settings.limit_processes,
            files=settings.limit_files,
            file_size=settings.limit_file_size,
            nice=min(settings.nice, 19),
            kept=tuple(settings.keep_env),
            # Nobody but the kernel sees the memory that such a file holds.
            memfd=bounding.memory_by_kernel or not settings.limit_memory,
        )

    async def stop(self) -> None:
        for trying in self._tried.values():
            await asyncio.wait([trying])
            if not trying.cancelled():
                trying.exception()
        await asyncio.gather(*(launcher.stop() for launcher in self._launchers.values()))
