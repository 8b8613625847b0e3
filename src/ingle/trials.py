"""Shapes of copies of a session: checkpoints, trials and what they would change, variants, moments of failure."""

from msgspec import Struct, field

from ingle.files import FileChanges, FileDiff, VariableDiff


class CheckpointInfo(Struct, frozen=True):
    """A state that the session can return to."""

    name: str
    cell: int
    """The last cell that had run."""
    created_at: float
    memory: int | None
    """Bytes, with its share of the memory that it has in common with others; null where not known."""
    auto: bool
    """Made automatically before a cell."""
    notices: list[str]
    """What the checkpoint lacks."""
    copied: str = "process"
    """As of a session."""


class HostAsked(Struct, frozen=True):
    """A host that code asked for."""

    host: str
    """Host and port."""
    reached: int
    """Connections that left the machine."""
    refused: int


class Effect(Struct, frozen=True):
    """What a trial changed, and what its commit would end."""

    variables: list[VariableDiff] = field(default_factory=list)
    """Sorted by name."""
    unknown: list[str] = field(default_factory=list)
    """Variables that could not be compared in time, or at all."""
    files: list[FileDiff] | None = None
    """Files of the own folder and of granted folders that differ, sorted by path; null where they are not kept."""
    more_files: int = 0
    """Files that differ and are not listed."""
    hosts: list[HostAsked] | None = None
    """Hosts that the trial asked for; null where they are not known."""
    processes: list[str] = field(default_factory=list)
    """Programs that still run."""
    threads: int = 0
    """Threads that still run, beside the main one."""
    memory: int | None = None
    """Bytes of the trial's process."""
    ends: list[str] = field(default_factory=list)
    """What of the session a commit would end: its threads, tasks, child processes and connections."""
    notices: list[str] = field(default_factory=list)
    """What is not known, and what the trial shared with the session."""

    @property
    def is_empty(self) -> bool:
        """Whether a commit would bring nothing to the session beside the cell."""
        return not (self.variables or self.unknown or self.files or self.more_files or self.processes or self.threads)


class Decision(Struct, frozen=True):
    """What a policy has decided about a trial."""

    committed: bool
    """Whether the trial is the session now. If not, it waits for a commit or a discard."""
    reasons: list[str]
    """The rules that were met; if it is not committed, those that were not."""
    files: FileChanges | None = None
    """What changed in the own folder and in granted folders, if it is committed."""


class Trial(Struct, frozen=True):
    """A trial that waits for a commit or a discard, unless a policy has committed it."""

    name: str
    expires_at: float
    """Unix time at which it is discarded."""
    effect: Effect | None = None
    """Null while its cell runs."""
    copied: str = "process"
    """How the session was copied for it: `process`, or `value` if the session uses a GPU."""
    decision: Decision | None = None
    """What its policy has decided; null without one, and until then."""
    discarded: bool = False
    """Whether it was discarded while its cell ran."""


class TrialInfo(Struct, frozen=True):
    """A trial in a list."""

    name: str
    cell: int
    status: str
    """Status of its cell."""
    created_at: float
    expires_at: float
    effect: Effect | None = None
    decision: Decision | None = None
    """Why its policy has not committed it; null without one, and until then."""


class Committed(Struct, frozen=True):
    """A trial or a fork that became the session."""

    notice: str
    """A sentence about it."""
    cell: int
    """Number of its last cell, which is now one of the session."""
    files: FileChanges | None
    """What changed in the own folder and in granted folders; null if the files are not kept."""


class Variant(Struct, frozen=True):
    """One of several codes that were tried."""

    index: int
    status: str
    """Status of its cell; `budget` if the time was over before it ended."""
    score: float | None = None
    """Value of the score's expression; null if there is none, or it is no finite number."""
    execution_time: float = 0.0
    """Of a code that the budget stopped: the time until then."""
    memory: int | None = None
    effect: Effect | None = None
    stdout: str = ""
    error: str | None = None
    """Exception of the code, or of the score."""


class Tried(Struct, frozen=True):
    """Result of trying several codes, each in a copy of the session."""

    variants: list[Variant]
    chosen: int | None
    """Index of the one that became the session."""
    notices: list[str] = field(default_factory=list)


class Merged(Struct, frozen=True):
    """What was taken from a fork into the session."""

    variables: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    """Variables that the session had before."""
    files: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    """What the values lost on the way."""


class FailureFrame(Struct, frozen=True):
    """A frame of a cell that has failed."""

    index: int
    """0 is the cell's own; each further one was called by the one before it."""
    function: str
    file: str
    """Name of the cell, such as `<cell 3>`, or path of a file."""
    line: int
    names: list[str] = field(default_factory=list)
    """Local variables, sorted."""


class FailureInfo(Struct, frozen=True):
    """A moment of failure that is kept."""

    cell: int
    error: str
    """Exception of the cell, in one line."""
    created_at: float
    memory: int | None = None
    """Bytes of the copy, as its share of what it has in common with the session."""
    frames: list[FailureFrame] = field(default_factory=list)


class Inspected(Struct, frozen=True):
    """Value of an expression in a frame of a cell that has failed."""

    cell: int
    frame: FailureFrame
    expression: str
    type: str | None
    """Null if the expression raised an exception."""
    value: str | None
    """Its `repr`, cut in the middle above 10,000 characters; null if the expression raised an exception."""
    output: str = ""
    """What the expression printed."""
    error: str | None = None
    """Exception that the expression raised."""
