"""How a session differs from another moment: a checkpoint, another session or a snapshot.

A moment is its files and its variables. Both are of the same instant: the turn is held while the files are kept and the
worker is copied. All else is done with the copies, and the session goes on.
"""

from dataclasses import dataclass
from typing import Literal

from ingle import errors
from ingle.files import Diff
from ingle.sessions.persistence import fingerprints
from ingle.sessions.persistence.checkpoint_files import CheckpointFiles
from ingle.sessions.persistence.checkpoints import Checkpoints, Parked
from ingle.sessions.persistence.fingerprints import Fingerprint
from ingle.sessions.persistence.worker_copies import WorkerCopies
from ingle.sessions.process.exclusive import ExclusiveWorker
from ingle.trees.store import Trees
from ingle.workers.siblings import Siblings

Kind = Literal["checkpoint", "session", "snapshot"]


@dataclass(frozen=True)
class Moment:
    """Files and variables of one instant. The caller releases the files."""

    files: Trees
    variables: dict[str, Fingerprint] | str
    """Or why they are not known."""
    processes: Siblings | None = None
    """The process that it is of, and its copies. None if there is no such process."""


class Comparison:
    """Compares one session with other moments."""

    def __init__(
        self, worker: ExclusiveWorker, files: CheckpointFiles, checkpoints: Checkpoints, copies: WorkerCopies
    ) -> None:
        self._worker = worker
        self._files = files
        self._checkpoints = checkpoints
        self._copies = copies

    async def now(self, seconds: float) -> Moment:
        """Return the session as it is now, with variables that are hashed for so many seconds. Raise Busy."""
        async with self._worker.use("diff") as worker:
            files = await self._files.take(worker)
            try:
                copies = await worker.fork()
            except BaseException:
                self._files.release(files)
                raise
            processes = worker.siblings
        try:
            return Moment(files, await fingerprints.take_from(copies, seconds), processes)
        except BaseException:
            self._files.release(files)
            raise

    async def diff(self, checkpoint: str | None, seconds: float) -> Diff:
        """Compare a checkpoint with the session as it is now. Default: the one that `rollback` would go back to."""
        parked = self._checkpoints.find(checkpoint)
        after = await self.now(seconds)
        try:
            before = await self._at(self._checkpoints.find(parked.name), seconds)
        except BaseException:
            self._files.release(after.files)
            raise
        return await self._compare(parked.name, "checkpoint", before, after)

    async def diff_from(self, name: str, kind: Kind, before: Moment, seconds: float) -> Diff:
        """Compare another moment with the session as it is now. Its files are released."""
        try:
            after = await self.now(seconds)
        except BaseException:
            self._files.release(before.files)
            raise
        return await self._compare(name, kind, before, after)

    async def _at(self, parked: Parked, seconds: float) -> Moment:
        """Return the moment of a checkpoint."""
        # A checkpoint that is dropped meanwhile must not take the files along.
        files = self._files.share(parked.trees)
        try:
            variables = await fingerprints.take_from(await parked.worker.fork(), seconds)
        except errors.StartFailed as error:
            variables = error.message
        except BaseException:
            self._files.release(files)
            raise
        return Moment(files, variables, parked.worker.siblings)

    async def _compare(self, name: str, kind: Kind, before: Moment, after: Moment) -> Diff:
        """Compare two moments. Their files are released."""
        try:
            files, more, notices = await self._files.differences(before.files, after.files)
        finally:
            self._files.release(before.files)
            self._files.release(after.files)
        notices += self._copies.not_covered("compared")
        failed = [each for each in (before.variables, after.variables) if isinstance(each, str)]
        if failed:
            notices += [f"the variables cannot be compared: {failed[0]}"]
        if isinstance(before.variables, str) or isinstance(after.variables, str):
            return Diff(name, kind, None, [], files, more, notices)
        related = before.processes is not None and before.processes is after.processes
        variables, unknown = fingerprints.compare(before.variables, after.variables, related=related)
        return Diff(name, kind, variables, unknown, files, more, notices)
