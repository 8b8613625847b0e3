"""Sessions made ahead: each has its worker and its folders, and lacks nothing but a name.

Whoever asks for a session that is like most of them gets one of these, and nothing is left to be done. Whoever wants
it otherwise gets one too, whose worker is told what is different; if that cannot be, it is made from nothing.
"""

import asyncio
import functools
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from ingle.isolation.policy import Grant, Mount
from ingle.sessions.process.session_folders import Home, remove_below
from ingle.sessions.session import Session
from ingle.sessions.spec import Plan
from ingle.workers.launch.launcher import Launcher
from ingle.workers.worker import Worker


class Spares:
    def __init__(self, home: Path, server: str, make: Callable[[Plan, Launcher], Session]) -> None:
        real = os.path.realpath(home)
        self._data = Mount(real)
        self._folder = Path(real, "sessions")
        self._server = server
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, Session] = {}
        """By the names of their folders, until they are somebody's."""
        self._looked_at: tuple[Grant | None, bool] = (None, False)
        self._removing: set[asyncio.Future[None]] = set()

    async def furnish(self, grant: Grant, launcher: Launcher, worker: Worker) -> None:
        """Make a worker of the pool that of a session to come."""
        worker.laid = f"{self._server}.{secrets.token_hex(8)}"
        home = Home(self._folder / worker.laid)
        plan = Plan("", home.folder, env=grant.environment, grant=grant, home=home)
        session = self._sessions[worker.laid] = self._make(plan, launcher)
        worker.gone.add_done_callback(functools.partial(self._clear, worker.laid))
        await session.starting.ahead(worker)

    def offer(self, grant: Grant, launcher: Launcher) -> Session | None:
        """One that has all that is granted, or nothing. It is taken, or withdrawn."""
        confinement = launcher.confinement
        if confinement is not None and (grant.network != confinement.network or self._needs_more(grant)):
            return None
        return self._sessions.pop(launcher.offer(), None)

    def _needs_more(self, grant: Grant) -> bool:
        """Whether it has folders that are laid in for each session by itself."""
        if grant is not self._looked_at[0]:
            self._looked_at = (grant, any(self._data.holds(mount.folder) for mount in grant.mounts))
        return self._looked_at[1]

    def withdraw(self, launcher: Launcher, name: str) -> None:
        """Nobody will live in this folder. A worker that was on its way to it, or had it already, goes."""
        worker = launcher.withdraw(name)
        if worker is not None and worker.laid:
            worker.gone.add_done_callback(functools.partial(self._remove, name))

    def _clear(self, name: str, gone: object) -> None:
        """The worker is gone. If it came to no session, its folders go too."""
        if self._sessions.pop(name, None) is not None:
            self._remove(name, gone)

    def _remove(self, name: str, gone: object) -> None:
        removing = self._loop.run_in_executor(None, remove_below, self._folder, str(self._folder / name))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)

    async def stop(self) -> None:
        """Until nothing is left of them. Their workers have ended."""
        await asyncio.gather(*self._removing)
