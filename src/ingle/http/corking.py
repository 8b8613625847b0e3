"""A transport that gathers what is written in one turn of the loop and writes it in one go.

The head of an answer, its body, and each event of a stream are written apart; each write is a system call, and wakes
the client up. Together they cost one. What all connections of a door write in a turn leaves together at its end, too:
clients of one process are then woken once. Nothing waits for it: the loop does not sleep before.
"""

import asyncio
from typing import Any

MOST = 64 * 1024
"""Bytes that are gathered at most; what is more is written at once, so that the transport's own bounds hold."""


class Turn:
    """The connections that have something to write at the end of this turn of the loop."""

    def __init__(self) -> None:
        self._full: list[Corked] = []

    def add(self, corked: "Corked") -> None:
        if not self._full:
            asyncio.get_running_loop().call_soon(self._end)
        self._full.append(corked)

    def _end(self) -> None:
        full, self._full = self._full, []
        for corked in full:
            corked.flush()


class Corked:
    def __init__(self, transport: asyncio.Transport, turn: Turn) -> None:
        self._transport = transport
        self._turn = turn
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
            self._turn.add(self)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MOST:
            self.flush()

    def flush(self) -> None:
        if self._pieces:
            pieces, self._pieces, self._size = self._pieces, [], 0
            if self._transport.is_closing():
                return  # lost meanwhile
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def write_eof(self) -> None:
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        self._pieces, self._size = [], 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + self._size
