"""A persistent shell: one bash kept alive, in which commands run one after another and leave `cd`, variables and
functions behind.

No prompt is guessed at. bash takes its lines from a pipe that no command sees: one that evaluates the command, read
from a file, with the command's own input, output and errors; and one that reports its exit status on a second pipe that
no command sees. It runs as an interactive shell, since only such a one gives up the rest of a command at SIGINT, or at
an unset variable, and lives on. Output goes through FIFOs of that command alone, so what it leaves running in the
background still writes to its own task.
"""

import asyncio
import contextlib
import os
import re
import secrets
import signal
from asyncio import FIRST_COMPLETED
from collections.abc import Iterable
from pathlib import Path

from ingle import errors
from ingle.events import LeftRunning, Usage
from ingle.settings import Settings
from ingle.shell import process_tree
from ingle.shell.launcher import Launcher
from ingle.shell.output_reader import Reader
from ingle.shell.sandbox import Room
from ingle.shell.task import KILLED, Task, no_folder
from ingle.shell.task_process import Process
from ingle.support import processes, remove_tree
from ingle.workers.io.output_order import STDERR, STDOUT
from ingle.workers.io.writer import Sender
from ingle_worker.wire import messages

ARGS = ("--norc", "--noprofile", "--noediting", "-i")

PRELUDE = "set +H +o history; PS1= PS2=; unset HISTFILE MAILCHECK PROMPT_COMMAND\n"

LINE = (
    "builtin echo {token} {number} begun; IFS= read -r -d '' <{folder}/command || :; LINENO=0; "
    'eval "$REPLY" <{stdin} >{folder}/out 2>{folder}/err\nbuiltin echo {token} {number} $?\n'
)

KNOCK = 0.02
MAX_KNOCK = 5.0
"""How soon and how seldom, after an interrupt, the shell is asked whether it is back: a report may have been lost."""

SETTLE = 0.05
SETTLE_TRIES = 100
"""How long, and how often, bash is given to answer after an interrupt before the next command; then it is replaced."""

WATCH = 0.02
MAX_WATCH = 1.0
"""How soon and how seldom it is looked whether what a command left in the background still lives."""

HELD = 4096
"""Bytes of reports kept, at most, while one is not whole: all else on that pipe are words of traps."""


class Console:
    def __init__(self, name: str, shell: str, folder: Path, launcher: Launcher, settings: Settings) -> None:
        self._name = name
        self._shell = shell
        self._folder = folder / f"shell-{secrets.token_hex(4)}"
        self._room: Room | None = None
        self._launcher = launcher
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._token = secrets.token_hex(8)
        self._report = re.compile(rb"%s (\d+) (\d+|begun)\n" % self._token.encode())
        self._process: Process | None = None
        self._numbers = 0
        self._turn: Turn | None = None
        self._turns: set[Turn] = set()
        self._starting = False
        self._ended = False
        self._lost: str | None = None
        self._held = b""
        self._signals: set[asyncio.Future[None]] = set()
        self._unsettled = False
        self._settled: asyncio.Future[None] | None = None
        self._cpu = 0.0
        self._strays: set[int] = set()
        """What earlier commands have left running."""

    async def start(self, task: Task, room: Room | None = None) -> None:
        """Run a task's command in this shell, or refuse it while another runs."""
        if self._ended:
            raise errors.Unavailable(f"the shell {self._name!r} was ended; ask again for a fresh one")
        if self._turn is not None or self._starting:
            turn = self._turn
            raise errors.ShellBusy(self._name, turn.task.id if turn else "to come", turn.task.age if turn else 0.0)
        self._starting = True
        self._room = room
        if room is not None:
            self._folder = room.folder / self._folder.name
        try:
            await self._settle()
            self._numbers += 1
            turn = Turn(self, task, self._numbers, self._folder / str(self._numbers))
            await self._ensure_open(task)
            await asyncio.to_thread(turn.make_files, room)
            # It may have ended meanwhile; nothing has begun, so another can take its place.
            await self._ensure_open(task)
            if self._process is None or self._ended:
                await asyncio.to_thread(turn.remove_files)
                raise errors.StartFailed("the shell ended before the command could begin; ask again for a fresh one")
            try:
                turn.open()
            except OSError as error:
                await asyncio.to_thread(turn.remove_files)
                raise _no_pipe(error) from None
        finally:
            self._starting = False
        if self._lost is not None:
            task.notices.append(self._lost)
            self._lost = None
        self._turn = turn
        self._turns.add(turn)
        task.begin(turn)
        stdin = "/dev/null" if task.order.stdin is None else f"{turn.folder}/stdin"
        self._send(
            LINE.format(folder=_quote(str(turn.folder)), stdin=_quote(stdin), token=self._token, number=turn.number)
        )

    async def _ensure_open(self, task: Task) -> None:
        """A process that has gone was let go of in the same moment: `on_gone`."""
        if self._process is None and not self._ended:
            await self._open(task)

    async def _open(self, task: Task) -> None:
        """A fresh bash, in the task's folder and environment."""
        process = await self._launcher.take(self._room)
        made: list[int] = []
        try:
            made += os.pipe()
            made += os.pipe()
            made.append(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            for fd in made:
                os.close(fd)
            process.close()
            raise _no_pipe(error) from None
        child_in, self._input, self._reports, child_out, child_err = made
        for fd in (self._input, self._reports):
            os.set_blocking(fd, False)
        self._sender = Sender(self._loop, self._input, lambda data: os.write(self._input, data), lambda: None)
        # bash may be quicker than its init. Only that tells which process bash is, and so what a command has left.
        process.ready.add_done_callback(lambda ready: self._read_reports(process))
        process.owner = self
        self._process = process
        self._held = b""
        self._unsettled = False
        self._cpu, self._strays = 0.0, set()
        # Init may have run other tasks, and waited for them.
        self._waited = 0.0 if process.init_pid is None else processes.waited_for(process.init_pid)
        order = task.order
        run = messages.Run([self._shell, *ARGS], order.cwd, order.env, lingers=False)
        process.run(run, [child_in, child_out, child_err])
        for fd in (child_in, child_out, child_err):
            os.close(fd)
        if not process.alive:
            self.on_gone()
            raise errors.StartFailed("the shell could not be started; try again")
        self._send(PRELUDE)
        if self._room is not None:
            # Only its init can see which folders there are.
            await process.wait_started()
            if process.no_folder:
                await process.gone
                self._lost = None
                raise no_folder(order)

    def _send(self, text: str) -> None:
        self._sender.write(text.encode("utf-8", "surrogateescape"))

    # --- what bash reports ---

    def _read_reports(self, process: Process) -> None:
        if self._process is process:
            self._loop.add_reader(self._reports, self._on_report)

    def _on_report(self) -> None:
        try:
            data = os.read(self._reports, 65536)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._reports)
            return
        self._held += data
        end = 0
        for found in self._report.finditer(self._held):
            end = found.end()
            self._on_word(int(found[1]), found[2])
        self._held = self._held[end:][-HELD:]

    def _on_word(self, number: int, word: bytes) -> None:
        turn = self._turn
        if number == 0:
            if self._settled is not None and not self._settled.done():
                self._settled.set_result(None)
        elif turn is not None and number == turn.number:
            if word == b"begun":
                turn.on_begun()
            else:
                self._turn = None
                turn.on_reported(int(word))

    def interrupt(self, turn: "Turn") -> None:
        """SIGINT for the shell's group, which runs this turn."""
        if self._process is None:
            return
        sent = self._process.signal(signal.SIGINT, group=True)
        self._signals.add(sent)
        self._unsettled = True

        def on_sent(sent: "asyncio.Future[None]") -> None:
            self._signals.discard(sent)
            self._loop.call_later(KNOCK, self._knock, turn, KNOCK)

        sent.add_done_callback(on_sent)

    async def _settle(self) -> None:
        """After an interrupt: until no signal is under way and bash reads lines whole again.

        One that hits bash while it reads a line costs that line, so none of the next command's may be sent before.
        """
        while self._signals:
            await asyncio.wait(self._signals)
        tries = 0
        while self._unsettled and self._process is not None and self._process.alive:
            self._settled = self._loop.create_future()
            self._send(f"\n\nbuiltin echo {self._token} 0 0\n")
            await asyncio.wait({self._settled, self._process.gone}, timeout=SETTLE, return_when=FIRST_COMPLETED)
            self._unsettled = not self._settled.done()
            tries += 1
            if tries == SETTLE_TRIES and self._unsettled:
                self._process.kill()
                await self._process.gone

    def _knock(self, turn: "Turn", pause: float) -> None:
        """After an interrupt: have the status told again, should its report have gone lost with the line it was in; and
        SIGINT sent again, should a program have missed it that was not one yet."""
        if self._turn is turn and self._process is not None and self._process.alive:
            self._send(f"\n\nbuiltin echo {self._token} {turn.number} 130\n")
            sent = self._process.signal(signal.SIGINT, group=True, again=True)
            self._signals.add(sent)
            sent.add_done_callback(self._signals.discard)
            self._loop.call_later(pause, self._knock, turn, min(2 * pause, MAX_KNOCK))

    # --- what init tells ---

    def on_exited(self, message: messages.ProgramExited) -> None:
        turn = self._turn
        if turn is not None:
            usage = Usage(max(0.0, message.cpu_seconds - self._cpu), message.peak_kib * 1024)
            turn.task.on_program_end(message.status, usage, left=False)

    def on_breach(self, message: messages.Breach) -> None:
        """No limits are set for the shell as a whole."""

    def on_gone(self) -> None:
        """bash is gone, and all that ran below it."""
        self._process = None
        turn, self._turn = self._turn, None
        self._loop.remove_reader(self._reports)
        self._sender.forget()
        os.close(self._reports)
        os.close(self._input)
        self._lost = (
            f"this is a fresh shell: the one before it ended{' in task ' + turn.task.id if turn else ''}, "
            "and its folder, variables and functions are gone"
        )
        if turn is not None:
            turn.task.notices.append(
                f"the shell {self._name!r} ended with this command; the next one begins in a fresh shell"
            )
        for each in list(self._turns):
            each.on_shell_gone()

    # --- for its turns ---

    def take_stock(self) -> tuple[Usage, list[int]]:
        """At the end of a command: the CPU time it took, and what it has left running."""
        process = self._process
        if process is None or process.pid is None or process.init_pid is None:
            return Usage(), []
        before, self._cpu = self._cpu, processes.cpu_of(process.pid)
        # Both have one thread; what was orphaned is init's.
        running = [*processes.children_of_thread(process.pid, str(process.pid))]
        running += [
            pid for pid in processes.children_of_thread(process.init_pid, str(process.init_pid)) if pid != process.pid
        ]
        left = [pid for pid in running if pid not in self._strays]
        self._strays = set(running)
        return Usage(max(0.0, self._cpu - before)), left

    def usage(self) -> Usage:
        """Of the shell and all below it, since its last command ended. Blocking, for a thread."""
        process = self._process
        if process is None or process.init_pid is None:
            return Usage()
        used = process_tree.usage(process.init_pid)
        return Usage(max(0.0, used.cpu_seconds - self._waited - self._cpu), used.memory)

    def release(self, turn: "Turn") -> None:
        self._turns.discard(turn)

    @property
    def process(self) -> Process | None:
        return self._process

    async def end(self) -> None:
        self._ended = True
        for turn in self._turns:
            turn.task.end(KILLED, "killed: its shell was ended", now=True)
        if self._process is not None:
            process = self._process
            process.kill()
            await process.gone
        await asyncio.to_thread(remove_tree.remove, self._folder)


class Turn:
    """One command in a persistent shell: carries out a task."""

    def __init__(self, console: Console, task: Task, number: int, folder: Path) -> None:
        self._console = console
        self._loop = asyncio.get_running_loop()
        self.task = task
        self.number = number
        self.folder = folder
        self._keepers: list[int] = []
        self._left: list[int] = []
        """What the command had started and left running when it ended."""
        self._begun = False
        self._interrupt_wanted = False
        self._interrupted = False
        self._reported = False
        self._over = False

    def make_files(self, room: Room | None) -> None:
        """Blocking, for a thread."""
        order = self.task.order
        os.makedirs(self.folder, 0o700)
        (self.folder / "command").write_bytes(order.command.encode("utf-8", "surrogateescape"))
        if order.stdin is not None:
            (self.folder / "stdin").write_bytes(order.stdin.encode("utf-8", "surrogateescape"))
        for name in ("out", "err"):
            os.mkfifo(self.folder / name, 0o600)
        if room is not None:
            for path in (self.folder, *self.folder.iterdir()):
                room.give(path)

    def remove_files(self) -> None:
        """Blocking, for a thread."""
        for name in ("command", "stdin", "out", "err"):
            with contextlib.suppress(OSError):
                os.unlink(self.folder / name)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def open(self) -> None:
        """Our ends of the FIFOs: to read, and, until bash has opened its own, one to keep the end of file away."""
        fds: dict[int, int] = {}
        try:
            for number, name in ((STDOUT, "out"), (STDERR, "err")):
                path = self.folder / name
                fds[number] = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                self._keepers.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            self._let_go()
            for fd in fds.values():
                os.close(fd)
            raise
        self._reader = Reader(self._loop, fds, self.task.on_output, self._on_end_of_output)

    def on_reported(self, status: int) -> None:
        """The command has ended, and the shell is free for the next."""
        self._reported = True
        usage, self._left = self._console.take_stock()
        self._let_go()
        self._reader.read_now()
        if not self._reader.at_end and not self._left:
            # The kernel's list of children can miss one while another is being reaped; somebody has the output open.
            _, self._left = self._console.take_stock()
        # bash tells a signal as 128 and its number, and so do we, since the shell itself has not been hit by it.
        # Without a process of the command's, only bash itself can still have its output open: `exec 3>&1` does that.
        over = self._reader.at_end or not self.living()
        self.task.on_program_end(status << 8, usage, left=not over)
        if over:
            self._finish()
        else:
            self._watch(WATCH)

    def _watch(self, pause: float) -> None:
        """Over, when nothing that the command started lives: then only bash itself still has its output open."""
        if self._over:
            return
        if self._interrupted:
            self._end_lost()
        if self.task.answered and not self.living():
            self._reader.read_now()
            self._finish()
        else:
            self._loop.call_later(pause, self._watch, min(2 * pause, MAX_WATCH))

    def _let_go(self) -> None:
        for fd in self._keepers:
            os.close(fd)
        self._keepers.clear()

    def _on_end_of_output(self) -> None:
        if self._reported:
            self._finish()

    def _end_lost(self) -> None:
        """Interrupted while it made a process, bash gives the command up and forgets the process, which goes on.

        One in the background is not meant: without job control, bash has those ignore SIGINT.
        """
        self._signal([pid for pid in self._left if processes.takes_sigint(pid)], signal.SIGINT)

    def _signal(self, pids: Iterable[int], number: int) -> None:
        process = self._console.process
        if process is not None and process.init_pid is not None:
            processes.send_signal(process.init_pid, pids, number)

    def on_shell_gone(self) -> None:
        self._let_go()
        self._reader.read_now()
        if self.task.ended_at is None:
            self.task.killed_from_outside()
        self._finish()

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        self._let_go()
        self._reader.close()
        self._console.release(self)
        self._loop.run_in_executor(None, self.remove_files)
        self.task.on_over(self.living())

    # --- what the task asks ---

    def interrupt(self) -> None:
        """At once, or as soon as the command has begun: before, bash would take it for nothing."""
        if self._begun and not self._reported:
            self._interrupted = True
            self._console.interrupt(self)
        self._interrupt_wanted = not self._begun

    def on_begun(self) -> None:
        self._begun = True
        if self._interrupt_wanted:
            self.interrupt()

    def terminate(self) -> None:
        """As Ctrl-C: the shell goes on. What is left in the background gets SIGTERM."""
        self.go_on()
        if not self._reported:
            self.interrupt()
        else:
            self._signal(self._all_left(), signal.SIGTERM)

    def kill(self) -> None:
        """While the command itself runs, nothing but the end of the shell is sure to end it."""
        if not self._reported:
            if self._console.process is not None:
                self._console.process.kill()
            return
        self._signal(self._all_left(), signal.SIGKILL)

    def stop(self) -> None:
        if self._console.process is not None:
            self._console.process.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        if self._console.process is not None:
            self._console.process.signal(signal.SIGCONT)

    def write(self, data: bytes, *, eof: bool) -> bool:
        return False

    def resize(self, rows: int, columns: int) -> bool:
        return False

    def pause_reading(self) -> None:
        self._reader.pause()

    def resume_reading(self) -> None:
        self._reader.resume()

    @property
    def at_end_of_output(self) -> bool:
        return self._reader.at_end

    def usage(self) -> Usage:
        return Usage() if self._reported else self._console.usage()

    def living(self) -> list[LeftRunning]:
        return [] if self._console.process is None else process_tree.living(self._all_left())

    def _all_left(self) -> list[int]:
        found = dict.fromkeys(self._left)
        for pid in self._left:
            found.update(dict.fromkeys(processes.below(pid)))
        return list(found)


def _no_pipe(error: OSError) -> errors.StartFailed:
    return errors.StartFailed(f"no pipe could be made: {error.strerror}; raise the limit of open files")


def _quote(path: str) -> str:
    return "'" + path.replace("'", "'\\''") + "'"
