"""Cells: run, waited for, answered, interrupted and read again; and the variables they leave."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from ingle import errors
from ingle.callers import EXECUTE
from ingle.events import AnyEvent, CellInfo, Done, Result, Variables, VariableValue
from ingle.output.pages import OutputPage, Reading
from ingle.requests import NewSession
from ingle.service.access import Acting
from ingle.service.validation import check_environment, check_key, check_seconds
from ingle_worker.wire import states

VARIABLE_LIMIT = 5.0
"""Seconds that the `__repr__` and `__str__` of one variable may take."""

MAX_NAME = 1000

POLL = 1.0
"""How long each look at a cell lasts that is past its time, and about to be ended."""

DEFAULT_WORKSPACE = ".owner"
"""The folder of the default tenant; no tenant's name begins with a dot."""


class Cells(Acting):
    async def _begin(
        self,
        own_id: str,
        code: str,
        timeout: float | None,
        envs: dict[str, str] | None,
        queue: bool = False,
        key: str | None = None,
    ) -> int:
        """Start a cell, if the caller may have one more; its number."""
        self._check_beginning()
        tenant, limit = self.caller.tenant, self.caller.limits.running
        beginning = self._shared.beginning
        if limit is not None and (await self._node.load(tenant)).running + beginning[tenant] >= limit:
            raise errors.QuotaExceeded(f"this token may run {limit} cells at once; wait for one of them to end")
        beginning[tenant] += 1
        try:
            return await self._node.begin(own_id, code, timeout=timeout, envs=envs, queue=queue, key=key)
        finally:
            beginning[tenant] -= 1

    async def execute(
        self,
        session_id: str,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
        key: str | None = None,
    ) -> Result:
        """Run a cell and answer when it has ended or waits for input, or after `wait` seconds, whichever is first.

        A request that is repeated with its `key` gets the result of the cell that the first one began.
        """
        own_id = self._own(session_id, EXECUTE)
        if envs or timeout is not None or key is not None:
            check_environment(envs)
            check_seconds("timeout", timeout)
            check_key(key)
        seconds = self._wait(wait)
        cell = await self._begin(own_id, code, timeout, envs, queue, key)
        return await self._node.wait(own_id, cell, seconds)

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
        """Start a cell and answer with its number."""
        own_id = self._own(session_id, EXECUTE)
        check_environment(envs)
        check_seconds("timeout", timeout)
        check_key(key)
        return await self._begin(own_id, code, timeout, envs, queue, key)

    async def execute_once(
        self,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        envs: dict[str, str] | None = None,
        python: str | None = None,
        cwd: str | None = None,
        include_stdlib: bool = True,
    ) -> Result:
        """Run code in a fresh session that is ended after its answer.

        When the answer is `running`, the session can be waited for by its id, and ends once that was read.
        """
        self.check(EXECUTE)
        check_environment(envs)
        check_seconds("timeout", timeout)
        seconds = self._wait(wait)
        await self._check_sessions()
        session = await self._node.create(
            NewSession(
                tenant=self.caller.tenant,
                python=python,
                cwd=cwd,
                one_off=True,
                include_stdlib=include_stdlib,
                bounds=self.caller.bounds,
            )
        )
        own_id = self._own(session.session_id)
        try:
            cell = await self._begin(own_id, code, timeout, envs)
        except BaseException:
            # Nobody will learn of this session: without a cell there is nothing to wait for.
            await self._node.end(own_id)
            raise
        return await self._node.wait(own_id, cell, seconds)

    async def interpret(self, code: str, *, timeout: float, envs: dict[str, str] | None = None) -> Result:
        """Run code in a fresh session, in the server's workspace, to its end. Whatever it reads has ended."""
        cwd = None
        if self.workspace is not None:
            # Tenants do not meet in it.
            folder = self.workspace / (self.caller.tenant or DEFAULT_WORKSPACE)
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            cwd = str(folder)
        result = await self.execute_once(code, timeout=timeout, wait=timeout, envs=envs, cwd=cwd)
        while result.status not in states.FINAL_STATUSES:
            if result.status == states.WAITING:
                try:
                    result = await self.input(result.session_id, eof=True, wait=timeout)
                    continue
                except errors.NotWaiting:
                    pass  # it was interrupted in this moment
            result = await self.wait(result.session_id, result.cell, wait=POLL)
        return result

    async def wait(
        self, session_id: str, cell: int | None = None, *, wait: float | None = None, from_event: int = 0
    ) -> Result:
        """The result of a cell, the last one unless named, as soon as it has settled."""
        return await self._node.wait(self._own(session_id), cell, self._wait(wait), from_event)

    async def input(self, session_id: str, text: str = "", *, eof: bool = False, wait: float | None = None) -> Result:
        """Answer a cell that waits for input; the answer comes when the cell has gone on."""
        own_id, seconds = self._own(session_id, EXECUTE), self._wait(wait)
        cell = await self._node.input(own_id, text, eof=eof)
        return await self._node.wait(own_id, cell, seconds)

    async def interrupt(self, session_id: str, *, wait: float | None = None) -> Result | None:
        """Interrupt the running cell and answer when the session is ready again; None when nothing ran."""
        own_id, seconds = self._own(session_id, EXECUTE), self._wait(wait)
        cell = await self._node.interrupt(own_id)
        if cell is None:
            return None
        return await self._node.wait(own_id, cell, seconds)

    async def cells(self, session_id: str, first: int = 1, count: int = 100) -> list[CellInfo]:
        return await self._node.cells(self._own(session_id), first, count)

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
        return await self._node.output(self._own(session_id), cell, reading)

    async def figure(self, session_id: str, file_id: str) -> bytes:
        """An image in full size, by the id in the metadata of the display that shows it smaller."""
        return await self._node.figure(self._own(session_id), file_id)

    def events(self, session_id: str, first: int = 1) -> AsyncIterator[AnyEvent]:
        return self._node.events(self._own(session_id), first)

    async def cell_events(self, session_id: str, cell: int) -> AsyncIterator[AnyEvent]:
        """The events of one cell, those to come included, from its first to its `done`."""
        own_id = self._own(session_id)
        first = 1
        if cell > 1:
            # A cell begins after the one before it has ended; asked for from so far on, that one brings no text.
            with contextlib.suppress(errors.CellForgotten):
                before = await self._node.wait(own_id, cell - 1, 0.0, from_event=sys.maxsize)
                first = before.next_event
        async for event in self._node.events(own_id, first):
            if event.cell == cell:
                yield event
                if isinstance(event, Done):
                    return

    async def variables(self, session_id: str) -> Variables:
        """Each variable with type, shape or length, size and preview; runs no code of the user's."""
        return await self._node.variables(self._own(session_id))

    async def variable(self, session_id: str, name: str, *, limit: float | None = None) -> VariableValue:
        """One variable in full, by its plain name: its `__repr__` and `__str__` run in the session, within a limit."""
        if len(name) > MAX_NAME or not name.isidentifier():
            raise errors.InvalidRequest(f"{name[:80]!r} is not the name of a variable; give a plain name")
        check_seconds("limit", limit)
        return await self._node.variable(
            self._own(session_id, EXECUTE), name, VARIABLE_LIMIT if limit is None else limit
        )
