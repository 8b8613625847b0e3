"""All messages: their numbers, and the guest's encoder and decoder.

They are frozen dataclasses, by subject: `cells`, `lifecycle`, `namespace` and `process_tree`. The guest uses `json`.
The host has a typed decoder (`ingle.workers.io.decode`), because it does not trust a worker. One field may be the
frame's raw payload instead of JSON; `PAYLOADS` names it.
"""

import codecs
import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from ingle_worker.wire.cells import (
    Background,
    Display,
    Done,
    Execute,
    Exiting,
    InputTaken,
    InputWait,
    KeepImage,
    Look,
    Mark,
    Raised,
    Result,
    ToolCancel,
    ToolReply,
    ToolRequest,
)
from ingle_worker.wire.frames import PREFIX, Frame, WireError, encode_frame
from ingle_worker.wire.lifecycle import (
    Copied,
    Ends,
    EndsWanted,
    ForkSelf,
    Holding,
    NotCopied,
    NoteFiles,
    Ready,
    Rehome,
    Reopen,
    Shutdown,
    Start,
    Started,
    ViewWanted,
)
from ingle_worker.wire.namespace import (
    Asked,
    AskFrame,
    AskVariable,
    ChannelWanted,
    CheckCode,
    Checked,
    Clear,
    Cleared,
    Compare,
    Complete,
    Completed,
    EditStdlib,
    FrameAsked,
    Inspect,
    Inspected,
    Listed,
    ListVariables,
    Load,
    Loaded,
    LoadStdlib,
    MoveValue,
    NotLoaded,
    Save,
    SaveFailed,
    StdlibCompiled,
    StdlibDescribed,
    StdlibLoaded,
    StdlibName,
    Suggestion,
    TablePage,
    UserFrame,
    ValueMoved,
    Variable,
)
from ingle_worker.wire.process_tree import (
    Adopt,
    Breach,
    CloseView,
    EndsReturned,
    Enter,
    Exited,
    Fork,
    ForkFailed,
    InitUp,
    Interrupt,
    Join,
    KeepEnds,
    Kill,
    MakeView,
    NotEntered,
    ProgramExited,
    Proof,
    Prove,
    ReturnEnds,
    Run,
    RunFailed,
    ServeFiles,
    Shell,
    Signal,
    Signalled,
    Stay,
    Swept,
    TreeEnded,
    UseView,
    ZygoteReady,
)

KINDS: dict[int, type] = {
    1: Start,
    2: Execute,
    3: Shutdown,
    4: ListVariables,
    5: AskVariable,
    9: MoveValue,
    6: ForkSelf,
    7: Ends,
    8: Rehome,
    13: Reopen,
    20: NoteFiles,
    14: Save,
    15: Load,
    24: Compare,
    10: LoadStdlib,
    11: EditStdlib,
    12: Clear,
    16: Complete,
    17: Inspect,
    18: CheckCode,
    21: AskFrame,
    22: ToolReply,
    32: Interrupt,
    33: Kill,
    34: Run,
    35: Signal,
    36: Adopt,
    40: Enter,
    41: Shell,
    42: Join,
    43: ServeFiles,
    44: Stay,
    45: KeepEnds,
    46: ReturnEnds,
    50: MakeView,
    51: UseView,
    52: CloseView,
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
    75: KeepImage,
    80: Listed,
    81: Asked,
    89: ValueMoved,
    82: EndsWanted,
    83: Copied,
    90: Holding,
    88: NotCopied,
    92: ChannelWanted,
    93: SaveFailed,
    94: Loaded,
    95: ViewWanted,
    84: StdlibCompiled,
    85: StdlibDescribed,
    86: StdlibLoaded,
    87: Cleared,
    76: Completed,
    77: Inspected,
    78: Checked,
    71: FrameAsked,
    96: InitUp,
    97: Signalled,
    98: Exited,
    99: RunFailed,
    100: ProgramExited,
    101: TreeEnded,
    102: Breach,
    103: Swept,
    108: NotEntered,
    110: EndsReturned,
    112: ZygoteReady,
    113: ForkFailed,
    114: Proof,
    116: ToolRequest,
    117: ToolCancel,
}
NUMBERS: dict[type, int] = {cls: kind for kind, cls in KINDS.items()}
RAW: frozenset[type] = frozenset(
    (KeepImage, Load, LoadStdlib, EditStdlib, StdlibCompiled, StdlibDescribed, ToolReply, ToolRequest)
)
"""Messages whose payload is bytes, not text."""

WITH_CODE: tuple[type, ...] = (Execute, Complete, Inspect, CheckCode)

PAYLOADS: dict[type, str] = {**dict.fromkeys(WITH_CODE, "code"), **dict.fromkeys(RAW, "data")}

PREPARING = -(1 << 60)
"""The cell number that interrupts the preparation of a namespace. No cell has it."""

FDS_PER_COPY = 4
"""stdin, stdout, stderr and wire of a copy. Its status socket goes to init."""

FDS_PER_VIEW = 4
"""User namespace and mount namespace; with a network of its own, that and the listening socket of its proxy."""

FDS_PER_KEEP = 5
"""The host's ends: wire, stdin and a second reader of it, stdout and stderr. The wire and the outputs are watched."""

FDS_PER_JOIN = 3
"""Maximum number."""

FDS_PER_FORK = 5
"""The child's stdin, stdout, stderr, wire and status, in this order."""


class BadMessage(WireError):
    """A frame that is no known message, or has wrong fields."""


# --- the guest's codec -------------------------------------------------------------------------------------
# These use the C encoder and scanner directly. Those look up nothing in `builtins`, so a session that replaced
# `isinstance` or cleared `sys.modules` can still report it.


def _visible(error: UnicodeError) -> tuple[str, int]:
    """Replace a lone surrogate in JSON text by a backslash escape that decodes to visible text."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    bad = error.object[error.start : error.end]
    return "".join(f"\\\\u{ord(char):04x}" for char in bad), error.end


codecs.register_error("ingle.visible", _visible)


NO_DEFAULT = object()


def _default(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return NO_DEFAULT if field.default is MISSING else field.default


DEFAULTS: dict[type, dict[str, Any]] = {
    cls: {field.name: _default(field) for field in fields(cls)}
    for cls in (*NUMBERS, Look, Mark, NotLoaded, Raised, StdlibName, Suggestion, TablePage, UserFrame, Variable)
}
"""The fields and defaults of each message, and of each class inside messages."""


def _plain(value: Any) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    # Without vars() or type(), which a session may have replaced.
    defaults = DEFAULTS.get(value.__class__)
    if defaults is None:
        raise TypeError(f"{value.__class__.__name__} has no place in a message")
    return {name: each for name, each in value.__dict__.items() if each != defaults[name]}


_encode_json: Callable[[Any, int], Any] = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _plain, json.encoder.encode_basestring, None, ":", ",", False, False, True
)
_scan_json: Callable[[str, int], tuple[Any, int]] = json.scanner.c_make_scanner(  # type: ignore[attr-defined]
    json.JSONDecoder()
)


def encode(message: Any) -> bytes:
    """Return the frame of a message. Fields with their default value are left out."""
    plain = _plain(message)
    payload = b""
    cls = message.__class__
    payload_name = PAYLOADS.get(cls)
    if payload_name is not None:
        plain.pop(payload_name, None)
        payload = message.__dict__[payload_name]
        if cls not in RAW:
            payload = payload.encode("utf-8", "surrogatepass")
    header = "".join(_encode_json(plain, 0)).encode("utf-8", "ingle.visible")
    return encode_frame(NUMBERS[cls], header, payload)


def decode_fork(data: bytes) -> tuple[bool, int, str, bool, dict[str, int]]:
    """Return the fields of a Fork from the bytes of its frame.

    No object is made: the process that reads it shares nearly all its memory with others, and should touch little.
    """
    plain, _ = _scan_json(data[PREFIX.size :].decode(), 0)
    pooled, group = plain.get("pooled", False), plain.get("group", False)
    return pooled, plain.get("uid", 0), plain.get("network", ""), group, plain.get("limits", {})


def decode(frame: Frame) -> Any:
    """Return the message of a frame from the host. The guest trusts the host, so fields are not checked."""
    kind, header, payload = frame
    cls = KINDS.get(kind)
    if cls is None:
        raise BadMessage(f"no message has the kind {kind}")
    try:
        plain, _ = _scan_json(header.decode("utf-8"), 0)
        payload_name = PAYLOADS.get(cls)
        if payload_name is not None:
            plain[payload_name] = payload if cls in RAW else payload.decode("utf-8", "surrogatepass")
        return cls(**plain)
    except (ValueError, TypeError, StopIteration, RecursionError) as error:
        raise BadMessage(f"a {cls.__name__} that cannot be read: {error}") from None
