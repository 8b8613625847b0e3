"""A task that runs one command: a shell below an init of its own, with pipes or a terminal."""

import asyncio
import fcntl
import os
import signal
import struct
import termios

from ingle.errors import Conflict, StartFailed
from ingle.events import LeftRunning, Usage
from ingle.requests import NewTask
from ingle.shell import process_tree
from ingle.shell.output_reader import OutputReader
from ingle.shell.process_runner import ProcessRunner
from ingle.shell.task import Task
from ingle.shell.task_process import TaskProcess
from ingle.support import processes
from ingle.workers.io.output_order import STDERR, STDOUT
from ingle.workers.io.writer import Writer
from ingle_worker.wire import messages
from ingle_worker.wire.constants import NOT_STARTED_EXIT_CODE

END_OF_INPUT = b"\x04"
"""Ctrl-D, which means an end of file on a terminal."""

MAX_UNREAD_INPUT_BYTES = 1 << 24
"""Bytes of input that may wait for a program that does not read them."""


class SingleCommand(ProcessRunner):
    """Runner of a task with a program of its own."""

    def __init__(self, task: Task, process: TaskProcess) -> None:
        self._loop = asyncio.get_running_loop()
        super().__init__(process)
        self._task = task
        self._input = -1
        self._writer: Writer | None = None
        self._pty = task.order.pty
        self._over = False
        self._cpu_before = 0.0

    def start(self, argv: list[str]) -> None:
        """Create the descriptors and have init start the program. Its end is reported to the task in any case."""
        order = self._task.order
        try:
            theirs, ours = self._open_terminal(order) if order.pty else self._open_pipes(order)
        except OSError as error:
            raise StartFailed(f"no pipe could be made: {error.strerror}; raise the limit of open files") from None
        try:
            self._reader = OutputReader(self._loop, ours, self._task.on_output, lambda: None)
            if self._input >= 0:
                os.set_blocking(self._input, False)
                self._writer = Writer(self._loop, self._input, self._write_input, self._on_input_lost)
                if order.stdin is not None:
                    self.write(order.stdin.encode("utf-8", "surrogateescape"), eof=not (order.interactive or order.pty))
            self._process.owner = self
            if self._process.init_pid is not None:
                # The init has run other tasks, and waited for their processes.
                self._cpu_before = processes.waited_for(self._process.init_pid)
            limits = order.limits
            terminal = {"TERM": "xterm-256color"} if order.pty else {}
            self._process.run(
                messages.Run(
                    argv,
                    order.cwd,
                    {**terminal, **order.env},
                    pty=order.pty,
                    memory=limits.memory or 0,
                    cpu_seconds=limits.cpu_seconds or 0.0,
                    processes=limits.processes or 0,
                    files=limits.files or 0,
                    file_size=limits.file_size or 0,
                ),
                theirs,
            )
        finally:
            for fd in set(theirs):
                os.close(fd)
        if not self._process.alive:
            self.on_gone()

    def _open_pipes(self, order: NewTask) -> tuple[list[int], dict[int, int]]:
        made: list[int] = []
        try:
            if order.stdin is None and not order.interactive:
                child_in = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                made.append(child_in)
            else:
                child_in, self._input = os.pipe()
                made += [child_in, self._input]
            out, child_out = os.pipe()
            made += [out, child_out]
            err, child_err = os.pipe()
        except OSError:
            for fd in made:
                os.close(fd)
            raise
        return [child_in, child_out, child_err], {STDOUT: out, STDERR: err}

    def _open_terminal(self, order: NewTask) -> tuple[list[int], dict[int, int]]:
        master, slave = os.openpty()
        _set_size(master, order.rows, order.columns)
        # A second descriptor to write to, because the reader closes its own at the end.
        self._input = os.dup(master)
        return [slave, slave, slave], {STDOUT: master}

    # --- orders of the task ---

    def interrupt(self) -> None:
        """Send SIGINT to the whole tree."""
        self._process.signal(signal.SIGINT)

    def terminate(self) -> None:
        """Send SIGTERM to the whole tree."""
        self._process.signal(signal.SIGTERM)
        # A stopped process takes the signal only when it is continued.
        self._process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the whole tree."""
        self._process.kill()

    def write(self, data: bytes, *, eof: bool) -> bool:
        """Send input. Return False when there is no open input."""
        if self._writer is None or self._input < 0:
            return False
        if self._writer.waiting > MAX_UNREAD_INPUT_BYTES:
            raise Conflict(
                f"{self._writer.waiting} bytes of input are not read yet; send more when the task has read them"
            )
        self._writer.write(data)
        if eof and self._pty:
            self._writer.write(END_OF_INPUT)
        elif eof:
            self._writer.close_when_empty(self._close_input)
        return True

    def _write_input(self, data: bytes) -> int:
        return os.write(self._input, data)

    def _on_input_lost(self) -> None:
        # Not at once: the writer still has to unregister the descriptor.
        self._loop.call_soon(self._close_input)

    def _close_input(self) -> None:
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    def resize(self, rows: int, columns: int) -> bool:
        """Set the size of the terminal. Return False when there is none."""
        if not self._pty or self._input < 0:
            return False
        _set_size(self._input, rows, columns)
        return True

    def usage(self) -> Usage:
        """Return the usage of the tree. Blocking, for a thread."""
        if self._process.init_pid is None:
            return Usage()
        used = process_tree.usage(self._process.init_pid)
        return Usage(max(0.0, used.cpu_seconds - self._cpu_before), used.memory)

    def living(self) -> list[LeftRunning]:
        """Return the processes of the tree. Blocking, for a thread."""
        return [] if self._process.init_pid is None else process_tree.living(processes.below(self._process.init_pid))

    # --- events ---

    def on_exited(self, message: messages.ProgramExited) -> None:
        """Report the end of the program."""
        self._task.on_program_end(
            message.status, Usage(message.cpu_seconds, message.peak_kib * 1024), left=message.left
        )

    def on_breach(self, message: messages.Breach) -> None:
        """Report that the tree has exceeded a limit."""
        self._task.on_breach(message.limit, message.used)

    def on_gone(self) -> None:
        """Report the end of the tree. The pipes hold the last bytes there are."""
        if self._over:
            return
        self._over = True
        self._reader.read_now()
        self._reader.close()
        if self._writer is not None:
            self._writer.forget()
        self._close_input()
        task = self._task
        task.use(Usage(self._process.cpu_seconds, self._process.peak_bytes))
        if self._process.failure is not None:
            # As a shell reports a command that it cannot find.
            task.exit_code = NOT_STARTED_EXIT_CODE
            task.notices.append(f"it could not be started: {self._process.failure}")
        elif task.ended_at is None:
            task.killed_from_outside()
        task.on_over()


def _set_size(fd: int, rows: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
