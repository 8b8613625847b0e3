"""The vocabulary that every door renders: events of the timeline, the result of a cell, a session as others see it.

The shapes and names are those of docs/contract.md, section 1. What is asked for is in `wanted`. Nothing in here does
anything.

None of these can be part of a cycle, and a busy server holds a million of them: the garbage collector leaves them out.
"""

from typing import Any

from msgspec import Struct, field

from ingle.requests import SessionLimits

MimeBundle = dict[str, str]
"""By mime type: text as it is, JSON as its text, everything else in base64."""

Metadata = dict[str, Any]
"""JSON, by mime type. Of an image: `width`, `height`, and `full` with the `file` of a larger one that was kept."""


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
    """Characters left out of a result's text."""

    stdout: int = 0
    stderr: int = 0


class Excerpt(Struct, frozen=True, gc=False, omit_defaults=True):
    """Where the text of one stream in a result stands in all that the cell wrote there, when it is not all of it."""

    first_line: int = 1
    """The number of the line with which the text begins."""
    head: int = 0
    """Characters before the gap, if there is one."""
    left_out: int = 0
    """Characters in the gap."""
    left_out_lines: int = 0
    """Ends of lines in the gap."""


class Result(Struct, gc=False):
    """The result of a cell, as it is at the moment it is asked for."""

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
    truncated: Truncated = Truncated()
    notices: list[str] = field(default_factory=list)
    excerpts: dict[str, Excerpt] = field(default_factory=dict)
    """By stream, for a text that is not whole."""
    next_event: int = 0
    """Ask again with `from` this number to get only the text that came since."""


class Event(Struct, frozen=True, gc=False, tag_field="type", omit_defaults=True):
    """What all events have. `cell` is the cell that was running, null when none was."""

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
    """`update`: it takes the place of what was shown with this id before."""

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


class StateChanged(Event, frozen=True, gc=False, tag="state", omit_defaults=True):
    """`code` stands with the state `running`: the source of the cell that begins."""

    state: str
    code: str | None = None


class Notice(Event, frozen=True, gc=False, tag="notice"):
    text: str


class Done(Event, frozen=True, gc=False, tag="done", omit_defaults=True):
    """The whole result, without repeating streamed text, and how many characters and ends of lines were streamed."""

    result: Result
    characters: Truncated
    lines: Truncated = Truncated()
    shown: list[int] = field(default_factory=list)
    """The number of the event that each of the result's displays came with."""


AnyEvent = Stdout | Stderr | ResultShown | DisplayShown | ErrorRaised | InputWanted | StateChanged | Notice | Done


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
    """When it was last saved, so far as it would come back by itself."""
    saved_cell: int | None = None
    """As it was after this cell."""
    limits: SessionLimits = SessionLimits()


class Line(Struct, frozen=True, omit_defaults=True):
    """One line of a cell's output, or a piece of a long one."""

    number: int
    text: str
    offset: int = 0
    """Characters of the line before this text."""
    left: int = 0
    """Characters of the line after it."""
    next_offset: int = 0
    """Where on this line to go on, if some of it is left."""
    context: bool = False
    """No match itself, but near one."""


class OutputPage(Struct):
    """Some lines of a cell's output, counted from 1, and where to go on (null when there is no more)."""

    session_id: str
    cell: int
    stream: str
    lines: list[Line]
    next_line: int | None
    follow_line: int
    """Once all is read: where to look for what is still to come. An unfinished line is read again."""
    matches: int | None = None
    """Lines among these that match, where a pattern was given."""


class CheckpointInfo(Struct, frozen=True):
    """A state of the session that it can go back to."""

    name: str
    cell: int
    """The last cell that had run."""
    created_at: float
    memory: int | None
    """Bytes: its share of what it has in common with others, and all that is its own; null where not known."""
    auto: bool
    """Made by itself before a cell."""
    notices: list[str]
    """What of the session it does not have."""


class RolledBack(Struct, frozen=True):
    notice: str
    """Where the session is now, in a sentence."""
    checkpoint: CheckpointInfo
    session: SessionInfo


class SnapshotName(Struct, frozen=True):
    """A variable that a snapshot holds."""

    name: str
    type: str


class Skipped(Struct, frozen=True):
    """A variable that could not be saved, or not be loaded, and why."""

    name: str
    type: str
    reason: str
    made_by: str = ""
    """The cell that made it, as tracebacks name it; running that again when it is loaded is an option (`rerun`)."""


class SnapshotInfo(Struct, frozen=True):
    """A session on disk. `problem` says why it cannot be used, where that is so; then nothing else is known."""

    name: str
    session_id: str = ""
    saved_at: float = 0.0
    python: str = ""
    isolation: str = ""
    """A session that it is loaded into is confined at least so far."""
    cell: int = 0
    """The last cell that it knows of."""
    size: int = 0
    variables: list[SnapshotName] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    packages: dict[str, str] = field(default_factory=dict)
    problem: str | None = None


class Saved(Struct, frozen=True):
    """What a save has kept. `paused` is how long the session could do nothing else, in seconds."""

    session_id: str
    snapshot: str
    """The name, or the path of the file."""
    variables: int
    size: int
    new_bytes: int
    """Bytes that were not in an earlier save."""
    skipped: list[Skipped]
    paused: float
    execution_time: float
    notices: list[str]


class Restored(Struct, frozen=True):
    """A session that a snapshot was loaded into."""

    session: SessionInfo
    snapshot: str
    saved_at: float
    variables: int
    skipped: list[Skipped]
    """What could not be loaded here, and what had not been saved."""
    execution_time: float
    notices: list[str]


class StdlibFunction(Struct, frozen=True):
    name: str
    signature: str
    doc: str
    """The first line of its docstring."""


class StdlibModule(Struct, frozen=True):
    name: str
    module: str
    """What is imported under that name."""


class StdlibOther(Struct, frozen=True):
    name: str
    kind: str
    """`class`, `value`, or `from` and the module that it is imported from."""
    doc: str = ""


class Stdlib(Struct):
    """The user's library, told from its text. `problem`: why it cannot be told."""

    functions: list[StdlibFunction] = field(default_factory=list)
    modules: list[StdlibModule] = field(default_factory=list)
    other: list[StdlibOther] = field(default_factory=list)
    count: int = 0
    problem: str | None = None


class StdlibChange(Stdlib):
    """The user's library after something was added: the names in that, and those whose definition was replaced."""

    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)


class CellInfo(Struct):
    """One line of a session's history."""

    cell: int
    code: str
    status: str
    started_at: float
    execution_time: float | None


class VariableInfo(Struct, omit_defaults=True):
    """One variable of a session; `value` and `repr` only when it was asked for alone."""

    name: str
    type: str | None = None
    """None while a cell runs: then the names are all that is known."""
    shape: list[int] | None = None
    length: int | None = None
    size: int | None = None
    """Bytes, without what it refers to; for arrays and tables with their data."""
    preview: str | None = None
    value: str | None = None
    repr: str | None = None


class Variables(Struct):
    """The variables of a session. `more` counts those that did not fit."""

    session_id: str
    variables: list[VariableInfo]
    more: int = 0
    notices: list[str] = field(default_factory=list)


class VariableValue(Struct):
    """One variable in full, with what there is to say about how it was told."""

    session_id: str
    variable: VariableInfo
    notices: list[str] = field(default_factory=list)


class Usage(Struct, frozen=True):
    cpu_seconds: float = 0.0
    memory: int = 0
    """The most that was seen, in bytes."""


class LeftRunning(Struct, frozen=True):
    """A process that outlived the shell which started it."""

    pid: int
    command: str


class Task(Struct):
    """A shell command, as it is at the moment it is asked for."""

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
    """Ask again with `from_event` this number to get only the text that came since."""
    next_line: int = 0
    """Ask again with `from_line` this number to get the text from the first line on that was not whole yet."""


class TaskOutput(Struct):
    """Some lines of a task's output, counted from 1, and where to go on (null when there is no more)."""

    task_id: str
    stream: str
    lines: list[Line]
    next_line: int | None


class FileInfo(Struct, frozen=True):
    """A file in a session's folder; `kind` is file, folder, link or other."""

    name: str
    kind: str
    size: int
    modified: float


class FileList(Struct):
    folder: str
    files: list[FileInfo]
    truncated: bool
    """There are more than are listed."""


class Histogram(Struct):
    """How many values lie at or below each bound; the last count is of those above all."""

    bounds: list[float]
    counts: list[int]
    sum: float


class Metrics(Struct):
    """What a node counts. Nothing in it tells one session from another."""

    sessions: dict[str, int]
    cells: dict[str, int]
    cell_seconds: Histogram
    start_seconds: Histogram
    worker_exits: dict[str, int]
    output_bytes: int
    egress: dict[str, int] = field(default_factory=dict)
    """Connections through the proxy."""
    egress_bytes: int = 0


class Isolation(Struct):
    """How far sessions are held on a node, by default, and why not further."""

    level: str
    network: str
    missing: dict[str, str] = field(default_factory=dict)
    """By level that was wanted and cannot be had: the cause and the remedy."""

    @property
    def summary(self) -> str:
        """For a line that is always there."""
        text = f"isolation {self.level}, network {self.network}"
        if self.level in ("none", "limits"):
            text += " (code in sessions has your files and your network)"
        elif self.network == "full":
            text += " (services on this machine's loopback can be reached)"
        return text

    @property
    def sentence(self) -> str:
        """For a banner."""
        return "; ".join([self.summary, *(f"not {level}: {why}" for level, why in self.missing.items())])


class Load(Struct):
    """What one tenant has at this moment."""

    sessions: int
    running: int
