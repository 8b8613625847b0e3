"""The guest's end of the wire: blocking, one frame at a time, safe to use from any thread.

An interrupt during a write is deferred until the frame is complete. A process forked from the worker never writes,
because it does not own the wire.

Between cells the main thread reads. Meanwhile and during a cell, threads may wait for replies of tools. One of all that
wait is the leader: it waits for bytes and hands out what comes. When it has its own, another one leads.
"""

import _socket
import os
import select
import struct
from _thread import RLock, allocate_lock
from collections.abc import Callable
from typing import Any

from ingle_worker.session.interrupts import Interrupts
from ingle_worker.wire import FrameReader, FrameTooLarge, messages

CHUNK_BYTES = 1 << 15
"""Bytes of one read. From 128 KiB on, each read would map and unmap memory."""

ENDS_SPACE = _socket.CMSG_SPACE(messages.FDS_PER_COPY * struct.calcsize("i"))


class WireLost(Exception):
    """The host is gone, or code in this process closed or replaced the wire's descriptor."""


class Link:
    """Blocking wire of a worker. Until `attach`, messages are encoded and dropped."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.fd = -1
        self._interrupts = interrupts
        self._owner = -1
        self._reader = FrameReader()
        self.received: list[Any] = []
        """Messages that arrived together with the last one."""
        self._queued: list[bytes] = []
        self._socket: Any = None
        self._poller = select.poll()
        self.abandoned = False
        """Whether this process was forked by user code and has no wire."""
        self.on_reply: Callable[[messages.ToolReply], None] | None = None
        """Called with each reply of a tool, by the thread that reads."""
        self.on_free: Callable[[], None] | None = None
        """Called when a leader leaves, so that another thread can lead."""
        self.on_moved: Callable[[], None] | None = None
        """Called in a copy, which has none of the original's calls."""
        self.on_received: Callable[[], None] | None = None
        """Called when a message for the main thread has come, while that runs an event loop."""
        self._duplicates: set[int] = set()
        self._make_locks()

    def _make_locks(self) -> None:
        # An RLock knows its owner and acquires in one step, so no signal handler runs in between.
        self._lock = RLock()
        self._leader = allocate_lock()
        self.reading = RLock()
        """Held while bytes are taken from the wire."""
        self._main_wake = allocate_lock()
        self._main_wake.acquire()

    def attach(self, fd: int) -> None:
        """Make this process the owner of the wire."""
        self.fd = fd
        self._owner = os.getpid()
        if self._socket is not None:
            self._socket.detach()
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        self._socket.setblocking(True)  # regardless of the user's default timeout
        self._poller = select.poll()
        self._poller.register(fd, select.POLLIN)

    def detach(self) -> None:
        """Close the wire. Another one may be attached later."""
        self._socket.detach()
        os.close(self.fd)
        self.fd = self._owner = -1
        self._reader = FrameReader()

    def mute(self) -> int:
        """Drop messages from now on. Return the argument for `unmute`."""
        owner, self._owner = self._owner, -1
        return owner

    def unmute(self, owner: int) -> None:
        self._owner = owner

    def abandon(self) -> None:
        """Close the wire, in a process that user code forked."""
        self._owner = -1
        self.abandoned = True
        self._socket.detach()
        for fd in (self.fd, *self._duplicates):
            try:
                os.close(fd)
            except OSError:
                continue
        self._duplicates.clear()

    def queue(self, message: object) -> None:
        """Queue a message until the next one is sent: two frames, one system call."""
        self._queued.append(_encode(message))

    def send(self, message: object) -> None:
        self.send_made(lambda: message)

    def send_made(self, make: Callable[[], object]) -> None:
        """Create a message and send it. No message of another thread comes in between."""
        if os.getpid() != self._owner:
            _encode(make())
            self._queued.clear()
            return
        if self._lock._is_owned():  # type: ignore[attr-defined]
            # A signal handler or finalizer prints while this thread sends. Its message follows that frame.
            self._queued.append(_encode(make()))
            return
        interrupts = self._interrupts
        interrupts.shield()
        try:
            with self._lock:
                self._queued.append(_encode(make()))
                self._write_queued()
            while self._queued:
                with self._lock:
                    self._write_queued()
        except OSError as error:
            raise WireLost(str(error)) from None
        finally:
            interrupts.unshield()

    def _write_queued(self) -> None:
        while count := len(self._queued):
            data = self._queued[0] if count == 1 else b"".join(self._queued[:count])
            del self._queued[:count]
            self._write(data)

    def _write(self, data: bytes) -> None:
        # `send`, not `write`: if user code replaced the descriptor by a file or pipe, no frame gets into it.
        sent = self._socket.send(data)
        while sent < len(data):
            sent += self._socket.send(data[sent:])

    # --- reading ---

    @property
    def usable(self) -> bool:
        """Whether this process owns the wire, and the calling thread is not in the middle of a frame."""
        owned = self._lock._is_owned() or self.reading._is_owned()  # type: ignore[attr-defined]
        return os.getpid() == self._owner and not owned

    def receive(self) -> Any:
        """Return the host's next message for the main thread. Raises WireLost if there is none."""
        while not self.received:
            if not self._leader.acquire(False):
                # A thread that waits for a tool reads the wire.
                self._main_wake.acquire()
                continue
            try:
                with self.reading:
                    self._take(os.read(self.fd, CHUNK_BYTES))
            except OSError as error:
                raise WireLost(str(error)) from None
            finally:
                self._leader.release()
                if self.on_free is not None:
                    self.on_free()
        return self.received.pop(0)

    def lead(self) -> bool:
        """Become the thread that reads, unless there is one."""
        return self._leader.acquire(False)

    def stop_leading(self) -> None:
        """Let another thread read."""
        self._leader.release()
        if self.on_free is not None:
            self.on_free()
            self._wake_main()

    def wait_readable(self) -> None:
        """Wait until there is something to read. A signal handler may raise. Only the leader waits."""
        self._poller.poll()

    def read_available(self) -> None:
        """Take what is there, and hand it out. The caller has shielded itself from interrupts.

        Does nothing while another thread reads: that takes it.
        """
        if not self.reading.acquire(False):
            return
        try:
            received = self._take(self._socket.recv(CHUNK_BYTES, _socket.MSG_DONTWAIT))
        except BlockingIOError:
            return
        except OSError as error:
            raise WireLost(str(error)) from None
        finally:
            self.reading.release()
        if received:
            self._wake_main()
            if self.on_received is not None:
                self.on_received()

    def _take(self, data: bytes) -> bool:
        """Hand out the messages in these bytes. Return whether one is for the main thread."""
        if not data:
            raise WireLost("the host closed the wire")
        received = False
        for frame in self._reader.feed(data):
            message = messages.decode(frame)
            if message.__class__ is messages.ToolReply:
                if self.on_reply is not None:
                    self.on_reply(message)
            else:
                self.received.append(message)
                received = True
        return received

    def _wake_main(self) -> None:
        if self._main_wake.locked():
            try:
                self._main_wake.release()
            except RuntimeError:  # released meanwhile: its next wait passes
                return

    def duplicate(self) -> int:
        """Return another descriptor of the wire, for an event loop to watch."""
        fd = os.dup(self.fd)
        self._duplicates.add(fd)
        return fd

    def close_duplicate(self, fd: int) -> None:
        self._duplicates.discard(fd)
        os.close(fd)

    def receive_ends(self) -> tuple[messages.Ends, list[int]]:
        """Return the host's next Ends with its descriptors. Other messages wait for `receive`.

        Receiving descriptors needs another call than reading bytes, so only callers that expect some pay for it. The
        caller holds `reading` since before it asked for them: another thread would lose them.
        """
        fds: list[int] = []
        wire = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, self.fd)
        try:
            while True:
                # One call returns descriptors of one frame only, and no bytes behind it. Frames without descriptors may
                # arrive together.
                for place in range(len(self.received) - 1, -1, -1):
                    if isinstance(self.received[place], messages.Ends):
                        return self.received.pop(place), fds
                try:
                    data, extra, _, _ = wire.recvmsg(CHUNK_BYTES, ENDS_SPACE, _socket.MSG_CMSG_CLOEXEC)
                except OSError as error:
                    raise WireLost(str(error)) from None
                fds += [fd for each in extra for (fd,) in struct.iter_unpack("i", each[2])]
                self._take(data)
        finally:
            wire.detach()

    def move_to(self, fd: int) -> None:
        """Switch to the wire of a copy. All pending messages belong to the original."""
        os.dup2(fd, self.fd, inheritable=False)
        for duplicate in self._duplicates:
            os.close(duplicate)
        self._duplicates.clear()
        self._make_locks()
        self._reader = FrameReader()
        self.received.clear()
        self._queued.clear()
        if self.on_moved is not None:
            self.on_moved()
        self.attach(self.fd)


def _encode(message: object) -> bytes:
    try:
        return messages.encode(message)
    except FrameTooLarge as error:
        raise ValueError(f"too large to be shown: {error}") from None
