"""Folders that checkpoints cover: the session's own, and granted ones that are tracked.

Paths are told relative to the folder that the session starts in. Those elsewhere are absolute.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ingle import errors
from ingle.files import FileChanges, FileDiff
from ingle.render.phrases import some
from ingle.sessions.forks.layers import Layers
from ingle.sessions.persistence.autosave import AutoSave
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.watch.folders import FolderWatches
from ingle.support.folder_paths import outermost, told_path
from ingle.trees.agent import AgentLost
from ingle.trees.folder_changes import FolderChanges
from ingle.trees.restore import Restored
from ingle.trees.store import KeptLayer, KeptTree, NotKept, Trees
from ingle.trees.stores import TreeStores
from ingle.trees.undo_log import Change, LeftChange, UndoLog
from ingle.workers.worker import Worker

GONE_SECONDS = 2.0
"""Time until the end of a worker is reported whose file agent was lost."""


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GrantedFolder:
    """A granted folder as a place of kept files. It has the same path for the host and for sessions."""

    workspace: str
    workspace_shared: bool = False

    @property
    def place(self) -> str:
        return self.workspace

    @property
    def folders(self) -> list[str]:
        return []


class CheckpointFiles:
    def __init__(
        self,
        own: KeptFiles,
        stores: TreeStores,
        watches: FolderWatches,
        tracked: Iterable[str],
        *,
        writable: Iterable[str],
        key: str,
        start: str,
        autosave: AutoSave | None,
    ) -> None:
        """`tracked` are granted folders, `key` that of the session, and `start` the folder that it starts in.

        `writable` are granted folders over which its copies have layers. `autosave` saves the session. The own folder
        of a durable one outlives the server.
        """
        self._tenant = tenant = own.tenant
        self.layers = Layers(stores, tenant)
        """Layers of copies over granted folders."""
        self._writable = list(writable)
        self._own = own
        self._autosave = autosave if autosave is not None and autosave.durable else None
        self._stores = stores
        self._log: UndoLog | None = None
        """Log of a change that is under way, or was not finished."""
        self._key = key
        self._start = start
        self._changes: FolderChanges = stores.changes
        self._tracked = {
            folder: KeptFiles(stores, tenant, GrantedFolder(folder), watches, tracked=True)
            for folder in outermost(tracked)
        }

    @property
    def folder(self) -> str:
        """The session's own folder."""
        return self._own.folder

    @property
    def tracked(self) -> list[str]:
        """Tracked folders."""
        return list(self._tracked)

    @property
    def outlive_session(self) -> bool:
        """Whether there are granted folders in which a dead server may have left a change half done."""
        return bool(self._tracked or self._writable)

    def covers(self, path: str) -> bool:
        """Return whether a path lies in one of the folders."""
        return any(f"{path}/".startswith(f"{folder}/") for folder in (self.folder, *self._tracked))

    # --- keeping ---

    async def take(self, worker: Worker) -> Trees:
        """Keep all folders as they are now. The caller releases what this returns."""
        own = await self._own.try_take(worker)
        tracked: dict[str, KeptTree | NotKept] = {}
        try:
            for folder, files in self._tracked.items():
                tracked[folder] = await files.try_take(worker)
        except BaseException:
            self.release(Trees(own, tracked))
            raise
        return Trees(own, tracked)

    def notices(self, trees: Trees) -> list[str]:
        """Return sentences about files that are not kept."""
        found = [f"the files are not kept: {trees.own}"] if isinstance(trees.own, NotKept) else trees.own.tree.notices
        for folder, kept in trees.tracked.items():
            why = [str(kept)] if isinstance(kept, NotKept) else kept.tree.notices
            found = [*found, *(f"files in {folder} are not kept: {each}" for each in why)]
        return found

    def share(self, trees: Trees) -> Trees:
        """Hold kept trees once more. The caller releases them."""
        own = self._own.share(trees.own)
        self.layers.share(trees.layers)
        return Trees(own, {folder: self._own.share(kept) for folder, kept in trees.tracked.items()}, trees.layers)

    def release(self, trees: Trees) -> None:
        for kept in (trees.own, *trees.tracked.values()):
            self._own.release(kept)
        self.layers.release(trees.layers)

    def close(self) -> None:
        """Give up what is held for the next trees."""
        self._own.close()
        for files in self._tracked.values():
            files.close()
        self._changes.forget(self._key)

    # --- bringing back ---

    async def restore(self, worker: Worker, trees: Trees, since: float) -> tuple[FileChanges | None, list[str]]:
        """Bring all folders back to the trees of that moment.

        Return what changed, or None if all stay as they are, and notices.
        """
        await self._begin_log(worker, trees)
        changes: FileChanges | None = None
        notices: list[str] = []
        lost = False
        kept_trees: list[tuple[str, KeptFiles | None, KeptTree | NotKept | KeptLayer]] = [*self._each(trees)]
        for folder, files, kept in [*kept_trees, *((folder, None, layer) for folder, layer in trees.layers.items())]:
            which = "the files" if files is self._own else f"the files in {folder}"
            try:
                restored = await self._restore(worker, folder, files, kept, since)
            except NotKept as why:
                if isinstance(why, AgentLost):
                    lost = True
                    # It may have ended with the worker, whose end is reported in a moment. The next one does the rest.
                    await asyncio.wait({worker.gone}, timeout=GONE_SECONDS)
                notices.append(f"{which} stay as they are: {why}")
                continue
            notices += restored.notices
            changes = _joined(changes or FileChanges(), self._named(folder, restored.changes))
        if not lost or worker.alive:
            await self._end_log()
        return changes, notices

    async def _restore(
        self, worker: Worker, folder: str, files: KeptFiles | None, kept: KeptTree | NotKept | KeptLayer, since: float
    ) -> Restored:
        """Bring one folder back, or write a layer to it. Raise NotKept if it stays as it is."""
        if isinstance(kept, NotKept):
            raise kept
        draft = "" if self._log is None else self._log.draft
        if isinstance(kept, KeptLayer):
            restored = await self.layers.apply(worker, folder, kept, draft)
            self._changes.note(folder, self._key)
            return restored
        assert files is not None
        others = self._changes.others(folder, self._key, since)
        why_not = f"another session has changed files there: {some(others)}" if others else None
        return await files.restore(worker, kept, why_not=why_not, draft=draft)

    @property
    def _lasting(self) -> dict[str, KeptFiles]:
        """Folders that outlive the server, by their paths for the host."""
        own = {self._own.place: self._own} if self._autosave is not None else {}
        return {**own, **{files.place: files for files in self._tracked.values()}}

    async def _begin_log(self, worker: Worker, trees: Trees) -> None:
        """Write down what the folders are like, unless a change that was not finished has done so."""
        if self._log is not None:
            return
        lasting = self._lasting.values()
        changes: list[Change] = []
        kept: list[KeptTree] = []
        try:
            for _, files, after in self._each(trees):
                if files in lasting and isinstance(after, KeptTree):
                    before = await files.try_take(worker)
                    if isinstance(before, KeptTree):
                        kept.append(before)
                        changes.append(files.change(before, after))
            changes += [self.layers.change(folder, layer) for folder, layer in trees.layers.items()]
            if changes:
                logs, store = self._stores.undo_logs, self._stores.of(self._tenant)
                session = "" if self._autosave is None else self._autosave.uid
                self._log = await self._stores.in_thread(logs.begin, store, changes, session)
        except OSError as error:
            logger.warning("a crash on the way leaves files half brought back: no undo log could be written: %s", error)
        finally:
            for each in kept:
                self._own.release(each)

    async def _end_log(self) -> None:
        log, self._log = self._log, None
        if log is None:
            return
        if self._autosave is not None:
            await self._autosave.hold(log)
        else:
            await self._own.end_log(log)

    async def undo_unfinished(self, worker: Worker) -> list[str]:
        """Undo changes of the folders that were begun and not finished, or that no save has. Return notices of it.

        The session of `worker` has not come back from a save yet. Raise StartFailed if it must not do so.
        """
        lasting = self._lasting
        logs = self._stores.undo_logs
        own = [] if self._log is None else [self._log]
        if self._autosave is not None:
            await self._autosave.wait_written()
            own += self._autosave.logs
        if not (lasting or self._writable) or (not own and logs.empty):
            return []
        notices: list[str] = []
        changes = await self._stores.in_thread(logs.left, self._tenant, lasting, self._writable, own)
        try:
            while changes:
                notices += await self._undo(worker, changes[0])
                await self._stores.in_thread(logs.undone, changes.pop(0))
        finally:
            for left in changes:
                logs.release(left)
        self._log = None
        if self._autosave is not None:
            self._autosave.forget_logs()
        return notices

    async def _undo(self, worker: Worker, left: LeftChange) -> list[str]:
        """Undo a change. Return notices of it."""
        place = left.change.place
        which = "the files" if place == self._own.place else f"the files in {place}"
        try:
            undoing = self.layers if left.change.layered else self._lasting[place]
            restored, others = await undoing.undo(worker, left)
        except AgentLost as why:
            # Most often it has ended with the worker, and the next one does this.
            raise errors.StartFailed(f"{which} could not be brought back: {why}; try again") from None
        except NotKept as why:
            return [f"{which} may be half changed by a rollback or commit that was cut off: {why}"]
        notices = [f"{which} are as before a rollback or commit that was cut off", *restored.notices]
        return [*notices, f"files that were changed since stay as they are: {some(others)}"] if others else notices

    def _each(self, trees: Trees) -> list[tuple[str, KeptFiles, KeptTree | NotKept]]:
        tracked = [(folder, self._tracked[folder], kept) for folder, kept in trees.tracked.items()]
        return [(self.folder, self._own, trees.own), *tracked]

    def _named(self, folder: str, changes: FileChanges) -> FileChanges:
        if folder == self._start:
            return changes
        groups = (changes.created, changes.changed, changes.deleted)
        return FileChanges(*([told_path(self._start, folder, path) for path in group] for group in groups))

    # --- comparing ---

    async def differences(self, before: Trees, after: Trees) -> tuple[list[FileDiff] | None, int, list[str]]:
        """Return the files that differ, how many more do, and notices. None: no folder could be compared."""
        found: list[FileDiff] | None = None
        more = 0
        notices: list[str] = []
        for folder, files, old in self._each(before):
            new = after.own if files is self._own else after.tracked.get(folder)
            if new is None:
                continue
            which = "the files" if files is self._own else f"the files in {folder}"
            try:
                some_files, some_more, told = await files.differences(old, new)
            except NotKept as why:
                notices.append(f"{which} cannot be compared: {why}")
                continue
            found = [*(found or []), *(self.renamed(folder, each) for each in some_files)]
            more += some_more
            notices += told
        return found, more, notices

    def renamed(self, folder: str, each: FileDiff) -> FileDiff:
        """Return the difference of a file in a folder, with the path as it is told."""
        if folder == self._start:
            return each
        return msgspec.structs.replace(each, path=told_path(self._start, folder, each.path))


def _joined(first: FileChanges, second: FileChanges) -> FileChanges:
    return FileChanges(
        sorted([*first.created, *second.created]),
        sorted([*first.changed, *second.changed]),
        sorted([*first.deleted, *second.deleted]),
    )
