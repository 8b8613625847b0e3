"""Frames of a kernel's WebSocket: messages as JSON text, or in the binary form of a subprotocol. Without I/O.

The binary form has the length of each part in front; it is `v1.kernel.websocket.jupyter.org`. Without a subprotocol a
message is JSON text, and one with buffers is binary with a table of offsets.
"""

import json
import struct
import time
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec

from ingle.http.routes.bodies import BOUNDS
from ingle.render.jupyter import PROTOCOL_VERSION
from ingle.support import bounded_json

V1 = "v1.kernel.websocket.jupyter.org"

CONTROL = frozenset({"interrupt_request", "shutdown_request", "debug_request"})
"""Types of requests that belong to the control channel when a client names none."""

MAX_PARTS = 1000
JSON_PARTS = 4
"""Header, parent header, metadata, content."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()


class BadFrame(ValueError):
    """Bytes that are no message."""


class Message(msgspec.Struct, frozen=True):
    channel: str
    header: dict[str, Any]
    content: dict[str, Any]
    parent: dict[str, Any] = {}
    metadata: dict[str, Any] = {}

    @property
    def type(self) -> str:
        kind = self.header.get("msg_type")
        return kind if isinstance(kind, str) else ""


def new_header(kind: str, session: str, msg_id: str) -> dict[str, Any]:
    return {
        "msg_id": msg_id,
        "msg_type": kind,
        "username": "ingle",
        "session": session,
        "date": _date(),
        "version": PROTOCOL_VERSION,
    }


def _date() -> str:
    microseconds = time.time_ns() // 1000
    return f"{_second(microseconds // 1_000_000)}.{microseconds % 1_000_000:06}Z"


@lru_cache(maxsize=1)
def _second(number: int) -> str:
    """Return a date without its fraction, which many messages share. To format it takes longer than to encode them."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(number))


# --- what a client sends ---------------------------------------------------------------------------------------


def decode(data: bytes | str, subprotocol: str | None) -> Message:
    """Return the message of a frame. Raise BadFrame."""
    if isinstance(data, str):
        return _from_json(data.encode("utf-8", "surrogatepass"))
    try:
        return _from_v1(data) if subprotocol == V1 else _from_json(_first_part(data))
    except struct.error:
        raise BadFrame("the frame is too short") from None


def _from_v1(data: bytes) -> Message:
    (count,) = struct.unpack_from("<Q", data)
    if not 2 + JSON_PARTS <= count <= MAX_PARTS:
        raise BadFrame(f"the frame has {count} offsets")
    offsets = struct.unpack_from(f"<{count}Q", data, 8)
    parts = _cut(data, offsets)
    header, parent, metadata, content = (_object(part) for part in parts[1 : 1 + JSON_PARTS])
    return _message(parts[0].decode("utf-8", "replace"), header, parent, metadata, content)


def _first_part(data: bytes) -> bytes:
    """Return the JSON of a frame with buffers, which are left out."""
    (count,) = struct.unpack_from(">I", data)
    if not 1 <= count <= MAX_PARTS:
        raise BadFrame(f"the frame has {count} parts")
    offsets = (*struct.unpack_from(f">{count}I", data, 4), len(data))
    return _cut(data, offsets)[0]


def _cut(data: bytes, offsets: tuple[int, ...]) -> list[bytes]:
    if any(begin > end for begin, end in zip(offsets, (*offsets[1:], len(data)), strict=True)):
        raise BadFrame("the offsets of the frame are not in order")
    return [data[begin:end] for begin, end in pairwise(offsets)]


def _from_json(data: bytes) -> Message:
    said = _object(data)
    parts = [said.get(name) or {} for name in ("header", "parent_header", "metadata", "content")]
    if not all(isinstance(each, dict) for each in parts):
        raise BadFrame("header, parent_header, metadata and content must be objects")
    channel = said.get("channel")
    return _message(channel if isinstance(channel, str) else "", *parts)


def _object(data: bytes) -> dict[str, Any]:
    try:
        bounded_json.check(data, BOUNDS)
        said = _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"not JSON: {error}") from None
    if not isinstance(said, dict):
        raise BadFrame("not an object")
    return said


def _message(channel: str, header: Any, parent: Any, metadata: Any, content: Any) -> Message:
    message = Message(channel, header, content, parent, metadata)
    if not message.type:
        raise BadFrame("the header has no msg_type")
    if channel:
        return message
    # Some clients name no channel.
    channel = "control" if message.type in CONTROL else "stdin" if message.type == "input_reply" else "shell"
    return Message(channel, header, content, parent, metadata)


# --- what the kernel sends -------------------------------------------------------------------------------------


class _Said(msgspec.Struct):
    """A message as JSON text has it. A struct is encoded quicker than a dictionary."""

    header: dict[str, Any]
    msg_id: str
    msg_type: str
    parent_header: dict[str, Any]
    metadata: dict[str, Any]
    content: dict[str, Any]
    channel: str
    buffers: list[bytes] = []


def encode(message: Message, subprotocol: str | None) -> bytes | str:
    """Return the frame of a message."""
    header = message.header
    if subprotocol != V1:
        said = _Said(
            header,
            header["msg_id"],
            header["msg_type"],
            message.parent,
            message.metadata,
            message.content,
            message.channel,
        )
        return _json(said).decode()
    objects = (message.header, message.parent, message.metadata, message.content)
    parts = [message.channel.encode(), *map(_json, objects)]
    offsets = [8 * (len(parts) + 2)]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts)


def _json(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8. Backslashes keep it visible.
        return json.dumps(msgspec.to_builtins(value), ensure_ascii=False).encode("utf-8", "backslashreplace")
