"""The verbs: what every door can ask for, with the same names, defaults and checks. Who may, and how much.

The service holds no session and knows no process; it asks placement.
"""

import math
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from ingle import errors
from ingle.events import AnyEvent, CellInfo, Done, Limits, Result, SessionInfo, Task, Variables, VariableValue
from ingle.once import Once
from ingle.outputs.reading import OutputPage, Reading
from ingle.placement import Placement
from ingle.placement.local import Local
from ingle.sessions.manager import check_name
from ingle.settings import Settings, data_folder
from ingle.shell.log import TaskOutput

MAX_ENVS = 1000

VARIABLE_LIMIT = 5.0
"""Seconds that the `__repr__` and `__str__` of one variable may take."""

MAX_NAME = 1000


class Service:
    def __init__(self, settings: Settings, placement: Placement) -> None:
        self.settings = settings
        self._placement = placement
        self.stopping = False
        self.once = Once()

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

    # --- shell tasks ---

    async def shell(
        self,
        command: str,
        *,
        wait: float | None = None,
        timeout: float | None = None,
        session_id: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        interactive: bool = False,
        pty: bool = False,
        size: tuple[int, int] = (24, 80),
        limits: Limits | None = None,
        shell_session: str | None = None,
        request_key: str | None = None,
    ) -> Task:
        """Run a command; answer when its shell has ended, or after `wait` seconds with what there is so far.

        `stdin` is its whole input; with `interactive` or `pty` the input stays open for `shell_input`. With
        `shell_session` it runs in the persistent shell of that name. The same `request_key` never runs it twice.
        """
        _check_environment(env)
        _check_seconds("timeout", timeout)
        _check_seconds("wait", wait)
        _check_limits(limits)
        _check_size(*size)
        if shell_session is not None:
            check_name(shell_session)
            if pty or interactive:
                raise errors.InvalidRequest(
                    "a command in a persistent shell has no terminal and no open input; "
                    "give stdin, or leave shell_session out"
                )
        request = ("shell", command, timeout, session_id, cwd, env, stdin, interactive, pty, limits, shell_session)
        task_id = await self.once(
            request_key,
            request,
            lambda: self._placement.shell_begin(
                command,
                timeout=timeout,
                session_id=session_id,
                cwd=cwd,
                env=env,
                stdin=stdin,
                interactive=interactive,
                pty=pty,
                size=size,
                limits=limits,
                shell_session=shell_session,
            ),
        )
        return await self._placement.shell_wait(task_id, self._shell_wait(wait))

    async def shell_status(
        self, task_id: str, *, wait: float | None = None, from_line: int = 0, from_event: int = 0
    ) -> Task:
        """The task once its shell has ended (or, if it had, once all of it has), or after `wait` seconds.

        From a line or an event on, if asked for. Reading changes nothing.
        """
        return await self._placement.shell_wait(
            task_id, self._shell_wait(wait), from_event=from_event, from_line=from_line
        )

    async def shell_cancel(self, task_id: str, *, wait: float | None = None) -> Task:
        """End all of a task: SIGTERM, a grace, SIGKILL. One that is over is answered as it is."""
        await self._placement.shell_order(task_id, "cancel")
        return await self._until_over(task_id, wait)

    async def shell_interrupt(self, task_id: str, *, wait: float | None = None) -> Task:
        """SIGINT, as by Ctrl-C; a persistent shell stays alive."""
        await self._placement.shell_order(task_id, "interrupt")
        return await self._placement.shell_wait(task_id, self._shell_wait(wait))

    async def shell_pause(self, task_id: str) -> Task:
        await self._placement.shell_order(task_id, "pause")
        return await self._placement.shell_wait(task_id, 0.0)

    async def shell_resume(self, task_id: str, *, wait: float | None = 0.0) -> Task:
        await self._placement.shell_order(task_id, "resume")
        return await self._placement.shell_wait(task_id, self._shell_wait(wait))

    async def shell_input(self, task_id: str, text: str = "", *, eof: bool = False, wait: float | None = 0.0) -> Task:
        """Send text to a task's input as it is: a line needs its own newline; on a terminal, `\\x03` is Ctrl-C."""
        await self._placement.shell_input(task_id, text, eof=eof)
        return await self._placement.shell_wait(task_id, self._shell_wait(wait))

    async def shell_resize(self, task_id: str, rows: int, columns: int) -> None:
        """The size of a task's terminal."""
        _check_size(rows, columns)
        await self._placement.shell_resize(task_id, rows, columns)

    async def shell_tasks(self) -> list[Task]:
        """All tasks that run or are still kept, without their text, in the order of their start."""
        return await self._placement.shell_tasks()

    async def shell_output(
        self,
        task_id: str,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
    ) -> TaskOutput:
        return await self._placement.shell_output(task_id, stream=stream, from_line=from_line, lines=lines, grep=grep)

    def shell_events(self, task_id: str, first: int = 1) -> AsyncIterator[AnyEvent]:
        """The events of a task, those to come included, until it is over. Their `session_id` is the task's id."""
        return self._placement.shell_events(task_id, first)

    async def shell_end(self, shell_session: str, *, session_id: str | None = None) -> bool:
        """End a persistent shell and what runs in it; False when there is none of that name."""
        return await self._placement.shell_end(shell_session, session_id)

    async def _until_over(self, task_id: str, wait: float | None) -> Task:
        """The task when all of it has gone, not only its shell."""
        seconds = self._shell_wait(wait)
        task = await self._placement.shell_wait(task_id, seconds)
        if task.status in ("running", "paused") and seconds:
            task = await self._placement.shell_wait(task_id, seconds)
        return task

    def _shell_wait(self, wait: float | None) -> float:
        _check_seconds("wait", wait)
        return self.settings.shell_wait if wait is None else wait

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


def _check_limits(limits: Limits | None) -> None:
    for name in Limits.__struct_fields__ if limits is not None else ():
        value = getattr(limits, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise errors.InvalidRequest(f"the limit {name} is {value}; it must be more than 0, or left out")


def _check_size(rows: int, columns: int) -> None:
    if not (0 < rows < 65536 and 0 < columns < 65536):
        raise errors.InvalidRequest(f"a terminal of {rows} rows and {columns} columns cannot be; both are 1 to 65535")
