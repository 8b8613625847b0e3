"""Where a session's worker lives: its folders, its temporary files, its bounds and its way out."""

import os
from collections.abc import Callable
from typing import Protocol

from ingle.isolation.egress.proxy import Egress
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.policy import Mount
from ingle.requests import SessionLimits
from ingle.sessions.process.session_folders import SHELL, Home, own_folders, start_of, tmp_of
from ingle.sessions.spec import Plan
from ingle.workers.launch.launcher import Launcher
from ingle.workers.siblings import Siblings
from ingle.workers.worker import Worker
from ingle_worker.wire import messages


class Owner(Protocol):
    """The session that lives there."""

    plan: Plan


class Lodging:
    def __init__(
        self,
        owner: Owner,
        home: Home,
        launcher: Launcher,
        bounding: LimitApplier | None,
        egress: Egress | None,
        refused: Callable[[Siblings, str], None],
    ) -> None:
        self._owner = owner
        self._home = home
        self._launcher = launcher
        self._bounding = bounding
        self._egress = egress
        self._refused = refused
        """Told of a host that was asked for and is not granted."""
        self._workers = 0
        self._told_tmp = ""
        self.tmp = ""
        """The folder for temporary files that is the host's to remove."""
        self._has_room = launcher.confinement is not None and launcher.confinement.has_own_root

    def move_in(self, worker: Worker) -> None:
        """Make a prepared worker that of this session. It need not be there yet."""
        self._told_tmp = self._new_tmp()
        self._enter(worker)
        self.tell(worker)

    def tell(self, worker: Worker) -> None:
        """Where it begins, and with which environment. Before its first cell it may be told again."""
        plan = self._owner.plan
        worker.send(start_of(self._home, self._told_tmp, room=self._has_room, cwd=plan.cwd, env=plan.env))

    def move_on(self, copy: Worker, *, reseed: bool) -> None:
        """Make a copy of another session's worker that of this one."""
        tmp = self._new_tmp()
        packages = f"{self._home.folder}/packages"
        copy.send(messages.Rehome(tmp, [*self._home.folders, tmp], packages, reseed))

    def _new_tmp(self) -> str:
        """Where a worker that begins with nothing has its temporary files, as it is told.

        A room has a file system of its own for them, which goes with it. Its name means another place out here, so it
        is never kept.
        """
        self._workers += 1
        tmp = tmp_of(self._home, self._workers, room=self._has_room)
        self.tmp = "" if self._has_room else tmp
        return tmp

    def _enter(self, worker: Worker) -> None:
        """Have this session's folders laid into the worker's room; where it has none, its init knows them at least."""
        confinement = self._launcher.confinement
        if confinement is None:
            return
        self._home.user = worker.birth.user
        data = confinement.data_folder
        within = [each for each in self._owner.plan.grant.mounts if Mount(data).holds(each.folder)]
        shared = [each.folder for each in within if not each.read_only]
        shown = [f"{self._home.root}/{SHELL}", *(each.folder for each in within if each.read_only)]
        own = own_folders(self._home, self._told_tmp, room=self._has_room)
        worker.enter(
            messages.Enter(*([os.path.relpath(each, data) for each in folders] for folders in (own, shared, shown)))
        )

    async def bound(self, worker: Worker) -> None:
        """Its limits, before it runs anything."""
        limits = self._owner.plan.grant.limits
        if self._bounding is None or limits == SessionLimits():
            return
        await worker.init_up
        if worker.init_pid is not None and worker.pid is not None:
            pids = (worker.init_pid, worker.pid)
            worker.group = await self._bounding.settle(worker.group, pids, limits)

    async def open_door(self, worker: Worker) -> None:
        """Its way out, where a proxy is the only one: for it and all its copies, who have the same network."""
        if self._egress is None or not self._has_room or self._owner.plan.grant.network != "allowlist":
            return
        await worker.init_up
        if worker.door is None:
            return
        listening, worker.door = worker.door, None
        siblings = worker.siblings
        door = await self._egress.open(listening, lambda text: self._refused(siblings, text))
        siblings.over.add_done_callback(lambda over: door.close_soon())
