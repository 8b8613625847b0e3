"""The zygote of shell tasks, and the tiny init of each: parent of the program, adopter of all its strays.

    holder ── shells ── init ── program        (one init and one program for each task)

Nothing of a session is loaded here, so a fork is small and quick. An init is forked ahead and waits for its `Run`; when
nothing is left of that task it waits for the next one, since a fresh init costs more than a shell does. It promises
that the program's exit status reaches the host, that a signal for the tree reaches all of it, that a limit which is
passed is named and ends the tree, and that nothing below it outlives the host: when the status socket closes, all is
killed.
"""

import _signal  # type: ignore[import-not-found]
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import sys
import termios
from typing import Any

from ingle_worker.processes import kill_tree, linux
from ingle_worker.processes.holder import fork_below
from ingle_worker.wire import FrameReader, messages
from ingle_worker.wire.constants import FAILED_EXIT_CODE, NOT_STARTED_EXIT_CODE

LOOK_MS = 25
"""How often a tree with limits is looked at: what a fork bomb can do in between is little enough to be ended."""

CHECK_MS = 5
CHECKS = 3
"""How often, after SIGINT, it is looked for processes that should have ended by it."""

AGAIN = 20
"""How often SIGINT is sent again because of them."""

VERSION = ".".join(map(str, sys.version_info[:3]))
ENVIRONMENT = dict(os.environ)
DEFAULT_SIGNALS = [number for number in signal.valid_signals() if number not in (signal.SIGKILL, signal.SIGSTOP)]
"""Python and init ignore some signals, and what is ignored stays so over exec."""


def main(args: list[str]) -> None:
    """`shells LIFE CONTROL`."""
    life, control = int(args[1]), int(args[2])
    fork_below(life, control, b"ingle-shells")
    Shells(control).run()
    os._exit(0)


class Shells:
    """Forks an init for every `Fork`, with the status socket that came along."""

    def __init__(self, control: int) -> None:
        self._control = socket.socket(fileno=control)
        self._reader = FrameReader()
        self._inits: set[int] = set()

    def run(self) -> None:
        linux.become_subreaper()
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        gc.collect()
        gc.freeze()
        self._control.sendall(messages.encode(messages.ZygoteReady(os.getpid(), VERSION, sys.executable, [], [])))
        poller = select.poll()
        poller.register(self._control.fileno(), select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    kill_tree.reap(self._on_exit)
                elif not self._serve(wake_read, wake_write):
                    return

    def _serve(self, *private: int) -> bool:
        """One message's work. False when the host has closed its end."""
        data, fds, _, _ = socket.recv_fds(self._control, 4096, 1)
        if not data:
            return False
        for frame in self._reader.feed(data):
            message = messages.decode(frame)
            if isinstance(message, messages.Fork):
                self._fork(message, fds, private)
        return True

    def _fork(self, message: messages.Fork, fds: list[int], private: tuple[int, ...]) -> None:
        try:
            pid = linux.fork_bare()
        except OSError as error:
            pid = -1
            self._control.sendall(messages.encode(messages.ForkFailed(message.ticket, str(error))))
        if pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                self._control.close()
                for fd in private:
                    os.close(fd)
                os.set_inheritable(fds[0], False)
                TaskInit(fds[0]).run()
                os._exit(0)
            finally:
                os._exit(FAILED_EXIT_CODE)  # what is below it is ours to end
        if pid > 0:
            self._inits.add(pid)
        for fd in fds:
            os.close(fd)

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


class TaskInit:
    def __init__(self, status_fd: int) -> None:
        self._fd = status_fd
        self._socket = socket.socket(fileno=status_fd)
        self._reader = FrameReader()
        self._fds: list[int] = []
        self._over = False
        self._forget()

    def _forget(self) -> None:
        self._run: messages.Run | None = None
        self._program = 0
        self._status: int | None = None
        self._told = False
        self._cpu = 0.0
        self._peak = 0
        self._interrupts: list[messages.Signal] = []
        self._interrupted: set[int] = set()
        self._unmade: set[int] = set()
        """What was the program itself when SIGINT was sent: forked by it to become another, or part of it."""
        self._checks = 0
        self._again = AGAIN

    def run(self) -> None:
        """Until the host is gone or wants an end; then all below is gone too."""
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
        # Before anything runs below it that could stop it: then it takes the number to end it.
        self._send(messages.InitUp(os.getpid(), 0))
        while not self._over:
            ready = poller.poll(CHECK_MS if self._checks else LOOK_MS if self._limited else None)
            for fd, _ in ready:
                if fd == wake_read:
                    os.read(wake_read, 4096)
                elif not self._obey():
                    self._over = True
            if self._run is not None:
                self._gather()
                if self._limited and not self._over:
                    self._look()
                if self._checks and not ready:
                    self._check_interrupted()
        kill_tree.sweep(self._on_exit)
        self._tell_end(left=False)

    @property
    def _limited(self) -> bool:
        run = self._run
        return run is not None and bool(run.memory or run.cpu_seconds or run.processes)

    def _gather(self) -> None:
        """Take every exit status that is there, and tell what the host should know of it."""
        left = kill_tree.reap(self._on_exit)
        if self._status is None:
            return
        assert self._run is not None
        if left and self._run.lingers:
            self._tell_end(left=True)
        elif left or self._run.files or self._run.file_size or self._run.processes:
            # Limits that init has taken on itself are not lifted again.
            self._over = True
        else:
            self._tell_end(left=False)
            self._forget()

    def _on_exit(self, pid: int, status: int, usage: Any) -> None:
        self._cpu += usage.ru_utime + usage.ru_stime
        self._peak = max(self._peak, usage.ru_maxrss)
        if pid == self._program:
            self._status = status
            self._program = 0

    def _tell_end(self, left: bool) -> None:
        if self._status is not None and not self._told:
            self._told = True
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
        """Carry out what the host asks. False when everything shall end."""
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
            self._interrupted.update(pid for pid in self._unmade if linux.command_line(pid) != own)
        else:
            self._interrupted.update(kill_tree.below(os.getpid()))
            self._send_signal(order)
            self._interrupted.update(kill_tree.below(os.getpid()))
            own = linux.command_line(self._program)
            self._unmade = {pid for pid in self._interrupted if linux.command_line(pid) == own} - {self._program}
        # Told when it has landed for sure.
        self._interrupts.append(order)
        self._checks = CHECKS

    def _send_signal(self, order: messages.Signal) -> None:
        if order.group and self._program:
            try:
                os.killpg(self._program, order.number)
            except (ProcessLookupError, PermissionError):
                pass
        elif not order.group:
            # A second round for those that were forked while the first went on.
            done: set[int] = set()
            for _ in range(2):
                for pid in kill_tree.below(os.getpid()):
                    if pid not in done:
                        done.add(pid)
                        kill_tree.kill_quietly(pid, order.number)

    def _check_interrupted(self) -> None:
        """A process that bash was just making has lost a SIGINT to the handler it had before its exec: it comes again.

        One that would end by SIGINT and was there when it was sent must have missed it, and then so may have bash,
        which gives up a command only when both got it. Whoever caught it gets it twice then, in this one case.
        On a busy machine it may be long in the making: the host asks again as long as the command goes on.
        """
        self._checks -= 1
        lost = [pid for pid in self._interrupted if linux.takes_sigint(pid)]
        if lost and self._again:
            self._again -= 1
            self._checks = CHECKS
            self._send_signal(self._interrupts[-1])
        if not self._checks:
            for order in self._interrupts:
                self._send(messages.Signalled(order.order, False))
            self._interrupts, self._interrupted, self._again = [], set(), AGAIN

    def _start(self, run: messages.Run) -> None:
        """The program, or the reason why not.

        By posix_spawn, which borrows this process's memory until the exec: a fork would copy, page by page, whatever
        Python touches on the way, and that takes longer than bash does. So what the child is to inherit beside its
        descriptors, init takes on itself first.
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
                # Counted over all processes of the user, and not for root: the last resort, where looking is too late.
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
        """Forked by hand: the terminal is made the program's own by its descriptor, since in a room of its own there
        is no name for it."""
        # A program that is not there shall be told of, not end the child without a word.
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

    def _look(self) -> None:
        """Compare what the tree uses now with its limits; past one of them everything ends."""
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
    """Be scheduled before the programs that are watched, where the system lets us: a fork bomb takes all there is."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        pass


def _limit_processes(most: int) -> None:
    me, mine = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                mine += os.stat(f"/proc/{name}").st_uid == me
            except OSError:
                continue
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    # Twice, so that a breach is seen and named by whoever looks before the kernel refuses forks.
    value = mine + 2 * most
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (value, hard))


def _notice(number: int, frame: object) -> None:
    """The wake-up descriptor says it all."""
