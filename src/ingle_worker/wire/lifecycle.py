"""Messages about the life of a worker: it becomes a session, is copied, and ends."""

from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass


@dataclass(frozen=True)
class Ready:
    """A prepared worker that waits for Start."""

    pid: int
    python: str
    executable: str


@dataclass(frozen=True)
class Start:
    """Order to become a session. `folders` are created in this order; the first contains the others.

    A second Start replaces the first, for a worker that was started ahead for another session.
    """

    cwd: str
    tmp: str
    folders: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    packages: str = ""
    """Target folder of `%pip install`, one of `folders` or mounted."""
    own: str = ""
    """The session's own folder, whose files are part of its state."""


@dataclass(frozen=True)
class Started:
    """The session's folder, environment and streams are ready."""

    cwd: str
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ForkSelf:
    """Order to make a live copy for each of these slots, which init already knows.

    It is ignored if the monotonic clock is past `until`, because nobody waits any more.
    """

    ticket: int
    slots: list[int]
    until: float
    folder: str = ""
    """Files below this folder that are open get positions of their own in the copies."""
    tracked: list[str] = field(default_factory=list)
    """More folders of that kind."""
    room: int = -1
    """Bytes of memory for copies of data on GPUs. Negative: no limit."""
    live_only: bool = False
    """Make no copy of a process that uses a GPU: it could not go on there."""


@dataclass(frozen=True)
class Holding:
    """Sent before data on GPUs is copied to memory: so many bytes, which take a while."""

    ticket: int
    size: int


@dataclass(frozen=True)
class EndsWanted:
    """Request for one Ends per slot, in this order. The copies are made next."""

    ticket: int
    slots: list[int]


@dataclass(frozen=True)
class Ends:
    """Descriptors of one copy: stdin, stdout, stderr, wire. Without descriptors the copy is cancelled."""

    ticket: int
    slot: int


@dataclass(frozen=True)
class Copied:
    """Answer to ForkSelf. All copies exist or are about to, except those in `failed`; each reports Ready itself.

    `notices` name things in this process that no copy has.
    """

    ticket: int
    notices: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    reason: str = ""
    by_value: bool = False
    """The process uses a GPU. Its copies can be saved, and cannot go on in its place."""


@dataclass(frozen=True)
class NotCopied:
    """Sent on the wire of a copy that failed, instead of Ready."""

    reason: str


@dataclass(frozen=True)
class Rehome:
    """Order to make a copy a session of its own. `folders` are created; inherited ones are not removed at its end."""

    tmp: str
    folders: list[str] = field(default_factory=list)
    packages: str = ""
    reseed: bool = False
    """Reseed random generators. Otherwise they continue like those of the original."""
    source: str = ""
    target: str = ""
    """Files below `source` that are open are opened again below `target`. Empty: they stay open."""
    key: list[int] = field(default_factory=list)
    """Key of `setns`, if the copy enters a view. It asks for the descriptors with ViewWanted first."""
    protected: list[str] = field(default_factory=list)
    """Folders that the copy sees through an overlay there."""


@dataclass(frozen=True)
class ViewWanted:
    """Request for an Ends with the namespaces of the copy's view: user, mount, and network if it has its own."""


@dataclass(frozen=True)
class NoteFiles:
    """Order to note which files below these folders are open, for a later Reopen. Answered by Started."""

    folder: str
    more: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reopen:
    """Order to open files again that were replaced since the copy was made. Answered by Started.

    Files below `source` are opened below `target`; without them, at the same path.
    """

    source: str = ""
    target: str = ""


@dataclass(frozen=True)
class Shutdown:
    """Order to exit gracefully: exit handlers run, then the process ends."""
