"""Workers of the pool with folders of their own, ready for the first cell of a session that does not exist yet."""

import asyncio
import functools
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ingle import errors
from ingle.events import Exit
from ingle.isolation.egress.proxy import Egress
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.policy import Grant, Mount
from ingle.sessions.process.session_folders import SessionFolders, remove_below
from ingle.sessions.process.workspace import Workspace
from ingle.sessions.spec import SessionSpec
from ingle.workers.launch.launcher import Launcher
from ingle.workers.worker import Worker
from ingle_worker.wire import messages


@dataclass(frozen=True)
class PreparedWorker:
    """A started worker, its workspace, and the grant that both were made for."""

    worker: Worker
    workspace: Workspace
    grant: Grant

    def fits(self, spec: SessionSpec) -> bool:
        """Return whether this session needs nothing that the worker was not given already."""
        same = spec.grant is self.grant or spec.grant == self.grant
        return same and spec.cwd is None and spec.env == self.grant.environment and spec.library is None


class PreparedWorkers:
    """Folders of the workers that wait in the launchers' pools. Those that no session took end with their worker."""

    def __init__(self, home: Path, server: str, egress: Egress | None) -> None:
        real = os.path.realpath(home)
        self._data = Mount(real)
        self._folder = Path(real, "sessions")
        self._server = server
        self._egress = egress
        self._loop = asyncio.get_running_loop()
        self._prepared: dict[Worker, PreparedWorker] = {}
        self._removals: set[asyncio.Future[None]] = set()

    @property
    def folders(self) -> set[str]:
        """Names of the folders that belong to no session yet."""
        return {each.workspace.folders.name for each in self._prepared.values()}

    async def prepare(self, grant: Grant, launcher: Launcher, bounding: LimitApplier | None, worker: Worker) -> None:
        """Start a worker of the pool in folders of its own. Raise StartFailed if the worker ends meanwhile."""
        folders = SessionFolders(self._folder / f"{self._server}.{secrets.token_hex(8)}")
        workspace = Workspace(folders, launcher, bounding, self._egress)
        self._prepared[worker] = PreparedWorker(worker, workspace, grant)
        worker.gone.add_done_callback(functools.partial(self._on_gone, worker))
        started = _Started()
        worker.owner = started
        workspace.assign(worker, grant, None, grant.environment)
        await workspace.limit(worker, grant.limits)
        await workspace.connect(worker, grant.network)
        if worker.gone.done():
            started.on_gone(worker.gone.result())
        await started.future

    def take(self, grant: Grant, launcher: Launcher, tenant: str) -> PreparedWorker | None:
        """Return a prepared worker that can serve this tenant's session. The caller owns it from now on."""
        confinement = launcher.confinement
        if confinement is not None and (grant.network != confinement.network or self.own_mounts(grant)):
            return None
        worker = launcher.take_prepared(tenant, grant.limits)
        return None if worker is None else self._prepared.pop(worker, None)

    def own_mounts(self, grant: Grant) -> set[Mount]:
        """Return the folders of one tenant inside of the data folder. No worker of the pool may have them."""
        return {mount for mount in grant.mounts if self._data.holds(mount.folder) and not mount.read_only}

    def _on_gone(self, worker: Worker, gone: object) -> None:
        prepared = self._prepared.pop(worker, None)
        if prepared is not None:
            path = str(prepared.workspace.folders.folder)
            removal = self._loop.run_in_executor(None, remove_below, self._folder, path)
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def stop(self) -> None:
        """Wait until the folders of all workers are removed. The workers have ended."""
        await asyncio.gather(*self._removals)


class _Started:
    """Owner of a worker until it reports that it has its folders."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_message(self, message: Any) -> None:
        if isinstance(message, messages.Started) and not self.future.done():
            self.future.set_result(None)

    def on_output(self, stream: int, data: bytes, background: bool) -> None:
        """Drop output: no cell has run."""

    def on_gone(self, exit: Exit) -> None:
        if not self.future.done():
            self.future.set_exception(
                errors.StartFailed(f"the session's process ended while it started ({exit.message}); try again")
            )
            self.future.exception()  # retrieved here, since the launcher may have given up waiting
