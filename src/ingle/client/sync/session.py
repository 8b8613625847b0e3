# Generated from ../aio/session.py by tools/unasync.py: edit that file, and run the script.
"""A live session: its cells, output, input and files.

A call does not own its cell. The cell continues if the call is cancelled, the connection is lost or this program ends.
A cell is never executed twice, because each has an idempotency key.
"""

import secrets
from collections.abc import Callable
from types import TracebackType
from typing import Any

from msgspec import Struct

from ingle import errors
from ingle.client.address import POLL_SECONDS, deadline_after, file_path, poll_seconds
from ingle.client.decode import OtherEvent, bundle_of, kind_of, read
from ingle.client.results import Result
from ingle.client.sync.event_reader import CellReader, EventReader
from ingle.client.sync.files import Files
from ingle.client.sync.io import EventStream, call, closing
from ingle.client.sync.shell import Shell
from ingle.client.sync.tools import Tools
from ingle.client.sync.transcripts import Transcripts
from ingle.client.sync.trials import Trials
from ingle.client.sync.values import Values
from ingle.events import (
    CellError,
    CellInfo,
    CheckpointInfo,
    Done,
    ErrorRaised,
    InputWanted,
    OutputPage,
    RolledBack,
    Saved,
    SessionInfo,
    Stderr,
    Stdout,
    Task,
    Variables,
    VariableValue,
)
from ingle.files import Diff
from ingle.introspection import Completeness, Completion, Inspection
from ingle.render.notebook import InvalidNotebook, Notebook, Outputs
from ingle.requests import Limits, Script

QUEUE_SECONDS = 3600.0
"""Time that one request may wait in the queue; then it is sent again with its key."""

SAVE_SECONDS = 3600.0
"""Maximum time of a save: a session may have many gigabytes."""

AFTER_ALL_EVENTS = 2**62
"""Above every event number: a result from here on has no text."""


class CellList(Struct):
    cells: list[CellInfo]


class CheckpointList(Struct):
    checkpoints: list[CheckpointInfo]


class Session(Files, Values, Tools, Trials, Transcripts):
    """A session, made by `Client.session`. It finds or creates the session of that name on first use.

    As a context manager it ends a session that it created; an existing one keeps running, and so does one with
    `keep=True`. Several tasks or threads may use it. A session runs one cell at a time: a second one raises `Busy`,
    unless it has `queue`.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def __enter__(self) -> "Session":
        self._attach()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.made or self.keep:
            return
        try:
            self.close()
        except errors.SessionNotFound:
            pass  # already ended
        except errors.Unreachable:
            # The session ended with its service, but an exception from inside matters more.
            if error is None:
                raise

    # --- cells ---

    def run(
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
        """Run a cell to its end, and return its result. An exception in the cell is in the result, not raised here.

        `timeout` limits the cell, which is interrupted after it. `wait` limits only this call: after it the status is
        `running`, the cell continues, and `wait()` waits for it. A cell that reads standard input returns
        `waiting_for_input`; continue with `input()`. `envs` are set for this cell only. With `queue`, a busy session
        queues the cell instead of raising `Busy`.

        The callbacks are called while the cell runs. `on_stdout` and `on_stderr` get text, `on_display` and
        `on_result` a mime bundle, `on_error` the error. `on_input(prompt, secret)` returns the text for
        standard input, or None for end of file. An exception in a callback leaves this call, and the cell continues.
        """
        deadline = deadline_after(wait)
        callbacks = (on_stdout, on_stderr, on_display, on_result, on_error, on_input)
        if all(callback is None for callback in callbacks):
            return self._settled(self._begin(code, timeout, envs, queue, poll_seconds(deadline)), deadline)
        result = self._begin(code, timeout, envs, queue, 0.0)
        with closing(self._cell_events(result.cell, deadline)) as events:
            for event in events:
                if isinstance(event, Stdout) and not event.background:
                    on_stdout and call(on_stdout, event.text)
                elif isinstance(event, Stderr) and not event.background:
                    on_stderr and call(on_stderr, event.text)
                elif isinstance(event, ErrorRaised):
                    on_error and call(on_error, CellError(event.name, event.value, event.traceback))
                elif isinstance(event, InputWanted):
                    if on_input is None:
                        break
                    self._answer(call(on_input, event.prompt, event.secret))
                elif kind_of(event) == "display":
                    on_display and call(on_display, bundle_of(event))
                elif kind_of(event) == "result":
                    on_result and call(on_result, bundle_of(event))
        return self._cell(result.cell, 0.0)

    def _answer(self, text: str | None) -> None:
        try:
            self._input(text or "", text is None, 0.0)
        except errors.NotWaiting:
            pass  # the cell was interrupted meanwhile, or another client answered

    def run_notebook(self, text: str, *, timeout: float | None = None, keep_going: bool = False) -> str:
        """Run the code cells of a notebook one after another, and return it with their outputs.

        The first exception ends the run, except in a cell with the tag `raises-exception` and with `keep_going`.
        Markdown of the notebook becomes notes of the transcript. `timeout` is that of each cell.
        """
        try:
            notebook = Notebook.parse(text)
        except InvalidNotebook as error:
            raise errors.InvalidRequest(f"the notebook cannot be run: {error}") from None
        outputs, first = Outputs(), 0
        for cell in notebook.code_cells:
            for note in notebook.notes(first, cell.place):
                self.note(note.text, raw=note.raw)
            first = cell.place + 1
            shown, failed = outputs.begin_cell(), False
            for event in self.stream(cell.source, timeout=timeout):
                if event.cell is not None:
                    notebook.record(cell.place, event.cell, shown)
                if isinstance(event, Done):
                    failed = not event.result.success
                elif not isinstance(event, OtherEvent):
                    outputs.take(event)
            if failed and not (cell.may_fail or keep_going):
                return notebook.text()
        for note in notebook.notes(first):
            self.note(note.text, raw=note.raw)
        return notebook.text()

    def stream(
        self,
        code: str,
        *,
        timeout: float | None = None,
        envs: dict[str, str] | None = None,
        queue: bool = False,
        script: Script | None = None,
    ) -> EventStream:
        """Run a cell and yield its events, from its first `state` to its `done`. With `script` it is a program.

        The cell is sent when the first event is requested. It keeps running if you stop reading. Events are those of
        `ingle.events`; pass `event.cell` to `wait()` to get the result.
        """
        result = self._begin(code, timeout, envs, queue, 0.0, script)
        with closing(self._cell_events(result.cell, None)) as events:
            for event in events:
                yield event

    def events(self, first: int = 1, last: int | None = None) -> EventStream:
        """Yield every event of the session from number `first` on, also future ones, until the session ends.

        With `last`, stop after the event of that number.
        """
        self._attach()
        with closing(EventReader(self._connection, self._path, first)) as events:
            for event in events:
                yield event
                if last is not None and event.seq >= last:
                    return

    def _cell_events(self, cell: int, deadline: float | None) -> CellReader:
        """Return the events of one cell until its `done` or the deadline."""
        first = self.first_event(cell)
        return CellReader(EventReader(self._connection, self._path, first, deadline), cell, self.name)

    def first_event(self, cell: int) -> int:
        """Return the number of an event from which on all events of this cell come, with few older ones."""
        if cell <= 1:
            return 1
        try:
            return (self._cell(cell - 1, 0.0, AFTER_ALL_EVENTS)).next_event
        except errors.CellNotFound:
            return 1  # the cell before ran before a fork, or under an earlier server

    def wait(self, cell: int | None = None, *, wait: float | None = None) -> Result:
        """Return the result of a cell (default: the last one) when it has ended or waits for input.

        `wait` limits the time in seconds; 0 returns at once.
        """
        deadline = deadline_after(wait)
        if cell is None:
            cell = (self.info()).execution_count
        return self._settled(self._cell(cell, poll_seconds(deadline)), deadline)

    def input(self, text: str = "", *, eof: bool = False, wait: float | None = None) -> Result:
        """Answer a cell that waits for input, and wait for its result as `run` does.

        A missing newline is added. `eof` ends the input of this cell (Ctrl-D). If no cell waits, `NotWaiting` is
        raised and the text is not sent.
        """
        deadline = deadline_after(wait)
        return self._settled(self._input(text, eof, poll_seconds(deadline)), deadline)

    def interrupt(self, *, wait: float | None = None) -> Result | None:
        """Interrupt the running cell, and return its result when the session is ready; None if no cell ran."""
        # Before the deadline is set: to find the session takes no time of the wait.
        self._attach()
        deadline = deadline_after(wait)
        turn = poll_seconds(deadline)
        said = self._request("POST", "/interrupt", body={"wait": turn}, wait=turn)
        if b'"interrupted":false' in said[:64]:
            return None
        return self._settled(read(said, Result), deadline)

    def save(self, name: str) -> Saved:
        """Save the session under a name, or as a file below its folder, while it stays usable.

        `skipped` in the answer lists what could not be saved. `Client.load` restores it.
        """
        said = self._request("POST", "/save", body={"name": name}, wait=SAVE_SECONDS)
        return read(said, Saved)

    def cells(self, first: int = 1, count: int = 100) -> list[CellInfo]:
        """Return code, status and times of the cells from number `first` on."""
        said = self._get("/cells", {"first": first, "count": count})
        return read(said, CellList).cells

    def output(
        self,
        cell: int,
        *,
        stream: str = "stdout",
        from_line: int = 1,
        lines: int = 200,
        grep: str | None = None,
    ) -> OutputPage:
        """Return lines of a cell's output of any length; `stream` is stdout, stderr or both, `grep` a pattern.

        Continue at `next_line` of the answer, which is None at the end.
        """
        query: dict[str, str | int | float] = {"stream": stream, "from_line": from_line, "lines": lines}
        if grep is not None:
            query["grep"] = grep
        return read(self._get(f"/cells/{cell}/output", query), OutputPage)

    def shell(
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
        """Run a shell command in the session's current folder, with its environment and in its sandbox.

        See `Client.shell`, and the other methods there for a command that still runs. It ends with the session.
        """
        self._attach()
        return Shell(self._connection).shell(
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

    # --- the session ---

    def variables(self) -> Variables:
        """Return each variable with type, shape or length, size and preview, without running the session's code."""
        return read(self._get("/variables"), Variables)

    def variable(self, name: str) -> VariableValue:
        """Return one variable with its `value` (its `str`) and its `repr`, limited in time and size."""
        return read(self._get(f"/variables/{file_path(name)}"), VariableValue)

    def complete(self, code: str, cursor: int | None = None) -> Completion:
        """Return the names that may stand at the cursor, by default at the end of the code, from live objects.

        No code of the session runs for it. While a cell runs, only names of variables are completed.
        """
        return read(self._help("/complete", {"code": code, "cursor": cursor}), Completion)

    def inspect(self, code: str, cursor: int | None = None, *, source: bool = False) -> Inspection:
        """Return type, signature and documentation of what is at the cursor. No code of the session runs for it."""
        return read(self._help("/inspect", {"code": code, "cursor": cursor, "source": source}), Inspection)

    def is_complete(self, code: str) -> Completeness:
        """Return whether code is complete, or needs further lines."""
        return read(self._help("/is_complete", {"code": code}), Completeness)

    def _help(self, path: str, given: dict[str, Any]) -> bytes:
        body = {name: value for name, value in given.items() if value is not None}
        return self._request("POST", path, body=body, repeatable=True, wait=POLL_SECONDS)

    def clear(self) -> SessionInfo:
        """Reset the namespace; the session, its cell numbers and their outputs stay."""
        return read(self._request("POST", "/clear", wait=POLL_SECONDS), SessionInfo)

    # --- forks and checkpoints ---

    def fork(
        self, name: str | None = None, *, at: int | None = None, reseed: bool = False, keep: bool = False
    ) -> "Session":
        """Return a live copy as a session of its own, which counts as created by this program.

        Memory is shared until one of them writes to it. `at` copies the state right after that cell, files included;
        `CellNotKept` is raised without a checkpoint of it. With `checkpoints="auto"` the state before the last cell is
        kept. `reseed` gives the copy new random numbers; otherwise both continue with the same ones.
        """
        return (self._fork(1, name, at, reseed, keep))[0]

    def forks(
        self, count: int, name: str | None = None, *, at: int | None = None, reseed: bool = False, keep: bool = False
    ) -> "list[Session]":
        """Return many copies, named `name-1` and so on."""
        return self._fork(count, name, at, reseed, keep)

    def _fork(self, count: int, name: str | None, at: int | None, reseed: bool, keep: bool) -> "list[Session]":
        base = name if name is not None else f"s-{secrets.token_hex(6)}"
        names = [base] if count == 1 else [f"{base}-{number}" for number in range(1, count + 1)]
        body = {"session_id": base, "count": count, "reseed": reseed} | ({} if at is None else {"at": at})
        try:
            self._request("POST", "/fork", body=body, repeatable=True, wait=POLL_SECONDS)
        except errors.SessionExists:
            if name is not None:
                raise
            # Random names are unique, so an earlier attempt of this request made all of them.
        made = [Session(self._connection, each, {}, keep) for each in names]
        for session in made:
            session.made = session._attached = True
        return made

    def checkpoint(self, name: str) -> CheckpointInfo:
        """Store the current state in memory, for `rollback`."""
        said = self._request("POST", "/checkpoints", body={"name": name}, repeatable=True, wait=POLL_SECONDS)
        return read(said, CheckpointInfo)

    def checkpoints(self) -> list[CheckpointInfo]:
        """Return the checkpoints, oldest first."""
        return read(self._get("/checkpoints"), CheckpointList).checkpoints

    def drop_checkpoint(self, name: str) -> None:
        """Remove a checkpoint, and free its memory."""
        self._request("DELETE", f"/checkpoints/{name}")

    def diff(self, to: str | None = None, *, compare_seconds: float | None = None) -> Diff:
        """Return what differs between a checkpoint, a fork or a snapshot, and the session as it is now.

        Variables are compared for `compare_seconds`; those after that are `unknown`.

        Without a name, compare with the checkpoint that `rollback` would return to.
        """
        given = {"to": to, "compare_seconds": None if compare_seconds is None else str(compare_seconds)}
        return read(self._get("/diff", {name: text for name, text in given.items() if text is not None}), Diff)

    def rollback(self, name: str | None = None) -> RolledBack:
        """Return to a checkpoint, any number of times.

        Without a name, return to the state before the last cell (with `checkpoints="auto"`), or else to the newest
        checkpoint.
        """
        body = {} if name is None else {"name": name}
        said = self._request("POST", "/rollback", body=body, repeatable=True, wait=POLL_SECONDS)
        return read(said, RolledBack)

    def close(self) -> None:
        """End the session and everything it started, also if it existed before. Closing it again has no effect."""
        if not self._closed:
            # The key prevents a repeated request from ending a newer session of this name.
            headers = {"Idempotency-Key": secrets.token_hex(16)}
            self._connection.request("DELETE", self._path, headers=headers, wait=POLL_SECONDS, repeatable=True)
            self._connection.durable.pop(self.name, None)
            self._closed = True

    # --- requests ---

    def _begin(
        self,
        code: str,
        timeout: float | None,
        envs: dict[str, str] | None,
        queue: bool,
        turn: float,
        script: Script | None = None,
    ) -> Result:
        given = {"code": code, "wait": turn, "queue": queue, "timeout": timeout, "envs": envs, "script": script}
        body = {name: value for name, value in given.items() if value is not None}
        # All attempts have the same key, so the cell runs once whether the request or the answer was lost.
        said = self._request(
            "POST",
            "/execute",
            body=body,
            headers={"Idempotency-Key": secrets.token_hex(16)},
            wait=QUEUE_SECONDS if queue else turn,
            repeatable=True,
        )
        return read(said, Result)

    def _input(self, text: str, eof: bool, turn: float) -> Result:
        body = {"text": text, "eof": eof, "wait": turn}
        return read(self._request("POST", "/input", body=body, wait=turn), Result)

    def _cell(self, cell: int, turn: float, from_event: int = 0) -> Result:
        return read(self._get(f"/cells/{cell}", {"wait": turn, "from": from_event}, turn), Result)

    def _settled(self, result: Result, deadline: float | None) -> Result:
        """Repeat requests until the cell has ended or waits for input, and return the result."""
        while result.status == "running" and poll_seconds(deadline) > 0:
            result = self._cell(result.cell, poll_seconds(deadline))
        return result
