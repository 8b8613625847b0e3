"""Messages about a session's namespace: variables, the user's library, clearing, saving and loading."""

from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass


# --- variables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListVariables:
    """Request for all variables. If it takes too long, it is interrupted as cell number `-ticket`.

    It is ignored if the monotonic clock is past `until`, because its caller has left. With `hash_seconds`, variables
    have identities, and hashes as far as that needs neither code of the user nor more time.
    """

    ticket: int
    until: float
    hash_seconds: float = 0.0


@dataclass(frozen=True)
class AskVariable:
    """Request for details of one variable; runs its `__repr__` and `__str__`. Interrupted or ignored like a listing.

    With `rows`, the answer has that many of its rows from `first` on instead, if it is a table or a list.
    """

    ticket: int
    until: float
    name: str
    first: int = 0
    rows: int = 0
    column: int = -1


@dataclass(frozen=True)
class TablePage:
    """Some rows of a table as text, with the labels of columns and rows.

    `total` counts all rows and `width` all columns. `points` are numbers of one column, at even distances.
    """

    columns: list[str]
    types: list[str]
    index: list[str]
    cells: list[list[str]]
    first: int
    total: int
    width: int
    points: list[float | None] | None = None


@dataclass(frozen=True)
class Variable:
    """One variable. It has `shape` or `length` if its type does, `value` and `repr` only if asked for alone.

    `identity` is the address of the object, and `digest` a hash of its saved bytes, if they were asked for.
    """

    name: str
    type: str
    shape: list[int] | None = None
    length: int | None = None
    size: int | None = None
    preview: str | None = None
    value: str | None = None
    repr: str | None = None
    table: TablePage | None = None
    identity: int = 0
    digest: str = ""


@dataclass(frozen=True)
class Listed:
    """The variables, and the number of those left out."""

    ticket: int
    variables: list[Variable] = field(default_factory=list)
    more: int = 0
    error: str = ""
    interrupted: bool = False


@dataclass(frozen=True)
class AskFrame:
    """Request to evaluate an expression in a frame of the exception that ended the last cell.

    Frame 0 is the cell's own, and -1 the innermost. Without an expression, all frames are listed.
    """

    ticket: int
    until: float
    expression: str
    frame: int = -1


@dataclass(frozen=True)
class UserFrame:
    """A frame, and names of its local variables."""

    index: int
    function: str
    file: str
    line: int
    names: list[str]


@dataclass(frozen=True)
class FrameAsked:
    """Frames, or the value of an expression in one of them. `missing`: there is no such frame."""

    ticket: int
    frames: list[UserFrame] = field(default_factory=list)
    count: int = 0
    type: str = ""
    value: str = ""
    output: str = ""
    raised: str = ""
    missing: bool = False
    error: str = ""
    interrupted: bool = False


@dataclass(frozen=True)
class Asked:
    """The variable that was asked for, or None if there is none or it could not be described."""

    ticket: int
    variable: Variable | None = None
    notices: list[str] = field(default_factory=list)
    error: str = ""
    interrupted: bool = False


@dataclass(frozen=True)
class MoveValue:
    """Request to exchange the value of a variable through a file. Interrupted or ignored like a listing.

    Without a `kind`, the worker writes the value to a new file; without a name, it only makes the file. With a `kind`,
    it sets the variable from the file at `path`. In both cases it removes what it does not need any more.
    """

    ticket: int
    until: float
    name: str
    kind: str = ""
    path: str = ""


@dataclass(frozen=True)
class ValueMoved:
    """The file and the kind of its value. `missing`: there is no such variable. `error`: why it was not exchanged."""

    ticket: int
    path: str = ""
    kind: str = ""
    missing: bool = False
    error: str = ""
    interrupted: bool = False


# --- help for people who write code ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Complete:
    """Request for the names that may stand at the end of `code`. Interrupted or ignored like a listing."""

    ticket: int
    until: float
    code: str = ""


@dataclass(frozen=True)
class Suggestion:
    """A name, and what it is: `function`, `class`, `module`, `instance`, `property`, `key`, `keyword` or `magic`."""

    text: str
    type: str


@dataclass(frozen=True)
class Completed:
    """The names. Each replaces so many characters before the cursor. `more` counts those left out."""

    ticket: int
    matches: list[Suggestion] = field(default_factory=list)
    replaced: int = 0
    more: int = 0
    error: str = ""
    interrupted: bool = False


@dataclass(frozen=True)
class Inspect:
    """Request for a description of the object at this position of `code`. Interrupted or ignored like a listing."""

    ticket: int
    until: float
    cursor: int
    source: bool = False
    code: str = ""


@dataclass(frozen=True)
class Inspected:
    """The object, or None if the position has none that is known without running code."""

    ticket: int
    variable: Variable | None = None
    signature: str = ""
    doc: str = ""
    source: str = ""
    error: str = ""
    interrupted: bool = False


@dataclass(frozen=True)
class CheckCode:
    """Question whether `code` is complete. Interrupted or ignored like a listing."""

    ticket: int
    until: float
    code: str = ""


@dataclass(frozen=True)
class Checked:
    """`complete`, `incomplete` or `invalid`; and the indentation of the next line of incomplete code."""

    ticket: int
    status: str = ""
    indent: str = ""
    error: str = ""
    interrupted: bool = False


# --- the user's library, and clearing -------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadStdlib:
    """Order to load the user's library: `data` is its text, then `code` bytes of compiled code.

    Without compiled code, StdlibCompiled returns it. Without `run` the library is stored for Clear only. The answer is
    StdlibLoaded. If it takes too long, it is interrupted as cell `PREPARING`.
    """

    code: int = 0
    run: bool = True
    data: bytes = b""


@dataclass(frozen=True)
class StdlibCompiled:
    """The compiled library, for this version of Python. It was compiled before any user code ran."""

    data: bytes = b""


@dataclass(frozen=True)
class StdlibLoaded:
    """The library is loaded, as far as possible. `names` are the variables it defines."""

    problem: str = ""
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EditStdlib:
    """Request to describe the library in `data`, or to add `addition` to it and load the result.

    The answer is StdlibDescribed, before any of it runs. After an addition StdlibLoaded follows.
    """

    addition: str = ""
    data: bytes = b""


@dataclass(frozen=True)
class StdlibName:
    """One name of the library: functions have `signature`, modules have `module`, others have `kind`."""

    name: str
    signature: str = ""
    doc: str = ""
    module: str = ""
    kind: str = ""


@dataclass(frozen=True)
class StdlibDescribed:
    """Contents of the library, and its new text after an addition. `problem` says why it is refused."""

    functions: list[StdlibName] = field(default_factory=list)
    modules: list[StdlibName] = field(default_factory=list)
    other: list[StdlibName] = field(default_factory=list)
    count: int = 0
    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    problem: str = ""
    data: bytes = b""


@dataclass(frozen=True)
class Clear:
    """Order to remove all names, sources and event loop tasks, then load the library again if there was one.

    If it takes too long, it is interrupted as cell `PREPARING`. The answer is Cleared.
    """


@dataclass(frozen=True)
class Cleared:
    """The namespace is as at the beginning."""

    notices: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


# --- saving and loading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Save:
    """Order to a copy: request a channel, send the whole session over it, and exit.

    `hashed`: chunks are named by their hashes, so that those that are stored already are not sent. Otherwise they are
    numbered. `only_list`: chunks are not sent, only the list of contents. `call_seconds`: an object is left out if one
    call of its own code takes longer; 0: never.
    """

    ticket: int
    hashed: bool = True
    only_list: bool = False
    call_seconds: float = 0.0


@dataclass(frozen=True)
class Compare:
    """Order to a copy: request a channel, send its variables with hashes of their saved bytes, and exit.

    Variables are hashed for so many seconds: those with these names, or all.
    """

    ticket: int
    seconds: float
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Load:
    """Order to load a snapshot into this session. `data` is its summary; the chunks come over a channel.

    With `rerun`, cells run again whose values could not be saved. Without `random`, generators of random numbers stay
    as they are.
    """

    ticket: int
    rerun: bool = False
    random: bool = True
    data: bytes = b""


@dataclass(frozen=True)
class ChannelWanted:
    """Request for one Ends with the channel's descriptor, to save or to load."""

    ticket: int


@dataclass(frozen=True)
class SaveFailed:
    """The copy could not save the session; the channel is closed."""

    ticket: int
    reason: str


@dataclass(frozen=True)
class NotLoaded:
    """A variable of a snapshot that could not be loaded."""

    name: str
    type: str
    reason: str


@dataclass(frozen=True)
class Loaded:
    """The snapshot's names are in the namespace, except those that failed."""

    ticket: int
    names: list[str]
    failed: list[NotLoaded] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    problem: str = ""
