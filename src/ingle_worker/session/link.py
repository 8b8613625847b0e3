"""The guest's end of the wire: blocking, one frame at a time, safe to write from any thread.

A frame is written whole or not at all as far as the guest can see to it: an interrupt that arrives meanwhile is held
back until the frame is out. A process forked from the worker never writes: it does not own the wire.
"""

import _socket
import os
import struct
from _thread import RLock
from collections.abc import Callable
from typing import Any

from ingle_worker.session.interrupts import Interrupts
from ingle_worker.wire import FrameReader, FrameTooLarge, messages

CHUNK = 1 << 15
"""Bytes of one read. From 128 KiB on, every read would map and unmap memory of its own."""

ENDS_SPACE = _socket.CMSG_SPACE(messages.FDS_PER_COPY * struct.calcsize("i"))


class WireLost(Exception):
    """The host is gone, or code in this process has closed or replaced the wire's descriptor."""


class Link:
    """Made before there is a wire: until `attach` everything sent is encoded and dropped."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.fd = -1
        self._interrupts = interrupts
        # It knows its owner, and learns it in one step with being taken: no signal handler comes in between.
        self._lock = RLock()
        self._owner = -1
        self._reader = FrameReader()
        self.received: list[Any] = []
        """Messages that came together with the last one taken."""
        self._held: list[bytes] = []
        self._socket: Any = None
        self.abandoned = False
        """This is a process that the user's code forked: it has no wire."""

    def attach(self, fd: int) -> None:
        """From now on this process owns the wire."""
        self.fd = fd
        self._owner = os.getpid()
        if self._socket is not None:
            self._socket.detach()
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        self._socket.setblocking(True)  # whatever a user's default for sockets is

    def detach(self) -> None:
        """There is no wire any more, but may be one later."""
        self._socket.detach()
        os.close(self.fd)
        self.fd = self._owner = -1
        self._reader = FrameReader()

    def mute(self) -> int:
        """Drop what is sent from now on; give back what `unmute` needs."""
        owner, self._owner = self._owner, -1
        return owner

    def unmute(self, owner: int) -> None:
        self._owner = owner

    def abandon(self) -> None:
        """In a process that a user's code forked: let go of the wire."""
        self._owner = -1
        self.abandoned = True
        self._socket.detach()
        try:
            os.close(self.fd)
        except OSError:
            pass

    def hold(self, message: object) -> None:
        """Keep a message until the next one is sent: two frames, one system call."""
        self._held.append(_encode(message))

    def send(self, message: object) -> None:
        """Send a message."""
        self.send_made(lambda: message)

    def send_made(self, make: Callable[[], object]) -> None:
        """Make a message and send it. No other thread's message comes between the two."""
        if os.getpid() != self._owner:
            _encode(make())
            self._held.clear()
            return
        if self._lock._is_owned():  # type: ignore[attr-defined]
            # A signal handler or a finalizer prints while this very thread sends: it goes out behind that frame.
            self._held.append(_encode(make()))
            return
        interrupts = self._interrupts
        interrupts.shield()
        try:
            with self._lock:
                self._held.append(_encode(make()))
                self._write_held()
            while self._held:
                with self._lock:
                    self._write_held()
        except OSError as error:
            raise WireLost(str(error)) from None
        finally:
            interrupts.unshield()

    def _write_held(self) -> None:
        while count := len(self._held):
            data = self._held[0] if count == 1 else b"".join(self._held[:count])
            del self._held[:count]
            self._write(data)

    def _write(self, data: bytes) -> None:
        # As to a socket: should a user's code have put a file or a pipe in its place, it gets no frame into it.
        sent = self._socket.send(data)
        while sent < len(data):
            sent += self._socket.send(data[sent:])

    def receive(self) -> Any:
        """The next message of the host. Raises WireLost when there is none to come."""
        while not self.received:
            try:
                data = os.read(self.fd, CHUNK)
            except OSError as error:
                raise WireLost(str(error)) from None
            if not data:
                raise WireLost("the host closed the wire")
            frames = self._reader.feed(data)
            if len(frames) == 1:
                return messages.decode(frames[0])
            self.received += [messages.decode(frame) for frame in frames]
        return self.received.pop(0)

    def receive_ends(self) -> tuple[messages.Ends, list[int]]:
        """The next Ends of the host, with its descriptors. What else comes meanwhile waits for `receive`.

        Descriptors come by another call than bytes do, so nobody but who expects some pays for that.
        """
        fds: list[int] = []
        wire = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, self.fd)
        try:
            while True:
                # The kernel gives no more than one frame's descriptors at a time, and nothing behind that frame. Those
                # without any, which are called off, may come together.
                for place in range(len(self.received) - 1, -1, -1):
                    if isinstance(self.received[place], messages.Ends):
                        return self.received.pop(place), fds
                try:
                    data, extra, _, _ = wire.recvmsg(CHUNK, ENDS_SPACE, _socket.MSG_CMSG_CLOEXEC)
                except OSError as error:
                    raise WireLost(str(error)) from None
                if not data:
                    raise WireLost("the host closed the wire")
                fds += [fd for each in extra for (fd,) in struct.iter_unpack("i", each[2])]
                self.received += [messages.decode(frame) for frame in self._reader.feed(data)]
        finally:
            wire.detach()

    def move_to(self, fd: int) -> None:
        """In a copy of the session's process: all that was under way is the original's; this is the wire now."""
        os.dup2(fd, self.fd, inheritable=False)
        self._lock = RLock()
        self._reader = FrameReader()
        self.received.clear()
        self._held.clear()
        self.attach(self.fd)


def _encode(message: object) -> bytes:
    try:
        return messages.encode(message)
    except FrameTooLarge as error:
        raise ValueError(f"too large to be shown: {error}") from None
