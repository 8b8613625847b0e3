"""A worker as the host sees it: five descriptors, a stream of messages, two streams of bytes, and one sure end.

It reads only when there is something to read, never blocks the loop, and puts output and messages into one order
(see `merge`). It knows nothing of cells: its owner does. Its end is told exactly once, after the last byte.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Protocol

from ingle.events import Exit
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.limits.cgroups import Group
from ingle.support import processes
from ingle.workers.copies import Copies, Family, Forks
from ingle.workers.exit_status import WIRE_LOST, exit_of, explain
from ingle.workers.exit_watch import Departure, Sweeping
from ingle.workers.io import decode
from ingle.workers.io.descriptors import (
    MAX_FDS,
    as_socket,
    expect_pid,
    receive_with_all,
    receive_with_pid,
    refuse_descriptors,
    send_with,
    unread,
)
from ingle.workers.io.output_order import STDERR, STDOUT, Merger, Note, Piece
from ingle.workers.io.output_pipes import Pipes
from ingle.workers.io.stdin_pipe import Stdin
from ingle.workers.io.writer import Sender
from ingle_worker.wire import FrameReader, WireError, messages

WIRE_CHUNK = 1 << 15
"""Bytes read from the wire in one go: from 128 KiB on every read would map and unmap memory of its own."""

STATUS_CHUNK = 1 << 16
"""The same from init, whose words are some fifty bytes: so much at once is a flood, and keeps others from the loop."""

KILL_PATIENCE = 0.5
"""How long init may take to end everything before it is killed itself."""

FAMILY_PATIENCE = 2.0
"""The same where an init has more than one worker in its care."""

LEAVE_PATIENCE = 2.0
"""Between the word that a worker has ended and the end of its init."""

ROUNDS = 16
"""How often output is read again because messages came meanwhile: a bound for a worker that floods the wire."""

LONG_TURN = 5_000_000
"""Nanoseconds for which a worker that floods the wire may have the loop at once."""

REST = 2
LONGEST_REST = 1.0
"""It is not read for so many times as long afterwards, for so many seconds at most: others have the loop meanwhile."""

BREAK_PATIENCE = 0.1
"""Between the loss of a worker's wire and SIGKILL: the time in which init tells of a process that had died itself."""


class WorkerEnded(Exception):
    """A worker went before it was ready."""


class Owner(Protocol):
    """Who a worker talks to."""

    def on_message(self, message: Any) -> None: ...

    def on_output(self, stream: int, data: bytes, background: bool) -> None: ...

    def on_gone(self, exit: Exit) -> None: ...


class ChildEnds:
    """The five descriptors that go to the child: stdin, stdout, stderr, wire, status."""

    def __init__(self, fds: list[int]) -> None:
        self.fds = fds

    def close(self) -> None:
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.fds = []


class Worker:
    def __init__(self, loop: asyncio.AbstractEventLoop, family: Family | None = None, place: int = 0) -> None:
        """A copy is of its original's family, and has a place there."""
        self._loop = loop
        self.owner: Owner | None = None
        self.family = family or Family(loop)
        self.family.members.add(self)
        self.place = place
        self.spare = False
        """It comes from the pool, where it has shown that it lives."""
        self.ready: asyncio.Future[messages.Ready] = loop.create_future()
        self.gone: asyncio.Future[Exit] = loop.create_future()
        self.pid: int | None = None
        self.init_pid: int | None = None
        self.init_up: asyncio.Future[None] = loop.create_future()
        """The number of init is known, or never will be; that of the worker is with its `ready`."""
        self.joining: asyncio.Task[None] | None = None
        """Its group is made, and its init told the way in."""
        self.joined = False
        self.group: Group | None = None
        """What the kernel counts it in, with all below it."""
        self.letting_go: asyncio.Future[None] | None = None
        """Its group, after its end."""
        self.user = 0
        """The number of the user that its processes are, where the server chooses it."""
        self.laid = ""
        """Whose folders it has already: those of a session to come."""
        self.parent_pid: int | None = None
        """Of one that was spawned: the process above its init, which goes when nothing is left of that."""
        self.sweeping: Sweeping | None = None
        """Where it is told what its init left behind, if that was killed and the kernel does not see to it."""
        self.tasks_sweeping = Sweeping(loop)
        """The same of shell tasks in its room, whose inits are below this one."""
        self.door: socket.socket | None = None
        """Listens inside of the session's network, where the host's proxy is its only way out."""
        self._doors: list[int] = []
        self.cpu_seconds: float | None = None
        self._exit: Exit | None = None
        self._broken: str | None = None
        self._killed_because: str | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        self._woken = False
        self._deaf = False
        """Init, or somebody in its name, does not keep to the protocol: it is not listened to any more."""
        self._swept = False
        """Init has told that nothing is left of it."""
        self._departure: Departure | None = None
        self._paused = False
        self._begin_expected = 0
        self._giving_way: asyncio.TimerHandle | None = None
        self._busy_since = 0
        """When, in this turn of the loop, so much had come that it may take long."""
        self._noted = False
        self._orders = 0
        self.signalled: dict[int, asyncio.Future[bool]] = {}
        """Interrupts that have not landed yet."""
        self._loose: list[Any] = []
        """Messages whose place is behind all that was written before them."""
        self.forks = Forks(self)
        self._reader = FrameReader()
        self._status_reader = FrameReader()
        self._merger = Merger()
        self._open: set[int] = set()

    # --- descriptors ---

    def make_ends(self) -> ChildEnds:
        """Create all descriptors; the child's ends are given away, ours are to be watched."""
        with contextlib.ExitStack() as made:
            # All of them or none: there may be no more descriptors at any of these.
            stdout, child_out = os.pipe()
            made.callback(_close_all, stdout, child_out)
            stderr, child_err = os.pipe()
            made.callback(_close_all, stderr, child_err)
            self.stdin = Stdin(self._loop)
            made.callback(_close_all, self.stdin.child)
            made.callback(self.stdin.close)
            self._wire, child_wire = socket.socketpair()
            made.callback(self._wire.close)
            made.callback(child_wire.close)
            self._status, child_status = socket.socketpair()
            made.pop_all()
        # Before the child says anything: the numbers of its processes are the kernel's to tell, not its own.
        expect_pid(self._wire)
        refuse_descriptors(self._wire)
        if not self.place:
            expect_pid(self._status)
        self._pipes = Pipes(self._loop, stdout, stderr, self._merger, self._read_wire)
        self._wire_out = Sender(self._loop, self._wire.fileno(), self._wire.send, self._on_wire_lost)
        self._status_out = Sender(self._loop, self._status.fileno(), self._status.send, lambda: None)
        return ChildEnds([self.stdin.child, child_out, child_err, child_wire.detach(), child_status.detach()])

    def watch(self) -> None:
        """Our ends, from now on. Apart from making them, since the child need not wait for this."""
        self._wire.setblocking(False)
        self._status.setblocking(False)
        self._watch(self._wire.fileno(), self._read_wire)
        self._watch(self._status.fileno(), self._on_status)
        self._pipes.watch()

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._open.add(fd)
        self._loop.add_reader(fd, callback)

    def _unwatch(self, fd: int) -> None:
        if fd in self._open:
            self._open.discard(fd)
            self._loop.remove_reader(fd)

    # --- what the owner asks ---

    @property
    def alive(self) -> bool:
        ended = self._exit is not None or self._departure is not None
        return not ended and not self.gone.done() and self._broken is None

    def send(self, message: Any) -> None:
        self._wire_out.write(messages.encode(message))

    def execute(self, cell: int, code: str, envs: dict[str, str], *, crowded: bool) -> None:
        """Start a cell. Output that is there already belongs to none."""
        if self._pipes.read():
            self._receive()
            self._hand_on(background=True)
        if crowded:
            self._begin_expected = cell
        self._wire_out.write(messages.encode(messages.Execute(cell, code, envs)))

    def usage(self) -> tuple[int | None, float | None]:
        """Return its memory in bytes and its CPU time in seconds."""
        return processes.usage(self.pid)

    def interrupt(self, cell: int, *, again: bool = False) -> asyncio.Future[bool]:
        """SIGINT for the worker's group while it runs this cell; True when the worker does not take it just now."""
        self._orders += 1
        sent: asyncio.Future[bool] = self._loop.create_future()
        if self.gone.done() or self._departure is not None:
            sent.set_result(False)
            return sent
        self.signalled[self._orders] = sent
        self._status_out.write(messages.encode(messages.Interrupt(self._orders, cell, again)))
        return sent

    def enter(self, order: messages.Enter) -> None:
        """Have folders of the data folder laid into the room of this worker, which waits for it with its Start."""
        self._status_out.write(messages.encode(order))

    async def join(self, ways: list[int]) -> None:
        """Tell init the way into its group, for which it waits. Raises OSError when it is gone."""
        await send_with(self._status, self._status_out, messages.encode(messages.Join()), ways)

    async def run_shell(self, status: int) -> None:
        """Have init fork the init of a shell task; its status socket is given away."""
        await self._give_child(messages.Shell(), status)

    async def serve_files(self, connection: int) -> None:
        """Have init fork a file agent; its socket is given away. Raises OSError when init is gone."""
        await self._give_child(messages.ServeFiles(), connection)

    async def _give_child(self, order: messages.Shell | messages.ServeFiles, fd: int) -> None:
        try:
            if self.group is not None and self.group.outside:
                await asyncio.to_thread(self.group.complete)
            await send_with(self._status, self._status_out, messages.encode(order), [fd])
        finally:
            os.close(fd)

    # --- copies ---

    async def fork(self, count: int = 1) -> Copies:
        """Live copies of this worker, between cells; it goes on, and they may still be on their way (`Copies.up`).

        Raises StartFailed, and then there are none.
        """
        return await self.forks.make(count)

    def make_sibling(self, place: int) -> "Worker":
        sibling = Worker(self._loop, self.family, place)
        sibling.init_pid = self.init_pid
        sibling.sweeping, sibling.parent_pid = self.sweeping, self.parent_pid
        if self.group is not None:
            self.group.hold()
            sibling.group = self.group
        return sibling

    async def introduce(self, place: int, status: int) -> None:
        """Have init know of a copy that is to be; its status socket is given away."""
        try:
            await send_with(self._status, self._status_out, messages.encode(messages.Adopt(place)), [status])
        finally:
            os.close(status)

    @property
    def untaken(self) -> int:
        """Bytes that it was told and has not read."""
        return self._wire_out.waiting

    async def give_ends(self, message: messages.Ends, fds: list[int]) -> None:
        await send_with(self._wire, self._wire_out, messages.encode(message), fds)

    @property
    def exit_seen(self) -> bool:
        """Init has told how the process ended: it was one, and is no more."""
        return self._exit is not None

    # --- ending ---

    def kill(self, because: str | None = None) -> None:
        """End everything of this worker now. Its end is told as always."""
        if self.gone.done() or self._departure is not None or not self._open:
            return
        self._killed_because = self._killed_because or because
        self._status_out.write(messages.encode(messages.Kill()))
        if self._kill_timer is None:
            self._kill_timer = self._loop.call_later(KILL_PATIENCE, self._kill_hard)

    def _kill_hard(self) -> None:
        """Init does not answer: it may be stopped. As long as its socket is open its number is its own.

        Where it has others in its care, it is woken first, and gets more time.
        """
        if self.gone.done():
            return
        number = signal.SIGKILL
        if len(self.family.members) > 1 and self._kill_timer is not None and not self._woken:
            self._woken = True
            number = signal.SIGCONT
            self._kill_timer = self._loop.call_later(FAMILY_PATIENCE, self._kill_hard)
        if self.pid is not None and self.init_pid is not None:
            # A copy's number is that of whoever spoke first on its wire, and may be somebody else's by now.
            processes.send_signal(self.init_pid, [self.pid], signal.SIGKILL)
        if self.init_pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.init_pid, number)
        if self.init_pid is None:
            # It never came up; closing its socket is all there is to do.
            self._finish()

    # --- reading ---

    def pause(self) -> None:
        """Stop reading output, also that which comes by the wire: the reader is behind. The writer waits."""
        self._paused = True
        self._stop_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._giving_way is None:
                self._start_reading()

    def _stop_reading(self) -> None:
        self._pipes.pause()
        if self._wire.fileno() in self._open:
            self._loop.remove_reader(self._wire.fileno())

    def _start_reading(self) -> None:
        if self._wire.fileno() in self._open:
            self._loop.add_reader(self._wire.fileno(), self._read_wire)
        self._pipes.resume()

    def _give_way(self, seconds: float) -> None:
        """It has kept the loop from others: let them have it for a while."""
        if self._giving_way is None and not self.gone.done():
            self._stop_reading()
            self._giving_way = self._loop.call_later(min(seconds, LONGEST_REST), self._go_on)

    def _go_on(self) -> None:
        self._giving_way = None
        if not self._paused and not self.gone.done():
            self._start_reading()

    def _hand_on(self, background: bool = False) -> None:
        """Output and messages to the owner, each in its place.

        The wire has always been read after the pipes when this begins: marks are sent before the bytes they speak
        of are written, so those of all bytes that were read are known. The bytes behind them can wait for the next
        reading. A message cannot, so what was written before it is read now, and then again the marks of that.
        """
        for number in range(ROUNDS):
            if not self._noted or (number and self._is_long):
                break
            self._noted = False
            if not self._pipes.read():
                break
            self._receive()
        if self._loose:
            loose, self._loose = self._loose, []
            if self._merger.idle:
                # The common case: nothing was written, so there is nothing to put in order.
                for message in loose:
                    if self.owner is not None:
                        self.owner.on_message(message)
                return
            for message in loose:
                self._merger.note(message)
        self._deliver(background)
        if self._merger.holds_notes and not self._noted:
            # All that was written before the message has been read, so a mark was placed too far.
            self._merger.give_up_cuts()
            self._deliver(background)
        elif self._merger.overfull:
            self._merger.give_up_cuts()
            self._deliver(background)

    def _deliver(self, background: bool) -> None:
        taken = deque(self._merger.take())
        while taken:
            each = taken.popleft()
            if isinstance(each, Piece):
                if self.owner is not None:
                    self.owner.on_output(each.stream, each.data, background or bool(self._begin_expected))
            elif isinstance(each.content, messages.Mark):
                if each.content.begin == self._begin_expected:
                    self._begin_expected = 0
            elif self.owner is None:
                continue
            elif isinstance(each.content, messages.Background):
                stream, texts = each.content.stream, [each.content.text]
                # A thread that writes all the time says a thousand things at once: they make one event.
                while taken and isinstance(taken[0], Note) and isinstance(taken[0].content, messages.Background):
                    if taken[0].content.stream != stream:
                        break
                    texts.append(taken[0].content.text)
                    taken.popleft()
                number = STDERR if stream == "stderr" else STDOUT
                self.owner.on_output(number, "".join(texts).encode("utf-8", "replace"), True)
            else:
                self.owner.on_message(each.content)

    def _read_wire(self) -> None:
        self._busy_since = 0
        self._receive()
        self._hand_on()
        if self._is_long:
            self._give_way((monotonic_ns() - self._busy_since) * REST / 1e9)

    @property
    def _is_long(self) -> bool:
        """More has come at once than a worker says that means well, and it took its time."""
        return self._busy_since > 0 and monotonic_ns() - self._busy_since > LONG_TURN

    def _receive(self) -> None:
        """What is on the wire, to the merger: it knows where among the output each message belongs.

        All that is there now, since a mark may be the last of it; but not what comes meanwhile.
        """
        left = self._receive_some()
        if left == WIRE_CHUNK:
            self._busy_since = self._busy_since or monotonic_ns()
            left = unread(self._wire.fileno())
            while left > 0 and (got := self._receive_some()):
                left -= got

    def _receive_some(self) -> int:
        if self._broken is not None or self._wire.fileno() < 0:
            return 0
        try:
            if self.pid is None:
                data, self.pid = receive_with_pid(self._wire, WIRE_CHUNK)
            else:
                data = self._wire.recv(WIRE_CHUNK)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:
            self._on_wire_lost()
            return 0
        try:
            for frame in self._reader.feed(data):
                self._handle(decode.decode(frame))
        except WireError as error:
            self.break_off(str(error))
        return len(data)

    def _handle(self, message: Any) -> None:
        kind = type(message)
        if kind is messages.Mark or kind is messages.Background or kind is messages.Display:
            self._place_loose()
            if kind is messages.Mark:
                self._merger.cut(message, message if message.begin else None)
            else:
                texts = message.data.values() if kind is messages.Display else (message.text,)
                self._merger.cut(message.mark, message, sum(map(len, texts)))
        elif kind is messages.Ready:
            if not self.ready.done():
                self.ready.set_result(message)
        elif kind is messages.NotCopied and not self.ready.done():
            self._break(message.reason[:1000])
        elif kind is messages.NotCopied:
            self.break_off("it says that it could not be made")
        elif kind is messages.EndsWanted or kind is messages.Copied:
            self.forks.on_message(message)
        else:
            self._loose.append(message)
            self._noted = True

    def _place_loose(self) -> None:
        """Something follows that has a place of its own: what came before it is put before it."""
        for message in self._loose:
            self._merger.note(message)
        self._loose.clear()

    def _on_wire_lost(self) -> None:
        self._break(WIRE_LOST)

    def break_off(self, why: str) -> None:
        """It does not keep to the protocol."""
        self._break(f"the session's process broke the protocol ({why})")

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = why
            self._unwatch(self._wire.fileno())
            # Most often the process has just died, and init is about to tell how; else this ends it.
            self._loop.call_later(BREAK_PATIENCE, self._end_broken, why)

    def _end_broken(self, why: str) -> None:
        # Init may only be late, on a busy machine: then how it died is still to be told, and this is not why.
        died = self.pid is not None and processes.is_exiting(self.pid)
        self.kill(None if died else why)

    def _on_status(self) -> None:
        # Until there is nothing more: libuv reports a socket that was reset only once, and what is left unread
        # then, the end above all, would never be told.
        while not self.gone.done() and self._departure is None:
            try:
                data, pid, fds = receive_with_all(self._status, STATUS_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data, pid, fds = b"", None, []
            self.init_pid = self.init_pid or pid
            self._doors += fds
            if not data:
                self._see_off()
                return
            if self._deaf:
                # Until its end; but others have the loop in between.
                self._loop.call_soon(self._on_status)
                return
            try:
                if len(data) == STATUS_CHUNK:
                    raise WireError("it says more than an init has to say")
                for frame in self._status_reader.feed(data):
                    self._handle_status(decode.decode(frame))
                if len(self._doors) > MAX_FDS:
                    raise WireError("it sends descriptors that nobody asked for")
            except WireError as error:
                self._broken = self._broken or f"the session's init broke the protocol ({error})"
                self._deaf = True
                self._kill_hard()

    def _handle_status(self, message: Any) -> None:
        if isinstance(message, messages.InitUp):
            if not self.init_up.done():
                self.joined = message.joined
                self.init_up.set_result(None)
        elif isinstance(message, messages.NotEntered):
            self._break(f"the session's room could not be prepared ({message.reason[:1000]})")
        elif isinstance(message, messages.ProxyListening) and self._doors and self.door is None:
            self.door = as_socket(self._doors.pop(0))
        elif isinstance(message, messages.Signalled):
            sent = self.signalled.pop(message.order, None)
            if sent is not None and not sent.done():
                sent.set_result(message.ignored)
        elif isinstance(message, messages.Exited):
            self.cpu_seconds = message.cpu_seconds
            self._exit = exit_of(message.status)
            if self._kill_timer is None and len(self.family.members) == 1:
                # What is left of it is killed now, and the socket closed. It may be somebody else who said so, and then
                # nothing more would come. With others in its care, init may have much to do.
                self._kill_timer = self._loop.call_later(LEAVE_PATIENCE, self._kill_hard)
        elif isinstance(message, messages.Swept):
            if message.pid:
                self.tasks_sweeping.tell(message.pid)
            else:
                self._swept = True

    # --- the end ---

    def _see_off(self) -> None:
        """Init has closed the socket: it was done with this worker and goes on with others, or is about to go."""
        if self.init_pid is None or (self._swept and len(self.family.members) > 1):
            self._finish()
            return
        # From now on its number may be another's.
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._unwatch(self._status.fileno())
        asked = None if self._swept or self.sweeping is None else self._wait_swept
        self._departure = Departure(self._loop, self.init_pid, asked, self._finish, above=self.parent_pid)

    def _wait_swept(self) -> "asyncio.Future[None]":
        """One word for the whole family, whose members all learn that their init is gone."""
        assert self.sweeping is not None
        assert self.init_pid is not None
        if self.family.swept is None:
            self.family.swept = self.sweeping.wait(self.init_pid)
        return self.family.swept

    def _finish(self) -> None:
        """Init is gone, and with it everything below: what is in the pipes now is the last there is."""
        if self.gone.done():
            return
        self._pipes.read()
        self._read_wire()
        self._place_loose()
        self._merger.give_up_cuts()
        self._deliver(background=False)
        self.close()
        exit = explain(self._exit, self._killed_because, self._broken)
        self.gone.set_result(exit)
        if not self.init_up.done():
            self.init_up.set_result(None)
        self.family.leave(self)
        self.tasks_sweeping.tell_all(last=True)
        if not self.ready.done():
            self.ready.set_exception(WorkerEnded(exit.message or "it ended"))
            self.ready.exception()  # seen: not everybody waits for it
        for sent in self.signalled.values():
            if not sent.done():
                sent.set_result(False)
        self.signalled.clear()
        if self.owner is not None:
            self.owner.on_gone(exit)
        if self.group is not None:
            self.letting_go = self._loop.run_in_executor(None, LimitApplier.release, self.group)

    def close(self) -> None:
        """Let go of every descriptor."""
        for timer in (self._kill_timer, self._giving_way):
            if timer is not None:
                timer.cancel()
        for sender in (self._wire_out, self._status_out):
            sender.forget()
        if self._departure is not None:
            self._departure.close()
        for fd in list(self._open):
            self._unwatch(fd)
        self._wire.close()
        self._status.close()
        self.stdin.close()
        if self.door is not None:
            self.door.close()
            self.door = None
        self._pipes.close()
        for fd in self._doors:
            os.close(fd)


def _close_all(*fds: int) -> None:
    for fd in fds:
        os.close(fd)
