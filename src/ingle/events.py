"""The vocabulary that every door renders: events of the timeline, the result of a cell, a session as others see it.

The shapes and names are those of docs/contract.md, section 1. Nothing in here does anything.
"""

from msgspec import Struct, field

MimeBundle = dict[str, str]


class CellError(Struct, frozen=True):
    name: str
    value: str
    traceback: str


class Exit(Struct, frozen=True):
    """How a worker's process ended."""

    code: int | None = None
    signal: str | None = None
    message: str | None = None


class Truncated(Struct, frozen=True):
    """Characters left out of a result's text."""

    stdout: int = 0
    stderr: int = 0


class Result(Struct):
    """The result of a cell, as it is at the moment it is asked for."""

    session_id: str
    cell: int
    status: str
    success: bool = False
    stdout: str = ""
    stderr: str = ""
    result: MimeBundle | None = None
    displays: list[MimeBundle] = field(default_factory=list)
    error: CellError | None = None
    exit: Exit | None = None
    timed_out: bool = False
    needs_more_input: bool = False
    execution_time: float = 0.0
    prompt: str | None = None
    prompt_secret: bool = False
    truncated: Truncated = Truncated()
    notices: list[str] = field(default_factory=list)
    next_event: int = 0
    """Ask again with `from` this number to get only the text that came since."""


class Event(Struct, frozen=True, tag_field="type", kw_only=True, omit_defaults=True):
    """What all events have. `cell` is the cell that was running, null when none was."""

    seq: int
    time: float
    session_id: str
    cell: int | None


class Stdout(Event, frozen=True, tag="stdout", kw_only=True, omit_defaults=True):
    text: str
    background: bool = False


class Stderr(Event, frozen=True, tag="stderr", kw_only=True, omit_defaults=True):
    text: str
    background: bool = False


class ResultShown(Event, frozen=True, tag="result", kw_only=True):
    data: MimeBundle


class ErrorRaised(Event, frozen=True, tag="error", kw_only=True):
    name: str
    value: str
    traceback: str


class InputWanted(Event, frozen=True, tag="input_wait", kw_only=True):
    prompt: str
    secret: bool


class StateChanged(Event, frozen=True, tag="state", kw_only=True, omit_defaults=True):
    """`code` stands with the state `running`: the source of the cell that begins."""

    state: str
    code: str | None = None


class Notice(Event, frozen=True, tag="notice", kw_only=True):
    text: str


class Done(Event, frozen=True, tag="done", kw_only=True):
    """The whole result, without repeating streamed text, and how many characters were streamed."""

    result: Result
    characters: Truncated


AnyEvent = Stdout | Stderr | ResultShown | ErrorRaised | InputWanted | StateChanged | Notice | Done


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


class CellInfo(Struct):
    """One line of a session's history."""

    cell: int
    code: str
    status: str
    started_at: float
    execution_time: float | None


class Limits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a shell task may use; null is no limit. Sizes are bytes."""

    memory: int | None = None
    """Of all its processes together, without what they share with files."""
    cpu_seconds: float | None = None
    """Of all its processes together."""
    processes: int | None = None
    files: int | None = None
    """Open at once, in each process."""
    file_size: int | None = None
    """Of any file it writes."""
    output: int | None = None
    """On stdout and stderr together."""


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
