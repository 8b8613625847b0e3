"""Schedule of a session's automatic saves: when a copy is made, and when the process of an idle session is freed."""

import asyncio

from ingle import errors
from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.turns import Turn, Turns
from ingle.sessions.persistence.autosave import MAX_PAUSE_SECONDS, AutoSave
from ingle.sessions.persistence.checkpoints import Checkpoints
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.process.slot_states import SlotState
from ingle.support.background import Tasks


class SaveSchedule:
    def __init__(
        self,
        autosave: AutoSave | None,
        turns: Turns,
        slot: ProcessSlot,
        journal: Journal,
        checkpoints: Checkpoints,
        tasks: Tasks,
    ) -> None:
        self._autosave = autosave
        self._turns = turns
        self._slot = slot
        self._journal = journal
        self._checkpoints = checkpoints
        self._tasks = tasks
        self._timer: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """Have the session saved in a moment. If a cell begins sooner, it waits for the copy."""
        seconds = self._autosave.changed() if self._autosave is not None else None
        if seconds is not None:
            self._cancel()
            self._timer = asyncio.get_running_loop().call_later(seconds, self._copy_if_quiet)

    def files_changed(self) -> None:
        """Have the session saved in a moment, if its saves hold its files."""
        if self._autosave is not None and self._autosave.durable:
            self.changed()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _copy_if_quiet(self) -> None:
        autosave, worker = self._autosave, self._slot.worker
        if autosave is None or not autosave.uncopied or worker is None or worker.signalled:
            return
        if self._slot.state is not SlotState.UP:
            return
        turn = self._turns.try_take("save")
        if turn is not None:
            self._tasks.start(self._copy(autosave, turn))
        elif not self._turns.has_cell:
            # A listing or a save has the turn for a moment, and nothing after it would have the session copied.
            self._timer = asyncio.get_running_loop().call_later(MAX_PAUSE_SECONDS, self._copy_if_quiet)

    async def _copy(self, autosave: AutoSave, turn: Turn) -> None:
        try:
            if self._slot.worker is not None:
                await autosave.copy(self._slot.worker, self._journal.history.count)
        finally:
            self._turns.release(turn)

    async def _copy_if_changed(self, autosave: AutoSave, turn: Turn) -> None:
        """Have the session copied if its variables or its files are not as in the last copy."""
        try:
            worker = self._slot.worker
            if worker is None or not (autosave.uncopied or await autosave.files_changed(worker)):
                return
            if not autosave.uncopied:
                autosave.changed()
            autosave.trouble = ""
            await autosave.copy(worker, self._journal.history.count)
        finally:
            self._turns.release(turn)

    async def _save(self, autosave: AutoSave) -> bool:
        """Save the session as it is now. Return whether that is on the disk; False while a cell runs."""
        if (autosave.uncopied or autosave.durable) and self._slot.state is SlotState.UP:
            try:
                turn = await self._turns.take("save", 0, first=True)
            except errors.IngleError:
                return False
            await self._copy_if_changed(autosave, turn)
        await autosave.wait_written()
        return autosave.current

    def worker_lost(self, *, anew: bool) -> bool:
        """Return whether the next worker begins with the last save. With `anew`, discard all saves instead."""
        if self._autosave is None or not self._autosave.durable:
            return False
        if anew:
            self._autosave.forget()
            return False
        return self._autosave.has_something

    async def hibernate(self) -> None:
        """Save the session and free its process. If the process has to stay, listings say why from now on."""
        autosave, slot = self._autosave, self._slot
        worker = slot.worker
        if autosave is None or autosave.kept or not self._quiet:
            return
        if self._checkpoints.any:
            autosave.kept = "it has checkpoints"
        elif not await self._save(autosave):
            autosave.kept = autosave.trouble
        else:
            autosave.kept = autosave.irreplaceable
        if autosave.kept or worker is not slot.worker or not self._quiet or not autosave.current:
            return
        slot.restores = autosave.has_something
        slot.hibernate()

    @property
    def _quiet(self) -> bool:
        worker = self._slot.worker
        busy = worker is None or worker.signalled or self._slot.input.background
        return self._slot.state is SlotState.UP and self._turns.free and not busy

    async def finish(self) -> None:
        """Save what is not saved yet, if nothing runs."""
        if self._autosave is not None:
            await self._autosave.wait_written()
            if self._slot.state is SlotState.UP:
                await self._save(self._autosave)

    async def close(self, *, keep: bool, patience: float) -> None:
        """End saving. The saves stay with `keep`, or are removed with the session."""
        self._cancel()
        if self._autosave is not None:
            await self._autosave.close(keep=keep, patience=patience)
