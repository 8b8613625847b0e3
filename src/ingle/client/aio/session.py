"""One live session: its cells, its output as it comes, its input, its files.

A call never owns a cell: cancelling it, losing the connection or the end of this program stops nothing that runs. A
cell that was sent is never sent again as another one: each has a key of its own, by which the server knows it.
"""

import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Any

from msgspec import Struct

from ingle import errors
from ingle.client.address import deadline_after, file_path, session_path, time_left
from ingle.client.aio.connection import AsyncConnection
from ingle.client.aio.io import EventStream, Lock, aclosing, call
from ingle.client.aio.shell import AsyncShell
from ingle.client.decode import bundle_of, kind_of, read
from ingle.client.results import Result
from ingle.events import (
    CellError,
    CellInfo,
    CheckpointInfo,
    Done,
    ErrorRaised,
    FileInfo,
    FileList,
    InputWanted,
    OutputPage,
    Restored,
    RolledBack,
    Saved,
    SessionInfo,
    Stderr,
    Stdout,
    Task,
    Variables,
    VariableValue,
)
from ingle.requests import Limits

TURN = 25.0
"""How long one request waits for a cell; the client asks as often as it takes. Proxies cut what is silent longer."""

BEGINNING = 3600.0
"""How long one request may wait for its turn, where a cell is queued; then it is sent again, with its key."""

SAVING = 3600.0
"""How long saving may take: a session may hold many gigabytes."""

FAR = 2**62
"""Beyond every event: a result asked for from there on brings no text."""


class CellList(Struct):
    cells: list[CellInfo]


class CheckpointList(Struct):
    checkpoints: list[CheckpointInfo]


class AsyncSession:
    """Made by `AsyncClient.session`; attached to the session of that name, or makes it, at its first use.

    As a context manager it ends, at its exit, a session that it made; one that was there already is left running, and
    so is one made with `keep=True`. Several tasks or threads may use it; a session runs one cell at a time, and says
    `Busy` to the second unless that is to `queue`.
    """

    def __init__(self, connection: AsyncConnection, name: str | None, options: dict[str, Any], keep: bool) -> None:
        # A name of our own, where none was given: whoever asks to make it again after a failure knows it is his.
        self.name = name if name is not None else f"s-{secrets.token_hex(6)}"
        self.made = False
        """Whether this object made the session; False also before its first use."""
        self.keep = keep
        self.restored: Restored | None = None
        """What became of the snapshot that it was loaded from."""
        self._named = name is not None
        self._connection = connection
        self._options = {key: value for key, value in options.items() if value is not None}
        self._path = session_path(self.name)
        self._attaching = Lock()
        self._attached = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    async def __aenter__(self) -> "AsyncSession":
        await self._attach()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.made or self.keep:
            return
        try:
            await self.close()
        except errors.SessionNotFound:
            pass  # somebody ended it, which is all that was wanted
        except errors.Unreachable:
            # With the service gone the session is too; what was raised inside matters more than that.
            if error is None:
                raise

    async def _attach(self) -> None:
        async with self._attaching:
            if self._attached:
                return
            if not (self._named and await self._exists()):
                await self._make()
            self._attached = True

    async def _exists(self) -> bool:
        try:
            await self.info()
        except errors.SessionNotFound:
            return False
        return True

    async def _make(self) -> None:
        body = {"session_id": self.name, **self._options}
        try:
            await self._connection.request("POST", "/v1/sessions", body=body, repeatable=True, wait=TURN)
            self.made = True
        except errors.SessionExists:
            # Another was quicker; or our own first attempt was, of which only a name that nobody else has is proof.
            self.made = not self._named

    # --- cells ---

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
        on_stdout: Callable[[str], Any] | None = None,
        on_stderr: Callable[[str], Any] | None = None,
        on_display: Callable[[dict[str, str]], Any] | None = None,
        on_result: Callable[[dict[str, str]], Any] | None = None,
        on_error: Callable[[CellError], Any] | None = None,
        on_input: Callable[[str, bool], Any] | None = None,
    ) -> Result:
        """Run a cell to its end, and answer with its result. What the cell raises is in the result, not raised here.

        `timeout` bounds the cell: past it, it is interrupted. `wait` bounds this call only: past it the answer has
        the status `running`, the cell goes on, and `wait()` waits on. A cell that reads standard input answers with
        `waiting_for_input`; go on with `input()`. `envs` are set for this one cell. With `queue` a busy session takes
        the cell after those before it, where it would raise `Busy`.

        The callbacks are called while the cell runs: `on_stdout` and `on_stderr` with text, `on_display` and
        `on_result` with a bundle by mime type, `on_error` with the error. `on_input(prompt, secret)` answers
        standard input itself: it returns the text, or None for the end of file. What a callback raises comes out of
        this call; the cell goes on.
        Those of an `AsyncClient` may be coroutine functions.
        """
        deadline = deadline_after(wait)
        callbacks = (on_stdout, on_stderr, on_display, on_result, on_error, on_input)
        if all(callback is None for callback in callbacks):
            return await self._settled(await self._begin(code, timeout, envs, queue, _turn(deadline)), deadline)
        result = await self._begin(code, timeout, envs, queue, 0.0)
        async with aclosing(self._cell_events(result.cell, deadline)) as events:
            async for event in events:
                if isinstance(event, Stdout) and not event.background:
                    on_stdout and await call(on_stdout, event.text)
                elif isinstance(event, Stderr) and not event.background:
                    on_stderr and await call(on_stderr, event.text)
                elif isinstance(event, ErrorRaised):
                    on_error and await call(on_error, CellError(event.name, event.value, event.traceback))
                elif isinstance(event, InputWanted):
                    if on_input is None:
                        break
                    await self._answer(await call(on_input, event.prompt, event.secret))
                elif kind_of(event) == "display":
                    on_display and await call(on_display, bundle_of(event))
                elif kind_of(event) == "result":
                    on_result and await call(on_result, bundle_of(event))
        return await self._cell(result.cell, 0.0)

    async def _answer(self, text: str | None) -> None:
        try:
            await self._input(text or "", text is None, 0.0)
        except errors.NotWaiting:
            pass  # it was interrupted meanwhile, or another answered

    async def stream(
        self,
        code: str,
        *,
        timeout: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
    ) -> EventStream:
        """Run a cell and give its events as they come, from the `state` that begins it to its `done`.

        The cell is sent when the first event is asked for. Whoever stops reading leaves it running. The events are
        those of `ingle.events`; `event.cell` is its number, for `wait()` to get the result.
        """
        result = await self._begin(code, timeout, envs, queue, 0.0)
        async with aclosing(self._cell_events(result.cell, None)) as events:
            async for event in events:
                yield event

    async def events(self, first: int = 1, last: int | None = None) -> EventStream:
        """Every event of the session from number `first` on, those to come included, until the session ends.

        With `last` it stops after the event of that number.
        """
        await self._attach()
        async with aclosing(self._connection.events(self._path, first)) as events:
            async for event in events:
                yield event
                if last is not None and event.seq >= last:
                    return

    async def _cell_events(self, cell: int, deadline: float | None) -> EventStream:
        """The events of one cell, to its `done` or to the deadline."""
        async with aclosing(self._connection.events(self._path, await self.first_event(cell), deadline)) as events:
            async for event in events:
                if event.cell == cell:
                    yield event
                    if isinstance(event, Done):
                        return
        left = time_left(deadline)
        if left is None or left > 0:
            raise errors.SessionNotFound(self.name)

    async def first_event(self, cell: int) -> int:
        """From which event on everything of this cell comes, with little that is older."""
        if cell <= 1:
            return 1
        try:
            return (await self._cell(cell - 1, 0.0, FAR)).next_event
        except errors.CellNotFound:
            return 1  # the one before ran in another session, of which this is a fork, or under an earlier server

    async def wait(self, cell: int | None = None, *, wait: float | None = None) -> Result:
        """The result of a cell, the last one unless it is named, when it has ended or waits for input.

        With `wait`, after so many seconds at the latest; 0 only looks.
        """
        deadline = deadline_after(wait)
        if cell is None:
            cell = (await self.info()).execution_count
        return await self._settled(await self._cell(cell, _turn(deadline)), deadline)

    async def input(self, text: str = "", *, eof: bool = False, wait: float | None = None) -> Result:
        """Answer a cell that waits for input, and wait for what comes of it, as `run` does.

        A newline is added unless there is one. With `eof` the input of this cell ends (Ctrl-D). When nobody waits,
        `NotWaiting` is raised and the text goes nowhere.
        """
        deadline = deadline_after(wait)
        return await self._settled(await self._input(text, eof, _turn(deadline)), deadline)

    async def interrupt(self, *, wait: float | None = None) -> Result | None:
        """Interrupt the running cell; its result, once the session is ready again. None when no cell ran."""
        await self._attach()
        deadline = deadline_after(wait)
        turn = _turn(deadline)
        said = await self._connection.request("POST", self._path + "/interrupt", body={"wait": turn}, wait=turn)
        if b'"interrupted":false' in said[:64]:
            return None
        return await self._settled(read(said, Result), deadline)

    async def save(self, name: str) -> Saved:
        """Save the session under a name, or as a file below its folder. It goes on meanwhile; `skipped` in the answer
        names what could not be saved. `Client.load` makes a session of it again."""
        await self._attach()
        said = await self._connection.request("POST", self._path + "/save", body={"name": name}, wait=SAVING)
        return read(said, Saved)

    async def cells(self, first: int = 1, count: int = 100) -> list[CellInfo]:
        """What ran: code, status and times of the cells from number `first` on."""
        await self._attach()
        said = await self._get("/cells", {"first": first, "count": count})
        return read(said, CellList).cells

    async def output(
        self,
        cell: int,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
    ) -> OutputPage:
        """Lines of a cell's output, however long it is; `stream` is stdout, stderr or both, `grep` a pattern.

        `next_line` of the answer is where to go on, None at the end.
        """
        await self._attach()
        query: dict[str, str | int | float] = {"stream": stream, "from_line": from_line, "lines": lines}
        if grep is not None:
            query["grep"] = grep
        return read(await self._get(f"/cells/{cell}/output", query), OutputPage)

    async def shell(
        self,
        command: str,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        interactive: bool = False,
        pty: bool = False,
        limits: Limits | None = None,
        shell_session: str | None = None,
    ) -> Task:
        """Run a shell command in the folder where the session is, with its environment and in its sandbox, as
        `Client.shell` does, which has the verbs for one that goes on. It ends with the session."""
        await self._attach()
        return await AsyncShell(self._connection).shell(
            command,
            timeout=timeout,
            wait=wait,
            session_id=self.name,
            cwd=cwd,
            env=env,
            stdin=stdin,
            interactive=interactive,
            pty=pty,
            limits=limits,
            shell_session=shell_session,
        )

    # --- files ---

    async def read_file(self, path: str) -> bytes:
        """What is in a file of the session's folder."""
        await self._attach()
        return await self._get(f"/files/{file_path(path)}")

    async def write_file(self, path: str, data: bytes | str) -> FileInfo:
        """Put a file into the session's folder, in one step; folders on its way are made. Text is written as UTF-8."""
        await self._attach()
        content = data.encode() if isinstance(data, str) else data
        url = f"{self._path}/files/{file_path(path)}"
        return read(await self._connection.request("PUT", url, content=content, repeatable=True), FileInfo)

    async def list_files(self, folder: str = "") -> list[FileInfo]:
        """What is in the session's folder, or in one below it."""
        await self._attach()
        return read(await self._get("/files", {"folder": folder} if folder else None), FileList).files

    async def delete_file(self, path: str) -> None:
        await self._attach()
        await self._connection.request("DELETE", f"{self._path}/files/{file_path(path)}")

    # --- the session ---

    async def info(self) -> SessionInfo:
        """The session as it is now: state, cells, variables, Python."""
        return read(await self._get(""), SessionInfo)

    async def variables(self) -> Variables:
        """Each variable with type, shape or length, size and preview; runs no code of the session's."""
        await self._attach()
        return read(await self._get("/variables"), Variables)

    async def variable(self, name: str) -> VariableValue:
        """One variable in full: its `value` (what `str` gives) and its `repr`, within a limit of time and size."""
        await self._attach()
        return read(await self._get(f"/variables/{file_path(name)}"), VariableValue)

    async def clear(self) -> SessionInfo:
        """Reset the namespace to the initial one; the session, its count of cells and their outputs stay."""
        await self._attach()
        return read(await self._connection.request("POST", self._path + "/clear", wait=TURN), SessionInfo)

    # --- copies ---

    async def fork(self, name: str | None = None, *, reseed: bool = False, keep: bool = False) -> "AsyncSession":
        """A live copy, as a session of its own; it is ended as one that this program made. Memory is shared until one
        of them writes to it. `reseed`: random numbers start anew, else they go on as those of the original do."""
        return (await self._fork(1, name, reseed, keep))[0]

    async def forks(
        self, count: int, name: str | None = None, *, reseed: bool = False, keep: bool = False
    ) -> "list[AsyncSession]":
        """Many copies at once, called `name-1` and so on."""
        return await self._fork(count, name, reseed, keep)

    async def _fork(self, count: int, name: str | None, reseed: bool, keep: bool) -> "list[AsyncSession]":
        await self._attach()
        base = name if name is not None else f"s-{secrets.token_hex(6)}"
        names = [base] if count == 1 else [f"{base}-{number}" for number in range(1, count + 1)]
        body = {"session_id": base, "count": count, "reseed": reseed}
        try:
            await self._connection.request("POST", self._path + "/fork", body=body, repeatable=True, wait=TURN)
        except errors.SessionExists:
            if name is not None:
                raise
            # Nobody else has these names: a first attempt of ours has made them, all or none.
        made = [AsyncSession(self._connection, each, {}, keep) for each in names]
        for session in made:
            session.made = session._attached = True
        return made

    async def checkpoint(self, name: str) -> CheckpointInfo:
        """Keep the session as it is now, in memory, to go back to."""
        await self._attach()
        said = await self._connection.request(
            "POST", self._path + "/checkpoints", body={"name": name}, repeatable=True, wait=TURN
        )
        return read(said, CheckpointInfo)

    async def checkpoints(self) -> list[CheckpointInfo]:
        """What there is to go back to, from the oldest to the newest."""
        await self._attach()
        return read(await self._get("/checkpoints"), CheckpointList).checkpoints

    async def drop_checkpoint(self, name: str) -> None:
        """Give a checkpoint up, and free its memory."""
        await self._attach()
        await self._connection.request("DELETE", f"{self._path}/checkpoints/{name}")

    async def rollback(self, name: str | None = None) -> RolledBack:
        """Go back to a checkpoint, as often as you like; without a name to the state before the last cell, where the
        session keeps that (`checkpoints="auto"`), else to the newest checkpoint."""
        await self._attach()
        body = {} if name is None else {"name": name}
        said = await self._connection.request("POST", self._path + "/rollback", body=body, repeatable=True, wait=TURN)
        return read(said, RolledBack)

    async def close(self) -> None:
        """End the session, whoever made it, with everything it started. What is closed already may be closed again."""
        if not self._closed:
            # With a key: asked for again, it ends no other session that has got this name meanwhile.
            headers = {"Idempotency-Key": secrets.token_hex(16)}
            await self._connection.request("DELETE", self._path, headers=headers, wait=TURN, repeatable=True)
            self._closed = True

    # --- how ---

    async def _begin(
        self, code: str, timeout: float | None, envs: dict[str, str] | None, queue: bool, turn: float
    ) -> Result:
        await self._attach()
        body: dict[str, Any] = {"code": code, "wait": turn, "queue": queue}
        if timeout is not None:
            body["timeout"] = timeout
        if envs is not None:
            body["envs"] = envs
        # The same key at every attempt: whatever got lost, the answer or the request, the cell runs once.
        said = await self._connection.request(
            "POST",
            self._path + "/execute",
            body=body,
            headers={"Idempotency-Key": secrets.token_hex(16)},
            wait=BEGINNING if queue else turn,
            repeatable=True,
        )
        return read(said, Result)

    async def _input(self, text: str, eof: bool, turn: float) -> Result:
        await self._attach()
        body = {"text": text, "eof": eof, "wait": turn}
        return read(await self._connection.request("POST", self._path + "/input", body=body, wait=turn), Result)

    async def _cell(self, cell: int, turn: float, from_event: int = 0) -> Result:
        await self._attach()
        return read(await self._get(f"/cells/{cell}", {"wait": turn, "from": from_event}, turn), Result)

    async def _get(self, below: str, query: dict[str, str | int | float] | None = None, turn: float = 0.0) -> bytes:
        return await self._connection.request("GET", self._path + below, query=query, wait=turn, repeatable=True)

    async def _settled(self, result: Result, deadline: float | None) -> Result:
        """The result once the cell has ended or waits for input, however often one must ask."""
        while result.status == "running" and _turn(deadline) > 0:
            result = await self._cell(result.cell, _turn(deadline))
        return result


def _turn(deadline: float | None) -> float:
    left = time_left(deadline)
    return TURN if left is None else min(TURN, left)
