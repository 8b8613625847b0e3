"""Messages about a cell: its start, output, displays and input, its calls of tools, and its end."""

from dataclasses import field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass

CALL, LIST_SERVERS, LIST_TOOLS, SEARCH = "call", "servers", "tools", "search"
"""Kinds of requests: call a tool, name the servers, describe the tools of one, find tools by words."""


@dataclass(frozen=True)
class Execute:
    """Order to run a cell. `code` is the raw payload. With `argv` it runs as a program, from `file` if it has one.

    `item` is JSON of the variable of that name.
    """

    cell: int
    code: str = ""
    envs: dict[str, str] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    file: str = ""
    item: str = ""


@dataclass(frozen=True)
class Look:
    """State of one output pipe: unread bytes, and bytes written by Python so far.

    `certain` is false if another thread was about to write. Its bytes may be in the pipe without being counted.
    """

    unread: int
    written: int
    certain: bool = True


@dataclass(frozen=True)
class Mark:
    """A switch of Python between stdout and stderr, or the start of a cell among running threads.

    All bytes in the pipes now come before all bytes written later. `before` and `after` are monotonic nanoseconds
    around the two looks. The host knows when it read which bytes, so it can compute the position in each pipe.
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
    """A value shown before the cell's end, by a direct call of `sys.displayhook`."""

    cell: int
    data: dict[str, str]
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Display:
    """A mime bundle shown by code. With `update` it replaces the one with the same id."""

    data: dict[str, str]
    mark: Mark
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False
    background: bool = False


@dataclass(frozen=True)
class KeepImage:
    """An image in full size for the host to store. `data` is the raw payload; the host names it by its hash."""

    data: bytes = b""


@dataclass(frozen=True)
class InputWait:
    """A read of standard input that waits. Without a prompt the host shows the last unfinished line of stdout."""

    wait: int
    background: bool = False
    prompt: str | None = None
    secret: bool = False


@dataclass(frozen=True)
class InputTaken:
    """The end of such a wait: input, end of file or an interrupt."""

    wait: int


@dataclass(frozen=True)
class Raised:
    """The exception that ended the cell."""

    name: str
    value: str
    traceback: str


@dataclass(frozen=True)
class Exiting:
    """The cell asked to exit. Exit handlers, threads and finalizers run now, then the process ends."""

    cell: int
    code: int
    message: str | None
    execution_time: float


@dataclass(frozen=True)
class Done:
    """The end of a cell; the session is ready for the next. `value` is the mime bundle of the last expression."""

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


# --- tools ---


@dataclass(frozen=True)
class ToolRequest:
    """What code asks of the host. `data` is the raw payload: the arguments of a call, or the search, as JSON.

    `call` is a number of the worker, which the reply repeats.
    """

    call: int
    kind: str
    server: str = ""
    tool: str = ""
    background: bool = False
    data: bytes = b""


@dataclass(frozen=True)
class ToolCancel:
    """Nobody waits for this call any more."""

    call: int


@dataclass(frozen=True)
class ToolReply:
    """The answer to a request. `data` is the raw payload: JSON of the result, or of the failure."""

    call: int
    ok: bool = True
    data: bytes = b""
