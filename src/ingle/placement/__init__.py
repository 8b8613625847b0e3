"""Placement: where a session lives. The only room that knows; nothing above looks through it.

`Placement` is what every place can do, by session id and in plain data, so that a session on this machine and one on
another look the same from above.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from ingle.events import AnyEvent, CellInfo, Result, SessionInfo, Variables, VariableValue
from ingle.outputs.reading import OutputPage, Reading


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
