"""One connection between a gateway and an agent: frames in both directions, a beat, and a bound on silence.

A peer is dead after three ticks without a byte. Ticks are counted and the clock is not read, so that a process which
was stopped itself does not take its peers for dead before it has read what they sent.
"""

import asyncio
import contextlib
import logging
import os
import socket
from abc import ABC, abstractmethod
from typing import cast

from ingle.cluster.wire.frames import MAX_FRAME_BYTES, AnyFrame, Beat, FrameBroken, Reader, encode

BEAT_SECONDS = 1.0
DEAD_AFTER_BEATS = 3
GREETING_SECONDS = 5.0
"""Time for the proof of a peer that has connected."""

WRITE_HIGH_BYTES = 1024 * 1024
"""Bytes that wait in a connection before its writers wait."""

KEEPALIVE = (
    ("TCP_KEEPIDLE", 1),
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 3000),
)
"""Options of a socket, where the system has them: the kernel gives a silent peer up as early as the beat does."""

logger = logging.getLogger(__name__)

_BEAT = encode(Beat())


class Channel(asyncio.Protocol, ABC):
    """Base of both ends of a connection. A subclass says what its frames mean."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._silent_beats = 0
        self._wrote = False
        self._beating: asyncio.TimerHandle | None = None
        self._greeting: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the connection has ended, with the reason."""

    # --- what a subclass adds ---

    @abstractmethod
    def on_frame(self, frame: AnyFrame) -> None: ...

    @abstractmethod
    def on_lost(self, reason: str) -> None: ...

    def on_connected(self) -> None:
        """Send the first frame, if it is this end's."""

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        _keep_alive(transport.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        self._greeting = loop.call_later(GREETING_SECONDS, self.close, "it gave no proof in time")
        self._beating = loop.call_later(BEAT_SECONDS, self._beat)
        self.on_connected()

    def data_received(self, data: bytes) -> None:
        self._silent_beats = 0
        try:
            for frame in self._reader.feed(data):
                if type(frame) is not Beat:
                    self.on_frame(frame)
        except FrameBroken as error:
            self.close(str(error))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection broke: {error}" if error is not None else "the connection was closed")

    # --- for subclasses ---

    def send(self, frame: AnyFrame) -> None:
        """Send a frame, or nothing if the connection has ended."""
        self.send_bytes(encode(frame))

    def send_bytes(self, frame: bytes) -> None:
        if self._transport is not None and not self.lost.done():
            self._wrote = True
            self._transport.write(frame)

    async def wait_writable(self) -> None:
        """Wait until the peer has read most of what was sent."""
        await self._writable.wait()

    def trust(self) -> None:
        """Accept the frames of a peer that has proved that it knows the token."""
        assert self._greeting is not None
        self._greeting.cancel()
        self._reader.limit = MAX_FRAME_BYTES

    def close(self, reason: str = "the connection was closed") -> None:
        """End the connection at once. What is not sent yet is lost."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self._writable.set()
        for timer in (self._beating, self._greeting):
            if timer is not None:
                timer.cancel()
        self.on_lost(reason)

    def _beat(self) -> None:
        self._silent_beats += 1
        if self._silent_beats > DEAD_AFTER_BEATS:
            self.close(f"it was silent for {DEAD_AFTER_BEATS * BEAT_SECONDS:.0f} s")
            return
        if not self._wrote:
            self.send_bytes(_BEAT)
        self._wrote = False
        self._beating = asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)


def _keep_alive(connection: socket.socket) -> None:
    # A copy of the descriptor: the object that an event loop hands out need not have all options.
    with socket.socket(fileno=os.dup(connection.fileno())) as copy:
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in KEEPALIVE:
            if hasattr(socket, name):
                with contextlib.suppress(OSError):
                    copy.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
