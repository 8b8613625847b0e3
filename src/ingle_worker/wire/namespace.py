"""What a session holds: its variables told, the user's library loaded; all of it cleared, saved, restored."""

from dataclasses import field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass


# --- variables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListVariables:
    """Say what variables there are. Interrupted, if it takes too long, under the cell number `-ticket`.

    Not begun at all when the monotonic clock is past `until`: nobody waits any more.
    """

    ticket: int
    until: float


@dataclass(frozen=True)
class AskVariable:
    """Say all about one variable: its own `__repr__` and `__str__` run. Interrupted, or not begun, like a listing."""

    ticket: int
    until: float
    name: str


@dataclass(frozen=True)
class Variable:
    """One variable. `shape` or `length` where it has one; `value` and `repr` only when asked for alone."""

    name: str
    type: str
    shape: list[int] | None = None
    length: int | None = None
    size: int | None = None
    preview: str | None = None
    value: str | None = None
    repr: str | None = None


@dataclass(frozen=True)
class Listed:
    """The variables, and how many more there are than fit."""

    ticket: int
    variables: list[Variable]
    more: int = 0
    interrupted: bool = False


@dataclass(frozen=True)
class Asked:
    """The variable that was asked for; None when there is none of that name, or it could not be told."""

    ticket: int
    variable: Variable | None = None
    notices: list[str] = field(default_factory=list)
    error: str = ""
    interrupted: bool = False


# --- the user's library, and clearing -------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadStdlib:
    """Load the user's library: the last `code` bytes of `data` are its code, what stands before them its text.

    Without code it is compiled, and told by StdlibCompiled. Without `run` it is kept for Clear only. Answered by
    StdlibLoaded. Interrupted, if it takes too long, under the number of `PREPARING`.
    """

    code: int = 0
    run: bool = True
    data: bytes = b""


@dataclass(frozen=True)
class StdlibCompiled:
    """The code of the library that was sent: of this version of Python, made before any code of the user's ran."""

    data: bytes = b""


@dataclass(frozen=True)
class StdlibLoaded:
    """The library is there, or as much of it as could be. `names`: variables that it has made."""

    problem: str = ""
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class EditStdlib:
    """Say what the library in `data` holds, or would hold with this added, and then load that.

    Answered by StdlibDescribed, before any of it runs, and where something is added by StdlibLoaded.
    """

    addition: str = ""
    data: bytes = b""


@dataclass(frozen=True)
class StdlibName:
    """One name of the library. `signature` of functions, `module` of modules, `kind` of all else."""

    name: str
    signature: str = ""
    doc: str = ""
    module: str = ""
    kind: str = ""


@dataclass(frozen=True)
class StdlibDescribed:
    """What the library holds; its text, where something was added. `problem`: why it is refused."""

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
    """Forget all names, sources and tasks of the event loop, and load the library again if there was one.

    Interrupted, if it takes too long, under the number of `PREPARING`. Answered by Cleared.
    """


@dataclass(frozen=True)
class Cleared:
    """The namespace is as it was at the beginning."""

    notices: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


# --- saving and loading ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Save:
    """To a copy: tell everything that the session has, over a channel that is asked for; then end."""

    ticket: int


@dataclass(frozen=True)
class Load:
    """Put what a snapshot holds into this session. `data` is the snapshot's summary; bytes come over a channel.

    With `rerun`, the cells that made what could not be saved are run again.
    """

    ticket: int
    rerun: bool = False
    data: bytes = b""


@dataclass(frozen=True)
class ChannelWanted:
    """Ready to save or to load: one Ends, with the channel's descriptor."""

    ticket: int


@dataclass(frozen=True)
class SaveFailed:
    """The copy cannot tell what the session has; the channel is closed."""

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
    """The snapshot's names are in the session's namespace, but for those that failed."""

    ticket: int
    names: list[str]
    failed: list[NotLoaded] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    problem: str = ""
