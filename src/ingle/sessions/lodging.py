"""Where a session's worker lives: its folders, its temporary files, its bounds and its way out."""

import os
from collections.abc import Callable

from ingle import events
from ingle.isolation.bounding import Bounding
from ingle.isolation.egress import Egress
from ingle.isolation.levels import TMP
from ingle.isolation.policy import Mount
from ingle.sessions.homes import ROOM_FOLDERS, SHELL, Home
from ingle.sessions.plans import Plan
from ingle.workers.family import Family
from ingle.workers.launcher import Launcher
from ingle.workers.worker import Worker
from ingle_worker.wire import messages


class Lodging:
    def __init__(
        self, plan: Plan, home: Home, launcher: Launcher, bounding: Bounding | None, egress: Egress | None
    ) -> None:
        self._plan = plan
        self._home = home
        self._launcher = launcher
        self._bounding = bounding
        self._egress = egress
        self._workers = 0
        self.tmp = ""
        """The folder for temporary files that is the host's to remove."""

    @property
    def _has_room(self) -> bool:
        confinement = self._launcher.confinement
        return confinement is not None and confinement.has_rooms

    def move_in(self, worker: Worker) -> None:
        """Make a prepared worker that of this session. It need not be there yet."""
        home, workspace = str(self._home.folder), self._home.workspace
        root = self._home.root
        tmp = self._new_tmp()
        packages = f"{home}/packages"
        if self._has_room:
            folders = [*self._home.folders[1:], tmp]
            self._enter(worker, [f"{root}/{name}" for name in ROOM_FOLDERS], [f"{root}/{SHELL}"])
        else:
            folders = [*self._home.folders, workspace, tmp]
            self._enter(worker, [workspace, tmp, packages], [f"{root}/{SHELL}"])
        cwd = self._plan.cwd or workspace
        worker.send(messages.Start(self._plan.session_id, cwd, tmp, folders, self._plan.env, packages=packages))

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
        if self._has_room:
            self.tmp = ""
            return TMP if self._home.folder == self._home.root else f"{TMP}/fork-{self._home.folder.name}"
        self.tmp = f"{self._home.folder}/tmp-{self._workers}"
        return self.tmp

    def _enter(self, worker: Worker, own: list[str], shown: list[str]) -> None:
        """Have this session's folders laid into the worker's room; where it has none, its init knows them at least."""
        confinement = self._launcher.confinement
        if confinement is None:
            return
        self._home.user = worker.user
        if worker.laid == self._home.root.name:
            return
        data = confinement.data_folder
        within = [each for each in self._plan.grant.mounts if Mount(data).holds(each.folder)]
        shared = [each.folder for each in within if not each.read_only]
        shown += [each.folder for each in within if each.read_only]
        worker.enter(
            messages.Enter(*([os.path.relpath(each, data) for each in folders] for folders in (own, shared, shown)))
        )

    async def bound(self, worker: Worker) -> None:
        """Its limits, before it runs anything."""
        limits = self._plan.grant.limits
        if self._bounding is None or limits == events.SessionLimits():
            return
        await worker.init_up
        if worker.init_pid is not None and worker.pid is not None:
            pids = (worker.init_pid, worker.pid)
            worker.group = await self._bounding.settle(worker.group, pids, limits)

    async def open_door(self, worker: Worker, refused: Callable[[Family, str], None]) -> None:
        """Its way out, where a proxy is the only one: for it and all its copies, who have the same network."""
        if self._egress is None or not self._has_room or self._plan.grant.network != "allowlist":
            return
        await worker.init_up
        if worker.door is None:
            return
        listening, worker.door = worker.door, None
        family = worker.family
        door = await self._egress.open(listening, lambda text: refused(family, text))
        family.over.add_done_callback(lambda over: door.close_soon())
