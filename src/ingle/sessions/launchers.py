"""Where the workers of all sessions come from: one launcher for each interpreter and level of isolation."""

import asyncio
import os
import secrets
import shutil
from pathlib import Path

from ingle.isolation.bounding import Bounding
from ingle.isolation.levels import Confinement
from ingle.isolation.policy import Grant, Mount
from ingle.sessions.homes import ROOM_FOLDERS, SHELL
from ingle.settings import Settings
from ingle.workers.launcher import Launcher
from ingle.workers.worker import Worker
from ingle_worker.wire import messages


class Launchers:
    def __init__(self, settings: Settings, home: Path, server: str) -> None:
        self._server = server
        self._laid: set[str] = set()
        self._settings = settings
        self._home = os.path.realpath(home)
        self._data = Mount(self._home)
        self._loop = asyncio.get_running_loop()
        self._launchers: dict[tuple[str, str, tuple[Mount, ...]], Launcher] = {}
        self._paths: dict[str, str] = {}

    def get(self, grant: Grant, bounding: Bounding) -> Launcher:
        """Its workers are held as the grant says, but for what differs from session to session."""
        path = self._path(grant.python)
        mounts = tuple(mount for mount in grant.mounts if not self._data.holds(mount.folder))
        key = (path, grant.isolation, mounts if grant.isolation in ("restricted", "sandbox") else ())
        if key not in self._launchers:
            confinement = None if grant.isolation == "none" else self._confinement(grant.isolation, mounts, bounding)
            launcher = self._launchers[key] = Launcher(self._loop, path, self._settings, bounding, confinement)
            if confinement is not None and confinement.has_rooms:
                launcher.prelay = self._prelay
        return self._launchers[key]

    async def drop(self, launcher: Launcher) -> None:
        """One that cannot hold sessions as it should."""
        for key in [key for key, each in self._launchers.items() if each is launcher]:
            del self._launchers[key]
        await launcher.stop()

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

    def _prelay(self, worker: Worker) -> None:
        """Folders for a session to come: when it begins there is nothing left to be done."""
        worker.laid = f"{self._server}.{secrets.token_hex(8)}"
        self._laid.add(worker.laid)
        own = [f"sessions/{worker.laid}/{name}" for name in ROOM_FOLDERS]
        worker.enter(messages.Enter(own, [], [f"sessions/{worker.laid}/{SHELL}"]))

    def offer(self, grant: Grant, launcher: Launcher) -> str:
        """A name whose folders lie in a prepared room already, for a session that needs no others; or nothing."""
        confinement = launcher.confinement
        if confinement is None or grant.network != confinement.network:
            return ""
        if any(self._data.holds(mount.folder) for mount in grant.mounts):
            return ""
        name = launcher.offer()
        self._laid.discard(name)
        return name.rpartition(".")[2]

    def unused(self) -> list[str]:
        """Names of folders that were laid into rooms, and came to no session."""
        return sorted(self._laid)

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
        await asyncio.gather(*(launcher.stop() for launcher in self._launchers.values()))
