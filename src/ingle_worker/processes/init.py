"""The tiny init of a session: parent of the worker, adopter of all its strays, outside of the cell's process group.

A worker can make live copies of itself (see `copying`), which are init's children as it is: then init has a family,
and serves each member by a socket of its own. It promises that each worker's exit status reaches the host, that SIGINT
goes to the foreground group of the one that is meant, and that nothing of a worker outlives it, nor anything the
host: when a worker's socket closes, it is killed with all it has started; when the last one is gone, so is all below.
It runs no code of a user's, and touches as little memory as it can.
"""

import _socket
import os
import select
import struct

# By their own names, where every init comes by on its way to its loop: to look one up in its module touches three more
# pages, which are copied in each of them.
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
from os import O_CLOEXEC, O_NONBLOCK, close, fstat, getpid, getsid, pipe2, setsid, write
from select import POLLIN, poll
from time import monotonic, sleep
from typing import Any

from ingle_worker.processes import file_agent, kill_tree, linux
from ingle_worker.processes.linux import become_subreaper
from ingle_worker.session.interrupts import NUDGE, NUDGE_AFTER, NUDGES, OWED, PID, RUNNING, TAGGED, WORDS, place
from ingle_worker.wire import FrameReader, encode_frame, messages
from ingle_worker.wire.constants import FAILED_EXIT_CODE, MAX_WORKERS_PER_INIT

INIT_UP = messages.NUMBERS[messages.InitUp]
JOIN = messages.encode(messages.Join())
WAYS_IN = _socket.CMSG_SPACE(messages.FDS_PER_JOIN * struct.calcsize("i"))
FLAGS = O_NONBLOCK | O_CLOEXEC
SHARED_SIZE = MAX_WORKERS_PER_INIT * WORDS * 8
FILE_KIND, FOLDER = 0o170000, 0o040000
SWEPT = messages.Swept()
ONE_FD = _socket.CMSG_SPACE(struct.calcsize("i"))


ADOPTION = 100
"""How often init looks whether a copy that shall end is its child by now."""


def _notice(number: int, frame: object) -> None:
    """The wake-up descriptor says it all."""


def say_up(fd: int, worker: int, joined: bool = False) -> None:
    # Written by hand: to build and encode a message would touch, and so copy, fifty pages of every init.
    word = b"true" if joined else b"false"
    write(fd, encode_frame(INIT_UP, b'{"pid":%d,"worker":%d,"joined":%s}' % (getpid(), worker, word)))


def join(status_fd: int) -> tuple[bool, int] | None:
    """Wait for the way into the session's group and go in, before there is a worker: it is born in there.

    Whether that was possible; and the folder of a group which one cannot go into like that, but fork into. None when
    there is to be no session.
    """
    status = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, status_fd)
    try:
        # No more than this: what else there is, is to be read by whoever obeys it.
        data, extra, _, _ = status.recvmsg(len(JOIN), WAYS_IN, _socket.MSG_CMSG_CLOEXEC)
    finally:
        status.detach()
    if data != JOIN:
        return None
    joined, folder = bool(extra), -1
    for each in extra:
        for (fd,) in struct.iter_unpack("i", each[2]):
            if fstat(fd).st_mode & FILE_KIND == FOLDER:
                folder = fd
                continue
            try:
                write(fd, b"0")
            except OSError:
                joined = False  # the host finds another way
            close(fd)
    return joined, folder


class Member:
    """One worker of the family."""

    __slots__ = ("ended", "fd", "known_pid", "nudges", "place", "reader", "signalled", "slot", "socket", "told")

    def __init__(self) -> None:
        self.known_pid = 0
        self.slot = 0
        self.fd = -1
        self.socket: _socket.socket | None = None
        """Made when something is to be read: most of the time, and in most sessions for ever, nothing is."""
        self.place = memoryview(b"")
        self.signalled = 0
        self.nudges = 0
        self.reader = FrameReader()
        self.ended = False
        """The process is gone, or shall be."""
        self.told = False
        """Its exit status was; from then on its number may be another's."""

    @property
    def pid(self) -> int:
        """The process; 0 while there is none. Whoever has the place has written it there, so it is looked at once, and
        believed of a child of ours only."""
        if not self.known_pid and (written := self.place[PID]) and linux.parent_of(written) == os.getpid():
            self.known_pid = written
        return self.known_pid

    def is_process(self, pid: int) -> bool:
        """Of one that has just ended: whether it was this."""
        return not self.told and pid == (self.known_pid or self.place[PID])

    def send(self, message: object) -> None:
        try:
            os.write(self.fd, messages.encode(message))
        except OSError:
            self.ended = True


class Init:
    """Made in the zygote, so that its making is shared; prepared ahead in a process of its own; alive from `run` on."""

    def __init__(self) -> None:
        self.shared = memoryview(b"")
        self._members = [Member()]
        self._nudged = 0.0
        """When somebody was, last; 0 when nobody is to be."""
        self._wake_read = self._wake_write = -1
        self.on_enter: Callable[[messages.Enter], None] | None = None
        """Lays the session's folders into its room, where it has one."""
        self.on_shell: Callable[[int], None] | None = None
        """Becomes the init of a shell task, on this status socket."""
        self.on_files: Callable[[int], None] = file_agent.serve
        """Serves a request for files of the session, on this socket."""
        self.joined = False
        """It is in the group that it was to join."""
        self._tasks: dict[int, tuple[int, Member]] = {}
        """Inits of shell tasks and file agents: the tag that marks all their descendants, and the worker they serve."""
        self._last_tag = MAX_WORKERS_PER_INIT

    def prepare(self) -> None:
        """All that need not wait for the session, and that a worker can leave again."""
        become_subreaper()
        if getpid() != getsid(0):
            setsid()
        # Memory for a whole family; of what is never written to there is none.
        self.shared = memoryview(mmap(-1, SHARED_SIZE)).cast("q")
        self._wake_read, self._wake_write = pipe2(FLAGS)
        set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # Before there is a worker: however soon it goes, its signal is noticed.
        signal(SIGCHLD, _notice)
        self._poller = poll()
        self._poller.register(self._wake_read, POLLIN)
        self._members[0].place = place(self.shared, 0)

    def leave(self) -> None:
        """In the worker: it is not init."""
        set_wakeup_fd(-1)
        signal(SIGCHLD, SIG_DFL)
        close(self._wake_read)
        close(self._wake_write)

    def run(self, status_fd: int, worker: int) -> None:
        """Until the last worker or the host is gone; then all below is gone too. Never returns."""
        first = self._members[0]
        first.fd, first.known_pid = status_fd, worker
        signal(SIGINT, SIG_IGN)
        signal(SIGTERM, SIG_IGN)
        signal(SIGHUP, SIG_IGN)
        self._poller.register(status_fd, POLLIN)
        say_up(status_fd, worker, self.joined)
        while True:
            for member in self._members:
                if member.ended:
                    self._bury(member)
                    break
            else:
                ready = self._poller.poll(NUDGE_AFTER if self._nudged else None)
                self._attend(ready)

    def _attend(self, ready: list[tuple[int, int]]) -> None:
        """What has come: an exit, an order, or the time to nudge."""
        if self._nudged and (not ready or monotonic() - self._nudged > NUDGE_AFTER / 1000):
            self._nudge()
        for fd, _ in ready:
            if fd == self._wake_read:
                os.read(self._wake_read, 4096)
                kill_tree.reap(self._on_exit)
        for member in self._members.copy():
            for fd, _ in ready:
                if fd == member.fd and not self._obey(member):
                    member.ended = True

    def _on_exit(self, pid: int, status: int, usage: Any) -> None:
        tag, owner = self._tasks.pop(pid, (0, None))
        if owner is not None and status:
            # Somebody has killed it: what ran below it ends here.
            kill_tree.sweep(self._on_exit, chosen=lambda each: linux.tag_of(each) == tag)
            if owner in self._members:
                owner.send(messages.Swept(pid))
        for member in self._members:
            if member.is_process(pid):
                member.ended = member.told = True
                member.send(messages.Exited(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss))

    def _bury(self, member: Member) -> None:
        """End a worker and all it has left behind. That it is done, the host is told before the end of its socket: that
        comes too when init is killed."""
        others = [each for each in self._members if each is not member]
        for _ in range(ADOPTION):
            if member.pid or not linux.parent_of(member.place[PID]):
                break
            sleep(0.002)  # it has just been made, and will be our child when its maker is gone
        if not others:
            kill_tree.sweep(self._on_exit)
            member.send(SWEPT)
            os._exit(0)  # which closes the socket: for the last one, init itself shall be gone too
        kill_tree.sweep(self._on_exit, [each.pid for each in others], self._choice(member, others))
        member.send(SWEPT)
        self._members.remove(member)
        self._poller.unregister(member.fd)
        if member.socket is not None:
            member.socket.detach()
        os.close(member.fd)

    @staticmethod
    def _choice(member: Member, others: list[Member]) -> kill_tree.Choice:
        """Which of init's children are this worker's: itself, and strays by their tag.

        Where tags cannot be had, only those that stayed in its terminal session; the rest ends with the family.
        """
        worker, slot = member.pid, member.slot
        if all(each.place[TAGGED] for each in (member, *others) if each.slot):
            return lambda pid: pid == worker or linux.tag_of(pid) == slot
        return lambda pid: pid == worker or linux.session_of(pid) == worker

    def _obey(self, member: Member) -> bool:
        """Carry out what the host asks. False when this worker shall end."""
        if member.socket is None:
            member.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, member.fd)
        try:
            data, extra, _, _ = member.socket.recvmsg(65536, ONE_FD, _socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return False
        if not data:
            return False
        fds = [struct.unpack("i", each[2])[0] for each in extra]
        for frame in member.reader.feed(data):
            message = messages.decode(frame)
            if isinstance(message, messages.Interrupt):
                self._interrupt(member, message)
            elif isinstance(message, messages.Adopt):
                self._adopt(message.slot, fds.pop())
            elif isinstance(message, messages.Shell):
                self._run_child(member, self.on_shell, fds.pop())
            elif isinstance(message, messages.ServeFiles):
                self._run_child(member, self.on_files, fds.pop())
            elif isinstance(message, messages.Enter):
                if not self._enter(member, message):
                    return False
            elif isinstance(message, messages.Kill):
                return False
        return True

    def _run_child(self, member: Member, run: Callable[[int], None] | None, fd: int) -> None:
        """Run this in a child of init, and so inside the session's confinement. A closed socket reports a failure."""
        try:
            pid = linux.fork_bare() if run is not None else -1
        except OSError:
            pid = -1
        self._last_tag += 1
        if pid > 0:
            self._tasks[pid] = self._last_tag, member
        if pid == 0:
            try:
                linux.tag(self._last_tag)
                set_wakeup_fd(-1)
                for each in (*(member.fd for member in self._members), self._wake_read, self._wake_write):
                    os.close(each)
                assert run is not None
                run(fd)
                os._exit(0)
            finally:
                os._exit(FAILED_EXIT_CODE)  # of a shell task's init: what it leaves is ours to end
        os.close(fd)

    def _enter(self, member: Member, message: messages.Enter) -> bool:
        try:
            if self.on_enter is not None:
                self.on_enter(message)
        except OSError as error:
            member.send(messages.NotEntered(str(error)))
            return False
        return True

    def _adopt(self, slot: int, fd: int) -> None:
        member = Member()
        member.slot, member.fd, member.place = slot, fd, place(self.shared, slot)
        member.place[RUNNING] = member.place[OWED] = member.place[PID] = member.place[TAGGED] = 0
        self._members.append(member)
        self._poller.register(fd, select.POLLIN)
        say_up(fd, 0)

    def _interrupt(self, member: Member, message: messages.Interrupt) -> None:
        place, worker = member.place, member.pid
        if place[RUNNING] != message.cell or not worker:
            # Not begun yet, or over by now: the host knows which, and asks again where it is the former.
            member.send(messages.Signalled(message.order, True))
            return
        if not message.again or member.signalled != message.cell:
            ignored, stopped = linux.sigint_state(worker)
            place[OWED] = message.cell if ignored else 0
            if ignored:
                # Before SIGINT ends what the worker waits for, and the cell with it.
                kill_tree.kill_quietly(worker, NUDGE)
            kill_tree.kill_quietly(-worker, SIGINT)
            if stopped:
                kill_tree.kill_quietly(-worker, SIGCONT)
            member.signalled = message.cell
            member.nudges = NUDGES
            self._nudged = monotonic()
        owed = place[OWED] == message.cell
        if owed:
            kill_tree.kill_quietly(worker, NUDGE)
        member.send(messages.Signalled(message.order, owed))

    def _nudge(self) -> None:
        self._nudged = 0.0
        for member in self._members:
            if not member.nudges:
                continue
            if member.place[RUNNING] != member.signalled:
                member.nudges = 0
                continue
            member.nudges -= 1
            self._nudged = monotonic()
            kill_tree.kill_quietly(member.pid, NUDGE)
            if linux.sigint_state(member.pid)[1]:
                # It was stopped after we had looked, and takes nothing until it goes on.
                kill_tree.kill_quietly(-member.pid, SIGCONT)
