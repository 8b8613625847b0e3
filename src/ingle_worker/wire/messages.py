"""The messages: frozen dataclasses, each with its kind, and how the guest writes and reads them.

The guest has `json` only; the host reads the same dataclasses with a faster typed decoder of its own
(`ingle.workers.codec`) because whatever comes from a worker is untrusted. One field of a message may travel as
the frame's raw payload instead of JSON: `PAYLOADS` names it.
"""

import codecs
import json
from collections.abc import Callable
from dataclasses import MISSING, field, fields
from typing import TYPE_CHECKING, Any

from ingle_worker.wire.frames import PREFIX, Frame, WireError, encode_frame

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from ingle_worker.wire.classes import dataclass

# --- host to guest -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Turns a prepared child into a session. `folders` are made first, each below the one before it.

    A second one, for a worker that was begun ahead for another session: this is what holds then.
    """

    cwd: str
    tmp: str
    folders: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    packages: str = ""
    """Where `%pip install` puts what it installs; made when it is first needed."""


@dataclass
class Execute:
    """Run this cell. `code` travels raw.

    Not frozen as the others are: one is made at every cell, and frozen ones take three times as long.
    """

    cell: int
    code: str = ""
    envs: dict[str, str] = field(default_factory=dict)
    alone: bool = False
    """No other session has a cell at this time."""


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
class ForkSelf:
    """Make a live copy of this process for each of these places, of which init knows already.

    Not begun when the monotonic clock is past `until`: nobody waits any more.
    """

    ticket: int
    slots: list[int]
    until: float


@dataclass(frozen=True)
class Ends:
    """The descriptors of one copy come with this frame: stdin, stdout, stderr, wire. Without: it is called off."""

    ticket: int
    slot: int


@dataclass(frozen=True)
class Rehome:
    """A copy becomes a session of its own. `folders` are made; what it inherited is left alone when it ends."""

    tmp: str
    folders: list[str] = field(default_factory=list)
    packages: str = ""
    reseed: bool = False
    """Random generators start anew; else they go on as those of the original do."""


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
class LoadStdlib:
    """Load the user's library: the last `code` bytes of `data` are its code, what stands before them its text.

    Without code it is compiled, and told by StdlibCompiled. Without `run` it is kept for Clear only. Answered by
    StdlibLoaded. Interrupted, if it takes too long, under the number of `PREPARING`.
    """

    code: int = 0
    run: bool = True
    data: bytes = b""


@dataclass(frozen=True)
class EditStdlib:
    """Say what the library in `data` holds, or would hold with this added, and then load that.

    Answered by StdlibDescribed, before any of it runs, and where something is added by StdlibLoaded.
    """

    addition: str = ""
    data: bytes = b""


@dataclass(frozen=True)
class Clear:
    """Forget all names, sources and tasks of the event loop, and load the library again if there was one.

    Interrupted, if it takes too long, under the number of `PREPARING`. Answered by Cleared.
    """


PREPARING = -(1 << 60)
"""The number under which a session is interrupted while its namespace is being made; no cell has it."""


@dataclass(frozen=True)
class Shutdown:
    """End in order: exit handlers run, then the process goes."""


# --- guest to host -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """A prepared child waits for its Start."""

    pid: int
    python: str
    executable: str


@dataclass(frozen=True)
class Started:
    """The session's folder, environment and streams are in place."""

    cwd: str
    notices: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class StdlibCompiled:
    """The code of the library that was sent: of this version of Python, made before any code of the user's ran."""

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
class StdlibLoaded:
    """The library is there, or as much of it as could be. `names`: variables that it has made."""

    problem: str = ""
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cleared:
    """The namespace is as it was at the beginning."""

    notices: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


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


@dataclass(frozen=True)
class EndsWanted:
    """The next copies are about to be made: one Ends for each of these, in this order."""

    ticket: int
    slots: list[int]


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


# --- host and a session's init -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Interrupt:
    """SIGINT to the worker's process group, if it runs this cell; `again`: only if it did not take it before."""

    order: int
    cell: int
    again: bool = False


@dataclass(frozen=True)
class Kill:
    """SIGKILL to everything below init, now."""


@dataclass(frozen=True)
class Adopt:
    """There will be one more worker, in this place; the status socket of its own comes with this frame.

    Answered there, by InitUp without a worker.
    """

    slot: int


@dataclass(frozen=True)
class Enter:
    """Lay these folders, by their names in the data folder, into the session's room. Sent before `Start`.

    Its own are made first; those that it shares with others are there, some of them for reading only.
    """

    own: list[str]
    shared: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Join:
    """The first word to an init that was promised a group. What it has to write to, to be in it, comes along with this
    frame: one descriptor for each tree of groups, none where there can be no group."""


@dataclass(frozen=True)
class Shell:
    """A shell task is to run in this session's room. The status socket of its init comes along with this frame."""


@dataclass(frozen=True)
class NotEntered:
    """It could not be done, and everything ends."""

    reason: str


@dataclass(frozen=True)
class Door:
    """The listening socket that comes along is the session's only way out: who accepts on it is the host."""

    port: int


@dataclass(frozen=True)
class InitUp:
    """`joined`: it is in the group that it was to join, and so is all that it starts."""

    pid: int
    worker: int
    joined: bool = False


@dataclass(frozen=True)
class Signalled:
    """The order was carried out. `ignored`: the worker does not take SIGINT just now, so it should be sent again."""

    order: int
    ignored: bool


@dataclass(frozen=True)
class Exited:
    """The worker's wait status and what it used, said before what is left below init is killed."""

    status: int
    cpu_seconds: float
    peak_kib: int


# --- host and zygote ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fork:
    """Make one more prepared child; its five descriptors come along with this frame.

    `spare`: nobody waits for it, so it has time to rehearse. `uid`: who it shall be, where the server may choose.
    `network`: where it is another one than sessions of this zygote have by default. `group`: a `Join` follows, by its
    status socket.
    """

    ticket: int
    spare: bool = False
    uid: int = 0
    network: str = ""
    group: bool = False


@dataclass(frozen=True)
class Prove:
    """The first order to a zygote whose sessions are confined: hold a child as they are held, and have it attack.

    `uid`: who it shall be, as with Fork. `secret` is a file of the server's, `port` where it listens, `server` its
    number.
    """

    uid: int
    secret: str
    port: int
    server: int


@dataclass(frozen=True)
class Proof:
    """What the child could do though it must not; or why it could not be held. Neither: sessions will be held."""

    succeeded: list[str]
    refused: str = ""


@dataclass(frozen=True)
class ZygoteReady:
    pid: int
    python: str
    executable: str
    preloaded: list[str]
    missing: list[str]


@dataclass(frozen=True)
class ForkFailed:
    ticket: int
    reason: str


# --- host and a shell task's init --------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """Start this program; its stdin, stdout and stderr come along with the frame. `limits` of 0 are none.

    `pty`: the three are one terminal, which becomes the program's own. `lingers`: what the program leaves running when
    it ends may go on, and init with it; else all of it ends with the program.
    """

    argv: list[str]
    cwd: str
    env: dict[str, str] = field(default_factory=dict)
    pty: bool = False
    lingers: bool = True
    memory: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0
    files: int = 0
    file_size: int = 0


@dataclass(frozen=True)
class Signal:
    """A signal for everything below init, or for the program's process group alone; told by Signalled."""

    order: int
    number: int
    group: bool = False


@dataclass(frozen=True)
class RunFailed:
    """The program could not be started. `no_folder`: because the one it was to run in is not there, or not for it."""

    reason: str
    no_folder: bool = False


@dataclass(frozen=True)
class ProgramExited:
    """The program's wait status, and what has been used so far. `left`: something of it still runs."""

    status: int
    cpu_seconds: float
    peak_kib: int
    left: bool


@dataclass(frozen=True)
class TreeEnded:
    """The last process below init is gone."""

    cpu_seconds: float
    peak_kib: int


@dataclass(frozen=True)
class Breach:
    """A limit was passed, by this much; everything below init is being killed."""

    limit: str
    used: float


KINDS: dict[int, type] = {
    1: Start,
    2: Execute,
    3: Shutdown,
    4: ListVariables,
    5: AskVariable,
    6: ForkSelf,
    7: Ends,
    8: Rehome,
    14: Save,
    15: Load,
    10: LoadStdlib,
    11: EditStdlib,
    12: Clear,
    32: Interrupt,
    33: Kill,
    34: Run,
    35: Signal,
    36: Adopt,
    40: Enter,
    41: Shell,
    42: Join,
    48: Fork,
    49: Prove,
    64: Ready,
    65: Started,
    66: Mark,
    67: Background,
    68: Result,
    69: InputWait,
    70: InputTaken,
    72: Exiting,
    73: Done,
    74: Display,
    75: Keep,
    80: Listed,
    81: Asked,
    82: EndsWanted,
    83: Copied,
    88: NotCopied,
    92: ChannelWanted,
    93: SaveFailed,
    94: Loaded,
    84: StdlibCompiled,
    85: StdlibDescribed,
    86: StdlibLoaded,
    87: Cleared,
    96: InitUp,
    97: Signalled,
    98: Exited,
    99: RunFailed,
    100: ProgramExited,
    101: TreeEnded,
    102: Breach,
    108: NotEntered,
    109: Door,
    112: ZygoteReady,
    113: ForkFailed,
    114: Proof,
}
NUMBERS: dict[type, int] = {cls: kind for kind, cls in KINDS.items()}
EXECUTE, DONE = NUMBERS[Execute], NUMBERS[Done]
RAW: tuple[type, ...] = (Keep, Load, LoadStdlib, EditStdlib, StdlibCompiled, StdlibDescribed)
"""Those whose payload is bytes, not text."""

PAYLOADS: dict[type, str] = {Execute: "code", **dict.fromkeys(RAW, "data")}

FDS_PER_COPY = 4
"""stdin, stdout, stderr, wire: what a copy gets; its status socket goes to init."""

FDS_PER_JOIN = 3
"""At most."""

FDS_PER_FORK = 5
"""stdin, stdout, stderr, wire, status: the child's ends, in this order."""


class BadMessage(WireError):
    """A frame that is none of the messages, or whose fields are wrong."""


# --- the guest's codec -------------------------------------------------------------------------------------
# The C encoder and scanner are taken bare: they look nothing up in `builtins`, so that a session which has
# replaced `isinstance` or cleared `sys.modules` can still say so.


def _visible(error: UnicodeError) -> tuple[str, int]:
    """A lone surrogate inside JSON text becomes a backslash escape that JSON decodes to visible text."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    bad = error.object[error.start : error.end]
    return "".join(f"\\\\u{ord(char):04x}" for char in bad), error.end


codecs.register_error("ingle.visible", _visible)


def _plain(value: object) -> Any:
    if type(value) in FIELDS:
        return {name: getattr(value, name) for name in FIELDS[type(value)]}
    raise TypeError(f"{type(value).__name__} has no place in a message")


FIELDS: dict[type, tuple[str, ...]] = {
    cls: tuple(f.name for f in fields(cls)) for cls in (*NUMBERS, Look, Mark, NotLoaded, Raised, StdlibName, Variable)
}
NO_DEFAULT = object()
DEFAULTS: dict[tuple[type, str], Any] = {
    (cls, f.name): f.default if f.default_factory is MISSING else f.default_factory()
    for cls in NUMBERS
    for f in fields(cls)
    if f.default is not MISSING or f.default_factory is not MISSING
}
_quote: Callable[[str], str] = json.encoder.encode_basestring
_encode_json: Callable[[Any, int], Any] = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _plain, _quote, None, ":", ",", False, False, True
)
_scan_json: Callable[[str, int], tuple[Any, int]] = json.scanner.c_make_scanner(  # type: ignore[attr-defined]
    json.JSONDecoder()
)


def encode(message: Any) -> bytes:
    """The frame of a message. Fields that have their default value stay away."""
    cls = type(message)
    payload = b""
    values = vars(message)
    plain = {name: value for name, value in values.items() if value != DEFAULTS.get((cls, name), NO_DEFAULT)}
    payload_name = PAYLOADS.get(cls)
    if payload_name is not None:
        plain.pop(payload_name, None)
        raw = values[payload_name]
        payload = raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
    return encode_plain(cls, plain, payload)


def encode_plain(cls: type, plain: dict[str, Any], payload: bytes = b"") -> bytes:
    """The frame of a message given as its fields: what the guest says after every cell is not made an object first."""
    header = "".join(_encode_json(plain, 0)).encode("utf-8", "ingle.visible")
    return encode_frame(NUMBERS[cls], header, payload)


def encode_execute(cell: int, code: str, envs: dict[str, str], *, alone: bool = False) -> bytes:
    """The frame of an Execute: the host sends one for every cell."""
    payload = code.encode("utf-8", "surrogatepass")
    if envs:
        return encode_plain(Execute, {"cell": cell, "envs": envs, "alone": alone}, payload)
    return encode_frame(EXECUTE, (_ALONE if alone else _AMONG_OTHERS) % cell, payload)


_ALONE, _AMONG_OTHERS = b'{"cell":%d,"alone":true}', b'{"cell":%d}'
_ALONE_ENDS = b',"alone":true}'


def decode_fork(data: bytes) -> tuple[bool, int, str, bool]:
    """What a Fork says of the session to come, of the bytes of its frame. Read without making an object of it: whoever
    carries it out shares nearly all its memory with others, and should touch little of it."""
    plain, _ = _scan_json(data[PREFIX.size :].decode(), 0)
    return plain.get("spare", False), plain.get("uid", 0), plain.get("network", ""), plain.get("group", False)


def encode_ok(cell: int, execution_time: float, value: dict[str, str] | None) -> bytes:
    """The frame of a Done that has nothing more to say: the guest sends one after almost every cell."""
    header = f'{{"cell":{cell},"status":"ok","execution_time":{execution_time!r}'
    if value is not None:
        header += ',"value":{' + ",".join([f"{_quote(mime)}:{_quote(text)}" for mime, text in value.items()]) + "}"
    return encode_frame(DONE, (header + "}").encode("utf-8", "ingle.visible"))


def decode(frame: Frame) -> Any:
    """The message of a frame that came from the host, which the guest trusts; fields are taken as they are."""
    if frame.kind == EXECUTE:
        # As `encode_execute` writes it: what comes at every cell is read without a parser.
        alone = frame.header.endswith(_ALONE_ENDS)
        number = frame.header[8 : -len(_ALONE_ENDS) if alone else -1]
        if number.isdigit():
            return Execute(int(number), frame.payload.decode("utf-8", "surrogatepass"), {}, alone)
    cls = KINDS.get(frame.kind)
    if cls is None:
        raise BadMessage(f"no message has the kind {frame.kind}")
    try:
        plain, _ = _scan_json(frame.header.decode("utf-8"), 0)
        payload_name = PAYLOADS.get(cls)
        if payload_name is not None:
            raw = cls in RAW
            plain[payload_name] = frame.payload if raw else frame.payload.decode("utf-8", "surrogatepass")
        return cls(**plain)
    except (ValueError, TypeError, StopIteration, RecursionError) as error:
        raise BadMessage(f"a {cls.__name__} that cannot be read: {error}") from None
