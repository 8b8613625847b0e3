"""All shell tasks of one node: started once, found, listed, ended, and forgotten when they are old or too many."""

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ingle import errors
from ingle.settings import Settings
from ingle.shell.launcher import Launcher
from ingle.shell.persistent_shell import Console
from ingle.shell.sandbox import Room
from ingle.shell.single_command import Program
from ingle.shell.task import KILLED, Order, Task, no_folder
from ingle.shell.task_process import Process
from ingle.support import remove_tree
from ingle.support.background import run_forever

LONG = 100_000
"""Bytes of a command that are handed over as an argument; the kernel takes 128 KiB, more goes by a file."""

EXPIRE_INTERVAL = 1.0

MAX_CONSOLES = 100


class Tasks:
    def __init__(self, settings: Settings, folder: Path, session_lives: Callable[[str], bool]) -> None:
        self._settings = settings
        self._folder = folder
        self._session_lives = session_lives
        self._loop = asyncio.get_running_loop()
        self._launcher = Launcher(self._loop, settings)
        self._tasks: dict[str, Task] = {}
        self._running: dict[str, Task] = {}
        self._ended: dict[str, float] = {}
        self._consoles: dict[tuple[str, str | None, str], Console] = {}
        self._chore: asyncio.Task[None] | None = None
        self._helpers: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._shell: str | None = None
        self._scripts: dict[str, Path] = {}
        self._last_place: tuple[int | None, str] | None = None
        """Room and folder of the last command: looked at once, not for every one of them."""

    # --- starting ---

    async def start(self, order: Order, room: Room | None = None) -> Task:
        """Start a command, in a room if it is to be confined. It runs once, whoever still waits for it."""
        if self._stopped:
            raise errors.Unavailable("the server is stopping; start it again")
        if len(self._running) >= self._settings.max_tasks:
            raise errors.TooManyTasks(self._settings.max_tasks)
        shell = await self._prepare(order, room)
        task_id = f"t{secrets.token_hex(6)}"
        task = Task(task_id, order, self._folder / f"{task_id}.ndjson", self._settings, self._on_over)
        if room is not None:
            task.limits_met = room.limits_met
        self._running[task.id] = task
        process: Process | None = None
        try:
            if order.shell_session is not None:
                await self._start_in_console(task, shell, room)
            else:
                process = await self._launcher.take(room)
                program = Program(task, process)
                argv = [shell, "-c", order.command]
                if (script := await self._script(task, room)) is not None:
                    argv = [shell, script]
                task.begin(program)
                program.start(argv)
        except BaseException:
            # Nothing was started, so there is nothing to be read.
            self._running.pop(task.id, None)
            raise
        self._tasks[task.id] = task
        if room is not None and process is not None:
            await self._see_folder(task, process, room)
        return task

    async def _prepare(self, order: Order, room: Room | None) -> str:
        """Check what can be known before. The shell's path."""
        if "\0" in order.command:
            raise errors.InvalidRequest("the command has a NUL character, which no shell takes; remove it")
        if len(order.command) > self._settings.max_code:
            raise errors.InvalidRequest(
                f"the command has {len(order.command)} characters, above the limit of {self._settings.max_code}; "
                "put the data into a file"
            )
        if self._chore is None:
            await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            if self._chore is None:
                self._chore = self._loop.create_task(run_forever("looking for tasks to forget", self._look_after))
        shell = self._shell = self._shell or await asyncio.to_thread(_find, self._settings.shell)
        if shell is None:
            raise errors.StartFailed(f"there is no shell {self._settings.shell!r}; install it, or set shell to another")
        if room is None and self._last_place != (None, order.cwd):
            # Should it go meanwhile, init finds out and tells.
            if not await asyncio.to_thread(_is_folder, order.cwd):
                raise no_folder(order)
            self._last_place = (None, order.cwd)
        return shell

    async def _see_folder(self, task: Task, process: Process, room: Room) -> None:
        """What folders there are in a room is for its own init to find out: it has failed to start the task then."""
        place = (room.worker.init_pid, task.order.cwd)
        if self._last_place == place:
            return
        await process.wait_started()
        if process.no_folder:
            await task.wait_over()
            self._forget(task.id)
            raise no_folder(task.order)
        self._last_place = place

    async def _script(self, task: Task, room: Room | None) -> str | None:
        """The command as a file, where it is too long for an argument."""
        data = task.order.command.encode("utf-8", "surrogateescape")
        if len(data) <= LONG:
            return None
        path = (self._folder if room is None else room.folder) / f"{task.id}.sh"
        self._scripts[task.id] = path
        await asyncio.to_thread(_write, path, data, room)
        return str(path)

    async def _start_in_console(self, task: Task, shell: str, room: Room | None) -> None:
        order = task.order
        assert order.shell_session is not None
        key = (order.tenant, order.session_id, order.shell_session)
        console = self._consoles.get(key)
        if console is None:
            if len(self._consoles) >= MAX_CONSOLES:
                raise errors.TooManyTasks(MAX_CONSOLES)
            console = self._consoles[key] = Console(
                order.shell_session, shell, self._folder, self._launcher, self._settings
            )
        await console.start(task, room)

    # --- finding and ending ---

    def get(self, task_id: str, tenant: str = "") -> Task:
        """A task of this tenant; that of another is as unknown as one that never was."""
        task = self._tasks.get(task_id)
        if task is None or task.order.tenant != tenant:
            raise errors.TaskNotFound(task_id)
        return task

    def all(self, tenant: str = "") -> list[Task]:
        return [task for task in self._tasks.values() if task.order.tenant == tenant]

    async def end_of_session(self, session_id: str) -> None:
        """A session ends: what ran in it ends with it."""
        bound = [task for task in self._running.values() if task.order.session_id == session_id]
        for task in bound:
            task.end(KILLED, "killed: its session was ended", now=True)
        consoles = [key for key in self._consoles if key[1] == session_id]
        for key in consoles:
            await self._consoles.pop(key).end()
        for task in bound:
            await task.wait_over()

    async def end_console(self, tenant: str, session_id: str | None, name: str) -> bool:
        """End a persistent shell and what it runs. False when there is none of that name."""
        console = self._consoles.pop((tenant, session_id, name), None)
        if console is None:
            return False
        await console.end()
        return True

    def _on_over(self, task: Task) -> None:
        self._running.pop(task.id, None)
        self._ended[task.id] = time.monotonic()
        if len(task.order.command) > LONG // 4:
            script = self._scripts.pop(task.id, None)
            if script is not None:
                self._keep_helper(asyncio.to_thread(script.unlink, missing_ok=True))
        while len(self._ended) > self._settings.tasks_kept:
            self._forget(next(iter(self._ended)))

    def _forget(self, task_id: str) -> None:
        del self._ended[task_id]
        task = self._tasks.pop(task_id, None)
        if task is not None:
            self._keep_helper(task.forget())

    def _keep_helper(self, coroutine: Coroutine[Any, Any, None]) -> None:
        helper = self._loop.create_task(coroutine)
        self._helpers.add(helper)
        helper.add_done_callback(self._helpers.discard)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL)
            oldest = time.monotonic() - self._settings.task_age
            for task_id in [each for each, ended in self._ended.items() if ended < oldest]:
                self._forget(task_id)
            sessions = {key[1] for key in self._consoles} | {each.order.session_id for each in self._running.values()}
            for session_id in sessions:
                if session_id is not None and not self._session_lives(session_id):
                    await self.end_of_session(session_id)

    async def stop(self) -> None:
        """End every task and shell, and leave nothing behind."""
        self._stopped = True
        if self._chore is not None:
            self._chore.cancel()
            await asyncio.wait({self._chore})
        running = list(self._running.values())
        for task in running:
            task.end(KILLED, "killed: the server was stopped", now=True)
        for console in self._consoles.values():
            await console.end()
        self._consoles.clear()
        for task in running:
            await task.wait_over()
        await self._launcher.stop()
        if self._helpers:
            await asyncio.wait(self._helpers)
        await asyncio.to_thread(remove_tree.remove, self._folder)


def _find(shell: str) -> str | None:
    found = shutil.which(shell)
    return found and os.path.abspath(found)


def _write(path: Path, data: bytes, room: Room | None) -> None:
    path.write_bytes(data)
    if room is not None:
        room.give(path)


def _is_folder(path: str) -> bool:
    return "\0" not in path and os.path.isabs(path) and os.path.isdir(path)
