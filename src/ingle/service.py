"""The verbs: what every door can ask for, with the same names, defaults and checks. Who may, and how much.

The service holds no session and knows no process; it asks placement.
"""

import math
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from ingle import errors
from ingle.events import AnyEvent, CellInfo, Done, Result, SessionInfo, Variables, VariableValue
from ingle.outputs.reading import OutputPage, Reading
from ingle.placement import Placement
from ingle.placement.local import Local
from ingle.settings import Settings, data_folder

MAX_ENVS = 1000

VARIABLE_LIMIT = 5.0
"""Seconds that the `__repr__` and `__str__` of one variable may take."""

MAX_NAME = 1000


class Service:
    def __init__(self, settings: Settings, placement: Placement) -> None:
        self.settings = settings
        self._placement = placement
        self.stopping = False

    @classmethod
    def local(cls, settings: Settings, home: Path | None = None) -> "Service":
        """A service whose sessions live on this machine. Needs a running event loop."""
        return cls(settings, Local(settings, home or data_folder()))

    async def start(self) -> None:
        await self._placement.start()

    async def warm(self) -> None:
        """Have workers ready, so that the first sessions start as quickly as later ones."""
        await self._placement.warm()

    async def stop(self) -> None:
        self.stopping = True
        await self._placement.stop()

    async def __aenter__(self) -> "Service":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    # --- sessions ---

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        python: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        idle_timeout: float | None = None,
    ) -> SessionInfo:
        _check_environment(env)
        _check_seconds("idle_timeout", idle_timeout)
        return await self._placement.create(session_id, python=python, cwd=cwd, env=env, idle_timeout=idle_timeout)

    async def list_sessions(self) -> list[SessionInfo]:
        return await self._placement.sessions()

    async def get_session(self, session_id: str) -> SessionInfo:
        return await self._placement.info(session_id)

    async def end_session(self, session_id: str) -> SessionInfo:
        return await self._placement.end(session_id)

    # --- cells ---

    async def execute(
        self,
        session_id: str,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
    ) -> Result:
        """Run a cell and answer when it has ended or waits for input, or after `wait` seconds, whichever is first."""
        _check_environment(envs)
        _check_seconds("timeout", timeout)
        seconds = self._wait(wait)
        cell = await self._placement.begin(session_id, code, timeout=timeout, envs=envs, queue=queue)
        return await self._placement.wait(session_id, cell, seconds)

    async def begin(
        self,
        session_id: str,
        code: str,
        *,
        timeout: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
    ) -> int:
        """Start a cell and answer with its number."""
        _check_environment(envs)
        _check_seconds("timeout", timeout)
        return await self._placement.begin(session_id, code, timeout=timeout, envs=envs, queue=queue)

    async def execute_once(
        self,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        envs: dict[str, str] | None = None,
        python: str | None = None,
        cwd: str | None = None,
    ) -> Result:
        """Run code in a fresh session that is ended after its answer.

        When the answer is `running`, the session can be waited for by its id, and ends once that was read.
        """
        _check_environment(envs)
        _check_seconds("timeout", timeout)
        seconds = self._wait(wait)
        session = await self._placement.create(None, python=python, cwd=cwd, one_off=True)
        try:
            cell = await self._placement.begin(session.session_id, code, timeout=timeout, envs=envs)
        except BaseException:
            # Nobody will learn of this session: without a cell there is nothing to wait for.
            await self._placement.end(session.session_id)
            raise
        return await self._placement.wait(session.session_id, cell, seconds)

    async def wait(
        self, session_id: str, cell: int | None = None, *, wait: float | None = None, from_event: int = 0
    ) -> Result:
        """The result of a cell, the last one unless named, as soon as it has settled."""
        return await self._placement.wait(session_id, cell, self._wait(wait), from_event)

    async def input(self, session_id: str, text: str = "", *, eof: bool = False, wait: float | None = None) -> Result:
        """Answer a cell that waits for input; the answer comes when the cell has gone on."""
        cell = await self._placement.input(session_id, text, eof=eof)
        return await self._placement.wait(session_id, cell, self._wait(wait))

    async def interrupt(self, session_id: str, *, wait: float | None = None) -> Result | None:
        """Interrupt the running cell and answer when the session is ready again; None when nothing ran."""
        cell = await self._placement.interrupt(session_id)
        if cell is None:
            return None
        return await self._placement.wait(session_id, cell, self._wait(wait))

    async def cells(self, session_id: str, first: int = 1, count: int = 100) -> list[CellInfo]:
        return await self._placement.cells(session_id, first, count)

    async def read_output(
        self,
        session_id: str,
        cell: int,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
        context: int = 0,
        offset: int = 0,
        raw: bool = False,
    ) -> OutputPage:
        """Lines of what a cell printed or showed: from a number on, those that match, on a long line from an offset."""
        reading = Reading(stream, from_line, lines, grep, context, offset, raw)
        return await self._placement.output(session_id, cell, reading)

    async def figure(self, session_id: str, file_id: str) -> bytes:
        """An image in full size, by the id in the metadata of the display that shows it smaller."""
        return await self._placement.figure(session_id, file_id)

    def events(self, session_id: str, first: int = 1) -> AsyncIterator[AnyEvent]:
        return self._placement.events(session_id, first)

    async def cell_events(self, session_id: str, cell: int) -> AsyncIterator[AnyEvent]:
        """The events of one cell, those to come included, from its first to its `done`."""
        first = 1
        if cell > 1:
            # A cell begins after the one before it has ended; asked for from so far on, that one brings no text.
            before = await self._placement.wait(session_id, cell - 1, 0.0, from_event=sys.maxsize)
            first = before.next_event
        async for event in self._placement.events(session_id, first):
            if event.cell == cell:
                yield event
                if isinstance(event, Done):
                    return

    # --- variables ---

    async def variables(self, session_id: str) -> Variables:
        """Each variable with type, shape or length, size and preview; runs no code of the user's."""
        return await self._placement.variables(session_id)

    async def variable(self, session_id: str, name: str, *, limit: float | None = None) -> VariableValue:
        """One variable in full, by its plain name: its `__repr__` and `__str__` run in the session, within a limit."""
        if len(name) > MAX_NAME or not name.isidentifier():
            raise errors.InvalidRequest(f"{name[:80]!r} is not the name of a variable; give a plain name")
        _check_seconds("limit", limit)
        return await self._placement.variable(session_id, name, VARIABLE_LIMIT if limit is None else limit)

    def _wait(self, wait: float | None) -> float:
        _check_seconds("wait", wait)
        return self.settings.wait if wait is None else wait


def _check_seconds(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise errors.InvalidRequest(f"{name} is {value}; it must be a number of seconds, 0 or more")


def _check_environment(envs: dict[str, str] | None) -> None:
    for name, value in (envs or {}).items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise errors.InvalidRequest(
                f"the environment variable {name[:80]!r} cannot be set: no '=' or NUL in names, no NUL in values"
            )
    if envs is not None and len(envs) > MAX_ENVS:
        raise errors.InvalidRequest(f"{len(envs)} environment variables are more than {MAX_ENVS}")
