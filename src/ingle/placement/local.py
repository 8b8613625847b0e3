"""Sessions on this machine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from ingle.events import AnyEvent, CellInfo, FileInfo, FileList, Load, Metrics, Result, SessionInfo
from ingle.outputs.reading import OutputPage
from ingle.placement import Reading
from ingle.sessions.files import write_file
from ingle.sessions.manager import Manager
from ingle.settings import Settings
from ingle_worker.wire import states


class Local:
    def __init__(self, settings: Settings, home: Path) -> None:
        self.manager = Manager(settings, home)

    async def start(self) -> None:
        await self.manager.start()

    async def warm(self) -> None:
        await self.manager.warm()

    async def stop(self) -> None:
        await self.manager.stop()

    async def create(
        self,
        session_id: str | None,
        *,
        python: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        idle_timeout: float | None = None,
        one_off: bool = False,
        tenant: str = "",
    ) -> SessionInfo:
        session = await self.manager.create(
            session_id, python=python, cwd=cwd, env=env, idle_timeout=idle_timeout, one_off=one_off, tenant=tenant
        )
        return session.info()

    async def sessions(self, tenant: str = "") -> list[SessionInfo]:
        return [session.info() for session in self.manager.all(tenant)]

    async def load(self, tenant: str) -> Load:
        return self.manager.load(tenant)

    async def metrics(self) -> Metrics:
        return self.manager.metrics()

    async def info(self, session_id: str) -> SessionInfo:
        return self.manager.get(session_id).info()

    async def end(self, session_id: str) -> SessionInfo:
        return (await self.manager.end(session_id)).info()

    async def begin(
        self,
        session_id: str,
        code: str,
        *,
        timeout: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
        key: str | None = None,
    ) -> int:
        return await self.manager.get(session_id).execute(code, timeout=timeout, envs=envs, queue=queue, key=key)

    async def wait(self, session_id: str, cell: int | None, seconds: float, from_event: int = 0) -> Result:
        session = self.manager.get(session_id)
        number = session.last_cell if cell is None else cell
        await session.wait(number, seconds)
        result = await session.result(number, from_event)
        if session.plan.one_off and result.status in states.FINAL_STATUSES:
            # Read once, a one-off session has done its work.
            self.manager.end_soon(session, "its result was read")
        return result

    async def input(self, session_id: str, text: str, *, eof: bool = False) -> int:
        return await self.manager.get(session_id).input(text, eof=eof)

    async def interrupt(self, session_id: str) -> int | None:
        return await self.manager.get(session_id).interrupt()

    async def cells(self, session_id: str, first: int, count: int) -> list[CellInfo]:
        return await self.manager.get(session_id).cells(first, count)

    async def output(
        self, session_id: str, cell: int, *, stream: str, from_line: int, lines: int, grep: str | None
    ) -> OutputPage:
        return await self.manager.get(session_id).output(
            cell, stream=stream, from_line=from_line, lines=lines, grep=grep
        )

    def events(self, session_id: str, first: int) -> AsyncIterator[AnyEvent]:
        return self.manager.get(session_id).follow(first)

    async def files(self, session_id: str, folder: str) -> FileList:
        return await asyncio.to_thread(self.manager.get(session_id).files.list, folder)

    async def open_file(self, session_id: str, path: str) -> Reading:
        return await asyncio.to_thread(self.manager.get(session_id).files.open, path)

    async def write_file(
        self, session_id: str, path: str, chunks: AsyncIterator[bytes], limit: int
    ) -> tuple[FileInfo, bool]:
        return await write_file(self.manager.get(session_id).files, path, chunks, limit)

    async def remove_file(self, session_id: str, path: str) -> None:
        await asyncio.to_thread(self.manager.get(session_id).files.remove, path)
