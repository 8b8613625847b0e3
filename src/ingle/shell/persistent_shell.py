"""A persistent shell: commands run in one bash after another, and leave `cd`, variables and functions behind.

No prompt is parsed. bash evaluates each command from a file, with the command's own input, output and errors, and
reports its status on a pipe that no command sees. A bash that has ended is replaced for the next command.
"""

import asyncio
import secrets
from pathlib import Path

from ingle import errors
from ingle.events import Usage
from ingle.settings import Settings
from ingle.shell.bash import BEGUN, Bash
from ingle.shell.launcher import Launcher
from ingle.shell.sandbox import Sandbox
from ingle.shell.task import KILLED, Task, no_folder
from ingle.shell.turn import State, Turn, TurnFiles
from ingle.support import remove_tree
from ingle_worker.wire import messages


class PersistentShell:
    """Shell of one name, with at most one running command."""

    def __init__(self, name: str, shell: str, folder: Path, launcher: Launcher, settings: Settings) -> None:
        self._name = name
        self._shell = shell
        self._folder = folder / f"shell-{secrets.token_hex(4)}"
        self._sandbox: Sandbox | None = None
        self._launcher = launcher
        self._settings = settings
        self._numbers = 0
        self.bash: Bash | None = None
        self.turn: Turn | None = None
        """The running command."""
        self._turns: set[Turn] = set()
        """Commands that have processes left."""
        self._starting = False
        self._ended = False
        self._lost: str | None = None
        """Notice for the next command: the bash before it has ended."""

    async def start(self, task: Task, sandbox: Sandbox | None = None) -> None:
        """Run the command of a task in this shell. Raises ShellBusy while another one runs."""
        if self._ended:
            raise errors.Unavailable(f"the shell {self._name!r} was ended; ask again for a fresh one")
        if self.turn is not None or self._starting:
            turn = self.turn
            raise errors.ShellBusy(self._name, turn.task.id if turn else "to come", turn.task.age if turn else 0.0)
        self._starting = True
        self._sandbox = sandbox
        if sandbox is not None:
            self._folder = sandbox.folder / self._folder.name
        try:
            turn = await self._make_turn(task)
        finally:
            self._starting = False
        if self._lost is not None:
            task.notices.append(self._lost)
            self._lost = None
        self.turn = turn
        self._turns = {each for each in self._turns if each.state is not State.OVER} | {turn}
        task.begin(turn)
        turn.start()

    async def _make_turn(self, task: Task) -> Turn:
        if self.bash is not None:
            await self.bash.settle()
        self._numbers += 1
        files = TurnFiles(self._folder / str(self._numbers))
        await self._ensure_bash(task)
        await asyncio.to_thread(files.make, task.order, self._sandbox)
        try:
            # bash may have ended meanwhile. Nothing has begun, so another one can take its place.
            await self._ensure_bash(task)
            if self.bash is None or self._ended:
                raise errors.StartFailed("the shell ended before the command could begin; ask again for a fresh one")
            return Turn(self.bash, task, self._numbers, files)
        except OSError as error:
            await asyncio.to_thread(files.remove)
            raise _no_pipe(error) from None
        except errors.IngleError:
            await asyncio.to_thread(files.remove)
            raise

    async def _ensure_bash(self, task: Task) -> None:
        """Start a fresh bash, in the task's folder and environment, if there is none."""
        if self.bash is not None or self._ended:
            return
        process = await self._launcher.take(self._sandbox)
        try:
            bash = Bash(process, self._on_report)
        except OSError as error:
            raise _no_pipe(error) from None
        process.owner = self
        self.bash = bash
        order = task.order
        bash.start(self._shell, order.cwd, order.env)
        if not process.alive:
            process.owner = None
            self.on_gone()
            raise errors.StartFailed("the shell could not be started; try again")
        if self._sandbox is not None:
            # Only the init inside of the sandbox can see which folders exist.
            await process.wait_started()
            if process.no_folder:
                await process.gone
                self._lost = None
                raise no_folder(order)

    # --- events ---

    def _on_report(self, number: int, word: bytes) -> None:
        turn = self.turn
        if turn is None or number != turn.number:
            return
        if word == BEGUN:
            turn.on_begun()
        else:
            self.turn = None
            turn.on_reported(int(word))

    def on_exited(self, message: messages.ProgramExited) -> None:
        """Report the end of bash to the task whose command it ran."""
        if self.turn is not None and self.bash is not None:
            usage = Usage(max(0.0, message.cpu_seconds - self.bash.cpu_seconds), message.peak_kib * 1024)
            self.turn.task.on_program_end(message.status, usage, left=False)

    def on_breach(self, message: messages.Breach) -> None:
        """Ignore it: no limits are set for the shell as a whole."""

    def on_gone(self) -> None:
        """Let go of bash, which is gone with all that ran below it."""
        if self.bash is not None:
            self.bash.close()
            self.bash = None
        turn, self.turn = self.turn, None
        self._lost = (
            f"this is a fresh shell: the one before it ended{' in task ' + turn.task.id if turn else ''}, "
            "and its folder, variables and functions are gone"
        )
        if turn is not None:
            turn.task.notices.append(
                f"the shell {self._name!r} ended with this command; the next one begins in a fresh shell"
            )
        for each in self._turns:
            each.on_shell_gone()
        self._turns.clear()

    async def end(self) -> None:
        """End the shell and all its commands, and remove its files."""
        self._ended = True
        for turn in self._turns:
            turn.task.end(KILLED, "killed: its shell was ended", now=True)
        if self.bash is not None:
            process = self.bash.process
            process.kill()
            await process.gone
        await asyncio.to_thread(remove_tree.remove, self._folder)


def _no_pipe(error: OSError) -> errors.StartFailed:
    return errors.StartFailed(f"no pipe could be made: {error.strerror}; raise the limit of open files")
