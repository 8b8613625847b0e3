"""Process that takes the place of a session's, with the files that belong to it.

A rollback replaces the process by a copy of a checkpoint, and a commit by the process of a trial. The files are applied
after the process before has ended. If the new process ends on the way, the next one of the session finishes that.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ingle.files import FileChanges
from ingle.sessions.cells.notices import Notices
from ingle.sessions.forks.values import SavedState
from ingle.sessions.persistence.checkpoint_files import CheckpointFiles
from ingle.sessions.persistence.checkpoints import Moment
from ingle.trees.store import Trees
from ingle.workers.views import NoView
from ingle.workers.worker import Worker

Outcome = tuple[str, FileChanges | None]
"""The temporary folder of the process before, and which files changed, if they were applied."""


@dataclass(frozen=True, eq=False)
class Replacement:
    """A process, made when it is needed, and its files."""

    text: str
    """A sentence that says where the session is now."""
    reason: str
    """Why the process before ends."""
    moment: Moment
    folders: CheckpointFiles
    """Folders of the session."""
    trees: Trees
    """State to bring them to, or why they stay as they are."""
    make: Callable[[], Awaitable[tuple[Worker, SavedState | None]]]
    """Returns the process, and what it has to load once the process before has ended."""
    since: float
    """Time of that state. Files that another session has changed since then stay."""
    notices: list[str] = field(default_factory=list)
    """What the process lacks."""
    leave_view: Callable[[Worker], Awaitable[None]] | None = None
    """Has the process see the session's files instead of its own."""
    source: str = ""
    """Folder of its own files, if that has another path."""
    back_to: int | None = None
    """Cell that had just run in that state, if this is a rollback."""

    async def apply(self, worker: Worker, notices: Notices) -> FileChanges | None:
        """Bring the files to the state that belongs to the process. Return what changed, or None if they stay.

        A process that cannot be made to see the session's files is killed. The next one does the rest.
        """
        try:
            if self.leave_view is not None:
                await self.leave_view(worker)
        except NoView as why:
            # It would go on with its own files, and with layers over the granted folders that nobody applies.
            worker.kill(f"was killed: it could not be given the files of the session ({why})")
            await worker.gone
            return None
        changes, told = await self.folders.restore(worker, self.trees, self.since)
        for notice in told:
            notices.add(notice)
        return changes

    def hold(self) -> None:
        """Keep the files, whatever becomes of the process that they belong to."""
        self.folders.share(self.trees)

    def release(self) -> None:
        self.folders.release(self.trees)
