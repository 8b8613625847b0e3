"""All shell tasks of one node: they are started, found, listed and ended, and forgotten when old or too many."""

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from ingle import errors
from ingle.requests import NewTask, shell_key
from ingle.settings import Settings
from ingle.shell.launcher import Launcher
from ingle.shell.persistent_shell import PersistentShell
from ingle.shell.sandbox import Sandbox
from ingle.shell.single_command import SingleCommand
from ingle.shell.task import KILLED, Task, no_folder
from ingle.shell.task_process import TaskProcess
from ingle.support import remove_tree
from ingle.support.background import run_forever

MAX_ARGUMENT_BYTES = 100_000
"""Longest command that is passed as an argument. The kernel takes 128 KiB; a longer command goes into a file."""

EXPIRE_INTERVAL_SECONDS = 1.0

MAX_SHELLS = 100
"""Persistent shells of one tenant."""


class Tasks:
    """Registry of tasks and persistent shells."""

    def __init__(self, settings: Settings, folder: Path, session_lives: Callable[[str], bool]) -> None:
        self._settings = settings
        self._folder = folder
        self.id_suffix = ""
        """End of the ids of tasks, which tells the machine among several."""
        self._session_lives = session_lives
        self._loop = asyncio.get_running_loop()
        self._launcher = Launcher(self._loop, settings)
        self._tasks: dict[str, Task] = {}
        self._reserved: dict[str, NewTask] = {}
        """Orders of tasks that are about to start, by the ids that they will have."""
        self._running: dict[str, Task] = {}
        self._ended: dict[str, dict[str, float]] = defaultdict(dict)
        """When each task ended, by tenant and id: no tenant can use up what others may keep."""
        self._shells: dict[tuple[str, str | None, str], PersistentShell] = {}
        self._expiry: asyncio.Task[None] | None = None
        self._helpers: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._shell: str | None = None
        self._scripts: dict[str, Path] = {}
        self._last_place: tuple[int | None, str] | None = None
        """Init and folder of the last command. A folder is checked once, not for every command in it."""

    # --- starting ---

    @contextlib.contextmanager
    def reserve(self, order: NewTask) -> Iterator[str]:
        """Count a command as running while its start is prepared, and yield the id of its task."""
        if self._stopped:
            raise errors.Unavailable("the server is stopping; start it again")
        if self.load(order.tenant)[0] >= self._settings.max_tasks:
            raise errors.TooManyTasks(self._settings.max_tasks)
        task_id = f"t{secrets.token_hex(6)}{self.id_suffix}"
        self._reserved[task_id] = order
        try:
            yield task_id
        finally:
            self._reserved.pop(task_id, None)

    def load(self, tenant: str) -> tuple[int, list[str]]:
        """Return how many tasks of a tenant run, and its live persistent shells. What is about to start counts too."""
        orders = [*self._reserved.values(), *(task.order for task in self._running.values())]
        own = [order for order in orders if order.tenant == tenant]
        living = [key for key, shell in self._shells.items() if shell.bash is not None]
        shells = {shell_key(session_key, name) for owner, session_key, name in living if owner == tenant}
        shells |= {shell_key(order.session_key, order.shell_session) for order in own if order.shell_session}
        return len(own), sorted(shells)

    async def start(self, task_id: str, order: NewTask, sandbox: Sandbox | None = None) -> Task:
        """Start a command, in a sandbox if it is to be confined. It runs once, even if no request waits for it."""
        shell = await self._prepare(order, sandbox)
        if self._stopped:
            raise errors.Unavailable("the server is stopping; start it again")
        task = Task(task_id, order, self._folder / f"{task_id}.ndjson", self._settings, self._on_over)
        if sandbox is not None:
            task.limits_met = sandbox.limits_met
        self._reserved.pop(task_id, None)
        self._running[task.id] = task
        process: TaskProcess | None = None
        try:
            if order.shell_session is not None:
                await self._start_in_shell(task, shell, sandbox)
            else:
                process = await self._launcher.take(sandbox)
                command = SingleCommand(task, process)
                argv = [shell, "-c", order.command]
                if (script := await self._script(task, sandbox)) is not None:
                    argv = [shell, script]
                task.begin(command)
                command.start(argv)
        except BaseException:
            # Nothing was started, so there is nothing to be read.
            self._running.pop(task.id, None)
            raise
        task.release_order()
        self._tasks[task.id] = task
        if sandbox is not None and process is not None:
            await self._see_folder(task, process, sandbox)
        return task

    async def _prepare(self, order: NewTask, sandbox: Sandbox | None) -> str:
        """Check the order as far as that is possible before a start. Return the path of the shell."""
        if "\0" in order.command:
            raise errors.InvalidRequest("the command has a NUL character, which no shell takes; remove it")
        if len(order.command) > self._settings.max_code:
            raise errors.InvalidRequest(
                f"the command has {len(order.command)} characters, above the limit of {self._settings.max_code}; "
                "put the data into a file"
            )
        if self._expiry is None:
            await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            if self._expiry is None:
                self._expiry = self._loop.create_task(run_forever("looking for tasks to forget", self._look_after))
        shell = self._shell = self._shell or await asyncio.to_thread(_find, self._settings.shell)
        if shell is None:
            raise errors.StartFailed(f"there is no shell {self._settings.shell!r}; install it, or set shell to another")
        if sandbox is None and self._last_place != (None, order.cwd):
            # If the folder is removed meanwhile, init reports that.
            if not await asyncio.to_thread(_is_folder, order.cwd):
                raise no_folder(order)
            self._last_place = (None, order.cwd)
        return shell

    async def _see_folder(self, task: Task, process: TaskProcess, sandbox: Sandbox) -> None:
        """Raise InvalidRequest if init could not find the working directory: only init can see what is in a sandbox."""
        place = (sandbox.worker.init_pid, task.order.cwd)
        if self._last_place == place:
            return
        await process.wait_started()
        if process.no_folder:
            await task.wait_over()
            self._forget(task.order.tenant, task.id)
            raise no_folder(task.order)
        self._last_place = place

    async def _script(self, task: Task, sandbox: Sandbox | None) -> str | None:
        """Return the path of a file with the command, if it is too long for an argument."""
        data = task.order.command.encode("utf-8", "surrogateescape")
        if len(data) <= MAX_ARGUMENT_BYTES:
            return None
        path = (self._folder if sandbox is None else sandbox.folder) / f"{task.id}.sh"
        self._scripts[task.id] = path
        await asyncio.to_thread(_write, path, data, sandbox)
        return str(path)

    async def _start_in_shell(self, task: Task, shell: str, sandbox: Sandbox | None) -> None:
        order = task.order
        assert order.shell_session is not None
        key = (order.tenant, order.session_key, order.shell_session)
        persistent = self._shells.get(key)
        if persistent is None:
            if sum(owner == order.tenant for owner, _, _ in self._shells) >= MAX_SHELLS:
                raise errors.TooManyTasks(MAX_SHELLS)
            persistent = self._shells[key] = PersistentShell(
                order.shell_session, shell, self._folder, self._launcher, self._settings
            )
        await persistent.start(task, sandbox)

    # --- finding and ending ---

    def get(self, task_id: str, tenant: str = "") -> Task:
        """Return a task of this tenant. Raises TaskNotFound also for a task of another tenant."""
        task = self._tasks.get(task_id)
        if task is None or task.order.tenant != tenant:
            raise errors.TaskNotFound(task_id)
        return task

    def last(self, tenant: str, limit: int, before: str | None = None) -> list[Task]:
        """Return the last tasks of this tenant, `limit` at most, in the order of their start.

        With `before`, those that were started before this task. Raises TaskNotFound if there is no such task.
        """
        own = [task for task in self._tasks.values() if task.order.tenant == tenant]
        if before is not None:
            own = own[: own.index(self.get(before, tenant))]
        return own[-limit:]

    async def end_of_session(self, session_id: str) -> None:
        """End the tasks and persistent shells of a session that ends."""
        bound = [task for task in self._running.values() if task.order.session_key == session_id]
        for task in bound:
            task.end(KILLED, "killed: its session was ended", now=True)
        for key in [key for key in self._shells if key[1] == session_id]:
            await self._shells.pop(key).end()
        for task in bound:
            await task.wait_over()

    async def end_shell(self, tenant: str, session_id: str | None, name: str) -> bool:
        """End a persistent shell and all it runs. Return False when there is none of that name."""
        shell = self._shells.pop((tenant, session_id, name), None)
        if shell is None:
            return False
        await shell.end()
        return True

    def _on_over(self, task: Task) -> None:
        self._running.pop(task.id, None)
        ended = self._ended[task.order.tenant]
        ended[task.id] = time.monotonic()
        script = self._scripts.pop(task.id, None)
        if script is not None:
            self._keep_helper(asyncio.to_thread(script.unlink, missing_ok=True))
        while len(ended) > self._settings.tasks_kept:
            self._forget(task.order.tenant, next(iter(ended)))

    def _forget(self, tenant: str, task_id: str) -> None:
        del self._ended[tenant][task_id]
        if not self._ended[tenant]:
            del self._ended[tenant]
        task = self._tasks.pop(task_id, None)
        if task is not None:
            self._keep_helper(task.forget())

    def _keep_helper(self, coroutine: Coroutine[Any, Any, None]) -> None:
        helper = self._loop.create_task(coroutine)
        self._helpers.add(helper)
        helper.add_done_callback(self._helpers.discard)

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_INTERVAL_SECONDS)
            oldest = time.monotonic() - self._settings.task_age
            old = [(tenant, each) for tenant, ids in self._ended.items() for each, at in ids.items() if at < oldest]
            for tenant, task_id in old:
                self._forget(tenant, task_id)
            sessions = {key[1] for key in self._shells} | {each.order.session_key for each in self._running.values()}
            for session_id in sessions:
                if session_id is not None and not self._session_lives(session_id):
                    await self.end_of_session(session_id)

    async def stop(self) -> None:
        """End every task and shell, and remove all files."""
        self._stopped = True
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.wait({self._expiry})
        running = list(self._running.values())
        for task in running:
            task.end(KILLED, "killed: the server was stopped", now=True)
        for shell in self._shells.values():
            await shell.end()
        self._shells.clear()
        for task in running:
            await task.wait_over()
        await self._launcher.stop()
        if self._helpers:
            await asyncio.wait(self._helpers)
        await asyncio.to_thread(remove_tree.remove, self._folder)


def _find(shell: str) -> str | None:
    found = shutil.which(shell)
    return found and os.path.abspath(found)


def _write(path: Path, data: bytes, sandbox: Sandbox | None) -> None:
    path.write_bytes(data)
    if sandbox is not None:
        sandbox.give(path)


def _is_folder(path: str) -> bool:
    return "\0" not in path and os.path.isabs(path) and os.path.isdir(path)
