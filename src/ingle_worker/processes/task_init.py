"""The init of a shell task: parent of the program, and subreaper of all its orphans.

An init is forked ahead and waits for a `Run`. When no process of that task is left, it waits for the next one, because
a fresh init costs more than a shell. It guarantees that the exit status of the program reaches the host, and that a
signal for the tree reaches every process. A limit that is exceeded is reported and ends the tree. When the status
socket closes, every process below init is killed.
"""

import _signal  # type: ignore[import-not-found]
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import termios
from typing import Any

from ingle_worker.processes import kill_tree, linux
from ingle_worker.wire import FrameReader, messages
from ingle_worker.wire.constants import NOT_STARTED_EXIT_CODE

LIMIT_CHECK_MS = 25
"""Interval at which the usage of a tree with limits is checked. A fork bomb cannot outgrow that."""

SIGINT_CHECK_MS = 5
SIGINT_CHECKS = 3
"""Interval and number of checks, after SIGINT, for processes that should have ended by it."""

MAX_SIGINT_RESENDS = 20
"""How often SIGINT is sent again because of such processes."""

ENVIRONMENT = dict(os.environ)
DEFAULT_SIGNALS = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
"""Signals to reset: Python and init ignore some, and ignored signals stay ignored over exec."""


class TaskInit:
    """Init of one task after another."""

    def __init__(self, status_fd: int) -> None:
        self._fd = status_fd
        self._socket = socket.socket(fileno=status_fd)
        self._reader = FrameReader()
        self._fds: list[int] = []
        self._over = False
        self._reset()

    def _reset(self) -> None:
        """Forget the last task."""
        self._run: messages.Run | None = None
        self._program = 0
        self._status: int | None = None
        self._reported = False
        self._cpu = 0.0
        self._peak = 0
        self._interrupts: list[messages.Signal] = []
        self._interrupted: set[int] = set()
        self._not_execed: set[int] = set()
        """Forks of the program that had not called exec when SIGINT was sent."""
        self._checks = 0
        self._resends_left = MAX_SIGINT_RESENDS

    def run(self) -> None:
        """Serve until the host is gone or orders the end. Then no process is left below."""
        gc.disable()
        linux.become_subreaper()
        linux.set_name(b"ingle-init")
        os.setsid()
        for number in ("SIGINT", "SIGTERM", "SIGHUP"):
            _signal.signal(getattr(_signal, number), _signal.SIG_IGN)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        _signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, _notice)
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        # Reported before any program runs that could stop init: then the host needs the process id to end it.
        self._send(messages.InitUp(os.getpid(), 0))
        while not self._over:
            ready = poller.poll(SIGINT_CHECK_MS if self._checks else LIMIT_CHECK_MS if self._limited else None)
            for fd, _ in ready:
                if fd == wake_read:
                    os.read(wake_read, 4096)
                elif not self._obey():
                    self._over = True
            if self._run is not None:
                self._reap()
                if self._limited and not self._over:
                    self._check_limits()
                if self._checks and not ready:
                    self._check_interrupted()
        kill_tree.sweep(self._on_exit)
        self._report_end(left=False)

    @property
    def _limited(self) -> bool:
        run = self._run
        return run is not None and bool(run.memory or run.cpu_seconds or run.processes)

    def _reap(self) -> None:
        """Collect exit statuses, and report to the host what it should know."""
        left = kill_tree.reap(self._on_exit)
        if self._status is None:
            return
        assert self._run is not None
        if left and self._run.lingers:
            self._report_end(left=True)
        elif left or self._run.files or self._run.file_size or self._run.processes:
            # Limits that init has taken on itself cannot be lifted again.
            self._over = True
        else:
            self._report_end(left=False)
            self._reset()

    def _on_exit(self, pid: int, status: int, usage: Any) -> None:
        self._cpu += usage.ru_utime + usage.ru_stime
        self._peak = max(self._peak, usage.ru_maxrss)
        if pid == self._program:
            self._status = status
            self._program = 0

    def _report_end(self, left: bool) -> None:
        if self._status is not None and not self._reported:
            self._reported = True
            self._send(messages.ProgramExited(self._status, self._cpu, self._peak, left))
        elif not left:
            self._send(messages.TreeEnded(self._cpu, self._peak))

    def _send(self, message: object) -> None:
        try:
            os.write(self._fd, messages.encode(message))
        except OSError:
            self._over = True

    # --- orders ---

    def _obey(self) -> bool:
        """Carry out orders of the host. Return False when everything shall end."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 65536, 3)
        except OSError:
            return False
        self._fds += fds
        if not data:
            return False
        for frame in self._reader.feed(data):
            message = messages.decode(frame)
            if isinstance(message, messages.Run):
                self._start(message)
            elif isinstance(message, messages.Signal):
                self._signal(message)
            elif isinstance(message, messages.Kill):
                return False
        return True

    def _signal(self, order: messages.Signal) -> None:
        if order.number != _signal.SIGINT or self._run is None:
            self._send_signal(order)
            self._send(messages.Signalled(order.order, False))
            return
        if order.again:
            own = linux.command_line(self._program)
            self._interrupted.update(pid for pid in self._not_execed if linux.command_line(pid) != own)
        else:
            self._interrupted.update(kill_tree.below(os.getpid()))
            self._send_signal(order)
            self._interrupted.update(kill_tree.below(os.getpid()))
            own = linux.command_line(self._program)
            self._not_execed = {pid for pid in self._interrupted if linux.command_line(pid) == own} - {self._program}
        # Confirmed when it has arrived for sure.
        self._interrupts.append(order)
        self._checks = SIGINT_CHECKS

    def _send_signal(self, order: messages.Signal) -> None:
        if order.group and self._program:
            try:
                os.killpg(self._program, order.number)
            except (ProcessLookupError, PermissionError):
                pass
        elif not order.group:
            # A second round for processes that were forked during the first.
            done: set[int] = set()
            for _ in range(2):
                for pid in kill_tree.below(os.getpid()):
                    if pid not in done:
                        done.add(pid)
                        kill_tree.kill_quietly(pid, order.number)

    def _check_interrupted(self) -> None:
        """Send SIGINT again if a process has missed it.

        A process that bash was just forking loses SIGINT to the handler that it had before its exec. A process that
        takes SIGINT and existed when it was sent must have missed it. So may bash, which gives up a command only if
        both got it. In this one case, a process that caught SIGINT gets it twice. On a busy machine the exec may
        come late, so the host repeats the order as long as the command runs.
        """
        self._checks -= 1
        lost = [pid for pid in self._interrupted if linux.takes_sigint(pid)]
        if lost and self._resends_left:
            self._resends_left -= 1
            self._checks = SIGINT_CHECKS
            self._send_signal(self._interrupts[-1])
        if not self._checks:
            for order in self._interrupts:
                self._send(messages.Signalled(order.order, False))
            self._interrupts, self._interrupted, self._resends_left = [], set(), MAX_SIGINT_RESENDS

    def _start(self, run: messages.Run) -> None:
        """Start the program, or report why that failed.

        posix_spawn shares the memory of this process until the exec. A fork would copy each page that Python touches
        on the way, which takes longer than bash. So init itself first takes on what the child inherits beside its
        descriptors: the working directory and the limits.
        """
        self._run = run
        in_folder, reason = False, f"the folder {run.cwd}"
        if run.processes:
            _stay_ahead()
        try:
            os.chdir(run.cwd)
            in_folder, reason = True, run.argv[0]
            for limit, value in ((resource.RLIMIT_NOFILE, run.files), (resource.RLIMIT_FSIZE, run.file_size)):
                if value:
                    hard = resource.getrlimit(limit)[1]
                    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
                    resource.setrlimit(limit, (value, value))
            if run.processes:
                # The kernel counts all processes of the user, and not those of root: a last resort behind the checks.
                _limit_processes(run.processes)
            actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(self._fds)]
            environment = {**ENVIRONMENT, "PWD": run.cwd, **run.env}
            if run.pty:
                self._program = self._start_on_terminal(run.argv, environment)
            else:
                self._program = os.posix_spawn(
                    run.argv[0],
                    run.argv,
                    environment,
                    file_actions=actions,
                    setsid=True,
                    setsigdef=DEFAULT_SIGNALS,
                    setsigmask=(),
                )
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            self._send(messages.RunFailed(f"{reason}: {why}", no_folder=not in_folder))
            self._over = True
            return
        finally:
            for fd in self._fds:
                os.close(fd)
            self._fds = []
        os.chdir("/")
        self._send(messages.InitUp(os.getpid(), self._program))

    def _start_on_terminal(self, argv: list[str], environment: dict[str, str]) -> int:
        """Fork and exec the program with a controlling terminal.

        The terminal is set by descriptor, because in a sandbox it has no path.
        """
        # Raises OSError for a program that does not exist; the child could not report that.
        os.close(os.open(argv[0], os.O_PATH | os.O_CLOEXEC))
        pid = linux.fork_bare()
        if pid:
            return pid
        try:
            _signal.set_wakeup_fd(-1)
            for signal_number in DEFAULT_SIGNALS:
                _signal.signal(signal_number, _signal.SIG_DFL)
            os.setsid()
            fcntl.ioctl(self._fds[0], termios.TIOCSCTTY, 0)
            for number, fd in enumerate(self._fds):
                os.dup2(fd, number, inheritable=True)
            os.execve(argv[0], argv, environment)
        finally:
            os._exit(NOT_STARTED_EXIT_CODE)

    # --- limits ---

    def _check_limits(self) -> None:
        """Compare the usage of the tree with its limits. If one is exceeded, report it and end everything."""
        run = self._run
        assert run is not None
        pids = kill_tree.below(os.getpid(), most=run.processes + 1 if run.processes else 0)
        memory, cpu = 0, self._cpu
        for pid in pids:
            memory += linux.own_memory(pid)
            cpu += linux.cpu_seconds(pid)
        self._peak = max(self._peak, memory // 1024)
        used = {"processes": float(len(pids)), "memory": float(memory), "cpu_seconds": cpu}
        for name, value in used.items():
            limit = getattr(run, name)
            if limit and value > limit:
                self._over = True
                self._send(messages.Breach(name, value))
                return


def _stay_ahead() -> None:
    """Get a higher priority than the programs below, where the system allows it: a fork bomb takes all CPU time."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        pass


def _limit_processes(most: int) -> None:
    """Have the kernel refuse forks far above the limit."""
    me, mine = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                mine += os.stat(f"/proc/{name}").st_uid == me
            except OSError:
                continue
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    # Twice the limit, so that a check finds and reports the breach before the kernel refuses forks.
    value = mine + 2 * most
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (value, hard))


def _notice(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor has already been written."""
