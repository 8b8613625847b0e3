"""Decoder of messages from workers, which are untrusted.

Each message has a typed decoder. The decoder and the frame bound depth and size. A message that does not fit raises
BadMessage and costs that worker only. The memory of a decoded message is bounded too, by counting its elements first.
"""

from typing import Any

import msgspec

from ingle.support import bounded_json
from ingle_worker.wire import BadMessage, Frame, messages

FROM_GUEST = (
    messages.Ready,
    messages.Started,
    messages.Mark,
    messages.Background,
    messages.Result,
    messages.Display,
    messages.KeepImage,
    messages.ToolRequest,
    messages.ToolCancel,
    messages.InputWait,
    messages.InputTaken,
    messages.Exiting,
    messages.Done,
    messages.Listed,
    messages.Asked,
    messages.ValueMoved,
    messages.Completed,
    messages.Inspected,
    messages.Checked,
    messages.StdlibCompiled,
    messages.StdlibDescribed,
    messages.StdlibLoaded,
    messages.Cleared,
    messages.EndsWanted,
    messages.ViewWanted,
    messages.FrameAsked,
    messages.Holding,
    messages.Copied,
    messages.NotCopied,
    messages.ChannelWanted,
    messages.SaveFailed,
    messages.Loaded,
    messages.InitUp,
    messages.NotEntered,
    messages.Signalled,
    messages.Exited,
    messages.Swept,
    messages.EndsReturned,
    messages.ZygoteReady,
    messages.ForkFailed,
    messages.Proof,
    messages.RunFailed,
    messages.ProgramExited,
    messages.TreeEnded,
    messages.Breach,
)


_DECODERS: dict[int, Any] = {
    messages.NUMBERS[cls]: msgspec.json.Decoder(cls).decode for cls in FROM_GUEST if cls is not messages.KeepImage
}
_WITH_PAYLOAD = {messages.NUMBERS[cls] for cls in FROM_GUEST if cls in messages.RAW}

KEEP_IMAGE = messages.NUMBERS[messages.KeepImage]

MAX_SHORT_BYTES = 1024 * 1024
"""Size of the header of a message that holds neither texts nor lists of names."""

MAY_BE_LONG = {
    messages.NUMBERS[cls]
    for cls in (
        messages.Background,
        messages.Result,
        messages.Display,
        messages.Done,
        messages.Listed,
        messages.Asked,
        messages.Completed,
        messages.Inspected,
        messages.FrameAsked,
        messages.StdlibDescribed,
        messages.StdlibLoaded,
        messages.Cleared,
        messages.Loaded,
    )
}
"""Messages whose header may be longer, because it holds texts or lists of names."""

BOUNDS = bounded_json.Bounds(elements=1_000_000, text=128 * 1024**2, depth=100)
"""Bounds of one message. A well-behaved worker sends 16 million characters at most, of up to four bytes each."""

MAX_METADATA_BYTES = 100_000
"""Size of a display's metadata, which is any JSON. A well-behaved worker sends less."""


class _Metadata(msgspec.Struct):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_decode_metadata = msgspec.json.Decoder(_Metadata).decode


def _check_long(kind: int, header: bytes) -> None:
    """Raise an error for a message that would take far more memory than its size."""
    if kind not in MAY_BE_LONG and len(header) > MAX_SHORT_BYTES:
        raise BadMessage(f"a {messages.KINDS[kind].__name__} of {len(header)} bytes")
    bounded_json.check(header, BOUNDS)
    if len(_decode_metadata(header).metadata) > MAX_METADATA_BYTES:
        raise BadMessage(f"a {messages.KINDS[kind].__name__} with more than {MAX_METADATA_BYTES} bytes of metadata")


def decode(frame: Frame) -> Any:
    """Return the message in a frame. Raises BadMessage."""
    kind, header, payload = frame
    if kind == KEEP_IMAGE:
        return messages.KeepImage(payload)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise BadMessage(f"no message from a worker has the kind {kind}")
    try:
        if len(header) > bounded_json.MAX_UNCHECKED_BYTES:
            _check_long(kind, header)
        message = decoder(header)
        if kind in _WITH_PAYLOAD:
            # Nobody else has it yet; a copy would cost as much as the rest of this function.
            object.__setattr__(message, "data", payload)
        return message
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadMessage(f"a {messages.KINDS[kind].__name__} that cannot be read: {error}") from None
