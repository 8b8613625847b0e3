"""The init of a task as the host sees it: one status socket, by which a program is started, signalled and ended.

It may have been forked long before it is told what to run. Its end is told exactly once, and then nothing of the tree
is left. What it says is untrusted: the program below it has the same rights as init has.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from ingle.support import processes
from ingle.workers.exit_status import check_status
from ingle.workers.exit_watch import Departure, Sweeping
from ingle.workers.io import decode
from ingle.workers.io.descriptors import expect_pid, receive_with_pid, refuse_descriptors
from ingle.workers.io.writer import Sender
from ingle.workers.worker import STATUS_CHUNK, ChildEnds
from ingle_worker.wire import FrameReader, WireError, messages

KILL_PATIENCE = 0.5
"""How long init may take to end everything before it is killed itself; then the zygote above it ends the strays."""


class Owner(Protocol):
    """Who a process belongs to."""

    def on_exited(self, message: messages.ProgramExited) -> None: ...

    def on_breach(self, message: messages.Breach) -> None: ...

    def on_gone(self) -> None: ...


class Process:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.owner: Owner | None = None
        self.ready: asyncio.Future[None] = loop.create_future()
        """The program was forked, or its start failed. Set for the zygote, too, which may not be able to fork."""
        self.gone: asyncio.Future[None] = loop.create_future()
        self.init_pid: int | None = None
        self._own_pid = 0
        """What init knows itself by: in a room, that is another number."""
        self.sweeping: Sweeping | None = None
        """Where it is told what init has left behind, if that was killed."""
        self._departure: Departure | None = None
        self.pid: int | None = None
        self.failure: str | None = None
        self.no_folder = False
        """It failed because there is no such folder where it was to run."""
        self.cpu_seconds = 0.0
        self.peak = 0
        self.on_free: Callable[[Process], None] | None = None
        """Told when nothing is left of the task and init could run another one."""
        self._exited = False
        self._killed = False
        self._reusable = True
        self._orders = 0
        self._signalled: dict[int, asyncio.Future[None]] = {}
        self._kill_timer: asyncio.TimerHandle | None = None
        self._reader = FrameReader()

    def close(self) -> None:
        """Let go of an init that was told nothing: it ends."""
        if not self.gone.done():
            self._finish()

    def make_ends(self) -> ChildEnds:
        """Create the status socket; the child's end is given away, ours is to be watched."""
        self._status, child = socket.socketpair()
        self._status.setblocking(False)
        # Its own word for its number means nothing where it is in a pid namespace.
        expect_pid(self._status)
        refuse_descriptors(self._status)
        self._out = Sender(self._loop, self._status.fileno(), self._status.send, lambda: None)
        return ChildEnds([child.detach()])

    def watch(self) -> None:
        self._loop.add_reader(self._status.fileno(), self._on_status)

    @property
    def alive(self) -> bool:
        return not self.gone.done() and self._departure is None

    def run(self, message: messages.Run, fds: list[int]) -> None:
        """Start the program, once, with these three descriptors."""
        # Limits that init takes on itself for a program cannot be lifted again.
        self._reusable = not (message.files or message.file_size or message.processes)
        frame = messages.encode(message)
        try:
            sent = socket.send_fds(self._status, [frame], fds)
        except OSError:
            return  # init is gone, which is told as always
        if sent < len(frame):
            self._out.write(frame[sent:])

    async def wait_started(self) -> None:
        """Until it is known whether the program was started."""
        await asyncio.wait({self.ready})

    def signal(self, number: int, *, group: bool = False, again: bool = False) -> "asyncio.Future[None]":
        """A signal for the whole tree, or the program's group; done when it has been sent.

        `again`: SIGINT once more, if one of those that were to have it has missed it.
        """
        self._orders += 1
        sent: asyncio.Future[None] = self._loop.create_future()
        if self.gone.done():
            sent.set_result(None)
            return sent
        self._signalled[self._orders] = sent
        self._out.write(messages.encode(messages.Signal(self._orders, number, group, again)))
        return sent

    def kill(self) -> None:
        """End everything of this task now. Its end is told as always."""
        if self.alive:
            self._killed = True
            self._out.write(messages.encode(messages.Kill()))
            if self._kill_timer is None:
                self._kill_timer = self._loop.call_later(KILL_PATIENCE, self._kill_hard)

    def _kill_hard(self) -> None:
        """Init does not answer: it may be stopped. As long as its socket is open its number is its own."""
        if self.init_pid is None:
            self._finish()
        elif self.alive:
            if self.pid is not None:
                # Its number is init's word, which is worth as much as the program's.
                processes.send_signal(self.init_pid, [self.pid], signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.init_pid, signal.SIGKILL)

    def _on_status(self) -> None:
        # Until there is nothing more: libuv reports a socket that was reset only once.
        while self.alive:
            try:
                if self.init_pid is None:
                    data, self.init_pid = receive_with_pid(self._status, STATUS_CHUNK)
                else:
                    data = self._status.recv(STATUS_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._see_off()
                return
            try:
                if len(data) == STATUS_CHUNK:
                    raise WireError("it says more than an init has to say")
                for frame in self._reader.feed(data):
                    self._handle(decode.decode(frame))
            except WireError:
                self._kill_hard()
                self._see_off()

    def _see_off(self) -> None:
        """Init is about to go, and has not told that nothing is left below it: it was killed."""
        if self.init_pid is None or self.gone.done():
            self._finish()
            return
        # From now on its number may be another's.
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._loop.remove_reader(self._status.fileno())
        number = self._own_pid or self.init_pid
        asked = None if self.sweeping is None else partial(self.sweeping.wait, number)
        self._departure = Departure(self._loop, self.init_pid, asked, self._finish)

    def _handle(self, message: Any) -> None:
        if isinstance(message, messages.InitUp):
            self._own_pid = message.pid
            if not message.worker:
                return  # it only says who it is
            inside = self.init_pid is not None and message.pid != self.init_pid
            self.pid = processes.child_called(message.worker, self.init_pid or 0) if inside else message.worker
            self._settle_start()
        elif isinstance(message, messages.RunFailed):
            self.failure = self.failure or message.reason
            self.no_folder = message.no_folder
            self._settle_start()
        elif isinstance(message, messages.Signalled):
            sent = self._signalled.pop(message.order, None)
            if sent is not None and not sent.done():
                sent.set_result(None)
        elif isinstance(message, messages.ProgramExited) and not self._exited:
            check_status(message.status)
            self._exited = True
            self._used(message)
            if self.owner is not None:
                self.owner.on_exited(message)
            if not message.left:
                self._finish(free=True)
        elif isinstance(message, messages.TreeEnded):
            self._used(message)
            self._finish()
        elif isinstance(message, messages.Breach) and self.owner is not None:
            self.owner.on_breach(message)

    def _used(self, message: messages.ProgramExited | messages.TreeEnded) -> None:
        self.cpu_seconds = max(self.cpu_seconds, message.cpu_seconds)
        self.peak = max(self.peak, message.peak_kib * 1024)

    def _settle_start(self) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def renewed(self) -> "Process":
        """The same init, for another task."""
        fresh = Process(self._loop)
        fresh.init_pid, fresh._status, fresh._reader = self.init_pid, self._status, self._reader
        fresh.sweeping, fresh._own_pid = self.sweeping, self._own_pid
        fresh._out = Sender(self._loop, self._status.fileno(), self._status.send, lambda: None)
        self._loop.add_reader(self._status.fileno(), fresh._on_status)
        return fresh

    def _finish(self, free: bool = False) -> None:
        if self.gone.done():
            return
        self.gone.set_result(None)
        if self.ready.done() and (failure := self.ready.exception()) is not None:
            self.failure = self.failure or str(failure)
        self._settle_start()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self._departure is not None:
            self._departure.close()
        # With an order still under way, nobody can tell what it would hit.
        free = free and self._reusable and not (self._killed or self._signalled or self._out.pending)
        self._out.forget()
        self._loop.remove_reader(self._status.fileno())
        if free and self.on_free is not None:
            self.on_free(self)
        else:
            self._status.close()
        for sent in self._signalled.values():
            if not sent.done():
                sent.set_result(None)
        self._signalled.clear()
        if self.owner is not None:
            self.owner.on_gone()
