"""Verbs for cells: run, wait, answer, interrupt and read again; and the variables that cells leave."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

from ingle import errors
from ingle.callers import EXECUTE
from ingle.events import AnyEvent, CellInfo, Done, Result, Variables, VariableValue
from ingle.introspection import Rows
from ingle.nodes import OpenValue
from ingle.output.pages import OutputPage, Reading
from ingle.requests import NewCell, NewSession
from ingle.service.validation import check_cell, check_seconds, check_variable
from ingle.service.verbs import Verbs
from ingle_worker.wire import states

VARIABLE_SECONDS = 5.0
"""Time for the `__repr__` and `__str__` of one variable."""

VALUE_SECONDS = 60.0
"""Time for writing or reading the value of one variable."""

POLL_SECONDS = 1.0
"""Length of each wait for a cell that is past its timeout and about to be ended."""

DEFAULT_WORKSPACE = ".owner"
"""Folder of the default tenant. The name of a tenant never begins with a dot."""


class Cells(Verbs):
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
        """Run a cell. Answer when it has ended or waits for input, or after `wait` seconds, whichever is first.

        A repeated request with the same `key` gets the result of the cell that the first one began.
        """
        return await self.execute_cell(session_id, NewCell(code, timeout, envs or {}, queue, key), wait)

    async def execute_cell(self, session_id: str, new: NewCell, wait: float | None = None) -> Result:
        """Run a cell from a request, as `execute` does."""
        check_cell(new)
        seconds = self._wait(wait)
        session = self.access.session(session_id, EXECUTE)
        cell = await self.access.begin(session, new)
        return await session.wait(cell, seconds)

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
        """Start a cell and return its number."""
        return await self.begin_cell(session_id, NewCell(code, timeout, envs or {}, queue, key))

    async def begin_cell(self, session_id: str, new: NewCell) -> int:
        """Start a cell from a request and return its number."""
        check_cell(new)
        return await self.access.begin(self.access.session(session_id, EXECUTE), new)

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
        """Run code in a new session that ends after its answer.

        If the status of the answer is `running`, a caller can wait for the session by its id. The session ends once
        its result was read.
        """
        self.access.check(EXECUTE)
        new = NewCell(code, timeout, envs or {})
        check_cell(new)
        seconds = self._wait(wait)
        await self.access.check_sessions()
        caller = self.access.caller
        info = await self._node.create(
            NewSession(
                tenant=caller.tenant,
                python=python,
                cwd=cwd,
                one_off=True,
                include_stdlib=include_stdlib,
                bounds=caller.bounds,
            )
        )
        await self.access.keep(info)
        session = self.access.session(info.session_id, EXECUTE)
        try:
            cell = await self.access.begin(session, new)
        except BaseException:
            # No caller knows this session: without a cell there is nothing to wait for.
            await session.end()
            raise
        return await session.wait(cell, seconds)

    async def interpret(self, code: str, *, timeout: float, envs: dict[str, str] | None = None) -> Result:
        """Run code in a new session, in the server's workspace, to its end. Reads of standard input get end of file."""
        cwd = None
        if self.workspace is not None:
            folder = self.workspace / (self.access.caller.tenant or DEFAULT_WORKSPACE)
            if not folder.is_dir():
                await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
            cwd = str(folder)
        result = await self.execute_once(code, timeout=timeout, wait=timeout, envs=envs, cwd=cwd)
        while result.status not in states.FINAL_STATUSES:
            if result.status == states.WAITING:
                try:
                    result = await self.input(result.session_id, eof=True, wait=timeout)
                    continue
                except errors.NotWaiting:
                    pass  # it was interrupted meanwhile
            elif result.status == states.APPROVAL:
                await asyncio.sleep(POLL_SECONDS)
            result = await self.wait(result.session_id, result.cell, wait=POLL_SECONDS)
        return result

    async def wait(
        self, session_id: str, cell: int | None = None, *, wait: float | None = None, from_event: int = 0
    ) -> Result:
        """Return the result of a cell once it has ended or waits for input. Default: the last cell."""
        seconds = self._wait(wait)
        return await self.access.session(session_id).wait(cell, seconds, from_event)

    async def input(self, session_id: str, text: str = "", *, eof: bool = False, wait: float | None = None) -> Result:
        """Answer a cell that waits for input, and wait for the cell as `execute` does."""
        seconds = self._wait(wait)
        session = self.access.session(session_id, EXECUTE)
        return await session.wait(await session.input(text, self.access.author, eof=eof), seconds)

    async def interrupt(self, session_id: str, *, wait: float | None = None) -> Result | None:
        """Interrupt the running cell and wait until it has ended. Return None if no cell ran."""
        seconds = self._wait(wait)
        session = self.access.session(session_id, EXECUTE)
        cell = await session.interrupt(self.access.author)
        return None if cell is None else await session.wait(cell, seconds)

    async def cells(self, session_id: str, first: int = 1, count: int = 100) -> list[CellInfo]:
        return [each async for each in self.each_cell(session_id, first, count)]

    def each_cell(self, session_id: str, first: int = 1, count: int = 100) -> AsyncIterator[CellInfo]:
        """Yield cells one by one: their code together may be larger than memory."""
        return self.access.session(session_id).cells(first, count)

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
        """Return lines of what a cell printed or showed, from a number on or those that match a pattern.

        `offset` skips characters of the first line.
        """
        reading = Reading(stream, from_line, lines, grep, context, offset, raw)
        return await self.access.session(session_id).output(cell, reading)

    async def figure(self, session_id: str, file_id: str) -> bytes:
        """Return an image in full size. The metadata of the display that shows it smaller holds its id."""
        return await self.access.session(session_id).figure(file_id)

    def events(self, session_id: str, first: int = 1) -> AsyncIterator[AnyEvent]:
        return self.access.session(session_id).events(first)

    async def cell_events(self, session_id: str, cell: int, first: int = 1) -> AsyncIterator[AnyEvent]:
        """Yield the events of one cell, also those to come, from its first to its `done`.

        `first` is the number of an event before the cell, if the caller knows one.
        """
        session = self.access.session(session_id)
        if cell > 1 and first == 1:
            # A cell begins after the previous one has ended. A result from the highest event on holds no text.
            with contextlib.suppress(errors.CellForgotten, errors.CellElsewhere):
                first = (await session.wait(cell - 1, 0.0, sys.maxsize)).next_event
        async for event in session.events(first):
            if event.cell == cell:
                yield event
                if isinstance(event, Done):
                    return

    async def variables(self, session_id: str) -> Variables:
        """List the variables with type, shape or length, size and preview. No code of the user runs."""
        return await self.access.session(session_id).variables()

    async def variable(
        self, session_id: str, name: str, *, limit: float | None = None, rows: Rows | None = None
    ) -> VariableValue:
        """Return one variable in full. Its `__repr__` and `__str__` run in the session, for `limit` seconds at most.

        With `rows`, return these rows of a table, an array, a list or a dictionary instead.
        """
        check_variable(name)
        check_seconds("limit", limit)
        session = self.access.session(session_id, EXECUTE)
        return await session.variable(name, VARIABLE_SECONDS if limit is None else limit, rows)

    async def value(self, session_id: str, name: str) -> OpenValue:
        """Return the value of a variable. The caller closes it."""
        check_variable(name)
        return await self.access.session(session_id, EXECUTE).value(name, VALUE_SECONDS)

    async def set_value(self, session_id: str, name: str, kind: str, chunks: AsyncIterator[bytes]) -> None:
        """Set a variable from bytes of this kind. Nothing in them is executed."""
        check_variable(name)
        session = self.access.session(session_id, EXECUTE)
        await session.set_value(name, kind, chunks, self.settings.max_file, VALUE_SECONDS)
