"""JSON-RPC over two descriptors, one message per line, as the streams of the SDK's server.

It uses the event loop and no threads, which makes a call four times as fast as the SDK's own transport. Memory is
bounded in both directions: lines have a maximum size, unread messages pause the reader, and writers wait for the host.
An invalid message gets an error, and the next line is read.
"""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Callable
from typing import Any, cast

import anyio
import msgspec
from mcp.shared.message import SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from ingle.mcp.stdio.descriptors import Wire
from ingle.support.message_stream import Lines, MessageStream

MAX_LINE_BYTES = 64 * 1024 * 1024
"""The largest cell fits, even with every character escaped."""

MAX_WAITING = 64
"""Unprocessed messages before reading pauses, so that the host's next ones stay in its pipe."""

EOF_GRACE_SECONDS = 0.5
"""Time to answer pending requests after the host has closed its end."""

ENDS_BYTES = 4096
"""Bytes of both ends of a line that is too long. Clients write the id of a request at one of them."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600

_encoder = msgspec.json.Encoder()


class Pipe(MessageStream, asyncio.Protocol):
    """Read and write stream in one. It ends when the host closes its end, or cannot be written to."""

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        super().__init__()
        self._max_line = max_line
        self._lines = Lines()
        self._skipped: _TooLong | None = None
        """The line that is skipped because it is too long."""
        self._unanswered: set[Any] = set()
        self._ended = False
        self._reading: asyncio.ReadTransport | None = None
        self._held = False
        self._writer = _Writer(self._loop)

    @classmethod
    async def open(cls, wire: Wire) -> "Pipe":
        pipe = cls()
        # uvloop closes a pipe by its number and then closes the file object, which must not close the number again: by
        # then another thread may have it (MagicStack/uvloop#763).
        writer = os.fdopen(wire.writer, "wb", 0, closefd=False)
        reader = os.fdopen(wire.reader, "rb", 0, closefd=False)
        await pipe._loop.connect_write_pipe(lambda: pipe._writer, writer)
        await pipe._loop.connect_read_pipe(lambda: pipe, reader)
        pipe._writer.on_lost = pipe.end
        return pipe

    # --- input ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._reading = cast(asyncio.ReadTransport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if self._skipped is not None:
                self._skipped.add(line)
                text = f"the message is longer than {self._max_line} bytes and was not read"
                self._refuse(INVALID_REQUEST, text, self._skipped.id)
                self._skipped = None
            else:
                self._take(line)
        if self._lines.waiting > (self._max_line if self._skipped is None else ENDS_BYTES):
            self._skipped = self._skipped or _TooLong()
            self._skipped.add(self._lines.take())
        if len(self._messages) > MAX_WAITING and not self._held and self._reading is not None:
            self._held = True
            self._reading.pause_reading()

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            message: JSONRPCMessage | None = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError:
            message = None
        # A request with an invalid id parses as a notification, but its sender expects an answer.
        if message is None or (isinstance(message, JSONRPCNotification) and b'"id"' in line):
            try:
                decoded = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._refuse_unreadable(line)
                return
            if message is None or "id" in decoded:
                self._refuse(INVALID_REQUEST, "the line is not one JSON-RPC 2.0 message", _id_of(decoded))
                return
        if isinstance(message, JSONRPCRequest):
            self._unanswered.add(message.id)
        self.put(SessionMessage(message))

    def _refuse_unreadable(self, line: bytes) -> None:
        """Refuse a line that is not JSON, or only by the rules of Python's own parser, which allows half characters."""
        try:
            lenient = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse(PARSE_ERROR, "the line is not JSON; send one JSON-RPC message per line")
            return
        text = "the message holds half of a character (a lone surrogate) or a number that is not JSON; nothing was run"
        self._refuse(INVALID_REQUEST, text, _id_of(lenient))

    def _refuse(self, code: int, text: str, id: str | int | None = None) -> None:
        # A host that sends invalid lines and does not read gets no more answers.
        if self._writer.is_writable:
            self._writer.write(_encode({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": text}}))

    def eof_received(self) -> bool:
        self._end_of_input()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end_of_input()

    def _end_of_input(self) -> None:
        if not self._ended:
            self._ended = True
            if self._unanswered:
                # Pending requests may still be answered, but no message will come.
                self._loop.call_later(EOF_GRACE_SECONDS, self.end)
            else:
                self.end()

    # --- the server's read stream ---

    async def receive(self) -> Any:
        message = await super().receive()
        if self._held and len(self._messages) < MAX_WAITING // 2 and self._reading is not None:
            self._held = False
            self._reading.resume_reading()
        return message

    # --- the server's write stream ---

    async def send(self, item: SessionMessage, /) -> None:
        message = item.message
        if isinstance(message, JSONRPCResponse):
            data = _encode({"jsonrpc": "2.0", "id": message.id, "result": message.result})
        else:
            data = message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        try:
            await self._writer.send(data)
        finally:
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                self._unanswered.discard(message.id)
                if self._ended and not self._unanswered:
                    self.end()

    async def flush(self, seconds: float) -> None:
        """Wait until the host has read everything, or until the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._writer.flush()


class _TooLong:
    """The ends of a line that is too long to be read."""

    _ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")'
    _FIRST = re.compile(rb'\s*\{\s*(?:"(?:jsonrpc|method)"\s*:\s*"[^"\\]*"\s*,\s*)*' + _ID)
    _LAST = re.compile(_ID + rb'(?:\s*,\s*"(?:jsonrpc|method)"\s*:\s*"[^"\\]*")*\s*\}\s*\Z')

    def __init__(self) -> None:
        self._head = self._tail = b""

    def add(self, data: bytes) -> None:
        self._head += data[: ENDS_BYTES - len(self._head)]
        self._tail = (self._tail + data[-ENDS_BYTES:])[-ENDS_BYTES:]

    @property
    def id(self) -> str | int | None:
        """Return the id of the request, as far as it can be known without reading the whole."""
        found = self._FIRST.match(self._head) or self._LAST.search(self._tail)
        try:
            return None if found is None else _id_of({"id": json.loads(found[1])})
        except ValueError:
            return None


class _Writer(asyncio.Protocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.WriteTransport | None = None
        self._writable: asyncio.Event = asyncio.Event()
        self._writable.set()
        self._lost = False
        self.on_lost: Callable[[], object] = lambda: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        # A zero limit: unread answers stay with their senders, not in a buffer.
        self._transport.set_write_buffer_limits(high=0)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._writable.set()
        self.on_lost()

    @property
    def is_writable(self) -> bool:
        return self._writable.is_set()

    def write(self, data: bytes) -> None:
        if not self._lost and self._transport is not None:
            self._transport.write(data)

    async def send(self, data: bytes) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
        if self._lost:
            raise anyio.BrokenResourceError
        self.write(data)

    async def flush(self) -> None:
        await self._writable.wait()


def _id_of(message: Any) -> str | int | None:
    """Return the id of a request that cannot be served. Its sender waits for an answer with this id."""
    id = message.get("id") if isinstance(message, dict) else None
    return id if isinstance(id, str) or (type(id) is int and abs(id) < 1 << 63) else None


def _encode(message: dict[str, Any]) -> bytes:
    try:
        return _encoder.encode(message) + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate, from a path or a name, is shown escaped as in Python.
        return _encoder.encode(_encodable(message)) + b"\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    return value
