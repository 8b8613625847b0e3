"""Back-pressure: a worker is not read while the disk is behind with the output of its session."""

from ingle.sessions.cells.journal import Journal
from ingle.sessions.process.slot import ProcessSlot
from ingle.support.background import Tasks


class BackPressure:
    def __init__(self, journal: Journal, slot: ProcessSlot, tasks: Tasks) -> None:
        self._journal = journal
        self._slot = slot
        self._tasks = tasks
        self._waiting = False

    def check(self) -> None:
        """Stop reading the worker if the disk is behind. It is read again when the disk has caught up."""
        if self._journal.behind and self._slot.worker is not None:
            self._slot.worker.pause()
            if not self._waiting:
                self._waiting = True
                self._tasks.start(self._resume())

    async def _resume(self) -> None:
        await self._journal.wait_until_drained()
        self._waiting = False
        if self._slot.worker is not None:
            self._slot.worker.resume()
