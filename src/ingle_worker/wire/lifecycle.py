"""The life of a worker on the wire: it becomes a session, is copied, and ends."""

from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass


@dataclass(frozen=True)
class Ready:
    """A prepared child waits for its Start."""

    pid: int
    python: str
    executable: str


@dataclass(frozen=True)
class Start:
    """Turns a prepared child into a session. `folders` are made first, in this order; the first holds the others.

    A second one, for a worker that was begun ahead for another session: this is what holds then.
    """

    cwd: str
    tmp: str
    folders: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    packages: str = ""
    """Where `%pip install` puts what it installs; made when it is first needed."""


@dataclass(frozen=True)
class Started:
    """The session's folder, environment and streams are in place."""

    cwd: str
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ForkSelf:
    """Make a live copy of this process for each of these places, of which init knows already.

    Not begun when the monotonic clock is past `until`: nobody waits any more.
    """

    ticket: int
    slots: list[int]
    until: float


@dataclass(frozen=True)
class EndsWanted:
    """The next copies are about to be made: one Ends for each of these, in this order."""

    ticket: int
    slots: list[int]


@dataclass(frozen=True)
class Ends:
    """The descriptors of one copy come with this frame: stdin, stdout, stderr, wire. Without: it is called off."""

    ticket: int
    slot: int


@dataclass(frozen=True)
class Copied:
    """The worker goes on. The copies are there or about to be, but for those that `failed`; each says so itself.
    `notices` tell what of this process no copy has."""

    ticket: int
    notices: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class NotCopied:
    """On the wire of a copy that could not be made, in the place of its Ready."""

    reason: str


@dataclass(frozen=True)
class Rehome:
    """A copy becomes a session of its own. `folders` are made; what it inherited is left alone when it ends."""

    tmp: str
    folders: list[str] = field(default_factory=list)
    packages: str = ""
    reseed: bool = False
    """Random generators start anew; else they go on as those of the original do."""


@dataclass(frozen=True)
class Shutdown:
    """End in order: exit handlers run, then the process goes."""
