"""The zygote: an interpreter with the usual libraries imported, of which every session is a fork.

    holder ── zygote ── init ── worker        (one init and one worker for each session)

The zygote has one thread, no secrets, and no descriptors but its own socket; it runs no user code. What it touches
between two forks it no longer shares with what it has forked. So it does little, with bare sockets and signals: those
of the library cost every session a quarter of a megabyte.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import gc
import mmap
import os
import select
import signal
import struct
import sys
from typing import TYPE_CHECKING, Any

from ingle_worker import figures, forking, kernel, reaper, session
from ingle_worker.holder import INIT_NAME, Holder
from ingle_worker.init import Init
from ingle_worker.interrupts import PLACES, WORDS
from ingle_worker.wire import FrameReader, messages

if TYPE_CHECKING:
    from ingle_worker.lockdown.confinement import Confinement

SPARE, AWAITED = b"s", b"a"
"""What a waiting init is told: whether somebody waits for the session already."""

ORDER = struct.Struct("cq")
"""That, and the number of the user that the session shall be."""

FIVE = struct.Struct(f"{messages.FDS_PER_FORK}i")
CMSG_SIZE = _socket.CMSG_SPACE(FIVE.size)


def main(args: list[str]) -> None:
    """`zygote LIFE CONTROL PLAN MODULE...`, or `spawn STDIN STDOUT STDERR WIRE STATUS`."""
    mode, *rest = args
    if mode == "spawn":
        spawn([int(number) for number in rest])
    life, control, plan = (int(number) for number in rest[:3])
    for fd in (life, control):
        os.set_inheritable(fd, False)
    kernel.become_subreaper()
    zygote_pid = os.fork()
    if zygote_pid:
        os.close(control)
        kernel.set_name("ingle-holder")
        holder = Holder(life, zygote_pid)
        holder.run()
        os._exit(holder.code)
    os.close(life)
    kernel.set_name("ingle-zygote")
    Zygote(control, rest[3:], _confinement(plan)).run()
    os._exit(0)


def _confinement(plan: int) -> "Confinement | None":
    """What sessions are to be held in; loaded only where they are."""
    if plan < 0:
        return None
    from ingle_worker.lockdown.confinement import Confinement
    from ingle_worker.lockdown.plan import read_plan

    confinement = Confinement(read_plan(plan))
    os.close(plan)
    return confinement


def spawn(fds: list[int]) -> None:
    """One session in a fresh interpreter, for platforms where forking a loaded one is not safe.

    This process stays above the session's init and does what the zygote does for a forked one: when init has ended,
    whatever it left behind ends too.
    """
    for fd in fds:
        os.set_inheritable(fd, False)
    kernel.become_subreaper()
    init = os.fork()
    if init:
        for fd in fds:
            os.close(fd)
        kernel.set_name("ingle-holder")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.waitpid(init, 0)
        reaper.sweep(lambda pid, status, usage: None)
        os._exit(0)
    sys.argv[:] = [""]
    worker = session.Worker()
    worker.prepare()
    become_session(worker, Init(), fds)


def wait_for_session(
    worker: session.Worker, init: Init, control: _socket.socket, confinement: "Confinement | None", network: str
) -> None:
    """Wait to be told which session to become; go when the zygote goes. Never returns."""
    try:
        if confinement is not None:
            confinement.prepare(network)
        data, extra, _, _ = control.recvmsg(ORDER.size, CMSG_SIZE)
        if data:
            fds = list(FIVE.unpack(extra[0][2]))
            control.close()
            for fd in fds:
                os.set_inheritable(fd, False)
            order, uid = ORDER.unpack(data)
            if confinement is not None:
                confinement.introduce(uid, fds)
            become_session(worker, init, fds, spare=order == SPARE, confinement=confinement)
    except OSError as error:
        os.write(2, f"{error}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(0)


def become_session(
    worker: session.Worker,
    init: Init,
    fds: list[int],
    *,
    spare: bool = False,
    confinement: "Confinement | None" = None,
) -> None:
    """Fork the worker; this process is its init from now on. Neither of the two returns."""
    kernel.set_name(INIT_NAME)
    kernel.become_subreaper()
    if os.getpid() != os.getsid(0):
        os.setsid()
    # Memory for a whole family; of what is never written to there is none.
    shared = memoryview(mmap.mmap(-1, PLACES * WORDS * 8)).cast("q")
    worker_pid = forking.fork()
    if worker_pid == 0:
        try:
            kernel.die_with_parent()
            kernel.set_name("ingle-session")
            os.close(fds[4])
            if confinement is not None:
                confinement.confine()
                worker.before_start = confinement.start
            worker.run(fds[:4], shared, spare=spare)
        finally:
            os._exit(session.BROKEN)
    gc.disable()
    if confinement is not None:
        init.on_enter = confinement.enter
        init.on_shell = confinement.run_shell
    for fd in (*fds[:4], 0, 1, 2):
        os.close(fd)
    try:
        init.run(fds[4], worker_pid, shared)
    finally:
        os._exit(0)


class WaitingInit:
    """A process that is to be the init of the next session, as the zygote sees it."""

    def __init__(self, control: _socket.socket, network: str) -> None:
        self._control = control
        self.network = network
        self.taken = False

    def take(self, fds: list[int], order: messages.Fork) -> bool:
        """Have it become a session on these descriptors. False when it is no longer there."""
        self.taken = True
        try:
            rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, FIVE.pack(*fds))
            self._control.sendmsg([ORDER.pack(SPARE if order.spare else AWAITED, order.uid)], [rights])
        except (BrokenPipeError, ConnectionResetError):
            return False
        finally:
            self._control.close()
        return True

    def close(self) -> None:
        self._control.close()


class Zygote:
    def __init__(self, control: int, modules: list[str], confinement: "Confinement | None" = None) -> None:
        self._confinement = confinement
        self._network = confinement.plan.network if confinement is not None else ""
        self._control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, control)
        self._modules = modules
        self._reader = FrameReader()
        self._inits: set[int] = set()
        self._next: WaitingInit | None = None

    def run(self) -> None:
        kernel.become_subreaper()
        sys.argv[:] = [""]
        figures.choose_backends()
        if self._confinement is not None and not self._serve():
            return
        with forking.watch():
            preloaded, missing = self._preload()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._worker = session.Worker()
        self._worker.prepare()
        self._init = Init()
        gc.collect()
        # Objects made so far are left out of every later collection, so that a collection in a session does
        # not write to, and thereby copy, every page it shares with its neighbours.
        gc.freeze()
        self._control.sendall(
            messages.encode(messages.ZygoteReady(os.getpid(), session.VERSION, sys.executable, preloaded, missing))
        )
        try:
            self._prepare_init((wake_read, wake_write), self._network)
        except OSError:
            self._next = None
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    reaper.reap(self._on_exit)
                elif not self._serve(wake_read, wake_write):
                    return

    def _preload(self) -> tuple[list[str], list[str]]:
        import importlib

        preloaded, missing = [], []
        for name in self._modules:
            try:
                importlib.import_module(name)
                preloaded.append(name)
            except Exception as error:  # the border to libraries: one that cannot be imported costs only itself
                missing.append(name if isinstance(error, ModuleNotFoundError) else f"{name} ({error})")
        return preloaded, missing

    def _serve(self, *private: int) -> bool:
        """One message's work. False when the host has closed its end."""
        # Descriptors belong to the frame whose bytes they came with; the host sends each frame alone.
        data, extra, _, _ = self._control.recvmsg(4096, CMSG_SIZE)
        fds = list(FIVE.unpack(extra[0][2])) if extra else []
        if not data:
            return False
        for frame in self._reader.feed(data):
            message = messages.decode(frame)
            if isinstance(message, messages.Fork):
                self._fork(message, fds, private)
            elif isinstance(message, messages.Prove):
                self._prove(message)
        return True

    def _prove(self, order: messages.Prove) -> None:
        """Before anything is loaded: the host need not wait for that to learn how far sessions will be held."""
        from ingle_worker.lockdown import probe

        assert self._confinement is not None
        self._control.sendall(messages.encode(probe.prove(self._confinement, order)))

    def _fork(self, message: messages.Fork, fds: list[int], private: tuple[int, ...]) -> None:
        try:
            network = message.network or self._network
            if self._next is None or self._next.network != network or not self._next.take(fds, message):
                self._forget_next()
                self._prepare_init(private, network)
                assert self._next is not None
                self._next.take(fds, message)
        except OSError as error:
            self._control.sendall(messages.encode(messages.ForkFailed(message.ticket, str(error))))
        for fd in fds:
            os.close(fd)
        if self._next is None or self._next.taken:
            try:
                self._prepare_init(private, self._network)
            except OSError:
                # No process is to be had. Whoever needs one will be told so.
                self._next = None

    def _forget_next(self) -> None:
        """The one that waits is of another kind: it goes when its socket does."""
        if self._next is not None and not self._next.taken:
            self._next.close()
        self._next = None

    def _prepare_init(self, private: tuple[int, ...], network: str) -> None:
        """Fork the init of the session to come, which saves that session one of two forks."""
        self._next = None
        ours, theirs = _socket.socketpair()
        try:
            pid = kernel.fork_bare() if self._confinement is None else self._confinement.fork()
            if pid == 0:
                _signal.set_wakeup_fd(-1)
                _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
                for each in (self._control, ours):
                    each.close()
                for fd in private:
                    os.close(fd)
                wait_for_session(self._worker, self._init, theirs, self._confinement, network)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._inits.add(pid)
        self._next = WaitingInit(ours, network)

    def _on_exit(self, pid: int, status: int, usage: Any) -> None:
        if pid in self._inits:
            self._inits.discard(pid)
            # An init that was killed leaves its strays to us, the next subreaper above it.
            if os.WIFSIGNALED(status):
                reaper.sweep(self._on_exit, spare=tuple(self._inits))
