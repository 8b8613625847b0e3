"""How a session is to be made: from nothing, or as a copy of another."""

from dataclasses import dataclass, field
from pathlib import Path

from ingle.isolation.policy import NO_GRANT, Grant
from ingle.sessions.checkpoints import Moment
from ingle.sessions.homes import Home
from ingle.state.stdlib import Library


@dataclass(frozen=True)
class Plan:
    """How a session is to be made."""

    session_id: str
    folder: Path
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
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


@dataclass(frozen=True)
class Origin:
    """What a session that begins as a copy has of its original, beside its process."""

    session_id: str
    moment: Moment
    notices: list[str]
    """What it has not."""
    reseed: bool = False
