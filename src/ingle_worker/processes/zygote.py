"""The zygote: an interpreter with the usual libraries imported. Every session is a fork of it.

    holder ── zygote ── init ── worker        (one init and one worker for each session)

It has one thread, no secrets and only its own socket, and runs no user code. Each page that it writes between two forks
is no longer shared. So it does little, with bare sockets and signals: the library's cost 0.25 MB per session.
"""

import _socket
import json
import os
import signal
import struct
import sys
from _signal import set_wakeup_fd  # type: ignore[import-not-found]
from gc import disable as stop_collecting
from gc import enable as start_collecting
from os import close, dup2
from select import POLLHUP, POLLIN, poll
from typing import TYPE_CHECKING

from ingle_worker.display import matplotlib_figures
from ingle_worker.processes import kill_tree, linux
from ingle_worker.processes.fork import can_fork_into, fork, record_fork_hooks, reseed
from ingle_worker.processes.forked_inits import ForkedInits
from ingle_worker.processes.groups import enter_group, join
from ingle_worker.processes.holder import INIT_NAME, fork_below
from ingle_worker.processes.inherited_memory import forget_lookups, keep_shared
from ingle_worker.processes.init import Init
from ingle_worker.processes.limits import ProcessLimits
from ingle_worker.processes.linux import die_with_parent, fork_bare, set_name
from ingle_worker.session.worker import VERSION, Worker
from ingle_worker.wire import FrameReader, messages
from ingle_worker.wire.constants import FAILED_EXIT_CODE
from ingle_worker.wire.messages import decode_fork

if TYPE_CHECKING:
    from ingle_worker.lockdown.confinement import Confinement

FORK_FDS = struct.Struct(f"{messages.FDS_PER_FORK}i")
CMSG_SIZE = _socket.CMSG_SPACE(FORK_FDS.size)
CLOEXEC = _socket.MSG_CMSG_CLOEXEC
MAX_ORDER_BYTES = 4096

ANY_ORDER = messages.encode(messages.Fork(1))

ORDER_TAKEN = b"t"
"""Message of a waiting init to the zygote: it has taken an order, and the zygote can prepare the next init."""

INIT = INIT_NAME.encode()

IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}

Order = tuple[bytes, list[int]]
"""An encoded `Fork` and its file descriptors."""


def main(args: list[str]) -> None:
    """`zygote LIFE CONTROL PLAN MODULE...`, or `spawn LIMITS STDIN STDOUT STDERR WIRE STATUS`."""
    mode, *rest = args
    _reset_signals()
    if mode == "spawn":
        spawn(json.loads(rest[0]), [int(number) for number in rest[1:]])
    life, control, plan = (int(number) for number in rest[:3])
    for fd in (life, control):
        os.set_inheritable(fd, False)
    fork_below(life, control, b"ingle-zygote")
    Zygote(control, rest[3:], _confinement(plan)).run()
    os._exit(0)


def _reset_signals() -> None:
    """Reset signals that the server inherited as ignored or blocked, for example from `nohup`."""
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _confinement(plan: int) -> "Confinement | None":
    """Create the confinement of sessions, if there is one. The code is loaded only then."""
    if plan < 0:
        return None
    from ingle_worker.lockdown.confinement import Confinement
    from ingle_worker.lockdown.plan import read_plan

    confinement = Confinement(read_plan(plan))
    os.close(plan)
    return confinement


def spawn(limits: dict[str, int], fds: list[int]) -> None:
    """Run one session in a fresh interpreter, for platforms where forking a loaded one is not safe.

    This process stays above the session's init. Like the zygote, it kills all processes that init leaves.
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
    linux.use_batch_scheduling()
    worker = Worker()
    worker.prepare()
    init = Init()
    init.prepare()
    become_session(worker, init, fds, limits=ProcessLimits.of(limits) if limits else None)
    os._exit(0)


def wait_for_session(
    worker: Worker,
    init: Init,
    control: _socket.socket,
    zygote: _socket.socket,
    confinement: "Confinement | None",
    network: str,
    order: Order | None,
) -> None:
    """Become the init of the next session. Runs in a child of the zygote and never returns.

    The child prepares all that is the same for every session. Then it reads the order from the host's socket itself, so
    that no other process has to wake up. After that session it serves others, if the host orders it to stay.
    """
    try:
        reseed()
        if confinement is not None:
            confinement.prepare(network)
        init.prepare()
        decode_fork(ANY_ORDER)  # touch these pages before a client waits
        data, fds = order or wait_for_order(control, zygote)
        if data and (other := decode_fork(data)[2]) and other != network:
            # Another network needs a new sandbox from the start, so the zygote must fork again.
            zygote.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, FORK_FDS.pack(*fds))])
            return
        sockets: tuple[_socket.socket, ...] = (control, zygote)
        while data:
            orders = serve_session(worker, init, (data, fds), sockets, confinement)
            sockets = ()
            reseed()
            if confinement is not None:
                confinement.prepare_again()
            init.prepare_again()
            host = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, orders)
            data, fds = receive_order(host)
            host.close()
    except OSError as error:
        os.write(2, f"{error}\n".encode("utf-8", "backslashreplace"))
    finally:
        os._exit(0)


def wait_for_order(control: _socket.socket, zygote: _socket.socket) -> Order:
    """Wait for the next order. Return an empty one if the host or the zygote is gone."""
    poller = poll()
    poller.register(control, POLLIN)
    poller.register(zygote, POLLIN)
    ready = poller.poll()
    if ready[-1][0] == zygote.fileno():
        return b"", []
    return receive_order(control)


def receive_order(sock: _socket.socket) -> Order:
    """Receive one order. A call never returns two, because each has file descriptors and they end a receive."""
    data, extra, _, _ = sock.recvmsg(MAX_ORDER_BYTES, CMSG_SIZE, CLOEXEC)
    return data, list(FORK_FDS.unpack(extra[0][2])) if extra else []


def serve_session(
    worker: Worker,
    init: Init,
    order: Order,
    sockets: tuple[_socket.socket, ...],
    confinement: "Confinement | None",
) -> int:
    """Carry out an order as the init of its session. Return the descriptor of the next order, if init is to stay."""
    data, fds = order
    pooled, uid, _, group, limits = decode_fork(data)
    if confinement is not None:
        confinement.set_limits(limits)
        confinement.set_identity(uid, fds, pooled=pooled)
    folder = -1
    if group:
        way = join(fds[4])
        if way is None:
            os._exit(0)
        init.joined, folder = way
        if confinement is not None:
            confinement.grouped = init.joined or folder >= 0
    own = ProcessLimits.of(limits) if limits and confinement is None else None
    return become_session(worker, init, fds, sockets, folder, pooled=pooled, confinement=confinement, limits=own)


def become_session(
    worker: Worker,
    init: Init,
    fds: list[int],
    sockets: tuple[_socket.socket, ...] = (),
    folder: int = -1,
    *,
    pooled: bool = False,
    confinement: "Confinement | None" = None,
    limits: ProcessLimits | None = None,
) -> int:
    """Fork the worker and be its init. Return the descriptor of the next order, if init is to stay.

    `sockets` go to the host and to the zygote. `folder` is the cgroup of version 2 for both processes, or -1. `limits`
    are for a worker without confinement.
    """
    set_name(INIT)
    worker_pid = fork() if folder < 0 else fork_into(folder)
    if worker_pid == 0:
        try:
            die_with_parent()
            set_name(b"ingle-session")
            start_collecting()
            close(fds[4])
            if folder >= 0:
                close(folder)
            for each in sockets:
                each.close()
            init.reset_in_worker()
            if confinement is not None:
                confinement.confine()
                worker.before_start = confinement.start
                worker.copies.enter_view = confinement.enter_view
            if limits is not None:
                limits.apply()
            worker.run(fds[:4], init.shared, pooled=pooled)
        finally:
            os._exit(FAILED_EXIT_CODE)
    stop_collecting()
    if confinement is not None:
        init.on_enter = confinement.enter
        init.on_leave = confinement.leave
        init.on_shell = confinement.run_shell
        init.on_files = confinement.serve_files
        init.on_make_view = confinement.make_view
        init.on_close_view = confinement.close_view
        init.enter_mounts = confinement.enter_mounts
        init.tmp, init.listener = confinement.tmp_bytes(), confinement.listener
    status = fds.pop()
    for fd in fds:
        close(fd)
    dup2(0, 2)  # all three are /dev/null now; closed, they would be among the descriptors of the next session
    if sockets:
        # The next init is forked in parallel to the worker's start, not before it.
        try:
            sockets[1].send(ORDER_TAKEN)
        except OSError:
            pass  # the zygote does not wait for this, or is gone; the session does not need it
        for each in sockets:
            each.close()
    if folder >= 0:
        init.joined = enter_group(folder) and init.joined
        close(folder)
    try:
        return init.run(status, worker_pid)
    except BaseException:
        os._exit(FAILED_EXIT_CODE)  # init failed, so the zygote kills all processes below it


def fork_into(folder: int) -> int:
    """Fork the worker into its cgroup. If that fails, enter the group first and fork normally."""
    try:
        if can_fork_into():
            return fork(folder)
    except OSError:
        pass  # the kernel is too old, or does not allow it
    enter_group(folder)
    return fork()


class Zygote:
    def __init__(self, control: int, modules: list[str], confinement: "Confinement | None" = None) -> None:
        self._confinement = confinement
        self._network = confinement.plan.network if confinement is not None else ""
        self._control = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, control)
        self._modules = modules
        self._inits = ForkedInits(self._control)
        self._waiting: _socket.socket | None = None
        """Socket to the child that waits for the next order. Without such a child, the zygote reads orders itself."""

    def run(self) -> None:
        linux.become_subreaper()
        sys.argv[:] = [""]
        matplotlib_figures.choose_backends()
        if self._confinement is not None and not self._prove(self._confinement):
            return
        with record_fork_hooks():
            preloaded, missing = self._preload()
        forget_lookups()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        linux.use_batch_scheduling()
        self._worker = Worker()
        self._worker.prepare()
        self._init = Init()
        keep_shared()
        self._control.sendall(
            messages.encode(messages.ZygoteReady(os.getpid(), VERSION, sys.executable, preloaded, missing))
        )
        self._poller = poll()
        self._poller.register(self._wake_read, POLLIN)
        self._prepare_next()
        while self._handle_events(self._poller.poll()):
            pass

    def _prove(self, confinement: "Confinement") -> bool:
        """Run the self-test before libraries are loaded, so that the host has the result early. Return False if it is
        gone."""
        from ingle_worker.lockdown import self_test

        data = self._control.recv(MAX_ORDER_BYTES)
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
            except Exception as error:  # library code: a failing import costs only that module
                missing.append(name if isinstance(error, ModuleNotFoundError) else f"{name} ({error})")
        return preloaded, missing

    def _handle_events(self, ready: list[tuple[int, int]]) -> bool:
        """Handle poll events. Return False if the host has closed its end."""
        waiting = self._waiting
        for fd, event in ready:
            if fd == self._wake_read:
                os.read(self._wake_read, 4096)
                kill_tree.reap(self._inits.on_exit)
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
        """Handle the waiting child: it took an order, returned one it cannot carry out, or died."""
        try:
            data, fds = receive_order(waiting)
        except OSError:
            data, fds = b"", []
        self._poller.unregister(waiting.fileno())
        waiting.close()
        self._waiting = None
        if data == ORDER_TAKEN:
            self._prepare_next()
        elif data:
            self._fork(data, fds)
        else:
            # It died before it had an order. Read the next order here, so that its error is reported to a client.
            self._poller.register(self._control.fileno(), POLLIN)

    def _fork(self, data: bytes, fds: list[int]) -> None:
        """Carry out an order without a waiting child, then prepare one again."""
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
        """Fork the init of the next session ahead of time, which saves that session one of two forks."""
        try:
            self._waiting = self._fork_init(self._network, None)
        except OSError:
            # No process is available. The next order reports the error.
            self._poller.register(self._control.fileno(), POLLIN)
            return
        self._poller.register(self._waiting.fileno(), POLLIN)
        self._poller.register(self._control.fileno(), 0)  # report only its end

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
