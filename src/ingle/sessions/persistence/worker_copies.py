"""Live copies of a session's worker: for a save, for a checkpoint, and to roll back."""

import asyncio
import time

import msgspec

from ingle import errors
from ingle.events import CheckpointInfo
from ingle.files import FileChanges
from ingle.sessions.cells.journal import Journal
from ingle.sessions.forks import values
from ingle.sessions.forks.replacement import Replacement
from ingle.sessions.forks.values import SavedState
from ingle.sessions.persistence.checkpoint_files import CheckpointFiles
from ingle.sessions.persistence.checkpoints import AUTO, Checkpoints, Parked
from ingle.sessions.persistence.kept_files import KeptFiles
from ingle.sessions.persistence.save_schedule import SaveSchedule
from ingle.sessions.process.exclusive import ExclusiveWorker
from ingle.sessions.process.session_folders import remove_below
from ingle.sessions.process.slot import ProcessSlot
from ingle.support.background import Tasks, finish
from ingle.trees.store import KeptTree, NotKept
from ingle.workers.copies import Copies, ForkOptions, UsesGpu
from ingle.workers.worker import Worker

NO_AUTO = (
    "automatic checkpoints have stopped: the session uses a GPU, and each would copy its data there; make one with "
    "`checkpoint`"
)


class Rollback(msgspec.Struct, frozen=True):
    """A rollback that was done."""

    checkpoint: CheckpointInfo
    text: str
    """A sentence that says where the session is now."""
    files: FileChanges | None
    """What it changed in the own folder; None if the files were not brought back."""


class SessionCopy(msgspec.Struct, frozen=True):
    """A live copy of a session, to be saved. The caller ends the worker and releases the files."""

    worker: Worker
    files: KeptTree | NotKept
    notices: list[str]
    """What the copy lacks."""
    paused: float
    """Seconds for which the session was held up."""


class WorkerCopies:
    def __init__(
        self,
        worker: ExclusiveWorker,
        slot: ProcessSlot,
        journal: Journal,
        checkpoints: Checkpoints,
        saves: SaveSchedule,
        files: KeptFiles,
        folders: CheckpointFiles,
        tasks: Tasks,
    ) -> None:
        self._worker = worker
        self._slot = slot
        self._journal = journal
        self._checkpoints = checkpoints
        self._saves = saves
        self._files = files
        self._folders = folders
        self._tasks = tasks

    async def copy(self) -> SessionCopy:
        """Return a live copy of the session as it is now. Raise Busy while a cell runs."""
        async with self._worker.use("save") as worker:
            began = time.monotonic()
            files = await self._files.try_take(worker)
            try:
                copies = await worker.fork()
            except BaseException:
                self._files.release(files)
                raise
        paused = time.monotonic() - began
        try:
            (copy,) = await copies.up()
        except BaseException:
            self._files.release(files)
            raise
        return SessionCopy(copy, files, copies.notices, paused)

    async def checkpoint(self, name: str) -> CheckpointInfo:
        """Park a copy of the session as it is now. Raise Busy while a cell runs."""
        async with self._worker.use("checkpoint") as worker:
            copies, parked = await self._park(name, worker)
        (copy,) = await copies.up()
        if copies.by_value:
            parked.notices.extend([values.NOTICE, *await self._find_missing(copy)])
        dropped = self._checkpoints.add(parked)
        return msgspec.structs.replace(parked.info(), notices=[*parked.notices, *dropped, *self.not_covered("kept")])

    async def _find_missing(self, parked: Worker) -> list[str]:
        """Return notices of what a rollback to this copy by value would not have. Raise StartFailed if all of it."""
        try:
            (copy,) = await (await parked.fork()).up()
            return await values.find_missing(copy)
        except BaseException:
            parked.kill()
            raise

    def not_covered(self, what: str) -> list[str]:
        """Return a notice if the session works in a folder of which no files are kept."""
        now = self._slot.cwd
        if self._folders.covers(now):
            return []
        return [f"files in {now} are not {what}: checkpoints cover the session's own folder and tracked ones"]

    def _options(self, *, live_only: bool = False) -> ForkOptions:
        folders = self._folders
        return ForkOptions(folders.folder, folders.tracked, live_only=live_only, loads=True)

    async def _park(self, name: str, worker: Worker, *, live_only: bool = False) -> tuple[Copies, Parked]:
        """Copy the worker and keep its files. The copy may still be starting."""
        trees = await self._folders.take(worker)
        last = self._journal.history.count
        moment, after = self._slot.moment(last), self._checkpoints.after(last)
        try:
            copies = await worker.fork(1, self._options(live_only=live_only))
        except BaseException:
            self._folders.release(trees)
            raise
        notices = [*copies.notices, *self._folders.notices(trees)]
        # The files are kept as long as the copy lives, however it ends.
        copies.workers[0].gone.add_done_callback(lambda _: self._folders.release(trees))
        copied = values.way(by_value=copies.by_value)
        return copies, Parked(name, copies.workers[0], moment, notices, trees.own, trees.tracked, copied, after)

    async def checkpoint_automatically(self, worker: Worker) -> None:
        """Park a copy before a cell, in its turn."""
        try:
            _, parked = await self._park(AUTO, worker, live_only=True)
        except UsesGpu:
            self._checkpoints.stop_auto()
            self._journal.notices.add_lasting(NO_AUTO)
        except errors.StartFailed as error:
            self._checkpoints.drop(AUTO)
            self._journal.notices.add(f"there is no checkpoint of the state before this cell: {error.message}")
        else:
            # The cell does not wait until the copy is ready. One that never is has ended when it is asked for.
            self._checkpoints.add(parked)

    async def rollback(self, name: str | None) -> Rollback:
        """Go on from a checkpoint, which stays.

        Without a name, go back to the state before the last cell, or else to the newest checkpoint. A second time,
        that is the same state: only one is kept automatically, and the answer says so.
        """
        self._checkpoints.find(name)  # a wrong name is refused at once
        async with self._worker.use("rollback"):
            parked = self._checkpoints.find(name)
            repeats = None if name is not None else self._checkpoints.repeats(parked, self._journal.history.count)
            sentences = [f"rolled back to {parked.description}", *([repeats] if repeats else [])]
            text = "; ".join([*sentences, *self.not_covered("rolled back")])
            files = await finish(self._go_back(parked, text))
        return Rollback(parked.info(), text, files)

    async def _go_back(self, parked: Parked, text: str) -> FileChanges | None:
        """Go on from a checkpoint. Return which files changed. The caller holds the turn."""
        try:
            tmp, files = await self._slot.replace(self._replacement(parked, text))
        except errors.StartFailed:
            if not parked.worker.alive:
                await parked.worker.gone
                await asyncio.sleep(0)  # `Checkpoints` hears of it in this turn of the loop
                self._checkpoints.find(parked.name)
            raise
        self._checkpoints.note_return(parked, self._journal.history.count)
        self.drop_tmp(tmp)
        self._saves.changed()
        return files

    def _replacement(self, parked: Parked, text: str) -> Replacement:
        async def make() -> tuple[Worker, SavedState | None]:
            copies = await parked.worker.fork(1, self._options())
            (copy,) = await copies.up()
            if not copies.by_value:
                return copy, None
            state = await values.take(copy, self._journal.folder)
            try:
                (fresh,) = await values.blank_copies(parked.worker)
            except BaseException:
                state.close()
                raise
            return fresh, state

        return Replacement(
            text,
            "the session was rolled back",
            parked.moment,
            self._folders,
            parked.trees,
            make,
            parked.created_at,
            parked.notices,
            back_to=parked.after,
        )

    def drop_tmp(self, tmp: str) -> None:
        """Remove the temporary files of a worker that has ended, unless a checkpoint or a fork needs them."""
        workspace = self._slot.workspace
        if tmp != workspace.tmp and not self._checkpoints.uses(tmp) and not workspace.folders.shared:
            self._tasks.start(asyncio.to_thread(remove_below, workspace.folders.folder, tmp))
