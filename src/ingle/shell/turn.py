"""One command in a persistent shell, which carries out a task.

Its output goes through FIFOs of its own, so a process that it leaves in the background still writes to its own task.
"""

import asyncio
import contextlib
import enum
import os
import signal
from collections.abc import Iterable
from pathlib import Path

from ingle.events import LeftRunning, Usage
from ingle.requests import NewTask
from ingle.shell import process_tree
from ingle.shell.bash import Bash
from ingle.shell.output_reader import OutputReader
from ingle.shell.process_runner import ProcessRunner
from ingle.shell.sandbox import Sandbox
from ingle.shell.task import Task
from ingle.support import processes
from ingle.workers.io.output_order import STDERR, STDOUT

FIRST_WATCH_SECONDS = 0.02
MAX_WATCH_SECONDS = 1.0
"""Pause before it is checked again whether a background process still lives. It doubles each time."""


class State(enum.Enum):
    """States of a turn. Each is followed by the next one, or by OVER."""

    PENDING = "bash was told of the command"
    RUNNING = "bash has begun with it"
    REPORTED = "bash has reported its status; processes that it left may run on"
    OVER = "no process of it is left, or bash is gone"


class TurnFiles:
    """Files of one command: the command itself, its input, and FIFOs for its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, order: NewTask, sandbox: Sandbox | None) -> None:
        """Create the files. Blocking, for a thread."""
        os.makedirs(self.folder, 0o700)
        (self.folder / "command").write_bytes(order.command.encode("utf-8", "surrogateescape"))
        if order.stdin is not None:
            (self.folder / "stdin").write_bytes(order.stdin.encode("utf-8", "surrogateescape"))
        for name in ("out", "err"):
            os.mkfifo(self.folder / name, 0o600)
        if sandbox is not None:
            for path in (self.folder, *self.folder.iterdir()):
                sandbox.give(path)

    def remove(self) -> None:
        """Remove the files. Blocking, for a thread."""
        for name in ("command", "stdin", "out", "err"):
            with contextlib.suppress(OSError):
                os.unlink(self.folder / name)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def open_fifos(self) -> tuple[dict[int, int], list[int]]:
        """Open the FIFOs. Return descriptors to read by stream, and writers that keep the end of file away."""
        readers: dict[int, int] = {}
        writers: list[int] = []
        try:
            for number, name in ((STDOUT, "out"), (STDERR, "err")):
                path = self.folder / name
                readers[number] = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                writers.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            for fd in (*readers.values(), *writers):
                os.close(fd)
            raise
        return readers, writers


class Turn(ProcessRunner):
    """Runner of a task in a persistent shell."""

    def __init__(self, bash: Bash, task: Task, number: int, files: TurnFiles) -> None:
        """Open the FIFOs. Raises OSError if there are no more descriptors."""
        super().__init__(bash.process)
        self._bash = bash
        self._loop = asyncio.get_running_loop()
        self.task = task
        self.number = number
        self._files = files
        self.state = State.PENDING
        self._interrupted = False
        """Whether an interrupt was requested. It is sent when bash has begun: before, it would be lost."""
        self._left: list[int] = []
        """Processes that the command had started and left running when it ended."""
        fds, self._writers = files.open_fifos()
        self._reader = OutputReader(self._loop, fds, task.on_output, self._on_end_of_output)

    def start(self) -> None:
        """Have bash run the command."""
        folder = self._files.folder
        stdin = "/dev/null" if self.task.order.stdin is None else f"{folder}/stdin"
        self._bash.run(self.number, folder, stdin)

    # --- events ---

    def on_begun(self) -> None:
        """Note that bash has begun with the command."""
        if self.state is State.PENDING:
            self.state = State.RUNNING
            if self._interrupted:
                self._bash.interrupt()

    def on_reported(self, status: int) -> None:
        """Note that the command has ended, and that the shell is free for the next one."""
        self.state = State.REPORTED
        usage, self._left = self._bash.take_stock()
        self._close_writers()
        self._reader.read_now()
        if not self._reader.at_end and not self._left:
            # The kernel's list of children can miss one while another is being reaped: a process has the output open.
            _, self._left = self._bash.take_stock()
        # bash reports a signal as 128 and its number. That is kept, since the shell itself was not hit by the signal.
        # Without a process of the command, only bash itself can have its output open, as after `exec 3>&1`.
        over = self._reader.at_end or not self.living()
        self.task.on_program_end(status << 8, usage, left=not over)
        if over:
            self._finish()
        else:
            self._watch(FIRST_WATCH_SECONDS)

    def on_shell_gone(self) -> None:
        """Note that bash is gone, and all that ran below it."""
        if self.state is State.OVER:
            return
        self._close_writers()
        self._reader.read_now()
        if self.task.ended_at is None:
            self.task.killed_from_outside()
        self._finish()

    def _on_end_of_output(self) -> None:
        if self.state is State.REPORTED:
            self._finish()

    def _watch(self, pause: float) -> None:
        """End the turn when no process of the command lives: then only bash itself still has its output open."""
        if self.state is State.OVER:
            return
        if self._interrupted:
            self._interrupt_lost()
        if self.task.answered and not self.living():
            self._reader.read_now()
            self._finish()
        else:
            self._loop.call_later(pause, self._watch, min(2 * pause, MAX_WATCH_SECONDS))

    def _interrupt_lost(self) -> None:
        """Interrupt processes that bash has lost: interrupted in a fork, it gives up the command, not the child.

        Background processes are not hit: without job control, bash has them ignore SIGINT.
        """
        self._signal_pids([pid for pid in self._left if processes.takes_sigint(pid)], signal.SIGINT)

    def _signal_pids(self, pids: Iterable[int], number: int) -> None:
        if not self._bash.closed and self._process.init_pid is not None:
            processes.send_signal(self._process.init_pid, pids, number)

    def _close_writers(self) -> None:
        for fd in self._writers:
            os.close(fd)
        self._writers.clear()

    def _finish(self) -> None:
        if self.state is State.OVER:
            return
        self.state = State.OVER
        self._close_writers()
        self._reader.close()
        self._loop.run_in_executor(None, self._files.remove)
        self.task.on_over(self.living())

    # --- orders of the task ---

    def interrupt(self) -> None:
        """Interrupt the command, at once or as soon as it has begun."""
        if self.state in (State.PENDING, State.RUNNING):
            self._interrupted = True
        if self.state is State.RUNNING:
            self._bash.interrupt()

    def terminate(self) -> None:
        """Interrupt the command as Ctrl-C does: the shell goes on. Background processes get SIGTERM."""
        self.go_on()
        if self.state in (State.PENDING, State.RUNNING):
            self.interrupt()
        else:
            self._signal_pids(self._all_left(), signal.SIGTERM)

    def kill(self) -> None:
        """Kill background processes. While the command itself runs, only the end of the shell is sure to end it."""
        if self.state in (State.PENDING, State.RUNNING):
            self._process.kill()
        else:
            self._signal_pids(self._all_left(), signal.SIGKILL)

    def write(self, data: bytes, *, eof: bool) -> bool:
        """Return False: a command in a persistent shell has no open input."""
        return False

    def resize(self, rows: int, columns: int) -> bool:
        """Return False: a command in a persistent shell has no terminal."""
        return False

    def usage(self) -> Usage:
        """Return the usage while the command runs. Blocking, for a thread."""
        return self._bash.usage() if self.state in (State.PENDING, State.RUNNING) else Usage()

    def living(self) -> list[LeftRunning]:
        """Return the processes that the command has left and that still run. Blocking, for a thread."""
        return [] if self._bash.closed else process_tree.living(self._all_left())

    def _all_left(self) -> list[int]:
        found = dict.fromkeys(self._left)
        for pid in self._left:
            found.update(dict.fromkeys(processes.below(pid)))
        return list(found)
