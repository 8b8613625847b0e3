"""Node: where a session lives. The only room that knows; nothing above looks through it.

`Node` is what every place can do, by session id and in plain data, so that a session on this machine and one on
another look the same from above. An id is a session's name, or `tenant/name` for a session that is not of the
default tenant; in what comes back there are names only.
"""

from collections.abc import AsyncIterator
from typing import Protocol

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
from ingle.output.pages import OutputPage, Reading
from ingle.requests import Bounds, Limits, NewSession


class OpenFile(Protocol):
    """A file that is being read; whoever has it closes it."""

    size: int
    modified: float
    tag: str

    def chunks(self, start: int, count: int) -> AsyncIterator[bytes]:
        """So many bytes from there on, a bounded piece at a time."""
        ...

    def close(self) -> None: ...


class Node(Protocol):
    async def start(self) -> None: ...

    async def warm(self) -> None:
        """Have workers ready for the first sessions."""
        ...

    async def stop(self) -> None: ...

    async def create(self, wanted: NewSession) -> SessionInfo: ...

    async def sessions(self, tenant: str = "") -> list[SessionInfo]: ...

    async def isolation(self) -> Isolation: ...

    async def load(self, tenant: str) -> Load: ...

    async def metrics(self) -> Metrics: ...

    async def info(self, session_id: str) -> SessionInfo: ...

    async def end(self, session_id: str) -> SessionInfo: ...

    async def clear(self, session_id: str) -> SessionInfo: ...

    async def save(self, session_id: str, target: str, start: str | None = None) -> Saved:
        """Save a session under a name, or as a file below its folder or the start folder."""
        ...

    async def restore(
        self,
        wanted: NewSession,
        source: str,
        start: str | None = None,
        *,
        trust: bool = False,
        rerun: bool = False,
    ) -> Restored:
        """A new session with what a snapshot holds. `trust`: whoever wrote it. `rerun`: cells that made the rest."""
        ...

    async def snapshots(self, tenant: str = "") -> list[SnapshotInfo]: ...

    async def delete_snapshot(self, tenant: str, name: str) -> None: ...

    async def open_snapshot(self, tenant: str, name: str) -> OpenFile: ...

    async def write_snapshot(self, tenant: str, name: str, chunks: AsyncIterator[bytes]) -> SnapshotInfo: ...

    async def stdlib(self, tenant: str = "") -> Stdlib: ...

    async def add_to_stdlib(self, tenant: str, code: str, bounds: Bounds) -> StdlibChange: ...

    async def fork(self, session_id: str, names: list[str | None], *, reseed: bool = False) -> list[SessionInfo]:
        """Live copies of a session, one for each of these names, or none."""
        ...

    async def checkpoint(self, session_id: str, name: str) -> CheckpointInfo: ...

    async def checkpoints(self, session_id: str) -> list[CheckpointInfo]: ...

    async def drop_checkpoint(self, session_id: str, name: str) -> None: ...

    async def rollback(self, session_id: str, name: str | None) -> RolledBack: ...

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
        """Start a cell; its number. A `key` that was used before stands for the cell it began."""
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
        tenant: str = "",
        bounds: Bounds = ...,
    ) -> str:
        """Start a command; the task's id."""
        ...

    async def shell_wait(self, task_id: str, seconds: float, *, from_event: int = 0, from_line: int = 0) -> Task: ...

    async def shell_order(self, task_id: str, verb: str) -> None:
        """cancel, interrupt, pause or resume."""
        ...

    async def shell_input(self, task_id: str, text: str, *, eof: bool) -> None: ...

    async def shell_resize(self, task_id: str, rows: int, columns: int) -> None: ...

    async def shell_tasks(self, tenant: str = "") -> list[Task]: ...

    async def shell_output(
        self, task_id: str, *, stream: str, from_line: int, lines: int, grep: str | None
    ) -> TaskOutput: ...

    def shell_events(self, task_id: str, first: int) -> AsyncIterator[AnyEvent]: ...

    async def shell_end(self, shell_session: str, session_id: str | None, tenant: str = "") -> bool: ...

    async def files(self, session_id: str, folder: str) -> FileList: ...

    async def open_file(self, session_id: str, path: str) -> OpenFile: ...

    async def write_file(
        self, session_id: str, path: str, chunks: AsyncIterator[bytes], limit: int
    ) -> tuple[FileInfo, bool]:
        """What is there now, and whether it is new."""
        ...

    async def remove_file(self, session_id: str, path: str) -> None: ...
