"""The data that every API returns: events of the timeline, results of cells, and descriptions of sessions.

Names and shapes are those of docs/contract.md, section 1. Requests are in `requests`. The types have no behaviour.
They can never form a cycle, so they are created with `gc=False`: a busy server holds a million of them.
"""

from typing import Any

from msgspec import Struct, field

from ingle.files import FileChanges
from ingle.grants import ApprovalInfo
from ingle.grants import Isolation as Isolation  # public here
from ingle.introspection import TablePage
from ingle.requests import Author, SessionLimits
from ingle.trials import CheckpointInfo as CheckpointInfo  # public here
from ingle.trials import Trial

MimeBundle = dict[str, str]
"""By mime type: text as it is, JSON as text, everything else in base64."""

Metadata = dict[str, Any]
"""JSON by mime type. For an image: `width`, `height`, and `full` with the `file` of a stored larger version."""


class CellError(Struct, frozen=True, gc=False):
    name: str
    value: str
    traceback: str


class Exit(Struct, frozen=True, gc=False):
    """How a worker's process ended."""

    code: int | None = None
    signal: str | None = None
    message: str | None = None


class Truncated(Struct, frozen=True, gc=False):
    """Numbers of characters left out of a result's text."""

    stdout: int = 0
    stderr: int = 0


class Excerpt(Struct, frozen=True, gc=False, omit_defaults=True):
    """Position of a shortened text within the whole stream that the cell wrote."""

    first_line: int = 1
    """Number of the text's first line."""
    head: int = 0
    """Characters before the gap, if there is one."""
    left_out: int = 0
    """Characters in the gap."""
    left_out_lines: int = 0
    """Line ends in the gap."""


class Result(Struct, gc=False):
    """The result of a cell at the moment of the request."""

    session_id: str
    cell: int
    status: str
    success: bool = False
    stdout: str = ""
    stderr: str = ""
    result: MimeBundle | None = None
    displays: list[MimeBundle] = field(default_factory=list)
    result_metadata: Metadata = field(default_factory=dict)
    displays_metadata: list[Metadata] = field(default_factory=list)
    """One for each of `displays`."""
    error: CellError | None = None
    exit: Exit | None = None
    timed_out: bool = False
    needs_more_input: bool = False
    execution_time: float = 0.0
    prompt: str | None = None
    prompt_secret: bool = False
    approval: ApprovalInfo | None = None
    """The call of a tool that the cell waits with, until a person allows it."""
    truncated: Truncated = Truncated()
    notices: list[str] = field(default_factory=list)
    excerpts: dict[str, Excerpt] = field(default_factory=dict)
    """By stream, for each text that is not whole."""
    files: FileChanges | None = None
    """What the cell changed in the session's folder; null while it runs, and where that is not known."""
    trial: Trial | None = None
    """The trial that the cell is, with its effect; null for other cells."""
    next_event: int = 0
    """Pass this number as `from` to get only newer text."""


class Event(Struct, frozen=True, gc=False, tag_field="type", omit_defaults=True):
    """Fields of all events. `cell` is the running cell, or null."""

    seq: int
    time: float
    session_id: str
    cell: int | None


class Stdout(Event, frozen=True, gc=False, tag="stdout", omit_defaults=True):
    text: str
    background: bool = False


class Stderr(Event, frozen=True, gc=False, tag="stderr", omit_defaults=True):
    text: str
    background: bool = False


class ResultShown(Event, frozen=True, gc=False, tag="result", omit_defaults=True):
    data: MimeBundle
    metadata: Metadata = field(default_factory=dict)


class DisplayShown(Event, frozen=True, gc=False, tag="display", omit_defaults=True):
    """`update`: it replaces the display shown earlier with this id."""

    data: MimeBundle
    metadata: Metadata = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False
    background: bool = False


class ErrorRaised(Event, frozen=True, gc=False, tag="error"):
    name: str
    value: str
    traceback: str


class InputWanted(Event, frozen=True, gc=False, tag="input_wait"):
    prompt: str
    secret: bool


class ApprovalWanted(Event, frozen=True, gc=False, tag="approval"):
    """A call that waits until a person allows it. `arguments` is JSON."""

    id: str
    server: str
    tool: str
    arguments: str


class ToolCalled(Event, frozen=True, gc=False, tag="tool"):
    """The end of a call. `arguments` is JSON, shortened; `duration` is in seconds.

    `outcome` is `ok`, `error`, `denied`, `budget`, `unknown`, `unavailable`, `timeout` or `cancelled`.
    """

    server: str
    tool: str
    arguments: str
    duration: float
    outcome: str


class StateChanged(Event, frozen=True, gc=False, tag="state", omit_defaults=True):
    """`code` and `author` come with the state `running`: the source of the cell that starts, and who sent it.

    A cell that goes on has no `code`. Its `author` is the one who answered it, if it was answered.
    """

    state: str
    code: str | None = None
    author: Author | None = None


class Notice(Event, frozen=True, gc=False, tag="notice", omit_defaults=True):
    text: str
    back_to: int | None = None
    """With a rollback: the cell (0: none) that the state comes from; it undid those that ran since."""


class Note(Event, frozen=True, gc=False, tag="note", omit_defaults=True):
    """Text that a caller has put between the cells: Markdown, or with `raw` text that nothing renders."""

    text: str
    raw: bool = False
    author: Author | None = None


class Done(Event, frozen=True, gc=False, tag="done", omit_defaults=True):
    """The whole result without the streamed text, and how many characters and line ends were streamed."""

    result: Result
    characters: Truncated
    lines: Truncated = Truncated()
    shown: list[int] = field(default_factory=list)
    """The sequence number of the event of each display in the result."""
    value_event: int = 0
    """The sequence number of the event of the result's value, if it has one."""
    interrupted_by: Author | None = None
    """The one who asked for the interrupt of the cell; null without an interrupt."""


Streamed = Stdout | Stderr
Shown = Streamed | ResultShown | DisplayShown | ErrorRaised
AnyEvent = Shown | InputWanted | ApprovalWanted | ToolCalled | StateChanged | Notice | Note | Done


class SessionInfo(Struct):
    session_id: str
    state: str
    created_at: float
    last_executed: float | None
    execution_count: int
    variable_count: int
    variables: list[str]
    python: str
    cwd: str
    isolation: str
    network: str
    memory: int | None
    cpu_seconds: float | None
    idle_timeout: float
    durable: bool
    notices: list[str]
    saved_at: float | None = None
    """Time of the last save from which the session can be restored automatically."""
    saved_cell: int | None = None
    """The last cell in that save."""
    limits: SessionLimits = SessionLimits()
    environment: str | None = None
    """Name of its environment, if it asked for one."""
    next_event: int = 1
    """Number that its next event will have."""
    gpus: list[int] = []
    """Numbers of the GPUs that it may use."""
    node: str | None = None
    """Machine of a cluster that it runs on."""
    parent: str | None = None
    """Name of the session that it was forked from."""
    gpu_memory: int | None = None
    """Bytes that its processes use on GPUs, as the driver tells it; null where not known."""
    gpu_utilization: int | None = None
    """Percent of the time in which a GPU computed for it, added up over the GPUs; null where not known."""
    copied: str | None = None
    """How it was forked: `process` as a live copy, or by `value` in a new process, since its original uses a GPU."""
    trial: str | None = None
    """Name of its open trial. Until that is committed or discarded, other requests are refused as busy."""


class Line(Struct, frozen=True, omit_defaults=True):
    """One line of a cell's output, or a piece of a long one."""

    number: int
    text: str
    offset: int = 0
    """Characters of the line before this text."""
    left: int = 0
    """Characters of the line after this text."""
    next_offset: int = 0
    """Offset at which the rest of this line starts, if some is left."""
    context: bool = False
    """The line does not match, but is near a match."""


class OutputPage(Struct):
    """Some lines of a cell's output, counted from 1, and where to continue (null at the end)."""

    session_id: str
    cell: int
    stream: str
    lines: list[Line]
    next_line: int | None
    follow_line: int
    """Line at which to look for later output once all is read. An unfinished line is read again."""
    matches: int | None = None
    """Number of matching lines among these, if a pattern was given."""


class RolledBack(Struct, frozen=True):
    notice: str
    """A sentence about the state the session is in now."""
    checkpoint: CheckpointInfo
    session: SessionInfo
    files: FileChanges | None = None
    """Files of the own folder that the rollback changed; null where it left the files as they are."""


class SnapshotName(Struct, frozen=True):
    """A variable that a snapshot holds."""

    name: str
    type: str


class Skipped(Struct, frozen=True):
    """A variable that could not be saved or loaded, and why."""

    name: str
    type: str
    reason: str
    made_by: str = ""
    """The cell that made it, as named in tracebacks. Loading can run that cell again (`rerun`)."""


class SnapshotInfo(Struct, frozen=True):
    """A session on disk. If it cannot be used, `problem` says why and the other fields are empty."""

    name: str
    session_id: str = ""
    saved_at: float = 0.0
    python: str = ""
    isolation: str = ""
    """Weakest level of a session that loads it."""
    cell: int = 0
    """The last cell before the save."""
    size: int = 0
    variables: list[SnapshotName] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    problem: str | None = None
    files: int | None = None
    """Files of the session's own folder; null if it holds none of them."""


class Saved(Struct, frozen=True):
    """The outcome of a save. `paused` is the time in seconds for which the session was blocked."""

    session_id: str
    snapshot: str
    """The name, or the path of the file."""
    variables: int
    size: int
    new_bytes: int
    """Bytes that were in no earlier save."""
    skipped: list[Skipped]
    paused: float
    execution_time: float
    notices: list[str]
    files: int | None = None
    """Files of the session's own folder that were saved; null if they were not, and a notice says why."""


class Restored(Struct, frozen=True):
    """A session that a snapshot was loaded into."""

    session: SessionInfo
    snapshot: str
    saved_at: float
    variables: int
    skipped: list[Skipped]
    """Variables that could not be loaded here or had not been saved."""
    execution_time: float
    notices: list[str]
    files: int | None = None
    """Files that are in the session's own folder now; null if none were saved."""


class StdlibFunction(Struct, frozen=True):
    name: str
    signature: str
    doc: str
    """The first line of its docstring."""


class StdlibModule(Struct, frozen=True):
    name: str
    module: str
    """The module imported under that name."""


class StdlibOther(Struct, frozen=True):
    name: str
    kind: str
    """`class`, `value`, or `from` and the module it is imported from."""
    doc: str = ""


class Stdlib(Struct):
    """The user's library, described from its source. `problem` says why it cannot be described."""

    functions: list[StdlibFunction] = field(default_factory=list)
    modules: list[StdlibModule] = field(default_factory=list)
    other: list[StdlibOther] = field(default_factory=list)
    count: int = 0
    problem: str | None = None


class StdlibChange(Stdlib):
    """The user's library after an addition: the new names, and the names whose definition was replaced."""

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


class CellInfo(Struct):
    """One line of a session's history."""

    cell: int
    code: str
    status: str
    started_at: float
    execution_time: float | None
    author: Author | None = None


class VariableInfo(Struct, omit_defaults=True):
    """One variable of a session. `value` and `repr` are set only when it was requested alone."""

    name: str
    type: str | None = None
    """None while a cell runs, because only the names are known then."""
    shape: list[int] | None = None
    length: int | None = None
    size: int | None = None
    """Bytes without the objects it refers to; arrays and tables include their data."""
    preview: str | None = None
    value: str | None = None
    repr: str | None = None
    table: TablePage | None = None
    """Rows that were asked for, if it has rows; then it has no `value` and `repr`."""


class Variables(Struct):
    """The variables of a session. `more` counts the variables that did not fit."""

    session_id: str
    variables: list[VariableInfo]
    more: int = 0
    notices: list[str] = field(default_factory=list)


class VariableValue(Struct):
    """One variable in full, with notices about how it was read."""

    session_id: str
    variable: VariableInfo
    notices: list[str] = field(default_factory=list)


class Usage(Struct, frozen=True):
    cpu_seconds: float = 0.0
    memory: int = 0
    """Peak in bytes."""


class LeftRunning(Struct, frozen=True):
    """A process that outlived the shell that started it."""

    pid: int
    command: str


LIVE_STATUSES = ("running", "paused")
"""Statuses of a task that has not ended."""


class Task(Struct):
    """A shell command at the moment of the request."""

    task_id: str
    command: str
    status: str
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    signal: str | None = None
    timed_out: bool = False
    execution_time: float = 0.0
    usage: Usage = Usage()
    left_running: list[LeftRunning] = field(default_factory=list)
    truncated: Truncated = Truncated()
    notices: list[str] = field(default_factory=list)
    session_id: str | None = None
    shell_session: str | None = None
    created_at: float = 0.0
    next_event: int = 0
    """Pass this number as `from_event` to get only newer text."""
    next_line: int = 0
    """Pass this number as `from_line` to continue at the first line that was not whole yet."""


class TaskOutput(Struct):
    """Some lines of a task's output, counted from 1, and where to continue (null at the end)."""

    task_id: str
    stream: str
    lines: list[Line]
    next_line: int | None
