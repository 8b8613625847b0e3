"""Shell tasks of this machine: each command gets the folder, the environment and the sandbox that it runs in."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from ingle.errors import SessionNotFound
from ingle.events import AnyEvent, Task, TaskOutput
from ingle.requests import Limits, NewSession, NewTask, SessionLimits
from ingle.sessions.manager import Manager
from ingle.sessions.process.session_folders import SHELL
from ingle.sessions.session import Session
from ingle.settings import Settings
from ingle.shell.sandbox import Sandbox
from ingle.shell.task import Task as ShellTask
from ingle.shell.tasks import Tasks
from ingle.support import remove_tree
from ingle_worker.wire import child_variables

OWNER = ".owner"
"""Name of the owner among the tenants, whose names begin with no dot."""


class LocalTasks:
    """Shell tasks of the node on this machine."""

    def __init__(self, settings: Settings, home: Path, manager: Manager) -> None:
        self._manager = manager
        self._shell_folder = os.path.abspath(settings.shell_folder or home / "shell")
        self._tenants_folder = os.path.abspath(home / "tenants")
        self._folders_made: set[str] = set()
        self._packages = manager.folder("shell-packages")
        """Packages that commands without a session and without a sandbox have installed."""
        self.shell = Tasks(settings, manager.folder("tasks"), self._is_live)

    async def stop(self) -> None:
        await self.shell.stop()
        await asyncio.to_thread(remove_tree.remove, self._packages)

    def _is_live(self, session_key: str) -> bool:
        with contextlib.suppress(SessionNotFound):
            self._manager.get(session_key)
            return True
        return False

    async def start(self, new: NewTask) -> str:
        with self.shell.reserve(new) as task_id:
            await self._start(task_id, new)
        return task_id

    async def _start(self, task_id: str, new: NewTask) -> None:
        key = new.session_key
        session = None if key is None else self._manager.get(key)
        folder = await self._find_folder(session, new)
        sandbox = await self._find_sandbox(session, new)
        if sandbox is not None and sandbox.workspace is not None and session is None:
            folder = os.path.join(sandbox.workspace, new.cwd)
        policy = self._manager.grants.policy
        self._manager.telemetry.note("shell", key or f"{new.tenant}/", code=new.command, isolation=policy.level)
        env = {**self._variables(session, new, sandbox), **new.env}
        limits = new.limits
        if session is not None and sandbox is None and new.shell_session is None:
            # In a sandbox the session's own limits hold for all processes in it.
            limits = _lowered(limits, session.spec.grant.limits)
        new = msgspec.structs.replace(new, cwd=folder, env=env, limits=limits)
        await self.shell.start(task_id, new, sandbox)

    def _variables(self, session: Session | None, new: NewTask, sandbox: Sandbox | None) -> dict[str, str]:
        """Return the variables of a session's commands: `python` and `pip` are the session's.

        Commands without a session have the default interpreter, and packages that last as long as their sandbox, or
        else as this server.
        """
        own = {} if session is None else session.spec.env
        if session is not None:
            python, folder = session.launcher.python, session.folders.folder
        else:
            python = self._manager.grants.policy.settle(NewSession(tenant=new.tenant, bounds=new.bounds)).python
            folder = self._packages / (new.tenant or OWNER) if sandbox is None else sandbox.folder.parent
        inherited = dict(os.environ) if sandbox is None else {"PATH": os.environ.get("PATH", os.defpath)}
        return {**own, **child_variables.of_session(python, os.path.join(folder, "packages"), {**inherited, **own})}

    def _tenant_folder(self, tenant: str) -> str:
        return os.path.join(self._tenants_folder, tenant) if tenant else self._shell_folder

    async def _find_sandbox(self, session: Session | None, new: NewTask) -> Sandbox | None:
        """Return the sandbox of the session. Without a session, return the tenant's own sandbox for commands.

        The tenant's sandbox is at the level that a new session would have. None: the command runs outside of a sandbox.
        """
        if session is None:
            await self._manager.grants.settled()
            wanted = NewSession(tenant=new.tenant, bounds=new.bounds)
            level = self._manager.grants.policy.settle(wanted).isolation
            if level == "none":
                return None
            folder = self._tenant_folder(new.tenant) if level == "sandbox" else None
            session = await self._manager.shell_sandboxes.get(new.tenant, folder, new.bounds)
        confinement = session.launcher.confinement
        if confinement is None:
            return None
        # At the level `restricted` there is no root of its own, so that no other folder can be granted.
        workspace = session.folders.workspace if confinement.level == "restricted" else None
        return Sandbox(await session.live_worker(), session.folders.root / SHELL, session.spec.grant.limits, workspace)

    async def _find_folder(self, session: Session | None, new: NewTask) -> str:
        """Return the folder to run in, from the request, the current folder of the session, or the tenant's folder."""
        if session is None:
            folder = self._tenant_folder(new.tenant)
            if folder not in self._folders_made:
                await asyncio.to_thread(os.makedirs, folder, 0o700, exist_ok=True)
                self._folders_made.add(folder)
        else:
            folder = session.cwd
            if session.worker is not None and session.worker.pid is not None:
                with contextlib.suppress(OSError):
                    folder = os.readlink(f"/proc/{session.worker.pid}/cwd")
        return os.path.join(folder, new.cwd) if new.cwd else folder

    def task(self, task_id: str, tenant: str) -> "LocalTask":
        return LocalTask(self.shell.get(task_id, tenant))

    async def end_of_session(self, key: str) -> None:
        """End the tasks and persistent shells of a session that ends."""
        await self.shell.end_of_session(key)

    async def end_shell(self, tenant: str, session_key: str | None, name: str) -> bool:
        return await self.shell.end_shell(tenant, session_key, name)

    async def list(self, tenant: str, limit: int, before: str | None) -> AsyncIterator[Task]:
        for task in self.shell.last(tenant, limit, before):
            yield await task.info(text=False)


def _lowered(own: Limits, session: SessionLimits) -> Limits:
    """Return the limits of a task, none of them above its session's."""
    found: dict[str, int] = {}
    for name in ("memory", "processes", "files", "file_size"):
        given = [value for value in (getattr(own, name), getattr(session, name)) if value is not None]
        if given:
            found[name] = min(given)
    return msgspec.structs.replace(own, **found)


class LocalTask:
    """Handle of a shell task in this process."""

    def __init__(self, task: ShellTask) -> None:
        self._task = task

    async def wait(self, seconds: float, *, from_event: int = 0, from_line: int = 0) -> Task:
        await self._task.wait(seconds)
        return await self._task.info(from_event=from_event, from_line=from_line)

    async def cancel(self) -> None:
        self._task.cancel()

    async def interrupt(self) -> None:
        self._task.interrupt()

    async def pause(self) -> None:
        self._task.pause()

    async def resume(self) -> None:
        self._task.resume()

    async def input(self, text: str, *, eof: bool) -> None:
        self._task.input(text, eof=eof)

    async def resize(self, rows: int, columns: int) -> None:
        self._task.resize(rows, columns)

    async def output(self, stream: str, from_line: int, lines: int, grep: str | None) -> TaskOutput:
        return await self._task.lines(stream, from_line, lines, grep)

    def events(self, first: int) -> AsyncIterator[AnyEvent]:
        return self._task.follow(first)
