"""The sandbox of a session as a place for shell tasks, which run below that session's init."""

import os
from dataclasses import dataclass
from pathlib import Path

from ingle.isolation.limits.apply import LimitApplier
from ingle.requests import SessionLimits
from ingle.workers.worker import Worker


@dataclass(frozen=True)
class Sandbox:
    worker: Worker
    """Worker whose init starts the tasks."""
    folder: Path
    """Folder for files that the host makes for a task. Code inside can read it, and cannot write to it."""
    limits: SessionLimits
    """Limits for all processes in the sandbox together."""
    workspace: str | None = None
    """Working directory of commands without a session, if it is not the server's folder for them."""

    def limits_met(self) -> list[str]:
        """Return the limits that have stopped a process since the last call, and why the whole sandbox was ended."""
        because = self.worker.init.killed_because
        met = LimitApplier.passed(self.worker.group, self.limits, ended=False)
        return [
            *(f"{text}: what asked for more was refused or killed" for text in met),
            *([f"its sandbox {because}"] if because else []),
        ]

    def give(self, path: Path) -> None:
        """Make the sandbox's user the owner of a file that was made for a task in it."""
        if self.worker.birth.user:
            os.chown(path, self.worker.birth.user, self.worker.birth.user)
