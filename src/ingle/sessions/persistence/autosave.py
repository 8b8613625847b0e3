"""Automatic saves of one session: written from copies of its worker, in the background.

The session waits for the fork only. A durable session is saved after each cell. While one save is written, only the
newest copy waits, so at most one more save is outstanding. What is reported as saved is on the disk. A session that is
not durable is saved when it has been idle, so that its process can be freed.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from ingle import errors
from ingle.events import Skipped
from ingle.render.phrases import some
from ingle.sessions.cells.journal import Journal
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.persistence.stored_session import StoredSession
from ingle.snapshots.cell_counter import CellCounter
from ingle.snapshots.registry import Registry, Save, describe_missing
from ingle.snapshots.store import LoadableSnapshot
from ingle.snapshots.transfer import NOT_SAVED
from ingle.trees.packing import PackedFiles
from ingle.trees.store import KeptTree, NotKept
from ingle.trees.tree import Tree
from ingle.trees.undo_log import UndoLog
from ingle.workers.copies import Copies
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

QUIET_SECONDS = 0.02
"""Pause between a cell and the copy: requests for the result or the variables come first. A cell that comes sooner
waits for the copy, since that cell may run for hours."""

PAUSE_FACTOR = 4.0
"""Where cells follow one another at once, the time from a save to the next copy is at least this many times what the
last copy and its save took. So a few cells, those of some 50 ms, are saved together."""

MAX_PAUSE_SECONDS = 0.2
"""Longest time between two copies, however long a save takes."""

RESEND_SECONDS = 5.0
"""Pause until a save that the object store did not take is sent again."""

MAX_FAILED_LOADS = 2
"""A save that ends the worker this often is set aside, and the one before it is tried."""

Feed = Callable[[bytes, Callable[[socket.socket], None], Executor], Awaitable[messages.Loaded]]
"""Loads a snapshot into the session's fresh worker: its summary, and a function that sends its bytes in a thread."""

LoadFiles = Callable[[LoadableSnapshot], Awaitable[None]]
"""Brings the files of a snapshot back, before its variables are loaded."""


class NoneWhole(errors.NotFound):
    """There is no save, or none is as it was written."""


class Returned(Struct):
    """Result of loading a save."""

    save: Save
    names: list[str]
    failed: list[Skipped]
    notices: list[str]


class Store(Protocol):
    """Store of a session's last save, and of the one before it."""

    async def save(self, copy: Worker, cell: int, files: PackedFiles | str, changes: list[str]) -> tuple[Save, str]:
        """Save all that the copy holds, and files. It is on the disk, and the copy has ended, when this returns.

        `changes` names undo logs. Return why no files were saved, too. Empty: they were, or the store needs none.
        """
        ...

    async def load(self, feed: Feed, files: LoadFiles) -> Returned:
        """Load the last save that is whole. Raise NoneWhole if there is none."""
        ...

    async def set_aside(self, *, all: bool = False) -> str | None:
        """Keep the last save as a snapshot, and with `all` the one before too. Return the snapshot's name."""
        ...

    async def forget(self) -> None: ...


@dataclass(frozen=True)
class StateCopy:
    """A live copy of the worker, with the files of that moment. It waits to be saved."""

    copies: Copies
    files: KeptTree | NotKept
    cell: int
    version: int
    logs: list[UndoLog]
    """Undo logs of changes that no save had by then."""


NO_FILES_NEEDED = NotKept("")
"""A session that ends with its server: its folder lasts as long as its saves."""


@dataclass(frozen=True)
class SaveTarget:
    """Where a session is saved. One that outlives its server has a row in the registry."""

    store: Store
    registry: Registry | None = None
    uid: str = ""
    save: Save | None = None
    """The last save of an earlier server."""
    count: CellCounter | None = None
    stored: StoredSession | None = None
    """The session in the object store, if there is one. A save is reported when it is there."""


class AutoSave:
    def __init__(self, target: SaveTarget, journal: Journal, files: KeptFiles) -> None:
        self._store = target.store
        self._files = files
        self._copied_files: Tree | None = None
        """Files that the last copy, or the last save that was loaded, has."""
        self._no_files = ""
        """Why the last save has no files."""
        self.logs: list[UndoLog] = []
        """Undo logs of rollbacks and commits that are done, and that no save has yet."""
        self._journal = journal
        self._registry = target.registry
        self.uid = target.uid
        """Unique id of a durable session."""
        self._count = target.count
        self._stored = target.stored
        self._unsent: tuple[Save, int] | None = None
        """A save that is on the disk and not in the object store, and its version."""
        self._resend: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.last = target.save
        self._has_written = target.save is not None
        """The store may hold saves, perhaps one that was cut off before it was reported."""
        self._restarted = target.save is not None
        """The save is of an earlier server."""
        self.automatic = target.registry is not None
        self.trouble = ""
        """Why the session is not saved as it is now."""
        self.kept = ""
        """Why the process was not freed when the session was idle."""
        self._version = self._copied = self._saved = 0
        self._not_before = self._copy_began = 0.0
        self._missing: list[str] = []
        """What of the session the last copy lacked."""
        self._failures = 0
        self._writing: asyncio.Task[None] | None = None
        """Writes one save after the other."""
        self._waiting: StateCopy | None = None
        self._stale = False
        """Discard the existing save, and the one in progress, before writing another."""
        self._closed = False

    @property
    def durable(self) -> bool:
        return self._registry is not None

    @property
    def taken_over(self) -> bool:
        """Return whether another server has the session, so that this one must end it."""
        return self._stored is not None and self._stored.stale

    @property
    def current(self) -> bool:
        """Return whether the last save is of the session as it is now."""
        return self._saved == self._version

    @property
    def has_something(self) -> bool:
        """Return whether there is a save, or will be in a moment."""
        writes = self._waiting is not None or (self._writing is not None and not self._stale)
        return self.last is not None or writes

    @property
    def irreplaceable(self) -> str:
        """Return what would be lost if the process were freed; empty if nothing."""
        lost = [*self._missing, *(describe_missing(each) for each in (self.last.missing if self.last else []))]
        return f"it has what cannot be saved: {some(lost)}" if lost else ""

    @property
    def due(self) -> bool:
        """Return whether a copy has to be made before the next cell changes the session."""
        return self.automatic and self.uncopied and self._loop.time() >= self._not_before

    @property
    def uncopied(self) -> bool:
        """Return whether no copy has been made of the session as it is now."""
        return self._copied != self._version and not self._closed

    def notices(self, *, hibernated: bool) -> list[str]:
        """Return what a listing says about the saves."""
        if hibernated:
            return [self.last.describe() + "; the next call brings it back"] if self.last is not None else []
        if self.kept:
            return [f"its process was kept though it was idle: {self.kept}"]
        return [f"not saved as it is now: {self.trouble}"] if self.trouble and not self.current else []

    # --- saving ---

    def cell_begun(self, cell: int) -> None:
        """Write the number of a cell down: it is not given again, even after a crash."""
        if self._count is not None:
            self._count.begun(cell)

    def changed(self) -> float | None:
        """Note that the session has changed. Return after how many seconds to make a copy, if at all."""
        self._version += 1
        self.kept = ""
        return QUIET_SECONDS if self.automatic and not self._closed else None

    async def copy(self, worker: Worker, cell: int) -> None:
        """Copy the worker, and have the copy saved as soon as the save before it is written.

        The caller holds the session's turn: the copy must be of this cell and no other.
        """
        version = self._version
        self._copy_began = self._loop.time()
        files: KeptTree | NotKept = NO_FILES_NEEDED
        try:
            if self.durable:
                files = await self._files.try_take(worker)
            copies = await worker.fork()
        except BaseException as error:
            self._files.release(files)
            if not isinstance(error, errors.IngleError):
                raise
            self._fail(f"it could not be copied: {error.message}")
            return
        finally:
            self._not_before = self._loop.time() + MAX_PAUSE_SECONDS
        self._missing = copies.notices
        copy = StateCopy(copies, files, cell, version, [*self.logs])
        if self._closed:
            self._drop(copy)
            return
        self._copied = version
        self._copied_files = files.tree if isinstance(files, KeptTree) else None
        self._drop_waiting()
        self._waiting = copy
        self._write()

    async def hold(self, log: UndoLog) -> None:
        """Keep the log of a change that is done until a save has it. If none is to come, the log ends now."""
        self.logs.append(log)
        if not self.automatic:
            await self._end_logs([*self.logs])

    def forget_logs(self) -> None:
        """Forget all logs: their changes were undone."""
        self.logs = []

    async def _end_logs(self, logs: list[UndoLog]) -> None:
        for log in logs:
            await self._files.end_log(log)
            # Only now: as long as it is on the disk, each save has to name it.
            self.logs = [each for each in self.logs if each is not log]

    async def files_changed(self, worker: Worker) -> bool:
        """Return whether files have changed since the last copy: others than cells change files too."""
        if self._copied_files is None:
            return False
        files = await self._files.try_take(worker)
        try:
            return isinstance(files, KeptTree) and files.tree.entries != self._copied_files.entries
        finally:
            self._files.release(files)

    def _drop(self, copy: StateCopy) -> None:
        copy.copies.kill()
        self._files.release(copy.files)

    def _drop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._drop(waiting)

    def _write(self) -> None:
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_waiting())
            self._writing.add_done_callback(self._on_written)

    def _on_written(self, writing: "asyncio.Task[None]") -> None:
        """Forget a task that was cancelled before it began: such a task runs nothing, and does not forget itself."""
        if self._writing is writing:
            self._writing = None

    async def wait_written(self) -> None:
        """Wait until nothing is written any more."""
        while self._writing is not None:
            await asyncio.wait({self._writing})

    async def _write_waiting(self) -> None:
        try:
            while self._stale or self._waiting is not None or (self._unsent is not None and self._resend is None):
                if self._stale:
                    await self._forget()
                if self._waiting is None:
                    await self._send_again()
                    continue
                waiting, self._waiting = self._waiting, None
                try:
                    await self._save(waiting)
                except errors.TooLarge as error:
                    self.automatic = False
                    self._fail(f"{error.message}; it is saved on request only")
                    await self._end_logs([*self.logs])
                except (errors.IngleError, OSError) as error:
                    self._fail(getattr(error, "message", str(error)))
                finally:
                    self._drop(waiting)
                    now = self._loop.time()
                    self._not_before = min(self._not_before, now + PAUSE_FACTOR * (now - self._copy_began))
        finally:
            self._writing = None

    async def _save(self, waiting: StateCopy) -> None:
        (copy,) = await waiting.copies.up()
        self._has_written = True
        names = [log.name for log in waiting.logs]
        save, no_files = await self._store.save(copy, waiting.cell, self._files.packed(waiting.files), names)
        if self._registry is not None:
            await self._registry.saved(self.uid, save)
        await self._end_logs(waiting.logs)
        self._unsent = (save, waiting.version)
        await self._send()
        if no_files and no_files != self._no_files:
            self._journal.notify(f"the files of this session are not saved with it: {no_files}")
        self._no_files = no_files

    async def _send(self) -> None:
        """Have the last save in the object store, if there is one. Then it is reported."""
        if self._unsent is None:
            return
        save, version = self._unsent
        if self._stored is not None:
            try:
                await self._journal.timeline.flush()
                await self._stored.save(save)
            except errors.StoreFailed:
                if not self._closed and self._resend is None:
                    self._resend = self._loop.call_later(RESEND_SECONDS, self._send_later)
                raise
            except errors.StaleSave:
                self._unsent, self.automatic = None, False
                raise
        self._unsent = None
        # Only now: a save that is reported must survive any crash.
        self.last = save
        self._saved = max(self._saved, version)
        self.trouble = ""

    def _send_later(self) -> None:
        self._resend = None
        self._write()

    async def _send_again(self) -> None:
        try:
            await self._send()
        except errors.IngleError as error:
            self._fail(error.message)

    def _fail(self, why: str) -> None:
        """Tell it once for each time of trouble: the words of a store differ from try to try."""
        why = why.removeprefix(NOT_SAVED)
        if not self.trouble:
            since = f"the last save is that after cell {self.last.cell}" if self.last else "there is no save of it"
            self._journal.notify(f"{NOT_SAVED}{why}; {since}, and the session goes on")
        self.trouble = why

    # --- coming back ---

    async def restore(self, worker: Worker, feed: Feed) -> list[str] | None:
        """Load the last save that is whole into a fresh worker. Return its names, or None if there is no save.

        Callers were told that the session comes back, so a notice says what became of it in every case.
        Raise StartFailed if the worker cannot be used any more. Then the caller tries again with another worker.
        """
        await self.wait_written()
        try:
            return await self._restore(worker, feed)
        except errors.DataFolderFailed as error:
            # The save may be fine: it can be loaded when the disk works again.
            raise errors.StartFailed(f"the session cannot be brought back: {error.message}") from None

    async def _load_files(self, worker: Worker, saved: LoadableSnapshot) -> list[str]:
        """Bring the files of a save back. Return notices about those that others than cells have changed since."""
        if not self.durable:
            return []
        try:
            restored = await self._files.load(worker, saved)
        except NotKept as why:
            return [f"the files stay as they are: {why}"]
        if restored is None:
            return []
        self._copied_files = restored.tree
        return [*restored.differences, *restored.notices]

    async def _restore(self, worker: Worker, feed: Feed) -> list[str] | None:
        notices: list[str] = []

        async def load_files(saved: LoadableSnapshot) -> None:
            notices[:] = await self._load_files(worker, saved)

        try:
            returned = await self._store.load(feed, load_files)
        except NoneWhole as error:
            if self.last is not None:
                # The next save would replace it.
                kept = await self._set_aside(all=True)
                self._journal.notify(
                    f"no save of this session can be used: {error.message}{kept}; the session begins without variables"
                )
            elif self._journal.history.count:
                since = " before the server was started again" if self._restarted else ""
                self._journal.notify(f"nothing of this session was saved{since}; the session begins without variables")
            return None
        except (errors.SnapshotDamaged, errors.SnapshotUntrusted, errors.LoadFailed) as error:
            self._failures += 1
            if not isinstance(error, errors.LoadFailed) or self._failures >= MAX_FAILED_LOADS:
                # Another Python, an installed package or a later ingle may still load it.
                kept = await self._set_aside()
                self._journal.notify(f"a save of this session cannot be used: {error.message}{kept}")
                self._failures = 0
            raise errors.StartFailed(error.message) from None
        self._failures = 0
        self._saved = self._copied = self._version
        gone = ""
        if self._restarted and not self._journal.history.knows(returned.save.cell):
            gone = "; what its cells printed before the server was started again is gone"
        self._restarted = False
        self._journal.notify(returned.save.describe(returned.failed) + gone)
        for notice in (*returned.notices, *notices):
            self._journal.notify(notice)
        return returned.names

    async def _set_aside(self, *, all: bool = False) -> str:
        aside = await self._store.set_aside(all=all)
        return f"; it is kept as the snapshot {aside!r}" if aside is not None else ""

    def forget(self) -> None:
        """Discard all saves: the session has begun anew."""
        self.last = None
        self._drop_waiting()
        self._saved = self._copied = self._version
        self._stale = True
        self._write()

    async def _forget(self) -> None:
        self.last = self._unsent = None
        try:
            await self._end_logs([*self.logs])
            await self._store.forget()
            if self._registry is not None:
                await self._registry.saved(self.uid, None)
            if self._stored is not None:
                await self._stored.save(None)
        except (errors.IngleError, OSError) as error:
            self._fail(f"an earlier save could not be removed: {getattr(error, 'message', error)}")
        self._stale = False

    async def close(self, *, keep: bool, patience: float = 0.0) -> None:
        """End saving. The saves stay, or are removed with the session."""
        self._closed = True
        if keep and self._writing is not None:
            await asyncio.wait({self._writing}, timeout=patience)
        self._drop_waiting()
        if self._writing is not None:
            self._writing.cancel()
        await self.wait_written()
        if self._count is not None:
            self._count.close()
            self._count = None
        if self._resend is not None:
            self._resend.cancel()
        if keep and self._stale:
            await self._forget()
        if self._stored is not None:
            await self._stored.close(self._unsent[0] if keep and self._unsent is not None else None, keep=keep)
        if not keep:
            try:
                await self._end_logs([*self.logs])
                if self._registry is not None:
                    await self._registry.remove(self.uid)
                if self._has_written:
                    await self._store.forget()
            except (errors.RegistryBroken, OSError):
                return  # a later server removes the rest
