"""One bash process of a persistent shell: the lines it reads, the reports it writes, and its usage.

bash reads its lines from a pipe that no command sees, and reports the status of each command on a second such pipe. It
is an interactive shell, because only such a one gives up the rest of a command at SIGINT and lives on.
"""

import asyncio
import os
import re
import secrets
import signal
from asyncio import FIRST_COMPLETED
from collections.abc import Callable
from pathlib import Path

from ingle.events import Usage
from ingle.shell import process_tree
from ingle.shell.task_process import TaskProcess
from ingle.support import processes
from ingle.workers.io.writer import Writer
from ingle_worker.wire import messages

ARGUMENTS = ("--norc", "--noprofile", "--noediting", "-i")

PRELUDE = "set +H +o history; PS1= PS2=; unset HISTFILE MAILCHECK PROMPT_COMMAND\n"

COMMAND_LINES = (
    "builtin echo {token} {number} begun; IFS= read -r -d '' <{folder}/command || :; LINENO=0; "
    'eval "$REPLY" <{stdin} >{folder}/out 2>{folder}/err\nbuiltin echo {token} {number} $?\n'
)

BEGUN = b"begun"

FIRST_PROBE_SECONDS = 0.02
MAX_PROBE_SECONDS = 5.0
"""Pause before bash is asked again, after an interrupt, for a report that may be lost. It doubles each time."""

SETTLE_SECONDS = 0.05
MAX_SETTLE_TRIES = 100
"""Time for bash to answer after an interrupt, before the next command. After so many tries bash is replaced."""

MAX_PARTIAL_REPORT_BYTES = 4096
"""Bytes kept of a report that is not complete. All else on that pipe is output of traps."""

OnReport = Callable[[int, bytes], None]
"""Receives the number of a command, and either `BEGUN` or its exit status in digits."""


class Bash:
    """bash below an init. It runs one command at a time."""

    def __init__(self, process: TaskProcess, on_report: OnReport) -> None:
        """Create the pipes. Raises OSError, and closes the process, if there are no more descriptors."""
        self.process = process
        self._on_report = on_report
        self._loop = asyncio.get_running_loop()
        self.token = secrets.token_hex(8)
        self._report = re.compile(rb"%s (\d+) (\d+|begun)\n" % self.token.encode())
        made: list[int] = []
        try:
            made += os.pipe()
            made += os.pipe()
            made.append(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for fd in made:
                os.close(fd)
            process.close()
            raise
        child_in, self._input, self.reports, child_out, child_err = made
        self._child_fds = [child_in, child_out, child_err]
        for fd in (self._input, self.reports):
            os.set_blocking(fd, False)
        self._writer = Writer(self._loop, self._input, lambda data: os.write(self._input, data), lambda: None)
        self._closed = False
        self._running = 0
        """Number of the command whose status was not reported yet; 0 if there is none."""
        self._partial = b""
        self.signals: set[asyncio.Future[bool]] = set()
        """Interrupts that have not arrived yet."""
        self._unsettled = False
        self._settled: asyncio.Future[None] | None = None
        self._cpu_seconds = 0.0
        self._strays: set[int] = set()
        """Processes that earlier commands have left running."""
        # The init may have run other tasks, and waited for their processes.
        self._cpu_before = 0.0 if process.init_pid is None else processes.waited_for(process.init_pid)

    def start(self, shell: str, cwd: str, env: dict[str, str]) -> None:
        """Start bash. If its init is gone, that is reported as always."""
        # bash may be quicker than its init, which alone tells which process bash is, and so what a command has left.
        self.process.ready.add_done_callback(lambda ready: self._read_reports())
        self.process.run(messages.Run([shell, *ARGUMENTS], cwd, env, lingers=False), self._child_fds)
        for fd in self._child_fds:
            os.close(fd)
        if self.process.alive:
            self._send(PRELUDE)

    def run(self, number: int, folder: Path, stdin: str) -> None:
        """Run the command in the file `command` of `folder`, with input from the file `stdin`."""
        self._running = number
        self._send(
            COMMAND_LINES.format(folder=_quote(str(folder)), stdin=_quote(stdin), token=self.token, number=number)
        )

    def _send(self, text: str) -> None:
        self._writer.write(text.encode("utf-8", "surrogateescape"))

    # --- reports ---

    def _read_reports(self) -> None:
        if not self._closed:
            self._loop.add_reader(self.reports, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = os.read(self.reports, 65536)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self.reports)
            return
        self._partial += data
        end = 0
        for found in self._report.finditer(self._partial):
            end = found.end()
            self._on_word(int(found[1]), found[2])
        self._partial = self._partial[end:][-MAX_PARTIAL_REPORT_BYTES:]

    def _on_word(self, number: int, word: bytes) -> None:
        if number == 0:
            if self._settled is not None and not self._settled.done():
                self._settled.set_result(None)
        elif number == self._running:
            if word != BEGUN:
                self._running = 0
            self._on_report(number, word)

    # --- interrupts ---

    def interrupt(self) -> None:
        """Send SIGINT to bash's process group, which runs a command."""
        number = self._running
        self._unsettled = True
        sent = self._send_interrupt()
        sent.add_done_callback(
            lambda sent: self._loop.call_later(FIRST_PROBE_SECONDS, self._probe, number, FIRST_PROBE_SECONDS)
        )

    def _send_interrupt(self, *, again: bool = False) -> "asyncio.Future[bool]":
        sent = self.process.signal(signal.SIGINT, group=True, again=again)
        self.signals.add(sent)
        sent.add_done_callback(self.signals.discard)
        return sent

    def _probe(self, number: int, pause: float) -> None:
        """Ask again for a status that may be lost with the line it was in, as long as the command has not ended.

        SIGINT is sent again for a program that has missed it, because it had not called exec.
        """
        if self._running == number and not self._closed and self.process.alive:
            self._send(f"\n\nbuiltin echo {self.token} {number} 130\n")
            self._send_interrupt(again=True)
            self._loop.call_later(pause, self._probe, number, min(2 * pause, MAX_PROBE_SECONDS))

    async def settle(self) -> None:
        """After an interrupt, wait until no signal is under way and bash reads whole lines again.

        A signal that hits bash while it reads a line costs that line, so no line of the next command may be sent
        before. A bash that does not answer is killed.
        """
        while self.signals:
            await asyncio.wait(self.signals)
        tries = 0
        while self._unsettled and not self._closed and self.process.alive:
            self._settled = self._loop.create_future()
            self._send(f"\n\nbuiltin echo {self.token} 0 0\n")
            await asyncio.wait({self._settled, self.process.gone}, timeout=SETTLE_SECONDS, return_when=FIRST_COMPLETED)
            self._unsettled = not self._settled.done()
            tries += 1
            if tries == MAX_SETTLE_TRIES and self._unsettled:
                self.process.kill()
                await self.process.gone

    # --- usage ---

    @property
    def cpu_seconds(self) -> float:
        """CPU time of bash at the end of its last command."""
        return self._cpu_seconds

    def take_stock(self) -> tuple[Usage, list[int]]:
        """At the end of a command, return its CPU time and the processes that it has left running."""
        process = self.process
        if self._closed or process.pid is None or process.init_pid is None:
            return Usage(), []
        before, self._cpu_seconds = self._cpu_seconds, processes.cpu_of(process.pid)
        # Both have one thread. Orphans are children of init.
        running = [*processes.children_of_thread(process.pid, str(process.pid))]
        running += [
            pid for pid in processes.children_of_thread(process.init_pid, str(process.init_pid)) if pid != process.pid
        ]
        left = [pid for pid in running if pid not in self._strays]
        self._strays = set(running)
        return Usage(max(0.0, self._cpu_seconds - before)), left

    def usage(self) -> Usage:
        """Return the usage of bash and all below it since its last command ended. Blocking, for a thread."""
        if self._closed or self.process.init_pid is None:
            return Usage()
        used = process_tree.usage(self.process.init_pid)
        return Usage(max(0.0, used.cpu_seconds - self._cpu_before - self._cpu_seconds), used.memory)

    @property
    def closed(self) -> bool:
        """Whether bash is gone, with all below it."""
        return self._closed

    def close(self) -> None:
        """Close the pipes of a bash that is gone."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self.reports)
            self._writer.forget()
            os.close(self.reports)
            os.close(self._input)


def _quote(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
