"""The wire of a worker: a socket that carries framed messages in both directions.

Reading is fair. A worker that floods its wire is read for a few milliseconds, then other workers have the loop.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from ingle.workers.exit_status import WIRE_LOST
from ingle.workers.io import decode
from ingle.workers.io.descriptors import expect_pid, receive_with_pid, refuse_descriptors, send_with, unread
from ingle.workers.io.writer import Writer
from ingle_worker.wire import FrameReader, WireError, messages

WIRE_CHUNK_BYTES = 1 << 15
"""Read size. From 128 KiB on, every read would map and unmap memory of its own."""

MAX_TURN_NANOSECONDS = 5_000_000
"""Time for which a worker that floods its wire may have the loop in one turn."""


def broken_by(why: str) -> str:
    """Return the sentence for a worker that broke the protocol."""
    return f"the session's process broke the protocol ({why})"


class Wire:
    """Host end of a wire. Messages are untrusted; the first one that cannot be read is the last one."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_readable: Callable[[], None], on_broken: Callable[[str], None]
    ) -> None:
        """Create both ends. The descriptor `child` goes to the worker; the caller closes it.

        `on_broken` is called with a sentence when the wire is lost or a message cannot be read.
        """
        self._loop = loop
        self._on_readable = on_readable
        self._on_broken = on_broken
        self._socket, child = socket.socketpair()
        self.child = child.detach()
        # Requested before the worker can write: its process id is the kernel's to tell.
        expect_pid(self._socket)
        refuse_descriptors(self._socket)
        self._reader = FrameReader()
        self._out = Writer(loop, self._socket.fileno(), self._socket.send, lambda: on_broken(WIRE_LOST))
        self.peer_pid: int | None = None
        """Process that wrote the first message, as the kernel reports it."""
        self._reading = False
        self._busy_since = 0

    @property
    def fileno(self) -> int:
        return self._socket.fileno()

    # --- writing ---

    def send(self, message: Any) -> None:
        """Send a message without blocking."""
        self._out.write(messages.encode(message))

    async def send_with(self, message: Any, fds: list[int]) -> None:
        """Send a message together with descriptors. Raises OSError when the worker is gone."""
        await send_with(self._socket, self._out, messages.encode(message), fds)

    def send_now_with(self, message: Any, fds: list[int]) -> bool:
        """Send a message with descriptors at once, to a worker that waits for it. Return whether it was sent."""
        try:
            if self._out.pending:
                return False
            socket.send_fds(self._socket, [messages.encode(message)], fds)
        except OSError:
            return False
        return True

    @property
    def unsent(self) -> int:
        """Bytes that the worker has not taken yet."""
        return self._out.waiting

    # --- reading ---

    def watch(self) -> None:
        """Start to read."""
        self._socket.setblocking(False)
        self._reading = True
        self.resume()

    def pause(self) -> None:
        """Leave messages in the socket, so that the worker waits."""
        if self._reading:
            self._loop.remove_reader(self.fileno)

    def resume(self) -> None:
        """Read again after a pause."""
        if self._reading:
            self._loop.add_reader(self.fileno, self._on_readable)

    def stop(self) -> None:
        """Stop reading for good."""
        self.pause()
        self._reading = False

    def release(self) -> int:
        """Stop reading and return the descriptor, for the caller to give away. Messages wait until `restore`."""
        self.stop()
        self._out.detach()
        return self._socket.detach()

    def restore(self, fd: int) -> None:
        """Go on with the descriptor of `release`."""
        self._socket = socket.socket(fileno=fd)
        self.watch()
        self._out.reopen(fd, self._socket.send)

    def begin_turn(self) -> None:
        """Note that a turn of the loop begins for this worker."""
        self._busy_since = 0

    @property
    def busy_nanoseconds(self) -> int:
        """Time since, in this turn, more arrived at once than a well-behaved worker sends; 0 if that did not happen."""
        return monotonic_ns() - self._busy_since if self._busy_since else 0

    @property
    def overran(self) -> bool:
        """Whether this worker has had the loop for too long in this turn."""
        return bool(self._busy_since) and self.busy_nanoseconds > MAX_TURN_NANOSECONDS

    def receive(self) -> list[Any]:
        """Return all messages that are there now, but not those that arrive meanwhile.

        All of them, because the last one may be the mark of output that was read before.
        """
        found: list[Any] = []
        if self._receive_some(found) == WIRE_CHUNK_BYTES:
            self._busy_since = self._busy_since or monotonic_ns()
            left = unread(self.fileno)
            while left > 0 and (got := self._receive_some(found)):
                left -= got
        return found

    def _receive_some(self, found: list[Any]) -> int:
        """Read once and append the messages to `found`. Return the number of bytes."""
        if not self._reading:
            return 0
        try:
            if self.peer_pid is None:
                data, self.peer_pid = receive_with_pid(self._socket, WIRE_CHUNK_BYTES)
            else:
                data = self._socket.recv(WIRE_CHUNK_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._break(WIRE_LOST)
            return 0
        try:
            for frame in self._reader.feed(data):
                found.append(decode.decode(frame))  # noqa: PERF401 - keeps those before an error
        except WireError as error:
            self._break(broken_by(str(error)))
        return len(data)

    def _break(self, why: str) -> None:
        self.stop()
        self._on_broken(why)

    def close(self) -> None:
        """Close the host's end, and drop what was not sent. Let go of the owner, which holds this wire."""
        self.stop()
        self._out.close()
        self._socket.close()
        self._on_readable = self._on_broken = _nothing

    def close_both(self) -> None:
        """Close both ends, where the child's was not given away."""
        os.close(self.child)
        self.close()


def _nothing(*given: str) -> None:
    """Stand in for a callback of an owner that is gone."""
