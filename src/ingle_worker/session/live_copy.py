"""Live copies of the session's process, used for fork, checkpoint, rollback and saving.

Between cells the worker forks a sibling, a child of init, so `os.wait()` and SIGCHLD handlers of the user do not see
it. A single copy is that process itself. For several, it forks them and exits. A copy has all that a fork copies, and
the state of `random`. It has its own streams, wire and slot in init's memory, but no other thread, no child process and
no event loop. The original reports what is missing.

With other threads only libc can fork (see `processes.clone`). Then an intermediate process is the worker's child, and
the worker waits for its exit.
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
import types
import weakref
from _thread import get_ident, get_native_id
from collections.abc import Callable
from mmap import PAGESIZE, mmap
from time import monotonic
from typing import Any

from ingle_worker.magics import packages
from ingle_worker.processes import clone, linux
from ingle_worker.processes.fork import reseed_numpy
from ingle_worker.session.event_loop import EventLoop
from ingle_worker.session.input_stream import Input
from ingle_worker.session.interrupts import PID, TAGGED, Interrupts, slot_words
from ingle_worker.session.link import Link
from ingle_worker.session.output_streams import OutputStreams
from ingle_worker.snapshot import devices, own_folder
from ingle_worker.trees.inherited import InheritedWays, lead_nowhere, target
from ingle_worker.trees.mappings import read_maps
from ingle_worker.trees.open_files import OpenFiles, working_directory
from ingle_worker.wire import messages
from ingle_worker.wire.messages import (
    FDS_PER_COPY,
    Copied,
    EndsWanted,
    ForkSelf,
    Holding,
    NotCopied,
    Rehome,
    Started,
    ViewWanted,
)

MAX_BATCH = 16
"""Copies per forked batch. Each needs four descriptors in the session until the fork."""

FORK_HOOKS_SECONDS = 5
"""Seconds for fork hooks of libraries. Then an alarm ends the new process."""

MAX_NAMED = 10
"""Maximum number of threads or children that a notice names."""

FDS_WITHOUT_NETWORK = 2
"""Namespaces of a view that has no network of its own."""

CopySlot = tuple[int, list[int]]
"""A slot and its descriptors."""


class LiveCopies:
    def __init__(
        self,
        link: Link,
        interrupts: Interrupts,
        output: OutputStreams,
        input: Input,
        event_loop: EventLoop,
        stream_copies: dict[int, int],
        main: types.ModuleType,
    ) -> None:
        self._link = link
        self._main = main
        self._interrupts = interrupts
        self._output = output
        self._input = input
        self._event_loop = event_loop
        self._stream_copies = stream_copies
        self._shared = memoryview(b"")
        self._init = -1
        self._forking = False
        self.files = OpenFiles()
        """Open files of a copy, below the session's folder."""
        self.enter_view: Callable[[list[int], list[int]], list[str]] | None = None
        """Moves a copy into its view, and returns notices."""
        self._only: CopySlot | None = None
        """The own slot and descriptors, if the forked process is itself a copy."""
        self.running: list[Any] = []
        """Threads that run in the original. In a copy they appear to have ended."""
        self.settled = True
        """Whether the process dies with init. A new copy may still have the intermediate process as its parent."""

    def publish_to(self, shared: memoryview) -> None:
        """Use the slots in this shared memory."""
        self._shared = shared
        self._init = os.getppid()

    def is_forking(self) -> bool:
        """Return whether this module forked the process, and not user code in this or another thread."""
        return self._forking and get_ident() == threading.main_thread().ident

    # --- in the original ---

    def fork(self, order: ForkSelf) -> bool:
        """Make copies and answer the host. Return True in a copy, which must then report Ready."""
        # Handlers of the user must not raise in the middle of this.
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
        original, is_copy = os.getpid(), devices.are_held()
        try:
            return self._fork(order, original)
        except BaseException:
            if os.getpid() != original:
                os._exit(1)  # two sessions must never share a wire
            raise
        finally:
            if os.getpid() == original and not is_copy:
                devices.release()
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)

    def _fork(self, order: ForkSelf, original: int) -> bool:
        failed: list[int] = []
        notices = self._missing()
        by_value = devices.in_use()
        reason = self._refusal(order, by_value)
        if reason:
            failed = order.slots
        else:
            for start in range(0, len(order.slots), MAX_BATCH):
                batch = order.slots[start : start + MAX_BATCH]
                with self._link.reading:
                    self._link.send(EndsWanted(order.ticket, batch))
                    copies = [self._receive_ends() for _ in batch]
                if not all(fds for _, fds in copies):
                    reason = "no descriptors are left in the session"
                    failed += [slot for slot, fds in copies if not fds]
                try:
                    mine = self._fork_batch([own for own in copies if own[1]])
                except OSError as error:
                    if os.getpid() != original:
                        raise
                    reason = f"no process could be forked: {error.strerror}"
                    failed = batch
                else:
                    if mine is not None:
                        self._become(*mine)
                        if by_value:
                            devices.leave_driver()
                        self.files.separate(order.folder, order.tracked)
                        return True
                if failed:
                    # The next batch would fail too.
                    failed += order.slots[start + MAX_BATCH :]
                    break
        self.running.clear()
        self._link.send(Copied(order.ticket, notices, failed, reason, by_value))
        return False

    def _refusal(self, order: ForkSelf, by_value: bool) -> str:
        """Return why no copy is made, or an empty text. Data on GPUs is in host memory then."""
        if monotonic() > order.until:
            return "the request came too late"
        if not by_value:
            return ""
        if order.live_only:
            return "the session uses a GPU"
        try:
            devices.hold(self._main, order.room, lambda size: self._link.send(Holding(order.ticket, size)))
        except devices.Refused as why:
            return str(why)
        return ""

    def _receive_ends(self) -> CopySlot:
        ends, fds = self._link.receive_ends()
        if len(fds) != FDS_PER_COPY:  # cancelled, or this process has no free descriptor
            _close(fds)
            return ends.slot, []
        return ends.slot, fds

    def _fork_batch(self, copies: list[CopySlot]) -> CopySlot | None:
        """Fork. Return None in the original, and the own slot and descriptors in a copy. Raises OSError."""
        if not copies:
            return None
        state = _random_state()
        on_alarm = _signal.getsignal(_signal.SIGALRM)
        beside = clone.can_fork_beside(self._init)
        self._only = copies[0] if len(copies) == 1 else None
        mine: CopySlot | None = None
        self._forking = True
        try:
            child = self._fork_once(beside)
            if child == 0:
                mine = self._only or self._fork_each(copies)
                _signal.alarm(0)
                if on_alarm is not None:
                    _signal.signal(_signal.SIGALRM, on_alarm)
                _set_random_state(state)
            elif beside and self._only is not None:
                # Both processes write the pid, so init knows it even if one of them is killed.
                slot_words(self._shared, self._only[0])[PID] = child
        finally:
            self._forking = False
            self._only = None
            for _, fds in copies:
                if mine is None or fds is not mine[1]:
                    _close(fds)
        return mine

    def _fork_once(self, beside: bool) -> int:
        if beside:
            return clone.fork_whole(clone.fork_beside)
        # The user must not see SIGCHLD of the intermediate process. An ignored signal is never sent, a blocked one
        # would be delivered later.
        on_child = _signal.getsignal(_signal.SIGCHLD)
        if callable(on_child):
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGCHLD})
        number = slot_words(self._shared, self._only[0])[PID : PID + 1] if self._only is not None else _common_memory()
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
        """Prepare the new process, before any fork hooks of libraries run in it."""
        if self._only is not None:
            self._claim(self._only[0])
        _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, {_signal.SIGALRM})
        _signal.alarm(FORK_HOOKS_SECONDS)

    def _claim(self, slot: int) -> None:
        words = slot_words(self._shared, slot)
        words[TAGGED] = linux.tag(slot)
        words[PID] = os.getpid()

    def _fork_each(self, copies: list[CopySlot]) -> CopySlot:
        """Fork all copies and exit; only the copies return. Failures are reported on the wires of the copies."""
        # This process has one thread. The copies get the same parent as this process.
        fork = clone.fork_beside if clone.can_clone() else linux.fork_bare
        try:
            while copies:
                slot, fds = copies[0]
                words = slot_words(self._shared, slot)
                words[TAGGED] = linux.tag(slot)
                pid = fork()
                words[PID] = pid or os.getpid()
                if pid == 0:
                    return slot, fds
                _close(fds)
                del copies[0]
        except OSError as error:
            told = messages.encode(NotCopied(f"no process could be forked: {error.strerror}"))
            for _, fds in copies:
                os.write(fds[3], told)
        os._exit(0)

    def _missing(self) -> list[str]:
        """Return notices of what no copy has."""
        try:
            return [f"not copied: {each}" for each in self._find_missing()]
        except Exception as error:  # user code may have changed threading or asyncio
            return [f"it is unknown what was not copied: {type(error).__name__}"]

    def _find_missing(self) -> list[str]:
        missing = []
        self.running = [each for each in threading.enumerate() if each is not threading.main_thread()]
        names = [each.name for each in self.running]
        if names:
            missing.append(f"{_count(names, 'thread')} of the original: {_listed(names)}")
        tasks = self._event_loop.count_tasks()
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
        self._interrupts.publish_to(slot_words(self._shared, slot))
        self._take_descriptors(fds)
        self._output.reset_in_copy()
        self._input.reset_in_copy()
        self._event_loop.abandon()
        threading.main_thread()._native_id = get_native_id()  # type: ignore[attr-defined]
        _reset_unstarted_threads()
        processes: Any = sys.modules.get("multiprocessing.process")
        if processes is not None:
            # At its exit, the copy would terminate the original's children.
            processes._children = set()

    def _take_descriptors(self, fds: list[int]) -> None:
        """Replace the original's streams by the new ones wherever they are open, and unshare epoll objects."""
        streams = {target(self._stream_copies[number]): fds[number] for number in self._stream_copies}
        for number in (0, 1, 2):
            # Unless user code redirected the stream.
            if target(number) in streams or target(number) == "":
                os.dup2(fds[number], number, inheritable=True)
        self._link.move_to(fds[3])
        for number, copy in self._stream_copies.items():
            os.dup2(fds[number], copy, inheritable=False)
        for fd in _open_descriptors():
            name = target(fd)
            if name == EPOLL:
                _make_own(fd)
            elif name in streams and _mode(fd) == _mode(streams[name]):
                os.dup2(streams[name], fd, inheritable=os.get_inheritable(fd))
        _close(fds)

    def settle(self) -> None:
        """Ask to die with init, once the intermediate process is gone and init is the parent."""
        if os.getppid() == self._init:
            linux.die_with_parent()
            self.settled = True

    def reopen(self, source: str, target: str, *, cut_off: bool = False) -> list[str]:
        """Use the files below `target` instead of those below `source`. Return notices of those that are lost."""
        if target:
            own_folder.move(target)
        return self.files.reopen(source, target, cut_off=cut_off)

    def rehome(self, order: Rehome) -> None:
        """Become a session of its own, with its own view, files and folders for temporary files and packages."""
        notices: list[str] = []
        has_network = False
        maps = read_maps() if order.source else b""
        self.files.note_mapped(maps, order.source, *order.protected)
        if order.key:
            self._link.send(ViewWanted())
            _, fds = self._link.receive_ends()
            self.files.leave()
            assert self.enter_view is not None
            notices += self.enter_view(order.key, fds)
            has_network = len(fds) > FDS_WITHOUT_NETWORK
            _close(fds)
        for fd in self._event_loop.abandoned_descriptors():
            lead_nowhere(fd)
        ways = InheritedWays([self._link.fd, *self._stream_copies.values()], maps, self._shared)
        ways.separate_pipes()
        if has_network:
            notices += ways.disconnect()
        for folder in order.folders:
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                continue
        if order.source:
            notices += self.reopen(order.source, order.target, cut_off=True)
            notices += [*self.files.shared(), *ways.shared(order.source, order.target, *order.protected)]
        os.environ["TMPDIR"] = order.tmp
        tempfile.tempdir = None
        packages.start(order.packages)
        # Earlier registrations belong to the original: its temporary folders must outlive this copy.
        atexit._clear()
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        for each in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            each.atexit = False
        if order.reseed:
            for each in _generators():
                each.seed()
            reseed_numpy()
        self._link.send(Started(working_directory(), notices))


def _reset_unstarted_threads() -> None:
    """Make unstarted threads startable in a copy. Python 3.13 marks all other threads as ended after a fork."""
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


def _mode(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE


def _make_own(fd: int) -> None:
    """Replace an epoll object by one with the same content, because forked processes share its changes."""
    own = select.epoll()
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb", buffering=0) as file:
            lines = file.read(1 << 20).splitlines()
        for line in lines:
            if line.startswith(b"tfd:"):
                words = line.split()
                try:
                    own.register(int(words[1]), int(words[3], 16))
                except OSError:  # the descriptor is closed by now
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
    """Return the exit status of a child, or 0 if a user's thread or an ignored SIGCHLD took it."""
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0


def _common_memory() -> memoryview:
    """Return a number in memory shared with forked processes."""
    return memoryview(mmap(-1, PAGESIZE)).cast("q")[:1]


def _failure(status: int) -> OSError:
    """Return the error of an intermediate process that made no copy."""
    if os.WIFSIGNALED(status):
        return OSError(0, f"what a library does after a fork was ended by signal {os.WTERMSIG(status)}")
    return OSError(os.WEXITSTATUS(status), os.strerror(os.WEXITSTATUS(status)))


def _child_has_ended() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _random_state() -> Any:
    """Return the states of the generators behind `random.random()`, also of a reimported module."""
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
    shown = ", ".join(name[:60] for name in names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"
