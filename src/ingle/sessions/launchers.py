"""Where the workers of all sessions come from: one launcher for each interpreter and level of isolation."""

import asyncio
import functools
import os
import secrets
import shutil
from pathlib import Path

from ingle.isolation.bounding import Bounding
from ingle.isolation.levels import Confinement
from ingle.isolation.policy import Grant, Mount
from ingle.sessions.homes import SHELL, Home, own_folders, remove_below, start_of, tmp_of
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
        self._sessions = Path(self._home, "sessions")
        self._last: tuple[Grant, Launcher] | tuple[None, Launcher | None] = (None, None)
        self._looked_at: tuple[Grant | None, bool] = (None, False)
        self._homes: dict[str, Home] = {}
        """Of those that are prepared, by their names."""
        """Nearly all sessions are granted the same."""
        self._clearing: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._launchers: dict[tuple[str, str, tuple[Mount, ...]], Launcher] = {}
        self._paths: dict[str, str] = {}

    def get(self, grant: Grant, bounding: Bounding) -> Launcher:
        """Its workers are held as the grant says, but for what differs from session to session."""
        if grant is not self._last[0]:
            self._last = (grant, self._get(grant, bounding))
        return self._last[1]

    def _get(self, grant: Grant, bounding: Bounding) -> Launcher:
        path = self._path(grant.python)
        mounts = tuple(mount for mount in grant.mounts if not self._data.holds(mount.folder))
        key = (path, grant.isolation, mounts if grant.isolation in ("restricted", "sandbox") else ())
        if key not in self._launchers:
            confinement = None if grant.isolation == "none" else self._confinement(grant.isolation, mounts, bounding)
            launcher = self._launchers[key] = Launcher(self._loop, path, self._settings, bounding, confinement)
            if grant.isolation != "restricted":
                # There walls are drawn around a session's folders when it begins, and cannot be drawn again.
                launcher.prelay = functools.partial(self._prelay, confinement, grant.environment)
        return self._launchers[key]

    async def drop(self, launcher: Launcher) -> None:
        """One that cannot hold sessions as it should."""
        for key in [key for key, each in self._launchers.items() if each is launcher]:
            del self._launchers[key]
        self._last = (None, launcher)
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

    def _prelay(self, confinement: Confinement | None, environment: dict[str, str], worker: Worker) -> None:
        """Begin a spare worker with the folders of a session to come: for most there is nothing left to be done."""
        name = f"{self._server}.{secrets.token_hex(8)}"
        home = Home(self._sessions / name)
        room = confinement is not None and confinement.has_rooms
        tmp = tmp_of(home, 1, room=room)
        worker.laid = name
        self._homes[name] = home
        self._laid.add(name)
        worker.gone.add_done_callback(functools.partial(self._clear, name))
        if confinement is not None:
            own = [os.path.relpath(each, self._home) for each in own_folders(home, tmp, room=room)]
            worker.enter(messages.Enter(own, [], [f"sessions/{name}/{SHELL}"]))
        worker.begun = start_of(home, tmp, room=room, cwd=None, env=environment)
        worker.send(worker.begun)

    def _clear(self, name: str, gone: object) -> None:
        """The worker that had these folders is gone. If they came to no session, they go too."""
        self._homes.pop(name, None)
        if name in self._laid:
            self._laid.discard(name)
            clearing = self._loop.run_in_executor(None, remove_below, self._sessions, str(self._sessions / name))
            self._clearing.add(clearing)
            clearing.add_done_callback(self._clearing.discard)

    def offer(self, grant: Grant, launcher: Launcher) -> Home | None:
        """The folders that a prepared worker has already, for a session that needs no others; or nothing."""
        confinement = launcher.confinement
        if confinement is not None and (grant.network != confinement.network or self._needs_more(grant)):
            return None
        name = launcher.offer()
        self._laid.discard(name)
        return self._homes.pop(name, None)

    def _needs_more(self, grant: Grant) -> bool:
        """Whether it has folders that are laid in for each session by itself."""
        if grant is not self._looked_at[0]:
            self._looked_at = (grant, any(self._data.holds(mount.folder) for mount in grant.mounts))
        return self._looked_at[1]

    def withdraw(self, launcher: Launcher, name: str) -> None:
        """Who was to live in this folder has a worker by now, or never will. What was offered, and not taken, goes."""
        worker = launcher.withdraw(name)
        if worker is not None and worker.laid:
            self._laid.add(name)
            worker.gone.add_done_callback(functools.partial(self._clear, name))

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
        await asyncio.gather(*self._clearing)
