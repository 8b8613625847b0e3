"""Exclusive use of a session's worker: the turn, and the worker once it is ready for the holder of the turn."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.turns import Turn, Turns
from ingle.sessions.persistence.autosave import AutoSave
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.process.slot_states import SlotState
from ingle.support.background import Tasks
from ingle.workers.worker import Worker

T = TypeVar("T")


class ExclusiveWorker:
    def __init__(
        self,
        turns: Turns,
        slot: ProcessSlot,
        journal: Journal,
        autosave: AutoSave | None,
        tasks: Tasks,
        make_room: Callable[[], None],
    ) -> None:
        """`make_room` is called before a worker needs file descriptors of the server."""
        self._turns = turns
        self._slot = slot
        self._journal = journal
        self._autosave = autosave
        self._tasks = tasks
        self._make_room = make_room

    async def ready(self) -> Worker:
        """Return the worker to the holder of the turn, and start one if needed.

        Every signal for an earlier cell has landed then, and a save that is due has its copy.
        """
        slot, autosave = self._slot, self._autosave
        while True:
            if slot.state is not SlotState.UP:
                self._make_room()
                await slot.ready()
            worker = slot.worker
            assert worker is not None
            if worker.signalled:
                await asyncio.wait(list(worker.signalled.values()))
            elif autosave is not None and autosave.due:
                await autosave.copy(worker, self._journal.history.count)
            else:
                if worker.lent:
                    self._make_room()
                return worker

    @contextlib.asynccontextmanager
    async def use(self, label: str) -> AsyncIterator[Worker]:
        """Hold the turn between cells for a moment. Raise Busy while a cell runs."""
        turn = await self._turns.take(label, self._journal.history.count + 1)
        try:
            yield await self.ready()
        finally:
            self._turns.release(turn)

    async def call(self, label: str, call: Callable[[Worker], Awaitable[T]]) -> T:
        """Return what a call to the worker returns. It is finished in its turn even if the caller leaves."""
        turn = await self._turns.take(label, self._journal.history.count + 1)
        return await asyncio.shield(self._tasks.start(self._call(turn, call)))

    async def _call(self, turn: Turn, call: Callable[[Worker], Awaitable[T]]) -> T:
        try:
            return await call(await self.ready())
        finally:
            self._turns.release(turn)
