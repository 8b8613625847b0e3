"""A cell on the wire: what starts it, what it prints, shows and asks for, and how it ends."""

from dataclasses import field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass


@dataclass(frozen=True)
class Execute:
    """Run this cell. `code` travels raw."""

    cell: int
    code: str = ""
    envs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """What the guest saw of one output pipe: bytes not read yet, and bytes Python itself has written so far.

    `certain` is false when another thread was about to write: its bytes may be in the pipe without being counted.
    """

    unread: int
    written: int
    certain: bool = True


@dataclass(frozen=True)
class Mark:
    """Python turned from one output stream to the other, or a cell begins among running threads.

    Everything in the pipes at this moment comes before everything written later. `before` and `after` are
    monotonic nanoseconds around the two looks, so that the host, which knows when it read what, can tell the
    place in each pipe without a round trip.
    """

    before: int
    after: int
    stdout: Look
    stderr: Look
    begin: int = 0


@dataclass(frozen=True)
class Background:
    """Text written by a thread or task of an earlier cell while another cell runs."""

    stream: str
    text: str
    mark: Mark


@dataclass(frozen=True)
class Result:
    """A value shown before the cell's end: only code that calls `sys.displayhook` itself does that."""

    cell: int
    data: dict[str, str]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Display:
    """Something shown by code, as a mime bundle. `update`: in place of what was shown with this id before."""

    data: dict[str, str]
    mark: Mark
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False
    background: bool = False


@dataclass(frozen=True)
class Keep:
    """An image in its full size, to be kept on disk. `data` travels raw; its name is its hash, made by the host."""

    data: bytes = b""


@dataclass(frozen=True)
class InputWait:
    """Somebody waits for standard input. Without a prompt the host shows the last unfinished line of stdout."""

    wait: int
    background: bool = False
    prompt: str | None = None
    secret: bool = False


@dataclass(frozen=True)
class InputTaken:
    """That wait is over: answered, at end of file, or interrupted."""

    wait: int


@dataclass(frozen=True)
class Raised:
    """The exception that ended the cell."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True)
class Exiting:
    """The cell asked to exit; handlers, threads and finalizers get their time now, then the process ends."""

    cell: int
    code: int
    message: str | None
    execution_time: float


@dataclass(frozen=True)
class Done:
    """The cell ended and the session is ready for the next. `value` is the mime bundle of its last expression."""

    cell: int
    status: str
    execution_time: float
    value: dict[str, str] | None = None
    error: Raised | None = None
    needs_more_input: bool = False
    dropped_input: int = 0
    crowded: bool = False
    names_added: list[str] = field(default_factory=list)
    names_removed: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
