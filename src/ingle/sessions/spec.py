"""How a session is to be made: from nothing, or as a copy of another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from ingle.isolation.policy import NO_GRANT, Grant
from ingle.sessions.persistence.checkpoints import Moment
from ingle.sessions.process.session_folders import Home
from ingle.snapshots.user_library import Library


class Named(Protocol):
    """A session, for whoever has to say which one. One that was made ahead is named when somebody asks for it."""

    id: str


class Plan(msgspec.Struct, frozen=True):
    """How a session is to be made."""

    session_id: str
    folder: Path
    cwd: str | None = None
    env: dict[str, str] = {}
    idle_timeout: float = 300.0
    one_off: bool = False
    key: str = ""
    """What the manager finds it by, where that is not its name."""
    library: Library | None = None
    """The user's library as it was when the session was made."""
    grant: Grant = NO_GRANT
    """What the operator's policy gives it."""
    home: Home | None = None
    """Where its code's own files are, if not in its folder: a fork shares those of its original."""
    auto_checkpoints: bool = False

    def is_like(self, other: "Plan") -> bool:
        """Whether a worker that was made ready for the one is ready for the other."""
        # Each token has a grant of its own, and most give the same.
        same = self.grant is other.grant or self.grant == other.grant
        return same and self.cwd == other.cwd and self.env == other.env and self.library is other.library


@dataclass(frozen=True)
class Origin:
    """What a session that begins as a copy has of its original, beside its process."""

    session_id: str
    moment: Moment
    notices: list[str]
    """What it has not."""
    reseed: bool = False
