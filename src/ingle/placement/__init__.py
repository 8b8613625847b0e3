"""Placement: where a session lives. The only room that knows; nothing above looks through it.

`Placement` is what every place can do, by session id and in plain data, so that a session on this machine and one on
another look the same from above.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from ingle.events import AnyEvent, CellInfo, Limits, Result, SessionInfo, Task, Variables, VariableValue
from ingle.outputs.reading import OutputPage, Reading
from ingle.shell.log import TaskOutput


class Placement(Protocol):
    async def start(self) -> None: ...

    async def warm(self) -> None:
        """Have workers ready for the first sessions."""
        ...

    async def stop(self) -> None: ...

    async def create(
        self,
        session_id: str | None,
        *,
        python: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        idle_timeout: float | None = None,
        one_off: bool = False,
    ) -> SessionInfo: ...

    async def sessions(self) -> list[SessionInfo]: ...

    async def info(self, session_id: str) -> SessionInfo: ...

    async def end(self, session_id: str) -> SessionInfo: ...

    async def begin(
        self,
        session_id: str,
        code: str,
        *,
        timeout: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
    ) -> int:
        """Start a cell; its number."""
        ...

    async def wait(self, session_id: str, cell: int | None, seconds: float, from_event: int = 0) -> Result:
        """The result of a cell (the last one if none is named) once it has settled, or after so many seconds."""
        ...

    async def input(self, session_id: str, text: str, *, eof: bool = False) -> int: ...

    async def interrupt(self, session_id: str) -> int | None: ...

    async def cells(self, session_id: str, first: int, count: int) -> list[CellInfo]: ...

    async def output(self, session_id: str, cell: int, reading: Reading) -> OutputPage: ...

    async def figure(self, session_id: str, file_id: str) -> bytes:
        """An image in full size that was kept for this session."""
        ...

    def events(self, session_id: str, first: int) -> AsyncIterator[AnyEvent]: ...

    async def variables(self, session_id: str) -> Variables: ...

    async def variable(self, session_id: str, name: str, limit: float) -> VariableValue: ...

    # --- shell tasks ---

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
    ) -> str:
        """Start a command; the task's id."""
        ...

    async def shell_wait(self, task_id: str, seconds: float, *, from_event: int = 0, from_line: int = 0) -> Task: ...

    async def shell_order(self, task_id: str, verb: str) -> None:
        """cancel, interrupt, pause or resume."""
        ...

    async def shell_input(self, task_id: str, text: str, *, eof: bool) -> None: ...

    async def shell_resize(self, task_id: str, rows: int, columns: int) -> None: ...

    async def shell_tasks(self) -> list[Task]: ...

    async def shell_output(
        self, task_id: str, *, stream: str, from_line: int, lines: int, grep: str | None
    ) -> TaskOutput: ...

    def shell_events(self, task_id: str, first: int) -> AsyncIterator[AnyEvent]: ...

    async def shell_end(self, shell_session: str, session_id: str | None) -> bool: ...
