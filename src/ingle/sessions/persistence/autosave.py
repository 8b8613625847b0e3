"""The save of one session: made of copies of its worker, in the background, so that the session waits for a fork only.

A durable session is saved after each cell. While one save is being written, the newest copy waits for its turn, in the
place of an older one that waits, so no more than one save is ever outstanding. What is told as saved is on the disk.
A session that is not durable is saved when it has been idle, so that its process can be freed.
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Protocol

from msgspec import Struct

from ingle import errors
from ingle.events import Skipped
from ingle.render.phrases import duration, some
from ingle.snapshots.cell_counter import CellCounter
from ingle.snapshots.registry import Registry, Save
from ingle.snapshots.transfer import NOT_SAVED
from ingle.workers.copies import Copies
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

QUIET = 0.02
"""Seconds after a cell before a copy is made: whoever asks for its answer or its variables comes first. A cell that
comes sooner waits for the copy, as it may run for hours."""

SPARE = 4.0
"""But where cells follow one another at once, the time from a save to the next copy is at least this many times what
that copy and its save took: then a few cells, those of some 50 ms, are saved together."""

PAUSE = 0.2
"""Though never longer than this after the last copy, however long its save takes."""

GIVE_UP = 2
"""A save with which the worker ends this often is not tried again: the one before it is."""

Feed = Callable[[bytes, Callable[[socket.socket], None], Executor], Awaitable[messages.Loaded]]
"""Puts a snapshot into the session's fresh worker: its summary, and what sends its bytes in a thread."""


class NoneWhole(errors.NotFound):
    """There is no save, or none that is as it was written."""


class Returned(Struct):
    """What came back."""

    save: Save
    names: list[str]
    failed: list[Skipped]
    notices: list[str]


class Store(Protocol):
    """Where the saves of this session are: the last, and the one before it."""

    async def save(self, copy: Worker, cell: int) -> Save:
        """All that the copy holds, on the disk when this returns; the copy is gone then."""
        ...

    async def load(self, feed: Feed) -> Returned:
        """The last save that is whole. NoneWhole when there is none."""
        ...

    async def set_aside(self, *, all: bool = False) -> str | None:
        """The last save is not used again, with `all` neither the one before; the snapshot that it is kept as."""
        ...

    async def forget(self) -> None: ...


class Keeper:
    def __init__(
        self,
        store: Store,
        tell: Callable[[str], None],
        *,
        registry: Registry | None = None,
        uid: str = "",
        save: Save | None = None,
        count: CellCounter | None = None,
    ) -> None:
        self._store = store
        self._tell = tell
        self._registry = registry
        self._uid = uid
        self._count = count
        self._loop = asyncio.get_running_loop()
        self.last = save
        self._outputs_gone = save is not None
        """It is of an earlier server, with which the outputs went."""
        self.automatic = registry is not None
        self.trouble = ""
        """Why the session is not saved as it is now."""
        self.kept = ""
        """Why its process was not freed when it was idle."""
        self._version = self._copied = self._saved = 0
        self._not_before = self._copy_began = 0.0
        self._unlike: list[str] = []
        """What of the session the last copy did not have."""
        self._failures = 0
        self.copying: asyncio.Task[None] | None = None
        """A copy is being made: no cell may begin."""
        self._saving: asyncio.Task[None] | None = None
        """All that is written is, one after the other, by this."""
        self._waiting: tuple[Copies, int, int] | None = None
        self._stale = False
        """What there is, and what is just being saved, is to be forgotten before anything else is saved."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def durable(self) -> bool:
        return self._registry is not None

    @property
    def current(self) -> bool:
        """Whether what is saved is all that there is."""
        return self._saved == self._version

    @property
    def has_something(self) -> bool:
        """There is a save, or there will be in a moment."""
        return self.last is not None or self._saving is not None

    @property
    def irreplaceable(self) -> str:
        """What would be lost if the process were freed, in words."""
        lost = [*self._unlike, *(_named(each) for each in (self.last.missing if self.last else []))]
        return f"it has what cannot be saved: {some(lost)}" if lost else ""

    @property
    def due(self) -> bool:
        """A copy has to be made before the next cell changes what is there."""
        return self.automatic and self._copied != self._version and self._loop.time() >= self._not_before

    def notices(self, *, hibernated: bool) -> list[str]:
        """What a listing says of it."""
        if hibernated:
            return [told_of(self.last, []) + "; the next call brings it back"] if self.last is not None else []
        if self.kept:
            return [f"its process was kept though it was idle: {self.kept}"]
        return [f"not saved as it is now: {self.trouble}"] if self.trouble and not self.current else []

    # --- saving ---

    def begun(self, cell: int) -> None:
        """A cell begins: its number is not given again, whatever becomes of it."""
        if self._count is not None:
            self._count.begun(cell)

    def changed(self, when_quiet: Callable[[], None]) -> None:
        """A cell has ended. `when_quiet` is called a moment later, to make a copy if no other cell has begun."""
        self._version += 1
        self.kept = ""
        if self.automatic and not self._closed:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(QUIET, when_quiet)

    def copy(self, worker: Worker, cell: int) -> None:
        """Have what the worker holds now saved, as soon as the save before it is done.

        From this moment on no cell may begin, until `copying` is over: the copy must be of this cell and no other.
        """
        if self.copying is None and not self._closed and self._copied != self._version:
            self.copying = self._loop.create_task(self._copy(worker, cell, self._version))

    async def _copy(self, worker: Worker, cell: int, version: int) -> None:
        self._copy_began = self._loop.time()
        try:
            copies = await worker.fork()
        except errors.IngleError as error:
            self._fail(f"it could not be copied: {error.message}")
            return
        finally:
            self.copying = None
            self._not_before = self._loop.time() + PAUSE
        self._unlike = copies.notices
        if self._is_closed():
            copies.kill()
            return
        self._copied = version
        if self._waiting is not None:
            self._waiting[0].kill()
        self._waiting = (copies, cell, version)
        self._write()

    def _write(self) -> None:
        if self._saving is None:
            self._saving = self._loop.create_task(self._write_waiting())

    async def save(self, worker: Worker, cell: int) -> bool:
        """Save what is there now; whether it is on the disk. The worker must be between cells."""
        while not self.current and not self._closed:
            asked = self._version
            if self._copied != asked:
                self.trouble = ""
                self.copy(worker, cell)
            await self.settle()
            if self.trouble or self._saved >= asked:
                break
        return self.current

    async def settle(self) -> None:
        """Until nothing is being saved any more."""
        while under_way := [each for each in (self._saving, self.copying) if each is not None]:
            await asyncio.wait(under_way)

    async def _write_waiting(self) -> None:
        try:
            while self._stale or self._waiting is not None:
                if self._stale:
                    await self._forget()
                if self._waiting is None:
                    continue
                copies, cell, version = self._waiting
                self._waiting = None
                try:
                    (copy,) = await copies.up()
                    await self._save(copy, cell, version)
                except errors.TooLarge as error:
                    self.automatic = False
                    self._fail(f"{error.message}; it is saved on request only")
                except (errors.IngleError, OSError) as error:
                    self._fail(getattr(error, "message", str(error)))
                finally:
                    copies.kill()
                    now = self._loop.time()
                    self._not_before = min(self._not_before, now + SPARE * (now - self._copy_began))
        finally:
            self._saving = None

    async def _save(self, copy: Worker, cell: int, version: int) -> None:
        save = await self._store.save(copy, cell)
        if self._registry is not None:
            await self._registry.saved(self._uid, save)
        # Only now: what is told as saved is found again, whatever happens next.
        self.last = save
        self._saved = max(self._saved, version)
        self.trouble = ""

    def _fail(self, why: str) -> None:
        why = why.removeprefix(NOT_SAVED)
        if why != self.trouble:
            since = f"the last save is that after cell {self.last.cell}" if self.last else "there is no save of it"
            self._tell(f"{NOT_SAVED}{why}; {since}, and the session goes on")
        self.trouble = why

    # --- coming back ---

    async def restore(self, feed: Feed) -> list[str] | None:
        """Put the last save that is whole into this fresh worker, and say so; its names, or None if there is none.

        Raises StartFailed when the worker is none any more that can be used: then again with another.
        """
        await self.settle()
        try:
            return await self._restore(feed)
        except errors.DataFolderFailed as error:
            # Nothing may be wrong with the save: it is there when the disk is seen to.
            raise errors.StartFailed(f"the session cannot be brought back: {error.message}") from None

    async def _restore(self, feed: Feed) -> list[str] | None:
        try:
            returned = await self._store.load(feed)
        except NoneWhole as error:
            if self.last is not None:
                # Else the saves to come would take its place.
                kept = await self._set_aside(all=True)
                self._tell(f"no save of this session can be used: {error.message}{kept}; this is a fresh worker")
            return None
        except (errors.SnapshotDamaged, errors.SnapshotUntrusted, errors.LoadFailed) as error:
            self._failures += 1
            if not isinstance(error, errors.LoadFailed) or self._failures >= GIVE_UP:
                # It may be loaded yet: by another Python, with a package installed, by a later ingle.
                kept = await self._set_aside()
                self._tell(f"a save of this session cannot be used: {error.message}{kept}")
                self._failures = 0
            raise errors.StartFailed(error.message) from None
        self._failures = 0
        self._saved = self._copied = self._version
        gone = "; what its cells printed before the server was started again is gone" if self._outputs_gone else ""
        self._outputs_gone = False
        self._tell(told_of(returned.save, returned.failed) + gone)
        for notice in returned.notices:
            self._tell(notice)
        return returned.names

    async def _set_aside(self, *, all: bool = False) -> str:
        aside = await self._store.set_aside(all=all)
        return f"; it is kept as the snapshot {aside!r}" if aside is not None else ""

    def forget(self) -> None:
        """The session has begun anew: nothing that was saved so far is to come back."""
        self.last = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting[0].kill()
        self._saved = self._copied = self._version
        self._stale = True
        self._write()

    async def _forget(self) -> None:
        self.last = None
        try:
            await self._store.forget()
            if self._registry is not None:
                await self._registry.saved(self._uid, None)
        except (errors.IngleError, OSError) as error:
            self._fail(f"an earlier save could not be removed: {getattr(error, 'message', error)}")
        self._stale = False

    async def close(self, *, keep: bool, patience: float = 0.0) -> None:
        """No more saves. Those that there are stay, or go with the session."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if keep and self._saving is not None:
            await asyncio.wait({self._saving}, timeout=patience)
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting[0].kill()
        if self._saving is not None:
            self._saving.cancel()
        await self.settle()
        if self._count is not None:
            self._count.close()
            self._count = None
        if keep and self._stale:
            await self._forget()
        if not keep:
            try:
                if self._registry is not None:
                    await self._registry.remove(self._uid)
                if self.last is not None or self._stale:
                    await self._store.forget()
            except (errors.RegistryBroken, OSError):
                return  # what is left over is cleared away by a later server

    def _is_closed(self) -> bool:
        return self._closed


def told_of(save: Save, failed: list[Skipped]) -> str:
    age = duration(max(0.0, time.time() - save.time))
    text = f"this session is as it was after cell {save.cell}, saved {age} ago"
    names = {each.name: _named(each) for each in (*save.missing, *failed)}
    return f"{text}; missing: {some(list(names.values()))}" if names else text


def _named(each: Skipped) -> str:
    made_by = f"; made by {each.made_by.strip('<>')}" if each.made_by else ""
    return f"{each.name} ({each.type}: {each.reason}{made_by})"
