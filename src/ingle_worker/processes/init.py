"""The init of a session: parent process of its workers and subreaper for their orphans.

A worker can make live copies of itself (`session.live_copy`), which are children of the same init. Init serves each
worker by its own socket. It reports every exit status to the host and sends SIGINT to the right foreground group. When
a worker's socket closes, init kills the worker and all its descendants. It runs no user code and touches little memory.
"""

import _socket
import fcntl
import os
import select
import struct

# Imported by name: a lookup in the module would touch three more pages, which are then copied in every init.
from _signal import (  # type: ignore[import-not-found]
    SIG_DFL,
    SIG_IGN,
    SIGCHLD,
    SIGCONT,
    SIGHUP,
    SIGINT,
    SIGTERM,
    set_wakeup_fd,
    signal,
)
from collections.abc import Callable
from mmap import mmap
from os import O_CLOEXEC, O_NONBLOCK, close, getpid, getsid, pipe2, setsid, write
from select import POLLIN, poll
from time import monotonic, sleep
from typing import Any

from ingle_worker.processes import file_agent, kill_tree, linux
from ingle_worker.processes.linux import become_subreaper
from ingle_worker.session.interrupts import (
    MAX_NUDGES,
    NUDGE,
    NUDGE_AFTER_MS,
    OWED,
    PID,
    RUNNING,
    SHORT,
    TAGGED,
    WORDS,
    slot_words,
)
from ingle_worker.wire import FrameReader, encode_frame, messages
from ingle_worker.wire.constants import FAILED_EXIT_CODE, MAX_WORKERS_PER_INIT

INIT_UP = messages.NUMBERS[messages.InitUp]
FLAGS = O_NONBLOCK | O_CLOEXEC
SHARED_SIZE = MAX_WORKERS_PER_INIT * WORDS * 8
Run = Callable[[int], None]
SWEPT, STAYS = messages.Swept(), messages.Swept(stays=True)
IGNORED = (SIGINT, SIGTERM, SIGHUP)
FDS_SPACE = _socket.CMSG_SPACE(messages.FDS_PER_KEEP * struct.calcsize("i"))
WATCHED_ENDS = (0, 3, 4)
"""Places of the wire, stdout and stderr among the descriptors of `KeepEnds`."""


ADOPTION_CHECKS = 100
"""How often init checks whether a copy that must end has become its child."""


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor reports the signal."""


def report_up(fd: int, worker: int, joined: bool = False, tmp: int = 0, listener: int = -1) -> None:
    # Encoded by hand: a message object would touch, and so copy, fifty pages of every init.
    word = b"true" if joined else b"false"
    frame = encode_frame(INIT_UP, b'{"pid":%d,"worker":%d,"joined":%s,"tmp":%d}' % (getpid(), worker, word, tmp))
    if listener < 0:
        write(fd, frame)
        return
    status = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
    try:
        status.sendmsg([frame], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", listener))])
    finally:
        status.detach()


class Member:
    """One worker of this init."""

    __slots__ = (
        *("ended", "fd", "folders", "kept", "known_pid", "next_fd", "nudges", "reader", "signalled", "slot", "socket"),
        *("told", "view", "words"),
    )

    def __init__(self) -> None:
        self.known_pid = 0
        self.slot = 0
        self.fd = -1
        self.socket: _socket.socket | None = None
        """Created at the first read. Most sessions never need it."""
        self.words = memoryview(b"")
        self.kept: list[int] = []
        """Descriptors of the host that init keeps while the worker is idle."""
        self.next_fd = -1  # for the order of another session, if init stays
        self.folders: list[str] = []  # of the session that ends then
        self.view = -1
        """Mount namespace in which the worker sees its files, if not that of init."""
        self.signalled = 0
        self.nudges = 0
        self.reader = FrameReader()
        self.ended = False
        """The process is gone, or must end."""
        self.told = False
        """Its exit status was reported. From then on its pid may belong to another process."""

    @property
    def pid(self) -> int:
        """The pid, or 0 while there is no process. The worker writes it to shared memory, so it must be a child of
        ours."""
        if not self.known_pid and (written := self.words[PID]) and linux.parent_of(written) == os.getpid():
            self.known_pid = written
        return self.known_pid

    def is_process(self, pid: int) -> bool:
        """Return whether a process that has just ended was this worker."""
        return not self.told and pid == (self.known_pid or self.words[PID])

    def use_view(self, fd: int) -> None:
        """Replace the view by another one; -1: by that of init."""
        if self.view >= 0:
            os.close(self.view)
        self.view = fd

    def view_number(self) -> int:
        """Return the number of the worker's mount namespace, or 0 if it has that of init."""
        return os.fstat(self.view).st_ino if self.view >= 0 else 0

    def send(self, message: object) -> None:
        try:
            os.write(self.fd, messages.encode(message))
        except OSError:
            self.ended = True


class Init:
    """The init of one session. The zygote creates it, a child prepares it ahead of time, and `run` is its main loop."""

    def __init__(self) -> None:
        self.shared = memoryview(b"")
        self._members = [Member()]
        self._nudged = 0.0
        """When a worker was nudged last, or 0 if none needs it."""
        self._wake_read = self._wake_write = -1
        self.on_enter: Callable[[messages.Enter], None] | None = None
        """Mounts the session's folders in its sandbox, if it has one."""
        self.on_leave: Callable[[list[str]], None] = linux.remove_empty
        """Removes folders of an ended session, if they are empty."""
        self.on_shell: Callable[[int], None] | None = None
        """Runs the init of a shell task on this status socket."""
        self.on_files: Callable[[int], None] = file_agent.serve
        """Serves one file request on this socket."""
        self.on_make_view: Callable[[messages.MakeView, int, int], None] | None = None
        """Makes a view for a copy of a worker, given by its pid, and answers on this socket."""
        self.on_close_view: Callable[[messages.CloseView, int, int], None] | None = None
        """Undoes a view, given by its mount namespace, and answers on this socket."""
        self.enter_mounts: Callable[[int], None] | None = None
        """Enters a mount namespace."""
        self.joined, self.tmp = False, 0
        """Whether init and its worker are in the cgroup they were promised; bytes of the session's own /tmp, or 0."""
        self.listener = -1
        """Socket on which the host's proxy accepts, or -1."""
        self._tasks: dict[int, tuple[int, Member, bool]] = {}
        """Shell tasks and file agents by pid: tag of their descendants, their worker, and whether they end with it."""
        self._last_tag = MAX_WORKERS_PER_INIT
        self._handlers: dict[int, Any] = {}
        """Handlers that `run` replaced, among them that of the workers for SIGINT."""

    def prepare(self) -> None:
        """Do all work that does not depend on the session and that a worker can undo."""
        become_subreaper()
        if getpid() != getsid(0):
            setsid()
        self._wake_read, self._wake_write = pipe2(FLAGS)
        set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # Before the worker is forked, so that its exit is never missed.
        signal(SIGCHLD, _ignore_signal)
        self._poller = poll()
        self._poller.register(self._wake_read, POLLIN)
        self._reset()

    def prepare_again(self) -> None:
        """Prepare for another session after `run` has returned. Nothing is left of the last one."""
        for number, handler in self._handlers.items():
            signal(number, handler)
        self._reset()

    def _reset(self) -> None:
        # Memory for all possible workers: pages that are never written cost nothing.
        self.shared = memoryview(mmap(-1, SHARED_SIZE)).cast("q")
        self._members = [Member()]
        self._members[0].words = slot_words(self.shared, 0)
        self._nudged = 0.0
        self._tasks.clear()
        self._last_tag = MAX_WORKERS_PER_INIT
        self.joined = False

    def reset_in_worker(self) -> None:
        """Undo `prepare` in the worker."""
        set_wakeup_fd(-1)
        signal(SIGCHLD, SIG_DFL)
        close(self._wake_read)
        close(self._wake_write)

    def run(self, status_fd: int, worker: int) -> int:
        """Run until the last worker or the host is gone, then kill everything below.

        Return only if the host has ordered to stay: with the descriptor on which the next order comes.
        """
        first = self._members[0]
        first.fd, first.known_pid = status_fd, worker
        for number in IGNORED:
            self._handlers[number] = signal(number, SIG_IGN)
        self._poller.register(status_fd, POLLIN)
        report_up(status_fd, worker, self.joined, self.tmp, self.listener)
        while True:
            for member in self._members:
                if member.ended:
                    if (next_fd := self._end_worker(member)) >= 0:
                        return next_fd
                    break
            else:
                ready = self._poller.poll(NUDGE_AFTER_MS if self._nudged else None)
                self._handle_events(ready)

    def _handle_events(self, ready: list[tuple[int, int]]) -> None:
        """Handle exits, orders and due nudges."""
        if self._nudged and (not ready or monotonic() - self._nudged > NUDGE_AFTER_MS / 1000):
            self._nudge()
        for fd, _ in ready:
            if fd == self._wake_read:
                os.read(self._wake_read, 4096)
                kill_tree.reap(self._on_exit)
        for member in self._members.copy():
            for fd, _ in ready:
                if fd == member.fd and not self._carry_out(member):
                    member.ended = True
                elif fd in member.kept:
                    self._return_ends(member)

    def _on_exit(self, pid: int, status: int, usage: Any) -> None:
        tag, owner, _ = self._tasks.pop(pid, (0, None, False))
        if owner is not None and status:
            # The task's init was killed, so its descendants are ours to kill.
            kill_tree.sweep(self._on_exit, chosen=lambda each: linux.tag_of(each) == tag)
            if owner in self._members:
                owner.send(messages.Swept(pid))
        for member in self._members:
            if member.is_process(pid):
                member.ended = member.told = True
                member.send(messages.Exited(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss))

    def _end_worker(self, member: Member) -> int:
        """End a worker and its descendants. If init stays, return the socket of the next order, else -1.

        Swept is sent before the socket closes: a killed init closes it too.
        """
        others = [each for each in self._members if each is not member]
        for _ in range(ADOPTION_CHECKS):
            if member.pid or not linux.parent_of(member.words[PID]):
                break
            sleep(0.002)  # it was just forked, and becomes our child when its parent exits
        if not others:
            kill_tree.sweep(self._on_exit)
            self._return_ends(member)
            if member.next_fd < 0:
                member.send(SWEPT)
                os._exit(0)  # also closes the socket
            self.on_leave(member.folders)
            member.send(STAYS)
            next_fd, member.next_fd = member.next_fd, -1
            self._remove(member)
            return next_fd
        # A task of another worker has no tag of its own until it runs.
        tasks = [pid for pid, (_, owner, _) in self._tasks.items() if owner is not member]
        # An agent would go on to write files.
        agents = [pid for pid, (_, owner, ends) in self._tasks.items() if owner is member and ends]
        spared, belongs = [*tasks, *(each.pid for each in others)], self._belongs_to(member, others)
        kill_tree.sweep(self._on_exit, spared, lambda pid: pid in agents or belongs(pid))
        self._return_ends(member)
        member.send(SWEPT)
        self._remove(member)
        return -1

    def _remove(self, member: Member) -> None:
        self._members.remove(member)
        self._poller.unregister(member.fd)
        if member.socket is not None:
            member.socket.detach()
        os.close(member.fd)
        if member.next_fd >= 0:
            os.close(member.next_fd)
        member.use_view(-1)

    @staticmethod
    def _belongs_to(member: Member, others: list[Member]) -> kill_tree.Choice:
        """Return a test for which children of init belong to this worker: itself, and orphans with its tag.

        A process can change its tag, but it cannot leave a view that only this worker has. Without tags and views only
        orphans of its terminal session count. The others end with the last worker.
        """
        worker, slot = member.pid, member.slot
        view = member.view_number()
        if view and view not in [each.view_number() for each in others]:
            return lambda pid: pid == worker or linux.tag_of(pid) == slot or linux.mounts_of(pid) == view
        if all(each.words[TAGGED] for each in (member, *others) if each.slot):
            return lambda pid: pid == worker or linux.tag_of(pid) == slot
        return lambda pid: pid == worker or linux.session_of(pid) == worker

    def _carry_out(self, member: Member) -> bool:
        """Carry out the host's orders. Return False if this worker must end."""
        if member.socket is None:
            member.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, member.fd)
        try:
            data, extra, _, _ = member.socket.recvmsg(65536, FDS_SPACE, _socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        if not data:
            return False
        fds = [fd for each in extra for (fd,) in struct.iter_unpack("i", each[2])]
        for frame in member.reader.feed(data):
            message = messages.decode(frame)
            if isinstance(message, messages.Interrupt):
                self._interrupt(member, message)
            elif isinstance(message, messages.Adopt):
                self._adopt(message.slot, fds.pop(), member)
            elif isinstance(message, messages.Shell):
                self._run_child(member, self.on_shell, fds.pop(), member.view, ends=False)
            elif isinstance(message, messages.ServeFiles):
                self._run_child(member, self.on_files, fds.pop(), -1 if message.outside else member.view)
            elif isinstance(message, (messages.MakeView, messages.CloseView)):
                self._change_view(member, message, fds.pop())
            elif isinstance(message, messages.UseView):
                member.use_view(fds.pop())
            elif isinstance(message, messages.Enter):
                if not self._enter(member, message):
                    return False
            elif isinstance(message, messages.Stay):
                member.next_fd, member.folders = fds.pop(), message.folders
            elif isinstance(message, messages.KeepEnds):
                member.kept = [fds.pop(0) for _ in range(messages.FDS_PER_KEEP)]
                for place in WATCHED_ENDS:
                    self._poller.register(member.kept[place], POLLIN)
            elif isinstance(message, messages.ReturnEnds):
                self._return_ends(member)
            elif isinstance(message, messages.Kill):
                return False
        return True

    def _return_ends(self, member: Member) -> None:
        """Return the descriptors that this init keeps for the host, if any."""
        if not member.kept:
            return
        assert member.socket is not None
        for place in WATCHED_ENDS:
            self._poller.unregister(member.kept[place])
        try:
            content = struct.pack(f"{len(member.kept)}i", *member.kept)
            member.socket.sendmsg(
                [messages.encode(messages.EndsReturned())], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, content)]
            )
        except OSError:
            member.ended = True
        for fd in member.kept:
            os.close(fd)
        member.kept = []

    def _change_view(self, member: Member, order: "messages.MakeView | messages.CloseView", fd: int) -> None:
        make, close = self.on_make_view, self.on_close_view
        pid = member.pid  # known in this process only
        if isinstance(order, messages.MakeView):
            self._run_child(member, None if make is None else lambda fd: make(order, pid, fd), fd)
        else:
            self._run_child(member, None if close is None else lambda fd: close(order, member.view, fd), fd)

    def _run_child(self, member: Member, run: Run | None, fd: int, view: int = -1, *, ends: bool = True) -> None:
        """Run `run` in a child of init, inside the session's confinement. A closed socket reports a failure.

        `view` is the mount namespace of the child, if not that of init. If it `ends`, it does so with the worker.
        """
        try:
            pid = linux.fork_bare() if run is not None else -1
        except OSError:
            pid = -1
        self._last_tag += 1
        if pid > 0:
            self._tasks[pid] = self._last_tag, member, ends
        if pid == 0:
            try:
                linux.tag(self._last_tag)
                set_wakeup_fd(-1)
                kept = (own for each in self._members for own in (each.fd, each.next_fd, *each.kept) if own >= 0)
                for own in (*kept, self._wake_read, self._wake_write):
                    os.close(own)
                if view >= 0 and self.enter_mounts is not None:
                    self.enter_mounts(view)
                for each in self._members:
                    if each.view >= 0 and each is not member:
                        os.close(each.view)
                assert run is not None
                run(fd)
                os._exit(0)
            finally:
                os._exit(FAILED_EXIT_CODE)  # so that `_on_exit` kills what a task's init leaves
        os.close(fd)

    def _enter(self, member: Member, message: messages.Enter) -> bool:
        try:
            if self.on_enter is not None:
                self.on_enter(message)
        except OSError as error:
            member.send(messages.NotEntered(str(error)))
            return False
        return True

    def _adopt(self, slot: int, fd: int, origin: Member) -> None:
        member = Member()
        if origin.view >= 0:
            member.view = fcntl.fcntl(origin.view, fcntl.F_DUPFD_CLOEXEC, 0)
        member.slot, member.fd, member.words = slot, fd, slot_words(self.shared, slot)
        member.words[RUNNING] = member.words[OWED] = member.words[PID] = member.words[TAGGED] = 0
        self._members.append(member)
        self._poller.register(fd, select.POLLIN)
        report_up(fd, 0)

    def _interrupt(self, member: Member, message: messages.Interrupt) -> None:
        words, worker = member.words, member.pid
        if words[RUNNING] != message.cell or not worker:
            # The cell has not started, or is over. The host knows which, and asks again in the first case.
            member.send(messages.Signalled(message.order, True))
            return
        if not message.again or member.signalled != message.cell:
            ignored, stopped = linux.sigint_state(worker)
            words[OWED] = message.cell if ignored else 0
            if ignored:
                # Before SIGINT, which may end the cell by ending a child it waits for.
                kill_tree.kill_quietly(worker, NUDGE)
            words[SHORT] = message.cell if message.memory else 0
            kill_tree.kill_quietly(worker if message.memory else -worker, SIGINT)
            if stopped:
                kill_tree.kill_quietly(-worker, SIGCONT)
            member.signalled = message.cell
            member.nudges = MAX_NUDGES
            self._nudged = monotonic()
        owed = words[OWED] == message.cell
        if owed:
            kill_tree.kill_quietly(worker, NUDGE)
        member.send(messages.Signalled(message.order, owed))

    def _nudge(self) -> None:
        self._nudged = 0.0
        for member in self._members:
            if not member.nudges:
                continue
            if member.words[RUNNING] != member.signalled:
                member.nudges = 0
                continue
            member.nudges -= 1
            self._nudged = monotonic()
            kill_tree.kill_quietly(member.pid, NUDGE)
            if linux.sigint_state(member.pid)[1]:
                # It was stopped after the first check, and takes no signal until it continues.
                kill_tree.kill_quietly(-member.pid, SIGCONT)
