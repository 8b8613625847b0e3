"""Where a shell task runs that is confined: in the room of a session, below that session's init."""

import os
from dataclasses import dataclass
from pathlib import Path

from ingle.isolation.limits.apply import LimitApplier
from ingle.requests import SessionLimits
from ingle.workers.worker import Worker


@dataclass(frozen=True)
class Room:
    worker: Worker
    """Whose init starts it."""
    folder: Path
    """For files that the host makes for a task: seen from inside, and not to be changed there."""
    limits: SessionLimits
    """What all in the room may use together."""
    workspace: str | None = None
    """Where a command without a session works, if not in the server's folder for such."""

    def limits_met(self) -> list[str]:
        """Limits that something in it was stopped by since this was last asked."""
        return [
            f"{text}: what asked for more was refused or killed"
            for text in LimitApplier.passed(self.worker.group, self.limits, ended=False)
        ]

    def give(self, path: Path) -> None:
        """Let the room's user have a file that was made for a task in it."""
        if self.worker.user:
            os.chown(path, self.worker.user, self.worker.user)
