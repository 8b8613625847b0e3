"""Reading what comes from a worker: untrusted bytes, typed or refused.

Each message has a typed decoder; depth and size are bounded by the decoder and by the frame. Whatever does not
fit is a BadMessage and costs that worker only. What a few bytes become in memory is bounded too: of a long message it
is counted first how much it would be.
"""

import dataclasses
from typing import Any

import msgspec

from ingle_worker.wire import BadMessage, Frame, messages

FROM_GUEST = (
    messages.Ready,
    messages.Started,
    messages.Mark,
    messages.Background,
    messages.Result,
    messages.Display,
    messages.KeepImage,
    messages.InputWait,
    messages.InputTaken,
    messages.Exiting,
    messages.Done,
    messages.Listed,
    messages.Asked,
    messages.StdlibCompiled,
    messages.StdlibDescribed,
    messages.StdlibLoaded,
    messages.Cleared,
    messages.EndsWanted,
    messages.Copied,
    messages.NotCopied,
    messages.ChannelWanted,
    messages.SaveFailed,
    messages.Loaded,
    messages.InitUp,
    messages.NotEntered,
    messages.ProxyListening,
    messages.Signalled,
    messages.Exited,
    messages.Swept,
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

SHORT = 1024 * 1024
"""Bytes of a header that is read as it is: whatever is in it, it becomes no more than some megabytes."""

LONG = {
    messages.NUMBERS[cls]
    for cls in (
        messages.Background,
        messages.Result,
        messages.Display,
        messages.Done,
        messages.Listed,
        messages.Asked,
        messages.StdlibDescribed,
        messages.StdlibLoaded,
        messages.Cleared,
        messages.Loaded,
    )
}
"""What may be longer: texts, and lists of names."""

MOST_STRINGS = 1_000_000
"""In one message. Each takes fifty bytes of memory and more, and three on the wire."""

MAX_METADATA = 100_000
"""Bytes of a display's metadata, which is any JSON; an honest worker sends less."""


class _Loose(msgspec.Struct):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


_loose = msgspec.json.Decoder(_Loose).decode


def _weigh(kind: int, header: bytes) -> None:
    """Refuse a long message that would become far more than it is."""
    if kind not in LONG:
        raise BadMessage(f"a {messages.KINDS[kind].__name__} of {len(header)} bytes")
    # Each string has two quotes. Those inside of one are escaped, and so are some that end one: half of them at most.
    if header.count(b'"') - header.count(b'\\"') > MOST_STRINGS:
        raise BadMessage(f"a {messages.KINDS[kind].__name__} of too many strings")
    if len(_loose(header).metadata) > MAX_METADATA:
        raise BadMessage(f"a {messages.KINDS[kind].__name__} with more than {MAX_METADATA} bytes of metadata")


def decode(frame: Frame) -> Any:
    if frame.kind == KEEP_IMAGE:
        return messages.KeepImage(frame.payload)
    decoder = _DECODERS.get(frame.kind)
    if decoder is None:
        raise BadMessage(f"no message from a worker has the kind {frame.kind}")
    try:
        if len(frame.header) > SHORT:
            _weigh(frame.kind, frame.header)
        message = decoder(frame.header)
        return message if frame.kind not in _WITH_PAYLOAD else dataclasses.replace(message, data=frame.payload)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise BadMessage(f"a {messages.KINDS[frame.kind].__name__} that cannot be read: {error}") from None
