"""Files of one folder, a session's own or a tracked one: kept with its state, and brought back with it.

The folder is listed only if something in it may have changed. The watch of the folder tells that, except for files that
a process has mapped or open for writing. Both are cheap to find out.
"""

import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from ingle import errors
from ingle.files import FileChanges, FileDiff
from ingle.sessions.files import connect_agent
from ingle.sessions.watch.folders import FolderWatch, FolderWatches
from ingle.sessions.watch.mark import Mark
from ingle.snapshots.store import LoadableSnapshot
from ingle.trees import restore, snapshot
from ingle.trees.agent import AgentLost, TreeAgent
from ingle.trees.differences import differences
from ingle.trees.in_use import InUse, find_in_use
from ingle.trees.index import Index
from ingle.trees.packing import PackedFiles, unpack
from ingle.trees.restore import Restored
from ingle.trees.store import KeptTree, NotKept
from ingle.trees.stores import TreeStores, shut_down
from ingle.trees.undo_log import Change, LeftChange, UndoLog
from ingle.workers.worker import Worker

SHARED = "another session shares the folder, a fork or the original"

NOTHING = InUse()

T = TypeVar("T")


class Place(Protocol):
    """Where kept files are."""

    @property
    def workspace(self) -> str:
        """The folder, as the session sees it."""
        ...

    @property
    def place(self) -> str:
        """The folder, as the host sees it."""
        ...

    @property
    def workspace_shared(self) -> bool:
        """Whether another session uses the folder, so that its files must not be brought back."""
        ...

    @property
    def folders(self) -> list[str]:
        """Folders around it that a worker has to make."""
        ...


class KeptFiles:
    def __init__(
        self, stores: TreeStores, tenant: str, folders: Place, watches: FolderWatches, *, tracked: bool = False
    ) -> None:
        """`tracked`: the folder is a granted one, of which ignored files are left alone."""
        self._tracked = tracked
        self.tenant = tenant
        self._stores = stores
        self._store = stores.of(tenant)
        self._folders = folders
        self._watches = watches
        self._watch: FolderWatch | None = None
        self._mark = Mark()
        """Set when the last tree was taken."""
        self._index = Index()
        self._last: KeptTree | None = None
        self._last_writable = True
        """Whether a file of the last tree could change without a sign."""
        self._closed = False

    @property
    def folder(self) -> str:
        return self._folders.workspace

    @property
    def place(self) -> str:
        return self._folders.place

    async def take(self, worker: Worker) -> KeptTree:
        """Keep the folder as it is now. The caller releases what this returns. Raise NotKept if it is not kept."""
        use = await self._find_in_use(worker, self._last)
        if self._last is not None and not self._last_writable and self._is_clean(use):
            return self._store.share(self._last)
        use = await self._find_in_use(worker) if use is NOTHING else use
        store, index, bounds = self._store, self._index, self._stores.bounds
        async with self._new_mark():
            work = partial(snapshot.take, store=store, index=index, bounds=bounds, writable=use.writable)
            kept = await with_another_agent(lambda: self._with_agent(worker, work))
        self._last_writable = index.holds(use.writable)
        if self._closed:
            self._stores.release(store, kept)
            raise NotKept("the session was ended")
        self._last = kept
        return store.share(kept)

    async def know(self, worker: Worker, kept: KeptTree) -> None:
        """Take note that the folder is as in this tree, to which it was just brought. Nothing runs in it yet."""
        async with self._new_mark():
            use = await self._find_in_use(worker, kept)
        self._last = self._store.share(kept)
        self._last_writable = self._index.holds(use.writable)

    async def _is_at(self, worker: Worker, kept: KeptTree) -> bool:
        """Return whether nothing has changed since the last tree, and this one is the same."""
        last = self._last
        if last is None or self._last_writable or last.tree != kept.tree or kept.tree.unsteady:
            return False
        return self._is_clean(await self._find_in_use(worker, last))

    async def try_take(self, worker: Worker) -> KeptTree | NotKept:
        """Keep the folder as it is now, or return why it is not kept."""
        try:
            return await self.take(worker)
        except NotKept as why:
            return why

    def packed(self, kept: KeptTree | NotKept) -> PackedFiles | str:
        """Return kept files as a snapshot takes them in, or why there are none."""
        return str(kept) if isinstance(kept, NotKept) else PackedFiles(self._store, kept)

    async def load(self, worker: Worker, saved: LoadableSnapshot) -> Restored | None:
        """Bring the files of a snapshot back. Return None if it has none and tells no reason.

        Raise NotKept if they stay as they are, and SnapshotDamaged if they are not as they were saved.
        """
        if saved.manifest.files is None and not saved.manifest.no_files:
            return None
        kept = await self.unpack(saved)
        if isinstance(kept, NotKept):
            raise kept
        try:
            return await self.restore(worker, kept)
        finally:
            self.release(kept)

    async def restore(
        self, worker: Worker, kept: KeptTree, *, new: bool = False, why_not: str | None = None, draft: str = ""
    ) -> Restored:
        """Bring the folder back. `worker` continues with it, and files that it has open stay the same files.

        Raise NotKept if that is not possible, or a fork would lose its files, or with the reason `why_not` if there
        are differences. A `new` folder is made. `draft`: the name of incomplete files.
        """
        if not new and await self._is_at(worker, kept):
            return Restored(FileChanges(), [], kept.tree)
        store, index = self._store, self._index
        why_not = why_not or (SHARED if self._folders.workspace_shared else "")
        # A checkpoint that is dropped meanwhile must not take the files along.
        store.share(kept)
        self._forget_last()

        async def attempt() -> Restored:
            use = await self._find_in_use(worker)
            work = partial(restore.restore, store=store, tree=kept.tree, index=index, use=use, why_not=why_not)
            return await self._with_agent(worker, work, new=new, draft=draft)

        try:
            return await with_another_agent(attempt)
        finally:
            self._stores.release(store, kept)

    def change(self, before: KeptTree, after: KeptTree) -> Change:
        """Return the change of the folder from one kept tree to another."""
        return Change.between(self.tenant, self._folders.place, before.tree, after.tree, tracked=self._tracked)

    async def undo(self, worker: Worker, left: LeftChange) -> tuple[Restored, list[str]]:
        """Undo a change that was not finished. Return what that did, and the files that others have changed since.

        Raise NotKept if it is not possible.
        """

        async def attempt() -> KeptTree:
            await self._with_agent(worker, partial(restore.sweep, drafts=left.drafts))
            return await self.take(worker)

        now = await with_another_agent(attempt)
        try:
            kept, others = await self._stores.in_thread(left.target, self._store, now)
        except OSError as error:
            raise NotKept(f"they could not be read: {error.strerror}") from None
        finally:
            self.release(now)
        try:
            return await self.restore(worker, kept, draft=left.log.draft), others
        finally:
            self.release(kept)

    async def end_log(self, log: UndoLog) -> None:
        """Remove the log of a change that is done."""
        await self._stores.in_thread(self._stores.undo_logs.end, log)

    async def differences(
        self, before: KeptTree | NotKept, after: KeptTree | NotKept
    ) -> tuple[list[FileDiff], int, list[str]]:
        """Return what differs, how much more does, and notices. Raise NotKept if one of them is not kept."""
        if isinstance(before, NotKept):
            raise before
        if isinstance(after, NotKept):
            raise after
        found, more = await self._stores.in_thread(differences, self._store, before, after)
        return found, more, after.tree.notices

    def share(self, kept: KeptTree | NotKept) -> KeptTree | NotKept:
        """Hold a kept tree once more. The caller releases it."""
        return self._store.share(kept) if isinstance(kept, KeptTree) else kept

    async def unpack(self, saved: LoadableSnapshot) -> KeptTree | NotKept:
        """Return the files of a snapshot, which the caller releases, or why it has none."""
        files = saved.manifest.files
        if files is None:
            return NotKept(saved.manifest.no_files or "the snapshot is older than saved files")
        try:
            return await self._stores.in_thread(unpack, saved.name, files, saved.source, self._store)
        except NotKept as why:
            return why

    def release(self, kept: KeptTree | NotKept) -> None:
        """Give up a kept tree."""
        if isinstance(kept, KeptTree):
            self._stores.release(self._store, kept)

    def close(self) -> None:
        """Give up what is held for the next tree."""
        self._closed = True
        self._forget_last()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.remove(self._mark)
            self._watches.release(watch)

    def _forget_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            self._stores.release(self._store, last)

    async def _find_in_use(self, worker: Worker, kept: KeptTree | None = None) -> InUse:
        """Return the files that processes use. Of a kept tree without files, none is."""
        if kept is not None and not kept.tree.digests:
            return NOTHING
        return await self._stores.in_thread(find_in_use, worker.init_pid or worker.pid)

    def _is_clean(self, use: InUse) -> bool:
        """Return whether nothing has changed since the last tree."""
        if self._watch is None or not self._watch.watched:
            return False
        self._watches.read()
        mark = self._mark
        followed = self._watch.watched and mark.base is None and not mark.unknown
        return followed and not mark.dirty and not self._index.holds(use.writable)

    @contextlib.asynccontextmanager
    async def _new_mark(self) -> AsyncIterator[None]:
        """Follow all changes from now on. No tree is the last one until the caller has another: the mark is of none."""
        before, self._last = self._last, None
        try:
            await self._set_mark()
            yield
        finally:
            # Not earlier: the next tree shares its files.
            if before is not None:
                self._stores.release(self._store, before)

    async def _set_mark(self) -> None:
        if self._watch is None:
            self._watch = self._watches.watch(self._folders.place, project=self._tracked)
            if self._watch is None:
                return
            self._watch.add(self._mark)
        watch = self._watch
        await watch.ready()
        if watch is self._watch:  # the session has not ended meanwhile
            self._watches.read()
            watch.reset(self._mark)

    async def _with_agent(
        self, worker: Worker, work: Callable[[TreeAgent], T], *, new: bool = False, draft: str = ""
    ) -> T:
        make = [*self._folders.folders, self.folder] if new else []
        async with agent_connection(worker) as connection:
            try:
                return await self._stores.with_connections(
                    lambda: work(TreeAgent(connection, self.folder, make, tracked=self._tracked, draft=draft)),
                    connection,
                )
            except OSError as error:
                raise NotKept(f"they could not be stored: {error.strerror}") from None


async def with_another_agent(attempt: Callable[[], Awaitable[T]]) -> T:
    """Make an attempt, and a second one if its file agent is lost, for example killed for lack of memory."""
    try:
        return await attempt()
    except AgentLost:
        return await attempt()


@contextlib.asynccontextmanager
async def agent_connection(worker: Worker, *, outside: bool = False) -> AsyncIterator[socket.socket]:
    """Connect to a new file agent of a worker, as `connect_agent` does. Raise AgentLost if there is none."""
    try:
        connection = await connect_agent(worker, outside=outside)
    except errors.Unavailable as error:
        raise AgentLost(error.message) from None

    def cut_off(gone: object) -> None:
        shut_down(connection)

    # A worker that was killed may leave an agent that never answers.
    worker.gone.add_done_callback(cut_off)
    try:
        yield connection
    finally:
        worker.gone.remove_done_callback(cut_off)
        connection.close()
