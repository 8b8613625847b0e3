"""Writes of one turn of the loop, joined: an answer has a head and a body, and Jupyter sends five messages or more."""

import asyncio
from typing import Any

MAX_JOINED_BYTES = 64 * 1024
"""Bytes that wait for the end of the turn. The transport must learn of more, to hold up who writes."""


class JoinedWrites:
    """Transport of a connection that writes once for each turn of the loop. A write costs more than a message."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self.is_closing = transport.is_closing
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > MAX_JOINED_BYTES:
            self.flush()

    def write_now(self, data: bytes) -> None:
        """Write behind what waits, without waiting for the end of the turn."""
        self.flush()
        self._transport.write(data)

    def flush(self) -> None:
        """Write what waits."""
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        if not self._transport.is_closing():
            self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def write_eof(self) -> None:
        self.flush()
        self._transport.write_eof()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
