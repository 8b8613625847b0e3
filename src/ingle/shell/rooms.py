"""Where a shell task runs that is confined: in the room of a session, below that session's init."""

import os
from dataclasses import dataclass
from pathlib import Path

from ingle.workers.worker import Worker


@dataclass(frozen=True)
class Room:
    worker: Worker
    """Whose init starts it."""
    folder: Path
    """For files that the host makes for a task: seen from inside, and not to be changed there."""
    workspace: str | None = None
    """Where commands begin that belong to no session, if only there."""

    def give(self, path: Path) -> None:
        """Let the room's user have a file that was made for a task in it."""
        if self.worker.user:
            os.chown(path, self.worker.user, self.worker.user)
