"""Sessions and shell tasks on this machine."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from ingle.errors import SessionNotFound
from ingle.events import (
    AnyEvent,
    CellInfo,
    CheckpointInfo,
    FileInfo,
    FileList,
    Isolation,
    Load,
    Metrics,
    Restored,
    Result,
    RolledBack,
    Saved,
    SessionInfo,
    SnapshotInfo,
    Stdlib,
    StdlibChange,
    Task,
    TaskOutput,
    Variables,
    VariableValue,
)
from ingle.nodes import OpenFile
from ingle.nodes.snapshots import Keeping
from ingle.output.pages import OutputPage, Reading
from ingle.requests import Bounds, Limits, NewCell, NewSession, NewTask
from ingle.sessions.manager import Manager
from ingle.sessions.process.session_folders import SHELL
from ingle.sessions.session import Session
from ingle.settings import Settings
from ingle.shell.sandbox import Sandbox
from ingle.shell.task import Task as ShellTask
from ingle.shell.tasks import Tasks
from ingle_worker.wire import states

NO_BOUNDS = Bounds()


class LocalNode:
    def __init__(self, settings: Settings, home: Path, place: str = "") -> None:
        self.manager = Manager(settings, home, place)
        self.tasks = Tasks(settings, self.manager.folder("tasks"), self._lives)
        self._shell_folder = os.path.abspath(settings.shell_folder or home / "shell")
        self._tenants_folder = os.path.abspath(home / "tenants")
        self._folders_made: set[str] = set()

        self.keeping = Keeping(self.manager)

    async def start(self) -> None:
        await self.manager.start()

    async def warm(self) -> None:
        await self.manager.warm()

    async def stop(self) -> None:
        await self.tasks.stop()
        await self.keeping.stop()
        await self.manager.stop()

    async def create(self, wanted: NewSession) -> SessionInfo:
        return (await self.manager.create(wanted)).info()

    async def sessions(self, tenant: str = "") -> list[SessionInfo]:
        return [session.info() for session in self.manager.all(tenant)]

    async def isolation(self) -> Isolation:
        verdict = await self.manager.granting.settled()
        return Isolation(verdict.level, self.manager.granting.policy.network, verdict.missing)

    async def load(self, tenant: str) -> Load:
        return self.manager.load(tenant)

    async def metrics(self) -> Metrics:
        return self.manager.metrics()

    async def info(self, session_id: str) -> SessionInfo:
        return self.manager.get(session_id).info()

    async def end(self, session_id: str) -> SessionInfo:
        self.manager.get(session_id)
        await self.tasks.end_of_session(session_id)
        return (await self.manager.end(session_id)).info()

    async def clear(self, session_id: str) -> SessionInfo:
        session = self.manager.get(session_id)
        await session.clear()
        return session.info()

    async def save(self, session_id: str, target: str, start: str | None = None) -> Saved:
        return await self.keeping.save(self.manager.get(session_id), target, start)

    async def restore(
        self,
        wanted: NewSession,
        source: str,
        start: str | None = None,
        *,
        trust: bool = False,
        rerun: bool = False,
    ) -> Restored:
        return await self.keeping.load(wanted, source, start, trust=trust, rerun=rerun)

    async def snapshots(self, tenant: str = "") -> list[SnapshotInfo]:
        return await self.keeping.list(tenant)

    async def delete_snapshot(self, tenant: str, name: str) -> None:
        await self.keeping.delete(tenant, name)

    async def open_snapshot(self, tenant: str, name: str) -> OpenFile:
        return await self.keeping.export(tenant, name)

    async def write_snapshot(self, tenant: str, name: str, chunks: AsyncIterator[bytes]) -> SnapshotInfo:
        return await self.keeping.take_in(tenant, name, chunks)

    async def stdlib(self, tenant: str = "") -> Stdlib:
        return await self.manager.stdlibs.list(tenant)

    async def add_to_stdlib(self, tenant: str, code: str, bounds: Bounds) -> StdlibChange:
        return await self.manager.stdlibs.add(tenant, code, bounds)

    async def fork(self, session_id: str, names: list[str | None], *, reseed: bool = False) -> list[SessionInfo]:
        return [session.info() for session in await self.manager.fork(session_id, names, reseed=reseed)]

    async def checkpoint(self, session_id: str, name: str) -> CheckpointInfo:
        return await self.manager.get(session_id).checkpoints.make(name)

    async def checkpoints(self, session_id: str) -> list[CheckpointInfo]:
        return await self.manager.get(session_id).checkpoints.list()

    async def drop_checkpoint(self, session_id: str, name: str) -> None:
        await self.manager.get(session_id).checkpoints.remove(name)

    async def rollback(self, session_id: str, name: str | None) -> RolledBack:
        session = self.manager.get(session_id)
        checkpoint, notice = await session.checkpoints.roll_back(name)
        return RolledBack(notice, checkpoint, session.info())

    def begin(
        self,
        session_id: str,
        code: str,
        *,
        timeout: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
        key: str | None = None,
    ) -> Coroutine[Any, Any, int]:
        return self.manager.get(session_id).execute(NewCell(code, timeout, envs or {}, queue, key))

    def wait(
        self, session_id: str, cell: int | None, seconds: float, from_event: int = 0
    ) -> Coroutine[Any, Any, Result]:
        session = self.manager.get(session_id)
        settling = session.wait(cell, seconds, from_event)
        return self._settle_once(session, settling) if session.plan.one_off else settling

    async def _settle_once(self, session: Session, settling: Coroutine[Any, Any, Result]) -> Result:
        """Read once, a one-off session has done its work."""
        result = await settling
        if result.status in states.FINAL_STATUSES:
            self.manager.end_soon(session, "its result was read")
        return result

    async def input(self, session_id: str, text: str, *, eof: bool = False) -> int:
        return await self.manager.get(session_id).input(text, eof=eof)

    async def interrupt(self, session_id: str) -> int | None:
        return await self.manager.get(session_id).interrupt()

    async def cells(self, session_id: str, first: int, count: int) -> list[CellInfo]:
        return await self.manager.get(session_id).cells(first, count)

    async def output(self, session_id: str, cell: int, reading: Reading) -> OutputPage:
        return await self.manager.get(session_id).output(cell, reading)

    async def figure(self, session_id: str, file_id: str) -> bytes:
        return await self.manager.get(session_id).figure(file_id)

    def events(self, session_id: str, first: int) -> AsyncIterator[AnyEvent]:
        return self.manager.get(session_id).follow(first)

    async def variables(self, session_id: str) -> Variables:
        return await self.manager.get(session_id).variables()

    async def variable(self, session_id: str, name: str, limit: float) -> VariableValue:
        return await self.manager.get(session_id).variable(name, limit)

    # --- shell tasks ---

    def _task(self, own_id: str) -> ShellTask:
        tenant, _, task_id = own_id.rpartition("/")
        return self.tasks.get(task_id, tenant)

    def _lives(self, session_id: str) -> bool:
        try:
            self.manager.get(session_id)
        except SessionNotFound:
            return False
        return True

    async def shell_begin(
        self,
        command: str,
        *,
        timeout: float | None,
        session_id: str | None,
        cwd: str | None,
        env: dict[str, str] | None,
        stdin: str | None,
        interactive: bool,
        pty: bool,
        size: tuple[int, int],
        limits: Limits | None,
        shell_session: str | None,
        tenant: str = "",
        bounds: Bounds = NO_BOUNDS,
    ) -> str:
        session = None if session_id is None else self.manager.get(session_id)
        folder = await self._folder_for(session, cwd, tenant)
        room = await self._room_for(session, tenant, bounds)
        if room is not None and room.workspace is not None and session is None:
            folder = os.path.join(room.workspace, cwd or "")
        self.manager.record.note(
            "shell", session_id or f"{tenant}/", code=command, isolation=self.manager.granting.policy.level
        )
        task = await self.tasks.start(
            NewTask(
                command,
                folder,
                {**(session.plan.env if session is not None else {}), **(env or {})},
                timeout,
                stdin,
                interactive,
                pty,
                *size,
                limits or Limits(),
                session_id.rpartition("/")[2] if session_id is not None else None,
                shell_session,
                tenant=tenant,
            ),
            room,
        )
        return task.id

    def _base_folder(self, tenant: str) -> str:
        return os.path.join(self._tenants_folder, tenant) if tenant else self._shell_folder

    async def _room_for(self, session: Session | None, tenant: str, bounds: Bounds) -> Sandbox | None:
        """A command is held as its session is; one without, in a room of its tenant's, as a new session would be."""
        if session is None:
            await self.manager.granting.settled()
            level = self.manager.granting.policy.settle(NewSession(tenant=tenant, bounds=bounds)).isolation
            if level == "none":
                return None
            folder = self._base_folder(tenant) if level == "sandbox" else None
            session = await self.manager.shell_rooms.get(tenant, folder, bounds)
        confinement = session.launcher.confinement
        if confinement is None:
            return None
        # Without a root of its own it can be let into no other folder.
        workspace = session.home.workspace if confinement.level == "restricted" else None
        return Sandbox(await session.live_worker(), session.home.root / SHELL, session.plan.grant.limits, workspace)

    async def _folder_for(self, session: Session | None, cwd: str | None, tenant: str) -> str:
        """Where a command runs: where it is told to, where its session is now, or in the tenant's own folder."""
        if session is None:
            folder = self._base_folder(tenant)
            if folder not in self._folders_made:
                await asyncio.to_thread(os.makedirs, folder, 0o700, exist_ok=True)
                self._folders_made.add(folder)
        else:
            folder = session.cwd
            if session.worker is not None and session.worker.pid is not None:
                with contextlib.suppress(OSError):
                    folder = os.readlink(f"/proc/{session.worker.pid}/cwd")
        return os.path.join(folder, cwd) if cwd is not None else folder

    async def shell_wait(self, task_id: str, seconds: float, *, from_event: int = 0, from_line: int = 0) -> Task:
        task = self._task(task_id)
        await task.wait(seconds)
        return await task.info(from_event=from_event, from_line=from_line)

    async def shell_order(self, task_id: str, verb: str) -> None:
        task = self._task(task_id)
        {"cancel": task.cancel, "interrupt": task.interrupt, "pause": task.pause, "resume": task.resume}[verb]()

    async def shell_input(self, task_id: str, text: str, *, eof: bool) -> None:
        self._task(task_id).input(text, eof=eof)

    async def shell_resize(self, task_id: str, rows: int, columns: int) -> None:
        self._task(task_id).resize(rows, columns)

    async def shell_tasks(self, tenant: str = "") -> list[Task]:
        return [await task.info(text=False) for task in self.tasks.all(tenant)]

    async def shell_output(
        self, task_id: str, *, stream: str, from_line: int, lines: int, grep: str | None
    ) -> TaskOutput:
        return await self._task(task_id).lines(stream, from_line, lines, grep)

    def shell_events(self, task_id: str, first: int) -> AsyncIterator[AnyEvent]:
        return self._task(task_id).follow(first)

    async def shell_end(self, shell_session: str, session_id: str | None, tenant: str = "") -> bool:
        return await self.tasks.end_shell(tenant, session_id, shell_session)

    # --- files ---

    async def files(self, session_id: str, folder: str) -> FileList:
        return await (await self.manager.get(session_id).files()).list(folder)

    async def open_file(self, session_id: str, path: str) -> OpenFile:
        return await (await self.manager.get(session_id).files()).open(path)

    async def write_file(
        self, session_id: str, path: str, chunks: AsyncIterator[bytes], limit: int
    ) -> tuple[FileInfo, bool]:
        return await (await self.manager.get(session_id).files()).write(path, chunks, limit)

    async def remove_file(self, session_id: str, path: str) -> None:
        await (await self.manager.get(session_id).files()).remove(path)
