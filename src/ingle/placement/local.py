"""Sessions on this machine."""

from collections.abc import AsyncIterator
from pathlib import Path

from ingle.events import AnyEvent, CellInfo, Result, SessionInfo, Variables, VariableValue
from ingle.outputs.reading import OutputPage, Reading
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
    ) -> SessionInfo:
        session = await self.manager.create(
            session_id, python=python, cwd=cwd, env=env, idle_timeout=idle_timeout, one_off=one_off
        )
        return session.info()

    async def sessions(self) -> list[SessionInfo]:
        return [session.info() for session in self.manager.all()]

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
    ) -> int:
        return await self.manager.get(session_id).execute(code, timeout=timeout, envs=envs, queue=queue)

    async def wait(self, session_id: str, cell: int | None, seconds: float, from_event: int = 0) -> Result:
        session = self.manager.get(session_id)
        number = session.last_cell if cell is None else cell
        await session.wait(number, seconds)
        result = await session.result(number, from_event)
        if session.plan.one_off and result.status in states.FINAL_STATUSES:
            # Read once, a one-off session has done its work.
            self.manager.end_soon(session)
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
