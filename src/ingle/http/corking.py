"""A transport that gathers what is written in one turn of the loop and writes it in one go.

uvicorn writes the head of an answer and its body apart, and each event of a stream apart; each write is a system call,
and wakes the client up. Together they cost one. Nothing waits: the turn of the loop ends before anything is polled for.
"""

import asyncio
from typing import Any

MOST = 64 * 1024
"""Bytes that are gathered at most; what is more is written at once, so that the transport's own bounds hold."""


class Corked:
    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._call_soon = loop.call_soon
        self._pieces: list[bytes] = []
        self._size = 0
        # What is only passed on is not passed through here.
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.is_reading = transport.is_reading
        self.set_protocol = transport.set_protocol
        self.get_protocol = transport.get_protocol

    def write(self, data: Any) -> None:
        if not data:
            return
        if not self._pieces:
            self._call_soon(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST:
            self._flush()

    def _flush(self) -> None:
        if self._pieces:
            pieces, self._pieces, self._size = self._pieces, [], 0
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces = []
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._size
