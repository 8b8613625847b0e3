"""Workspace of a session's worker: folders, temporary files, resource limits and network access."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ingle.isolation.egress.allow_list import AllowList
from ingle.isolation.egress.host_log import HostLog
from ingle.isolation.egress.proxy import Egress, Listener
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.policy import Grant, Mount
from ingle.requests import SessionLimits
from ingle.sessions.process.session_folders import SHELL, SessionFolders, own_folders, sources_of, start_of, tmp_of
from ingle.workers.launch.launcher import Launcher
from ingle.workers.siblings import Siblings
from ingle.workers.worker import Worker
from ingle_worker.wire import messages


class EgressRefused:
    """Event for a worker's owner: a process of the session asked for a host that is not granted."""

    def __init__(self, text: str) -> None:
        self.text = text


@dataclass
class ViewProxy:
    """Proxy of a copy with a network of its own."""

    listening: socket.socket
    listener: Listener
    hosts: HostLog

    async def close(self) -> None:
        await self.listener.close()
        self.listening.close()


class Workspace:
    def __init__(
        self,
        folders: SessionFolders,
        launcher: Launcher,
        bounding: LimitApplier | None,
        egress: Egress | None,
        home: str = "",
    ) -> None:
        """`home` is the path at which a sandbox shows the folder too; empty without one."""
        self.folders = folders
        self.home = home
        self._launcher = launcher
        self._bounding = bounding
        self._egress = egress
        self._workers = 0
        self._told_tmp = ""
        self.tmp = ""
        """Folder of temporary files that the host removes. Empty if the sandbox has its own file system for them."""
        self.hosts: HostLog | None = None
        """Hosts that the session asked for; None where they are not known."""
        self.own_root = launcher.confinement is not None and launcher.confinement.has_own_root

    def use(self, launcher: Launcher) -> None:
        """Take the next worker from this launcher, which confines it at the same level."""
        self._launcher = launcher

    def assign(self, worker: Worker, grant: Grant, cwd: str | None, env: dict[str, str]) -> None:
        """Give a worker that has run nothing its folders and its environment. The worker may still be starting."""
        self._told_tmp = self._new_tmp()
        self._enter(worker, grant)
        self.send_start(worker, cwd, env)

    def send_start(self, worker: Worker, cwd: str | None, env: dict[str, str]) -> None:
        """Send the worker its start folder and its environment. May be repeated before the first cell."""
        confined, own_root = self._launcher.confinement is not None, self.own_root
        start = start_of(
            self.folders, self._told_tmp, confined=confined, own_root=own_root, cwd=cwd or self.home, env=env
        )
        worker.send(start)

    def adopt(
        self, copy: Worker, *, reseed: bool, source: str, key: list[int], protected: Sequence[str]
    ) -> messages.Rehome:
        """Give a copy of another session's worker folders of its own, and return that order.

        `source` is the original's workspace, if the copy has its own files. `key` opens the copy's view, in which it
        does not change the `protected` folders.
        """
        tmp = self._new_tmp()
        packages = f"{self.folders.folder}/packages"
        target = self.folders.workspace if source else ""
        made = [*self.folders.folders, *([target] if target else []), packages, tmp]
        order = messages.Rehome(tmp, made, packages, reseed, source, target, key, list(protected))
        copy.send(order)
        return order

    def _new_tmp(self) -> str:
        """Return the folder of temporary files for a fresh worker, as the worker sees it.

        A sandbox has its own file system for them, which ends with it. Its path means another folder on the host, so
        it is not kept for removal.
        """
        self._workers += 1
        tmp = tmp_of(self.folders, self._workers, own_root=self.own_root)
        self.tmp = "" if self.own_root else tmp
        return tmp

    def _enter(self, worker: Worker, grant: Grant) -> None:
        """Mount the session's folders into the worker's sandbox. Without a sandbox, init only learns their names."""
        confinement = self._launcher.confinement
        if confinement is None:
            return
        self.folders.user = worker.birth.user
        data = confinement.data_folder
        inside = Mount(data)
        within = [each for each in grant.mounts if inside.holds(each.folder)]
        shared = [each.folder for each in within if not each.read_only]
        shown = [f"{self.folders.root}/{SHELL}", *(each.folder for each in within if each.read_only)]
        own = own_folders(self.folders, self._told_tmp, own_root=self.own_root)
        sources = sources_of(self.folders, data) if self.own_root else {}
        worker.enter(messages.Enter(_below(data, own), _below(data, shared), _below(data, shown), sources, self.home))

    def forget_tmp(self) -> str:
        """Return the folder of temporary files of a worker that has ended. The next worker gets another one."""
        tmp, self.tmp = self.tmp, ""
        return tmp

    async def limit(self, worker: Worker, limits: SessionLimits) -> None:
        """Apply the session's limits before the worker runs anything. Raise LimitUnavailable if one does not hold."""
        if self._bounding is None or limits == SessionLimits():
            return
        await worker.init_up
        if worker.init_pid is not None and worker.pid is not None:
            pids = (worker.init_pid, worker.pid)
            worker.group = await self._bounding.settle(worker.group, pids, limits)
            worker.siblings.memory_limit = limits.memory
            worker.limits = self._bounding.check(worker.group, worker.pid, limits, self._own_tmp(worker))

    def limits_in_force(self, worker: Worker | None, limits: SessionLimits) -> SessionLimits:
        """Return the session's limits as the kernel has them; without a process, those of the next one."""
        if worker is None or worker.pid is None or not worker.alive or limits == SessionLimits():
            return limits
        return worker.limits or LimitApplier.in_force(worker.group, worker.pid, limits, self._own_tmp(worker))

    def _own_tmp(self, worker: Worker) -> int | None:
        """Return the size of the file system for temporary files that a sandbox has; None without a sandbox."""
        return worker.init.tmp if self.own_root else None

    async def connect(self, worker: Worker, network: str) -> None:
        """Open the proxy of a worker whose network is an allow-list. Its copies share the network and the proxy."""
        if self._egress is None or not self.own_root or network != "allowlist":
            return
        await worker.init_up
        if worker.proxy_listener is None:
            return
        listening, worker.proxy_listener = worker.proxy_listener, None
        worker.siblings.hosts = self.hosts = self.hosts or HostLog()
        await self._serve(self._egress, listening, worker)

    async def _serve(self, egress: Egress, listening: socket.socket, worker: Worker) -> None:
        siblings = worker.siblings
        proxy = await egress.open(listening, lambda text: _report_refusal(siblings, text), self.hosts)
        siblings.over.add_done_callback(lambda over: proxy.close_soon())

    async def open_proxy(self, listening: socket.socket, *, held: bool) -> "ViewProxy":
        """Open the proxy of a copy with a network of its own. If `held`, it refuses all connections."""
        hosts = HostLog()
        egress = Egress(AllowList(), held=held) if held or self._egress is None else self._egress
        return ViewProxy(listening, await egress.open(listening.dup(), hosts=hosts), hosts)

    async def keep_proxy(self, proxy: "ViewProxy", worker: Worker, network: str) -> None:
        """Give a worker with a network of its own the access that the session has."""
        await proxy.listener.close()
        if self._egress is None or network != "allowlist":
            proxy.listening.close()
        else:
            self.hosts = self.hosts or HostLog()
            await self._serve(self._egress, proxy.listening, worker)


def _below(data: str, folders: list[str]) -> list[str]:
    """Return the paths of these folders from the data folder on."""
    start = f"{data}/"
    return [each[len(start) :] if each.startswith(start) else os.path.relpath(each, data) for each in folders]


def _report_refusal(siblings: Siblings, text: str) -> None:
    for member in siblings.members:
        if member.owner is not None:
            member.owner.on_message(EgressRefused(text))
