"""Runs of code from start to end: a new session, its files, the code, and what is left of it."""

import base64
import binascii
import contextlib
import io
import json
import signal
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from ingle import errors
from ingle.events import AnyEvent, DisplayShown, Done, ErrorRaised, InputWanted, Result, ResultShown, Stderr, Stdout
from ingle.render.notebook import data_of
from ingle.requests import Limits, NewCell, NewSession, Script, SessionLimits
from ingle.service import Service
from ingle.service.batch import limit_of
from ingle_worker.wire import states

FINISHED, ERROR, TIME_LIMIT = "Finished", "Error", "TimeLimitExceeded"
"""Statuses of a command."""

MAX_TEXT_CHARS = 16 * 1024**2
"""Characters of one stream in an answer."""

MAX_FETCHED_BYTES = 64 * 1024**2
"""Bytes of all files in an answer."""

MAX_SECONDS = 86400.0
SHELL_GRACE_SECONDS = 30.0
"""Time beyond its limit that a shell command may need until it has ended."""

PROGRAM = "main.py"
MEMORY = "memory limit exceeded"


class Command(Struct):
    """How a program ended."""

    status: str
    execution_time: float
    return_code: int | None
    stdout: str
    stderr: str


@dataclass
class Cell:
    """What one cell of a notebook shows."""

    stdout: str = ""
    stderr: str = ""
    display: list[dict[str, Any]] = field(default_factory=list)
    error: list[dict[str, Any]] = field(default_factory=list)

    def take(self, event: AnyEvent) -> None:
        match event:
            case Stdout():
                self.stdout += event.text[: MAX_TEXT_CHARS - len(self.stdout)]
            case Stderr():
                self.stderr += event.text[: MAX_TEXT_CHARS - len(self.stderr)]
            case ResultShown() | DisplayShown():
                self.display.append(data_of(event.data))
            case ErrorRaised():
                lines = event.traceback.splitlines()
                self.error.append({"ename": event.name, "evalue": event.value, "traceback": lines})


class Run:
    """One session while a request lasts."""

    def __init__(self, service: Service, session_id: str) -> None:
        self._service = service
        self._id = session_id

    async def put(self, files: dict[str, str | None]) -> None:
        """Write files, given in base64, to the session's folder."""
        if files:
            archive = _packed(files)
            await self._service.write_archive(self._id, "", _only(archive))

    async def fetch(self, paths: list[str]) -> dict[str, str]:
        """Return files in base64. Those that are not there are left out."""
        found: dict[str, str] = {}
        left = MAX_FETCHED_BYTES
        for path in paths:
            with contextlib.suppress(errors.NotFound):
                file = await self._service.open_file(self._id, path)
                try:
                    if file.size > left:
                        raise errors.TooLarge(f"the files to fetch are above the limit of {MAX_FETCHED_BYTES} bytes")
                    left -= file.size
                    data = b"".join([chunk async for chunk in file.chunks(0, file.size)])
                finally:
                    file.close()
                found[path] = base64.b64encode(data).decode()
        return found

    async def python(self, code: str, stdin: str, seconds: float) -> tuple[Command, str]:
        """Run a program. Return how it ended, and why if a limit ended it."""
        shown = Cell()
        result = await self.cell(NewCell(code, seconds, script=Script([PROGRAM])), shown, stdin)
        limit = limit_of(result)
        returned = _return_code(result)
        if result.error is not None and result.error.name != "SystemExit":
            shown.stderr += result.error.traceback
        status, message = FINISHED, ""
        if limit == "time":
            status, returned, message = TIME_LIMIT, None, f"time limit of {seconds:g} s exceeded"
        elif limit == "memory" or (result.error is not None and result.error.name == "MemoryError"):
            status, message = ERROR, MEMORY
            returned = returned or -signal.SIGKILL
            shown.stderr += f"{MEMORY}\n"
        return Command(status, result.execution_time, returned, shown.stdout, shown.stderr), message

    async def bash(self, code: str, stdin: str, seconds: float, memory: int | None) -> tuple[Command, str]:
        """Run a script of the shell. Return how it ended, and why if a limit ended it."""
        task = await self._service.shell(
            code,
            session_id=self._id,
            stdin=stdin,
            timeout=seconds,
            wait=seconds + SHELL_GRACE_SECONDS,
            limits=Limits(memory=memory),
        )
        shown = Cell()
        async for event in self._service.shell_events(task.task_id):
            shown.take(event)
        returned = task.exit_code
        if returned is None and task.signal is not None:
            returned = -getattr(signal, task.signal, signal.SIGKILL)
        status, message = FINISHED, ""
        if task.timed_out:
            status, returned, message = TIME_LIMIT, None, f"time limit of {seconds:g} s exceeded"
        elif any("memory" in each for each in task.notices):
            status, message = ERROR, MEMORY
        return Command(status, task.execution_time, returned, shown.stdout, shown.stderr), message

    async def cell(self, new: NewCell, shown: Cell, stdin: str = "") -> Result:
        """Run a cell to its end. Its first read of standard input gets all of it."""
        cell = await self._service.begin_cell(self._id, new)
        async for event in self._service.cell_events(self._id, cell):
            shown.take(event)
            if isinstance(event, InputWanted):
                with contextlib.suppress(errors.NotWaiting):  # it was interrupted meanwhile
                    await self._service.input(self._id, stdin, eof=True, wait=0.0)
                stdin = ""
            elif isinstance(event, Done):
                return event.result
        raise errors.Unavailable("the session was ended while its code ran; try again")


@contextlib.asynccontextmanager
async def new_run(service: Service, memory: int | None = None) -> AsyncIterator[Run]:
    """Give a session of its own, which ends with the context."""
    limits = SessionLimits(memory=memory)
    info = await service.create(NewSession(own_folder=True, include_stdlib=False, limits=limits))
    try:
        yield Run(service, info.session_id)
    finally:
        with contextlib.suppress(errors.SessionNotFound):
            await service.end_session(info.session_id)


def _return_code(result: Result) -> int | None:
    if result.status == states.OK:
        return 0
    if result.exit is not None and result.exit.signal is not None:
        return -getattr(signal, result.exit.signal, signal.SIGKILL)
    if result.exit is not None:
        return result.exit.code
    if result.error is not None and result.error.name == "SystemExit":
        with contextlib.suppress(ValueError):
            return int(json.loads(result.error.value))
    return 1


def _packed(files: dict[str, str | None]) -> bytes:
    """Return a tar archive of files in base64."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, text in files.items():
            if text is None:
                continue
            try:
                data = base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise errors.InvalidRequest(f"the content of {path[:200]!r} is not base64") from None
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


async def _only(data: bytes) -> AsyncIterator[bytes]:
    yield data
