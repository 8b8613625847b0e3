"""Frames between a gateway and an agent: msgpack arrays, each after its length in four bytes.

A call has a number, chosen by the gateway. All frames with that number belong to it: the items of its streams in both
directions, the credit for more of them, its answer or its failure. A frame never needs code to be read.
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ingle.cluster.directory import AgentInfo

VERSION = 1

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Longest frame of a peer that has proved that it knows the token."""

MAX_GREETING_BYTES = 4096
"""Longest frame before that."""

WINDOW_BYTES = 256 * 1024
"""Bytes of a stream that may be under way. A reader that stops reading holds no more than this and one item."""


class FrameBroken(Exception):
    """A peer that sent what is no frame. Its connection is closed."""


class Frame(Struct, frozen=True, gc=False, array_like=True):
    """Base of all frames."""


class Challenge(Frame, frozen=True, gc=False, array_like=True, tag=1):
    """First frame of an agent."""

    version: int
    nonce: bytes


class Proof(Frame, frozen=True, gc=False, array_like=True, tag=2):
    """First frame of a gateway."""

    nonce: bytes
    proof: bytes


class Welcome(Frame, frozen=True, gc=False, array_like=True, tag=3):
    """Answer of an agent to a gateway that knows the token. It proves that the agent knows it too."""

    proof: bytes
    info: AgentInfo


class Beat(Frame, frozen=True, gc=False, array_like=True, tag=4):
    """Sign of life."""


class Call(Frame, frozen=True, gc=False, array_like=True, tag=5):
    """Request to carry out a verb."""

    number: int
    target: int | list[list[str]]
    """What the call with this number has opened, or the steps from the agent to the object."""
    verb: str
    arguments: Raw


class Note(Frame, frozen=True, gc=False, array_like=True, tag=6):
    """Verb without an answer, on what a call has opened."""

    target: int
    verb: str
    arguments: Raw


class Drop(Frame, frozen=True, gc=False, array_like=True, tag=7):
    """Cancel a call, or close what it has opened."""

    number: int


class Answer(Frame, frozen=True, gc=False, array_like=True, tag=8):
    number: int
    value: Raw


class Failure(Frame, frozen=True, gc=False, array_like=True, tag=9):
    """Error of `ingle.errors` that a call ended with."""

    number: int
    kind: str
    message: str
    problem: str
    retry_after: float | None
    details: dict[str, object]


class Item(Frame, frozen=True, gc=False, array_like=True, tag=10):
    """One item of a stream."""

    number: int
    value: Raw


class End(Frame, frozen=True, gc=False, array_like=True, tag=11):
    """End of a stream."""

    number: int


class Credit(Frame, frozen=True, gc=False, array_like=True, tag=12):
    """Bytes that were read from a stream, so that as many may follow."""

    number: int
    size: int


AnyFrame = Challenge | Proof | Welcome | Beat | Call | Note | Drop | Answer | Failure | Item | End | Credit

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyFrame)
_length = struct.Struct("!I")


def encode_value(value: object) -> bytes:
    """Return a value as bytes. Lone surrogates, which are no text, become visible escapes."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_visible(msgspec.to_builtins(value, builtin_types=(bytes,))))


def _visible(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_visible(key): _visible(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(each) for each in value]
    return value


def encode(frame: AnyFrame) -> bytes:
    """Return a frame as bytes, with its length."""
    buffer = bytearray(_length.size)
    _encoder.encode_into(frame, buffer, _length.size)
    _length.pack_into(buffer, 0, len(buffer) - _length.size)
    return bytes(buffer)


class Reader:
    """Cuts bytes into frames. It holds at most one unfinished frame."""

    def __init__(self) -> None:
        self.limit = MAX_GREETING_BYTES
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[AnyFrame]:
        """Yield the frames that are whole now. Raise FrameBroken."""
        self._held += data
        begin = 0
        try:
            while len(self._held) - begin >= _length.size:
                (size,) = _length.unpack_from(self._held, begin)
                if size > self.limit:
                    raise FrameBroken(f"a frame of {size} bytes is above the limit of {self.limit}")
                end = begin + _length.size + size
                if len(self._held) < end:
                    break
                # A copy: values that are decoded later refer to it.
                frame = bytes(memoryview(self._held)[begin + _length.size : end])
                begin = end
                yield _decode(frame)
        finally:
            del self._held[:begin]


def _decode(data: bytes) -> AnyFrame:
    try:
        frame: AnyFrame = _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise FrameBroken(f"not a frame: {error}") from None
    return frame
