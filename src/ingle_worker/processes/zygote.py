"""The zygote: an interpreter with the usual libraries imported, of which every session is a fork.

    holder ── zygote ── init ── worker        (one init and one worker for each session)

The zygote has one thread, no secrets, and no descriptors but its own socket; it runs no user code. What it touches
between two forks it no longer shares with what it has forked. So it does little, with bare sockets and signals: those
of the library cost every session a quarter of a megabyte.
"""

import _socket
import gc
import os
import signal
import struct
import sys
from _signal import set_wakeup_fd  # type: ignore[import-not-found]
from gc import disable as stop_collecting
from os import close
from select import POLLHUP, POLLIN, poll
from typing import TYPE_CHECKING, Any

from ingle_worker.display import matplotlib_figures
from ingle_worker.processes import kill_tree, linux
from ingle_worker.processes.fork import can_fork_into, fork, reseed, watch
from ingle_worker.processes.holder import INIT_NAME, fork_below
from ingle_worker.processes.init import Init, join
from ingle_worker.processes.linux import die_with_parent, fork_bare, set_name
from ingle_worker.session.worker import VERSION, Worker
from ingle_worker.wire import FrameReader, messages
from ingle_worker.wire.constants import FAILED_EXIT_CODE
from ingle_worker.wire.messages import decode_fork

if TYPE_CHECKING:
    from ingle_worker.lockdown.confinement import Confinement

FIVE = struct.Struct(f"{messages.FDS_PER_FORK}i")
CMSG_SIZE = _socket.CMSG_SPACE(FIVE.size)
CLOEXEC = _socket.MSG_CMSG_CLOEXEC
MAX_ORDER = 4096

ANY_ORDER = messages.encode(messages.Fork(1))

TAKEN = b"t"
"""What a waiting init tells the zygote as soon as it has a session to start."""

INIT = INIT_NAME.encode()

IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}

Order = tuple[bytes, list[int]]
"""A `Fork` as it came, and the descriptors that came along."""


def main(args: list[str]) -> None:
    """`zygote LIFE CONTROL PLAN MODULE...`, or `spawn STDIN STDOUT STDERR WIRE STATUS`."""
    mode, *rest = args
    _forget_inherited()
    if mode == "spawn":
        spawn([int(number) for number in rest])
    life, control, plan = (int(number) for number in rest[:3])
    for fd in (life, control):
        os.set_inheritable(fd, False)
    fork_below(life, control, b"ingle-zygote")
    Zygote(control, rest[3:], _confinement(plan)).run()
    os._exit(0)


def _forget_inherited() -> None:
    """What was ignored or blocked where the server was started, by `nohup` for one, is not so in sessions."""
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


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
    linux.become_subreaper()
    init_pid = os.fork()
    if init_pid:
        for fd in fds:
            os.close(fd)
        linux.set_name(b"ingle-holder")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.waitpid(init_pid, 0)
        kill_tree.sweep(lambda pid, status, usage: None)
        os._exit(0)
    sys.argv[:] = [""]
    linux.wait_for_a_core()
    worker = Worker()
    worker.prepare()
    init = Init()
    init.prepare()
    become_session(worker, init, fds)


def wait_for_session(
    worker: Worker,
    init: Init,
    control: _socket.socket,
    zygote: _socket.socket,
    confinement: "Confinement | None",
    network: str,
    order: Order | None,
) -> None:
    """In a child of the zygote: be the init of the next session. Never returns.

    It does ahead what is the same for every session, then takes the next order from the host's socket itself: nothing
    has to wake up, and to touch its memory again after a fork, between the host and the one who acts.
    """
    try:
        reseed()
        if confinement is not None:
            confinement.prepare(network)
        init.prepare()
        decode_fork(ANY_ORDER)  # what that touches is touched before somebody waits
        data, fds = order or wait_for_order(control, zygote)
        if data:
            spare, uid, other, group = decode_fork(data)
            if other and other != network:
                # A room with this way out has to be made from the beginning: the zygote knows how.
                zygote.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, FIVE.pack(*fds))])
            else:
                if confinement is not None:
                    confinement.set_identity(uid, fds, pooled=spare)
                folder = -1
                if group:
                    way = join(fds[4])
                    if way is None:
                        return
                    init.joined, folder = way
                become_session(worker, init, fds, (control, zygote), folder, spare=spare, confinement=confinement)
    except OSError as error:
        os.write(2, f"{error}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(0)


def wait_for_order(control: _socket.socket, zygote: _socket.socket) -> Order:
    """The next order; an empty one when host or zygote are gone."""
    poller = poll()
    poller.register(control, POLLIN)
    poller.register(zygote, POLLIN)
    ready = poller.poll()
    if ready[-1][0] == zygote.fileno():
        return b"", []
    return receive_order(control)


def receive_order(sock: _socket.socket) -> Order:
    """One order. Descriptors end what one call receives, and every order has some: never is it more than one."""
    data, extra, _, _ = sock.recvmsg(MAX_ORDER, CMSG_SIZE, CLOEXEC)
    return data, list(FIVE.unpack(extra[0][2])) if extra else []


def become_session(
    worker: Worker,
    init: Init,
    fds: list[int],
    sockets: tuple[_socket.socket, ...] = (),
    folder: int = -1,
    *,
    spare: bool = False,
    confinement: "Confinement | None" = None,
) -> None:
    """Fork the worker; this process is its init from now on. Neither of the two returns.

    `sockets`: to the host, and to the zygote, if there is one. `folder`: that of the group in which it shall be.
    """
    set_name(INIT)
    worker_pid = fork() if folder < 0 else fork_into(init, folder)
    if worker_pid == 0:
        try:
            die_with_parent()
            set_name(b"ingle-session")
            close(fds[4])
            for each in sockets:
                each.close()
            init.leave()
            if confinement is not None:
                confinement.confine()
                worker.before_start = confinement.start
            worker.run(fds[:4], init.shared, spare=spare)
        finally:
            os._exit(FAILED_EXIT_CODE)
    stop_collecting()
    if confinement is not None:
        init.on_enter = confinement.enter
        init.on_shell = confinement.run_shell
        init.on_files = confinement.serve_files
    status = fds.pop()
    fds += (0, 1, 2)
    for fd in fds:
        close(fd)
    if sockets:
        # The next one is forked beside what the worker does, but not before it.
        try:
            sockets[1].send(TAKEN)
        except OSError:
            pass  # the zygote does not wait for that, or has gone: a session lives on without it
        for each in sockets:
            each.close()
    try:
        init.run(status, worker_pid)
    finally:
        os._exit(FAILED_EXIT_CODE)  # it has failed, and what is below it is the zygote's to end


def fork_into(init: Init, folder: int) -> int:
    """Fork the worker into its group; where that cannot be, beside it, and the host is told."""
    pid = -1
    try:
        if can_fork_into():
            pid = fork(folder)
    except OSError:
        pass  # an older kernel, or one that lets nobody choose
    if pid < 0:
        init.joined = False
        pid = fork()
    close(folder)
    return pid


class Zygote:
    def __init__(self, control: int, modules: list[str], confinement: "Confinement | None" = None) -> None:
        self._confinement = confinement
        self._network = confinement.plan.network if confinement is not None else ""
        self._control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, control)
        self._modules = modules
        self._inits: set[int] = set()
        self._waiting: _socket.socket | None = None
        """The other end is with a child that waits for the next order. While there is none, orders are read here."""

    def run(self) -> None:
        linux.become_subreaper()
        sys.argv[:] = [""]
        matplotlib_figures.choose_backends()
        if self._confinement is not None and not self._prove(self._confinement):
            return
        with watch():
            preloaded, missing = self._preload()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        linux.wait_for_a_core()
        self._worker = Worker()
        self._worker.prepare()
        self._init = Init()
        gc.collect()
        # Objects made so far are left out of every later collection, so that a collection in a session does
        # not write to, and thereby copy, every page it shares with its neighbours.
        gc.freeze()
        self._control.sendall(
            messages.encode(messages.ZygoteReady(os.getpid(), VERSION, sys.executable, preloaded, missing))
        )
        self._poller = poll()
        self._poller.register(self._wake_read, POLLIN)
        self._prepare_next()
        while self._attend(self._poller.poll()):
            pass

    def _prove(self, confinement: "Confinement") -> bool:
        """Before anything is loaded: the host need not wait for that to learn how far sessions will be held. False when
        it is gone."""
        from ingle_worker.lockdown import self_test

        data = self._control.recv(MAX_ORDER)
        if not data:
            return False
        (frame,) = FrameReader().feed(data)
        self._control.sendall(messages.encode(self_test.prove(confinement, messages.decode(frame))))
        return True

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

    def _attend(self, ready: list[tuple[int, int]]) -> bool:
        """What has come. False when the host has closed its end."""
        waiting = self._waiting
        for fd, event in ready:
            if fd == self._wake_read:
                os.read(self._wake_read, 4096)
                kill_tree.reap(self._on_exit)
            elif waiting is not None and fd == waiting.fileno():
                self._on_waiting(waiting)
            elif event & POLLIN and waiting is None:
                data, fds = receive_order(self._control)
                if not data:
                    return False
                self._fork(data, fds)
            elif event & POLLHUP:
                return False
        return True

    def _on_waiting(self, waiting: _socket.socket) -> None:
        """The child that waits has taken an order; or has one that it cannot carry out; or is gone."""
        try:
            data, fds = receive_order(waiting)
        except OSError:
            data, fds = b"", []
        self._poller.unregister(waiting.fileno())
        waiting.close()
        self._waiting = None
        if data == TAKEN:
            self._prepare_next()
        elif data:
            self._fork(data, fds)
        else:
            # It died unasked. Why, the next one may be told who needs it: no other dies for nothing meanwhile.
            self._poller.register(self._control.fileno(), POLLIN)

    def _fork(self, data: bytes, fds: list[int]) -> None:
        """Carry out an order without one who waits for it, and have one again."""
        try:
            waiting = self._fork_init(decode_fork(data)[2] or self._network, (data, fds))
            waiting.close()
        except OSError as error:
            (frame,) = FrameReader().feed(data)
            self._control.sendall(messages.encode(messages.ForkFailed(messages.decode(frame).ticket, str(error))))
        for fd in fds:
            os.close(fd)
        self._prepare_next()

    def _prepare_next(self) -> None:
        """Fork the init of the session to come, which saves that session one of two forks."""
        try:
            self._waiting = self._fork_init(self._network, None)
        except OSError:
            # No process is to be had. Whoever needs one will be told so.
            self._poller.register(self._control.fileno(), POLLIN)
            return
        self._poller.register(self._waiting.fileno(), POLLIN)
        self._poller.register(self._control.fileno(), 0)  # of which only its end is told

    def _fork_init(self, network: str, order: Order | None) -> _socket.socket:
        ours, theirs = _socket.socketpair()
        try:
            pid = fork_bare() if self._confinement is None else self._confinement.fork()
            if pid == 0:
                ours.close()
                set_wakeup_fd(-1)
                close(self._wake_read)
                close(self._wake_write)
                wait_for_session(self._worker, self._init, self._control, theirs, self._confinement, network, order)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._inits.add(pid)
        return ours

    def _on_exit(self, pid: int, status: int, usage: Any) -> None:
        if pid in self._inits:
            self._inits.discard(pid)
            # An init that was killed leaves its strays to us, the next subreaper above it.
            if status:
                kill_tree.sweep(self._on_exit, spare=tuple(self._inits))
                try:
                    self._control.sendall(messages.encode(messages.Swept(pid)))
                except OSError:
                    pass  # the host is gone, and we are next
