"""The host's side of an init: its status socket, the orders to it, its messages, and its sure end.

`Worker` and `TaskProcess` use it alike. Messages are untrusted: the code below an init has the same rights as init.
The link emits what it reads, then `InitGone` exactly once, after the last process below init is gone.
"""

import asyncio
import contextlib
import enum
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ingle.support import processes
from ingle.workers.exit_watch import ExitWatch, Sweeper
from ingle.workers.io import decode
from ingle.workers.io.descriptors import (
    MAX_FDS,
    expect_pid,
    receive_with_all,
    receive_with_pid,
    refuse_descriptors,
    send_with,
)
from ingle.workers.io.writer import Writer
from ingle.workers.siblings import Siblings
from ingle_worker.wire import FrameReader, WireError, messages

STATUS_CHUNK_BYTES = 1 << 16
"""Read size. Messages of an init take some fifty bytes, so a full read is a flood that would block the loop."""

KILL_PATIENCE_SECONDS = 0.5
"""Time for init to end everything below it before init itself is killed."""

SHARED_KILL_PATIENCE_SECONDS = 2.0
"""Additional time for an init with more than one worker, after it was continued with SIGCONT."""

LEAVE_PATIENCE_SECONDS = 2.0
"""Time between the report that a worker has exited and the end of its init."""


class Phase(enum.Enum):
    """Phases in the life of an init."""

    NEW = "no message yet"
    UP = "it has reported its process id"
    EXITED = "it has reported the exit of its worker"
    KILLING = "it was told to end everything"
    DEAF = "it broke the protocol; its messages are discarded until its end"
    LEAVING = "it closed its socket; its process may still exist"
    GONE = "nothing is left of it"


NEXT_PHASES = {
    Phase.NEW: {Phase.UP, Phase.EXITED, Phase.KILLING, Phase.DEAF, Phase.LEAVING, Phase.GONE},
    Phase.UP: {Phase.EXITED, Phase.KILLING, Phase.DEAF, Phase.LEAVING, Phase.GONE},
    Phase.EXITED: {Phase.KILLING, Phase.DEAF, Phase.LEAVING, Phase.GONE},
    Phase.KILLING: {Phase.DEAF, Phase.LEAVING, Phase.GONE},
    Phase.DEAF: {Phase.LEAVING, Phase.GONE},
    Phase.LEAVING: {Phase.GONE},
    Phase.GONE: set(),
}
"""Phases only go forward. A message or order that would go back leaves the phase as it is."""


@dataclass(frozen=True)
class InitBroke:
    """Init, or a process in its name, broke the protocol. It was killed."""

    reason: str


@dataclass(frozen=True)
class InitGone:
    """Nothing is left of init, and nothing below it."""


Emit = Callable[[Any], None]
"""Receives messages of init, `InitBroke` and `InitGone`. A WireError that it raises breaks off with this init."""


class InitLink:
    """Connection to one init. It knows how to end it, and knows nothing of the program below it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        emit: Emit,
        accepts: frozenset[type],
        *,
        siblings: Siblings | None = None,
        takes_descriptors: bool = False,
    ) -> None:
        """`accepts` are the messages that this kind of init may send; others are ignored."""
        self._loop = loop
        self.emit = emit
        self._accepts = accepts
        self._siblings = siblings or Siblings(loop)
        self._takes_descriptors = takes_descriptors
        self.phase = Phase.NEW
        self.init_pid: int | None = None
        """Process id of init, as the kernel reports it."""
        self.child_pid: int | None = None
        """Process id of the worker or program below init."""
        self.parent_pid: int | None = None
        """Process above a spawned init, which exits after init."""
        self.joined = False
        """Whether the worker was started inside of its cgroup."""
        self.tmp = 0
        """Bytes of the session's own file system at /tmp; 0 without one."""
        self.up: asyncio.Future[None] = loop.create_future()
        """Done when the process id of init is known, or never will be."""
        self.sweeper: Sweeper | None = None
        """Reports the end of what a killed init leaves behind; None where the kernel takes care of that."""
        self.swept_pid = 0
        """Process id by which the sweeper knows init, if not `init_pid`: in a sandbox, init has another one."""
        self.swept = False
        """Whether init has reported that nothing is left below it."""
        self.stayed = False
        """Whether init has ended its last worker and waits for another session."""
        self.killed_because: str | None = None
        self.signalled: dict[int, asyncio.Future[bool]] = {}
        """Signals that init has not confirmed yet, by order number."""
        self._orders = 0
        self._descriptors: list[int] = []
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._timer: asyncio.TimerHandle | None = None
        self._exit_watch: ExitWatch | None = None

    def _move(self, phase: Phase) -> bool:
        """Enter a phase. Return False, and stay, if the table does not allow it."""
        allowed = phase in NEXT_PHASES[self.phase]
        if allowed:
            self.phase = phase
        return allowed

    @property
    def leaving(self) -> bool:
        """Whether init is gone or about to go: it takes no more orders."""
        return self.phase in (Phase.LEAVING, Phase.GONE)

    def share_init_of(self, other: "InitLink") -> None:
        """Link another worker to the init of `other`."""
        self.init_pid, self.parent_pid, self.sweeper = other.init_pid, other.parent_pid, other.sweeper
        self.tmp = other.tmp

    def use(self, init_pid: int, sweeper: Sweeper | None, swept_pid: int) -> None:
        """Link the first worker of a session to an init that has served another one."""
        self.init_pid, self.sweeper, self.swept_pid = init_pid, sweeper, swept_pid

    # --- descriptors ---

    def make_end(self) -> int:
        """Create the status socket. Return the end that goes to init, for the caller to give away and close."""
        self._socket, child = socket.socketpair()
        if self.init_pid is None:
            # Requested before init can write: in a pid namespace, its own word for its process id means nothing.
            expect_pid(self._socket)
        if not self._takes_descriptors:
            refuse_descriptors(self._socket)
        self._out = Writer(self._loop, self._socket.fileno(), self._socket.send, lambda: None)
        return child.detach()

    def watch(self) -> None:
        """Start to read."""
        assert self._socket is not None
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket.fileno(), self._on_readable)

    def take_descriptor(self) -> int | None:
        """Return the oldest descriptor that came along with a message, if any."""
        return self._descriptors.pop(0) if self._descriptors else None

    def take_descriptors(self, count: int) -> list[int]:
        """Return the oldest descriptors that came along with a message, so many at most."""
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    @property
    def fileno(self) -> int:
        """Descriptor of the status socket; -1 when there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    # --- orders ---

    @property
    def pending(self) -> bool:
        """Whether an order is under way, so that nobody can tell what it would hit."""
        return bool(self.signalled) or self._out.pending

    def send(self, order: Any) -> None:
        """Send an order, or drop it if init is gone."""
        self._out.write(messages.encode(order))

    async def send_with(self, order: Any, fds: list[int]) -> None:
        """Send an order together with descriptors. Raises OSError when init is gone."""
        assert self._socket is not None
        await send_with(self._socket, self._out, messages.encode(order), fds)

    async def give(self, order: Any, fd: int) -> None:
        """Send an order with a descriptor, and close the descriptor here. Raises OSError when init is gone."""
        try:
            await self.send_with(order, [fd])
        finally:
            os.close(fd)

    def send_now_with(self, order: Any, fds: list[int]) -> bool:
        """Send an order with descriptors at once, to an init that has read all before. Return whether it was sent."""
        assert self._socket is not None
        frame = messages.encode(order)
        try:
            sent = socket.send_fds(self._socket, [frame], fds)
        except OSError:
            return False
        if sent < len(frame):
            self._out.write(frame[sent:])
        return True

    def send_signal(self, make: Callable[[int], Any]) -> "asyncio.Future[bool]":
        """Send the order that `make` returns for its number.

        The future is done when init has sent the signal. Its result is True if the process ignores it now.
        """
        self._orders += 1
        sent: asyncio.Future[bool] = self._loop.create_future()
        if self.leaving:
            sent.set_result(False)
            return sent
        self.signalled[self._orders] = sent
        self.send(make(self._orders))
        return sent

    # --- messages ---

    def _on_readable(self) -> None:
        # Read until nothing is left: libuv reports a socket that was reset only once, and the end would be missed.
        while not self.leaving:
            try:
                data = self._receive()
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.see_off()
                return
            if self.phase is Phase.DEAF:
                # Discarded until the end of init, one read per turn of the loop.
                self._loop.call_soon(self._on_readable)
                return
            try:
                if len(data) == STATUS_CHUNK_BYTES:
                    raise WireError("it says more than an init has to say")
                for frame in self._reader.feed(data):
                    self._handle(decode.decode(frame))
                if len(self._descriptors) > MAX_FDS:
                    raise WireError("it sends descriptors that nobody asked for")
            except WireError as error:
                if self._move(Phase.DEAF):
                    self.emit(InitBroke(str(error)))
                    self.kill_init()

    def _receive(self) -> bytes:
        assert self._socket is not None
        if self._takes_descriptors:
            data, pid, fds = receive_with_all(self._socket, STATUS_CHUNK_BYTES)
            self.init_pid = self.init_pid or pid
            self._descriptors += fds
        elif self.init_pid is None:
            data, self.init_pid = receive_with_pid(self._socket, STATUS_CHUNK_BYTES)
        else:
            data = self._socket.recv(STATUS_CHUNK_BYTES)
        return data

    def _handle(self, message: Any) -> None:
        if type(message) not in self._accepts:
            return
        if isinstance(message, messages.Signalled):
            sent = self.signalled.pop(message.order, None)
            if sent is not None and not sent.done():
                sent.set_result(message.ignored)
            return
        self.emit(message)
        if isinstance(message, messages.InitUp):
            self._move(Phase.UP)
            if not self.up.done():
                self.joined, self.tmp = message.joined, message.tmp or self.tmp
                self.up.set_result(None)
        elif isinstance(message, messages.Exited):
            self._move(Phase.EXITED)
            if self._timer is None and not self._siblings.shared:
                # Init now ends what is left, and closes the socket. If the message was forged, nothing more comes.
                # An init with other workers may have much to do.
                self._timer = self._loop.call_later(LEAVE_PATIENCE_SECONDS, self._lose_patience)
        elif isinstance(message, messages.Swept) and not message.pid:
            self.swept = True
            if message.stays:
                self.stayed = True
                self._finish()

    # --- the end ---

    def kill(self, because: str | None = None) -> None:
        """Have init end everything below it, or kill init if it does not."""
        if self._socket is None or self.leaving:
            return
        self.killed_because = self.killed_because or because
        self._move(Phase.KILLING)
        self.send(messages.Kill())
        if self._timer is None:
            self._timer = self._loop.call_later(KILL_PATIENCE_SECONDS, self._lose_patience)

    def _lose_patience(self) -> None:
        """Kill init. If it has other workers, it may only be stopped: continue it first, and give it more time."""
        if self._siblings.shared and self.init_pid is not None:
            self._timer = self._loop.call_later(SHARED_KILL_PATIENCE_SECONDS, self.kill_init)
            self._send_signal(signal.SIGCONT)
        else:
            self.kill_init()

    def kill_init(self) -> None:
        """Kill init and its child. If init never came up, close its socket, which is all that can be done."""
        if self.init_pid is None:
            self._finish()
        elif not self.leaving:
            self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: int) -> None:
        """Kill the child and send init a signal. As long as its socket is open, the process id of init is its own."""
        assert self.init_pid is not None
        if self.child_pid is not None:
            # The child's process id may be wrong or reused: only a child of this init is killed.
            processes.send_signal(self.init_pid, [self.child_pid], signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.init_pid, number)

    def see_off(self) -> None:
        """Wait for the end of an init that has closed its socket, unless it lives on for other workers."""
        if self.init_pid is None or (self.swept and self._siblings.shared):
            self._finish()
        elif self._move(Phase.LEAVING):
            # From now on its process id may be reused.
            if self._timer is not None:
                self._timer.cancel()
            self._loop.remove_reader(self.fileno)
            swept = None if self.swept or self.sweeper is None else self._wait_swept
            self._exit_watch = ExitWatch(self._loop, self.init_pid, swept, self._finish, parent_pid=self.parent_pid)

    def _wait_swept(self) -> "asyncio.Future[None]":
        """Return one future for all siblings: the sweeper forgets its report soon after."""
        assert self.sweeper is not None
        assert self.init_pid is not None
        if self._siblings.swept is None:
            self._siblings.swept = self.sweeper.wait(self.swept_pid or self.init_pid)
        return self._siblings.swept

    def _finish(self) -> None:
        if self._move(Phase.GONE):
            self.emit(InitGone())

    def close(self) -> None:
        """Close every descriptor and forget all orders. Init ends itself when its socket is closed."""
        self._move(Phase.GONE)
        if self._timer is not None:
            self._timer.cancel()
        if self._exit_watch is not None:
            self._exit_watch.close()
        self.emit = _nothing
        if self._socket is not None:
            self._out.close()
            self._loop.remove_reader(self.fileno)
            self._socket.close()
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors.clear()
        if not self.up.done():
            self.up.set_result(None)
        for sent in self.signalled.values():
            if not sent.done():
                sent.set_result(False)
        self.signalled.clear()


def _nothing(event: Any) -> None:
    """Stand in for the receiver of events that is gone."""
