"""Live copies of a session that become sessions of their own, with copies of its files."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from ingle import errors
from ingle.sessions.forks import values
from ingle.sessions.forks.values import SavedState
from ingle.sessions.persistence.checkpoints import Checkpoints
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.process.session_folders import SessionFolders
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.spec import ForkedFiles, ForkOrigin, SessionSpec
from ingle.support.folder_paths import outermost
from ingle.trees.store import KeptTree, NotKept
from ingle.workers import views
from ingle.workers.copies import ForkOptions
from ingle.workers.worker import Worker

USED_BY_FORK = NotKept("another fork has them")


@dataclass(frozen=True)
class ForkedCopy:
    """A copy of a session's worker, and what its session begins with."""

    worker: Worker
    folders: SessionFolders
    origin: ForkOrigin


class Forking:
    """Copies of one session: their workers, files and folders."""

    def __init__(self, spec: SessionSpec, slot: ProcessSlot, files: KeptFiles, checkpoints: Checkpoints) -> None:
        self._session_id = spec.session_id
        self._folder = spec.folder
        self._grant = spec.grant
        self._slot = slot
        self._files = files
        self._checkpoints = checkpoints

    @property
    def writable(self) -> list[str]:
        """Granted folders that the session's process may write, without those that lie in others."""
        confinement = self._slot.launcher.confinement
        # At the other levels all tenants share a launcher.
        newer = confinement.granted if confinement is not None and confinement.has_own_root else ()
        return outermost([*self._grant.writable, *(folder for folder, writable in newer if writable)])

    @contextlib.asynccontextmanager
    async def copies(
        self,
        worker: Worker,
        cell: int,
        names: list[str],
        at: int | None = None,
        *,
        held: contextlib.AsyncExitStack,
        reseed: bool = False,
        network: bool = False,
        protect: bool = False,
        beside: SessionFolders | None = None,
    ) -> AsyncIterator[list[ForkedCopy]]:
        """Provide copies of the worker, one for each folder name. The session is `held` no longer than needed.

        `at`: they are of the state right after that cell, by a checkpoint. Raise CellNotKept if there is none.
        `network`: each has a network of its own. `protect`: they change nothing in the own folder, and in those that
        the session may write; raise TrialRefused if that is impossible. `beside`: they use the files of another fork,
        which has these folders. Copies that have no owner at the end are killed.
        """
        parked = None if at is None else self._checkpoints.of_cell(at, cell)
        protected = self.writable if protect else []
        kept: KeptTree | NotKept | None = None
        if parked is not None:
            worker, moment = parked.worker, parked.moment
            kept = self._files.share(parked.files) if beside is None else None
        else:
            moment = self._slot.moment(cell)
            kept = await self._take(worker) if beside is None else None
        if protect and isinstance(kept, NotKept):
            raise errors.TrialRefused(f"its files cannot be copied: {kept}; run the code as a cell, or free space")
        workers: list[Worker] = []
        made: list[views.View] = []
        making: asyncio.Task[list[tuple[views.View | None, str]]] | None = None
        state: SavedState | None = None
        make = partial(self._make_view, protected=protected, network=network, protect=protect, beside=beside)
        try:
            source = self._files.folder
            apart = not isinstance(kept, NotKept)
            options = ForkOptions(source if apart else "", protected, loads=True)
            if apart and worker.blank is None:
                # While the copies are forked, in the namespaces of the worker.
                beginning = options.announced.wait()
                making = asyncio.create_task(self._make_views([worker] * len(names), names, made, make, beginning))
            copies = await worker.fork(len(names), options)
            workers = copies.workers
            await held.aclose()
            await copies.up()
            if copies.by_value:
                state, workers = await self._take_values(worker, workers, options.folder)
            seen: list[tuple[views.View | None, str]] = []
            if apart:
                seen = await (making or self._make_views(workers, names, made, make))
            origins = []
            for index in range(len(names)):
                notices = [*copies.notices, *(state.notices if state is not None else [])]
                forked: ForkedFiles | None = None
                if not isinstance(kept, NotKept):
                    view, why = seen[index]
                    forked = ForkedFiles(kept or USED_BY_FORK, source, view)
                    notices += [] if kept is None else kept.tree.notices
                    if view is None:
                        notices.append(
                            f"its files are at another path{why}, and paths of the original lead to its files"
                        )
                else:
                    notices.append(f"its files are those of the original: {kept}")
                origins.append(ForkOrigin(self._session_id, moment, notices, reseed, forked, state))
            # Nothing is awaited from here on: folders that no session takes would never be given up.
            found = [
                ForkedCopy(copy, self._folders_of(name, origin) if beside is None else beside.share(name), origin)
                for name, copy, origin in zip(names, workers, origins, strict=True)
            ]
            yield found
        finally:
            for copy in workers:
                if copy.owner is None:
                    copy.kill()
            if making is not None:
                making.cancel()
                await asyncio.gather(making, return_exceptions=True)
            for view in made:
                view.close()
            if state is not None:
                state.close()
            if isinstance(kept, KeptTree):
                self._files.release(kept)

    async def _take_values(self, worker: Worker, copies: list[Worker], folder: str) -> tuple[SavedState, list[Worker]]:
        """Save the first of these copies, which cannot use the GPU, and end the others.

        Return what was saved, and as many workers that have run nothing.
        """
        for copy in copies[1:]:
            copy.kill()
        state = await values.take(copies[0], self._folder)
        try:
            return state, await values.blank_copies(worker, len(copies), folder)
        except BaseException:
            state.close()
            raise

    @property
    def _folders(self) -> SessionFolders:
        return self._slot.workspace.folders

    def _folders_of(self, name: str, origin: ForkOrigin) -> SessionFolders:
        files = origin.files
        return self._folders.fork(
            name, separate=files is not None, same_path=files is not None and files.view is not None
        )

    async def _take(self, worker: Worker) -> KeptTree | NotKept:
        try:
            return await self._files.take(worker)
        except NotKept as why:
            return why

    async def _make_views(
        self,
        copies: list[Worker],
        names: list[str],
        made: list[views.View],
        make: Callable[[Worker, str], Awaitable[tuple[views.View | None, str]]],
        beginning: Awaitable[object] | None = None,
    ) -> list[tuple[views.View | None, str]]:
        """Make the views of all copies at the same time, and add them to `made`. The caller closes those."""
        if beginning is not None:
            await beginning

        async def note(copy: Worker, name: str) -> tuple[views.View | None, str]:
            view, why = await make(copy, name)
            made.extend([view] if view is not None else [])
            return view, why

        making = (note(copy, name) for copy, name in zip(copies, names, strict=True))
        found: list[tuple[views.View | None, str]] = []
        for each in await asyncio.gather(*making, return_exceptions=True):
            if isinstance(each, BaseException):
                raise each
            found.append(each)
        return found

    async def _make_view(
        self,
        copy: Worker,
        name: str,
        *,
        protected: list[str],
        network: bool,
        protect: bool,
        beside: SessionFolders | None,
    ) -> tuple[views.View | None, str]:
        """Return the view of a copy, or None and why there is none."""
        if not self._slot.workspace.own_root or (beside is not None and beside.workspace == beside.place):
            return None, ""
        own = str(self._folders.fork_folder(name))
        try:
            shown = "" if beside is None else beside.place
            return await views.make(copy, own, self._folders.workspace, protected, network=network, shown=shown), ""
        except views.NoView as error:
            if protect or beside is not None:
                raise errors.StartFailed(
                    f"the copy cannot be kept apart from the session: {error}; try again"
                ) from None
            return None, f" ({error})"
