"""Namespace of a session between cells: its variables, the user's library, clearing, loading a snapshot."""

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Executor

from ingle import errors, events
from ingle.events import Variables, VariableValue
from ingle.introspection import Rows
from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.turns import TRIAL, Turns
from ingle.sessions.persistence.save_schedule import SaveSchedule
from ingle.sessions.process.calls import LISTING_SECONDS, WorkerCalls
from ingle.sessions.process.exclusive import ExclusiveWorker
from ingle.sessions.process.slot import ProcessSlot
from ingle.support.background import Tasks
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

MAX_NOTICES = 10
"""Notices that a worker sends with an answer."""

MAX_PATH_CHARS = 4096
MAX_KIND_CHARS = 100

CELL_RUNS = "a cell is running; the variables are those of the last finished cell"
TRIAL_OPEN = "a trial is open, and the session waits for it; the variables are those of the last finished cell"
OTHER_REQUEST = "another variable is just being told; these are the names of the last finished cell"
NO_ANSWER = "the session did not answer; the variables are those of the last finished cell"


class Namespace:
    def __init__(
        self,
        turns: Turns,
        worker: ExclusiveWorker,
        slot: ProcessSlot,
        calls: WorkerCalls,
        journal: Journal,
        saves: SaveSchedule,
        tasks: Tasks,
    ) -> None:
        self._turns = turns
        self._worker = worker
        self._slot = slot
        self._calls = calls
        self._journal = journal
        self._saves = saves
        self._tasks = tasks
        self._listing: asyncio.Task[Variables | None] | None = None

    async def list(self) -> Variables:
        """Return each variable with its type, extent, size and preview; while a cell runs, the names before it."""
        if not self._turns.has_cell:
            await self._slot.ready()
        holder = self._turns.holder
        if self._turns.has_cell:
            return self._calls.known(self._slot.names, CELL_RUNS)
        if holder is not None and holder.label == TRIAL:
            return self._calls.known(self._slot.names, TRIAL_OPEN)
        if self._listing is None and holder is not None and holder.label == "variable":
            return self._calls.known(self._slot.names, OTHER_REQUEST)
        # Concurrent requests get the same answer.
        self._listing = self._listing or self._tasks.start(self._list())
        listed = await asyncio.shield(self._listing)
        return listed if listed is not None else self._calls.known(self._slot.names, NO_ANSWER)

    async def _list(self) -> Variables | None:
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                turn = await self._turns.take("listing", 0, first=True)
            try:
                return None if self._slot.worker is None else await self._calls.list(self._slot.worker)
            finally:
                self._turns.release(turn)
        except (TimeoutError, errors.IngleError):
            return None
        finally:
            self._listing = None

    async def describe(self, name: str, limit: float, rows: Rows | None) -> VariableValue:
        """Return one variable in full, or some of its rows. Raise Busy while a cell runs."""
        return await self._worker.call(
            "variable", lambda worker: self._calls.describe(worker, name, limit, self._slot.names, rows)
        )

    async def export_value(self, name: str, limit: float) -> tuple[str, str]:
        """Have the worker write a variable to a file. Return its path and the kind of the value."""
        moved = await self._worker.call(
            "variable", lambda worker: self._calls.move_value(worker, name, "", "", limit, self._slot.names)
        )
        return moved.path[:MAX_PATH_CHARS], moved.kind[:MAX_KIND_CHARS]

    async def import_value(self, name: str, kind: str, path: str, limit: float) -> None:
        """Have the worker set a variable from a file, which it removes."""
        await self._worker.call(
            "variable", lambda worker: self._calls.move_value(worker, name, kind, path, limit, self._slot.names)
        )
        self._slot.names.learn([name])
        self._saves.changed()

    async def clear(self) -> None:
        """Reset the namespace to the initial one, and forget the code of the cells so far. All else stays."""
        await self._worker.call("clear", self._clear)

    async def _clear(self, worker: Worker) -> None:
        cleared = await self._calls.clear(worker)
        await self._journal.forget_code()
        self._slot.names.clear()
        if cleared is not None:
            self._slot.names.learn(cleared.names)
            for notice in cleared.notices[:MAX_NOTICES]:
                self._journal.notices.add(notice)
        self._saves.changed()
        self._journal.append(events.Notice, "the session was cleared: its variables, functions and imports are gone")

    async def edit_library(
        self, text: bytes, addition: str
    ) -> tuple[messages.StdlibDescribed | None, messages.StdlibLoaded | None]:
        """Return what this library holds, or would hold with this addition, and the result of loading it then."""
        return await self._worker.call("library", lambda worker: self._calls.edit_library(worker, text, addition))

    async def load(
        self, summary: bytes, send: Callable[[socket.socket], None], executor: Executor, *, rerun: bool
    ) -> messages.Loaded:
        """Load a snapshot's variables. Cells wait until it is done."""
        async with self._worker.use("load") as worker:
            loaded = await self._calls.load(worker, summary, send, executor, rerun=rerun)
        self._slot.names.learn(loaded.names)
        return loaded
