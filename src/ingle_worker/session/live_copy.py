"""A live copy of the session's process: what fork, checkpoint, rollback and saving are made of.

Between cells the worker forks a process beside itself: a child of init's, as the worker is, so that neither `os.wait()`
nor a SIGCHLD handler of the user's sees anything of it. One copy is that process itself; of several it is their maker,
which goes when they are there. Either way the worker goes on as soon as it has forked once. A copy has all that a fork
copies: memory, open files, folder, environment; and the state of `random`, which Python would have seeded anew. The
streams, the wire and the place in init's memory are its own. It has no thread but its own, no child, and a new event
loop when it needs one; the original is told what is missing.

With other threads only libc can fork (see `cloning`). Then a process in between is the worker's child for a moment, and
the worker waits until it exits.
"""

import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import fcntl
import os
import random
import select
import sys
import tempfile
import threading
import weakref
from _thread import get_ident, get_native_id
from mmap import PAGESIZE, mmap
from time import monotonic
from typing import Any

from ingle_worker.magics import packages
from ingle_worker.processes import clone, linux
from ingle_worker.processes.fork import reseed_numpy
from ingle_worker.session.event_loop import Looping
from ingle_worker.session.input_stream import Input
from ingle_worker.session.interrupts import PID, TAGGED, Interrupts, place
from ingle_worker.session.link import Link
from ingle_worker.session.output_streams import Channel
from ingle_worker.wire import messages
from ingle_worker.wire.messages import FDS_PER_COPY, Copied, EndsWanted, ForkSelf, NotCopied, Rehome, Started

BATCH = 16
"""Copies by one maker: each takes four descriptors of the session's until there is the maker."""

PATIENCE = 5
"""Seconds for what a library does after a fork; then the new process is ended by an alarm."""

NAMED = 10
"""Threads or children that are named; of more the number is told."""

Own = tuple[int, list[int]]
"""A place, and the descriptors that belong to it."""


class Copying:
    def __init__(
        self,
        link: Link,
        interrupts: Interrupts,
        channel: Channel,
        input: Input,
        looping: Looping,
        spares: dict[int, int],
    ) -> None:
        self._link = link
        self._interrupts = interrupts
        self._channel = channel
        self._input = input
        self._looping = looping
        self._spares = spares
        self._shared = memoryview(b"")
        self._init = -1
        self._under_way = False
        self._only: Own | None = None
        """In a process that is a copy from its first moment: what is its own."""
        self.running: list[Any] = []
        """In a copy: the threads that ran in the original. Here they seem to have ended."""
        self.settled = True
        """It dies with init. A copy may not from the beginning: one that was in between may still be its parent."""

    def publish_to(self, shared: memoryview) -> None:
        """Where the places of all copies are."""
        self._shared = shared
        self._init = os.getppid()

    def is_forking(self) -> bool:
        """Whether it was us who forked this process, and not a user's code, be it by another thread."""
        return self._under_way and get_ident() == threading.main_thread().ident

    # --- in the original ---

    def fork(self, order: ForkSelf) -> bool:
        """Make copies, and tell. True in a copy, which has yet to say that it is there."""
        # No handler of the user's may raise in the middle of this.
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        original = os.getpid()
        try:
            return self._fork(order, original)
        except BaseException:
            if os.getpid() != original:
                os._exit(1)  # there is one session on a wire, never two
            raise
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def _fork(self, order: ForkSelf, original: int) -> bool:
        failed: list[int] = []
        reason = ""
        notices = self._missing()
        if monotonic() > order.until:
            failed, reason = order.slots, "it came too late to be of use"
        else:
            for start in range(0, len(order.slots), BATCH):
                batch = order.slots[start : start + BATCH]
                self._link.send(EndsWanted(order.ticket, batch))
                family = [self._receive_ends() for _ in batch]
                if not all(fds for _, fds in family):
                    reason = "no descriptors are left in the session"
                    failed += [slot for slot, fds in family if not fds]
                try:
                    mine = self._breed([own for own in family if own[1]])
                except OSError as error:
                    if os.getpid() != original:
                        raise
                    reason = f"no process could be forked: {error.strerror}"
                    failed = batch
                else:
                    if mine is not None:
                        self._become(*mine)
                        return True
                if failed:
                    # What failed once will not go better the next moment.
                    failed += order.slots[start + BATCH :]
                    break
        self.running.clear()
        self._link.send(Copied(order.ticket, notices, failed, reason))
        return False

    def _receive_ends(self) -> Own:
        ends, fds = self._link.receive_ends()
        if len(fds) != FDS_PER_COPY:  # called off; or this process has no descriptor left
            _close(fds)
            return ends.slot, []
        return ends.slot, fds

    def _breed(self, family: list[Own]) -> Own | None:
        """Fork. None in the original; in a copy what is its own. Raises OSError when there is no process to be had."""
        if not family:
            return None
        state = _random_state()
        on_alarm = _signal.getsignal(_signal.SIGALRM)
        beside = clone.can_fork_beside(self._init)
        self._only = family[0] if len(family) == 1 else None
        mine: Own | None = None
        self._under_way = True
        try:
            child = self._fork_once(beside)
            if child == 0:
                mine = self._only or self._make_each(family)
                _signal.alarm(0)
                if on_alarm is not None:
                    _signal.signal(_signal.SIGALRM, on_alarm)
                _set_random_state(state)
            elif beside and self._only is not None:
                # Both write it: whichever of them is killed, init knows whose place it is.
                place(self._shared, self._only[0])[PID] = child
        finally:
            self._under_way = False
            self._only = None
            for _, fds in family:
                if mine is None or fds is not mine[1]:
                    _close(fds)
        return mine

    def _fork_once(self, beside: bool) -> int:
        if beside:
            return clone.fork_whole(clone.fork_beside)
        # That somebody ends is nobody's business: while SIGCHLD is ignored it is never sent, but blocked it would be
        # kept for later.
        on_child = _signal.getsignal(_signal.SIGCHLD)
        if callable(on_child):
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGCHLD})
        number = place(self._shared, self._only[0])[PID : PID + 1] if self._only is not None else _common_memory()
        missed, child, status = False, -1, 0
        try:
            child = clone.fork_whole(lambda: clone.fork_twice(number))
            if child:
                status = _wait_for(child)
                missed = callable(on_child) and _child_has_ended()
        finally:
            _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGCHLD})
            if callable(on_child):
                _signal.signal(_signal.SIGCHLD, on_child)
                if missed:
                    _signal.raise_signal(_signal.SIGCHLD)
        if child and not number[0]:
            raise _failure(status)
        return child

    def forked(self) -> None:
        """In the new process, before any function that a library has registered to run there."""
        if self._only is not None:
            self._claim(self._only[0])
        _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGALRM})
        _signal.alarm(PATIENCE)

    def _claim(self, slot: int) -> None:
        its_place = place(self._shared, slot)
        its_place[TAGGED] = linux.tag(slot)
        its_place[PID] = os.getpid()

    def _make_each(self, family: list[Own]) -> Own:
        """In the maker, which does not return: only the copies do. Those that cannot be made are told why on their own
        wires."""
        # There is no other thread here. Whose child it is by now, theirs are too.
        fork = clone.fork_beside if clone.can_clone() else linux.fork_bare
        try:
            while family:
                slot, fds = family[0]
                its_place = place(self._shared, slot)
                its_place[TAGGED] = linux.tag(slot)
                pid = fork()
                its_place[PID] = pid or os.getpid()
                if pid == 0:
                    return slot, fds
                _close(fds)
                del family[0]
        except OSError as error:
            told = messages.encode(NotCopied(f"no process could be forked: {error.strerror}"))
            for _, fds in family:
                os.write(fds[3], told)
        os._exit(0)

    def _missing(self) -> list[str]:
        """What of this process no copy has."""
        try:
            return [f"not copied: {each}" for each in self._find_missing()]
        except Exception as error:  # the border to the cell: it may have changed what threading or asyncio say
            return [f"what was not copied cannot be told: {type(error).__name__}"]

    def _find_missing(self) -> list[str]:
        missing = []
        self.running = [each for each in threading.enumerate() if each is not threading.main_thread()]
        names = [each.name for each in self.running]
        if names:
            missing.append(f"{_count(names, 'thread')} of the original: {_listed(names)}")
        tasks = self._looping.count_tasks()
        if tasks:
            missing.append(f"{tasks} {'task' if tasks == 1 else 'tasks'} of the original's event loop")
        children = [f"{linux.name_of(pid)} (pid {pid})" for pid in linux.children(os.getpid())]
        if children:
            missing.append(f"{_count(children, 'child process', 'es')} of the original: {_listed(children)}")
        return missing

    # --- in a copy ---

    def _become(self, slot: int, fds: list[int]) -> None:
        os.setsid()
        self.settled = False
        self._interrupts.publish_to(place(self._shared, slot))
        self._take_descriptors(fds)
        self._channel.start_anew()
        self._input.start_anew()
        self._looping.leave()
        threading.main_thread()._native_id = get_native_id()  # type: ignore[attr-defined]
        _begin_again()
        processes: Any = sys.modules.get("multiprocessing.process")
        if processes is not None:
            # At its end it would terminate the original's.
            processes._children = set()

    def _take_descriptors(self, fds: list[int]) -> None:
        """Put the new streams wherever the original had its own, and take part in no poll of the original's."""
        streams = {_target(self._spares[number]): fds[number] for number in self._spares}
        for number in (0, 1, 2):
            # The original's, unless code has put something else there.
            if _target(number) in streams or _target(number) == "":
                os.dup2(fds[number], number, inheritable=True)
        self._link.move_to(fds[3])
        for number, spare in self._spares.items():
            os.dup2(fds[number], spare, inheritable=False)
        for fd in _open_descriptors():
            target = _target(fd)
            if target == EPOLL:
                _make_own(fd)
            elif target in streams and _mode(fd) == _mode(streams[target]):
                os.dup2(streams[target], fd, inheritable=os.get_inheritable(fd))
        _close(fds)

    def settle(self) -> None:
        """Die with init from now on, if this is its child by now: if its maker is gone."""
        if os.getppid() == self._init:
            linux.die_with_parent()
            self.settled = True

    def rehome(self, order: Rehome) -> None:
        """Become a session of its own: with its own folder for temporary files, and for packages."""
        for folder in order.folders:
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue
        os.environ["TMPDIR"] = order.tmp
        tempfile.tempdir = None
        packages.start(order.packages)
        # What was registered before belongs to the original: a temporary folder that it has must outlive its copy.
        atexit._clear()
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            each.atexit = False
        if order.reseed:
            for each in _generators():
                each.seed()
            reseed_numpy()
        self._link.send(Started(os.getcwd(), []))


def _begin_again() -> None:
    """Threads that have not begun can begin in a copy too: 3.13 takes all but this one for ended after a fork."""
    handle: Any = getattr(_thread, "_ThreadHandle", None)
    if handle is None:
        return
    for each in list(threading._dangling):  # type: ignore[attr-defined]
        if vars(each).get("_initialized") and not each._started.is_set():
            each._handle = handle()


EPOLL = "anon_inode:[eventpoll]"


def _open_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return []


def _target(fd: int) -> str:
    """What a descriptor is of; the same for two of the same pipe."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def _mode(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE


def _make_own(fd: int) -> None:
    """An epoll is shared by all who have it, and so is every change: put one of the same content in its place."""
    own = select.epoll()
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb", buffering=0) as file:
            lines = file.read(1 << 20).splitlines()
        for line in lines:
            if line.startswith(b"tfd:"):
                words = line.split()
                try:
                    own.register(int(words[1]), int(words[3], 16))
                except OSError:  # closed by now
                    continue
        os.dup2(own.fileno(), fd, inheritable=False)
    except (OSError, ValueError, IndexError):
        os.dup2(own.fileno(), fd, inheritable=False)
    finally:
        own.close()


def _close(fds: list[int]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue
    fds.clear()


def _wait_for(pid: int) -> int:
    """The exit status of a child; 0 where a thread of the user's, or SIGCHLD ignored, has taken it away."""
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0


def _common_memory() -> memoryview:
    """A number that a process has in common with those that it forks."""
    return memoryview(mmap(-1, PAGESIZE)).cast("q")[:1]


def _failure(status: int) -> OSError:
    """Of one in between that came to no copy."""
    if os.WIFSIGNALED(status):
        return OSError(0, f"what a library does after a fork was ended by signal {os.WTERMSIG(status)}")
    return OSError(os.WEXITSTATUS(status), os.strerror(os.WEXITSTATUS(status)))


def _child_has_ended() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _random_state() -> Any:
    """That of the generator behind `random.random()`: of the module that is imported now, if code imported it anew."""
    return [(each, each.getstate()) for each in _generators()]


def _generators() -> list[Any]:
    current = getattr(sys.modules.get("random"), "_inst", None)
    return [random._inst] if current is None or current is random._inst else [random._inst, current]


def _set_random_state(state: Any) -> None:
    for each, was in state:
        each.setstate(was)


def _count(names: list[str], noun: str, plural: str = "s") -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else plural}"


def _listed(names: list[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"
