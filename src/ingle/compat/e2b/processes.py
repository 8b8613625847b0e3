"""Commands of a sandbox: each is a shell task of its session. Clients know them by numbers of their own."""

import base64
import binascii
import shlex
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ingle import errors
from ingle.compat.e2b.connect import Stream, read_frames, read_one
from ingle.compat.e2b.requests import sandbox_of
from ingle.compat.e2b.sandboxes import Process, Sandbox
from ingle.compat.requests import header
from ingle.events import LIVE_STATUSES, Stderr, Stdout
from ingle.http.routes.bodies import read_body
from ingle.requests import NewTask

MAX_BODY_BYTES = 16 * 1024 * 1024

KEEPALIVE: dict[str, Any] = {"event": {"keepalive": {}}}
KEEPALIVE_HEADER = b"keepalive-ping-interval"
TIMEOUT_HEADER = b"connect-timeout-ms"
DEFAULT_KEEPALIVE_SECONDS = 50.0

KILL_SECONDS = 10.0
"""Time for a command to end after a signal."""


class Config(Struct):
    cmd: str = ""
    args: list[str] = []
    envs: dict[str, str] = {}
    cwd: str | None = None


class Size(Struct):
    rows: int = 24
    cols: int = 80


class Pty(Struct):
    size: Size = field(default_factory=Size)


class Selector(Struct):
    pid: int = 0
    tag: str | None = None


class Start(Struct):
    process: Config
    pty: Pty | None = None
    tag: str | None = None
    stdin: bool = False


class Selected(Struct):
    process: Selector


class Update(Struct):
    process: Selector
    pty: Pty | None = None


class Input(Struct):
    stdin: str | None = None
    pty: str | None = None


class SendInput(Struct):
    process: Selector
    input: Input = field(default_factory=Input)


class SendSignal(Struct):
    process: Selector
    signal: str = "SIGNAL_SIGKILL"


class StreamData(Struct):
    input: Input = field(default_factory=Input)


class StreamInput(Struct):
    start: Selected | None = None
    data: StreamData | None = None
    keepalive: dict[str, Any] | None = None


class NoBody(Struct):
    pass


class ProcessNotFound(errors.NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"process {name[:80]} was not found")


class Processes:
    """Handlers of the service `process.Process`."""

    def routes(self) -> list[Route]:
        verbs = {
            "Start": self._start,
            "Connect": self._connect,
            "List": self._list,
            "SendInput": self._send_input,
            "StreamInput": self._stream_input,
            "CloseStdin": self._close_stdin,
            "SendSignal": self._send_signal,
            "Update": self._update,
        }
        return [Route(f"/process.Process/{name}", verb, methods=["POST"]) for name, verb in verbs.items()]

    async def _start(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_one(request, Start)
        config = asked.process
        size = (asked.pty or Pty()).size
        new = NewTask(
            command_of(config),
            cwd=config.cwd or sandbox.default_context.cwd,
            env=config.envs,
            timeout=_timeout(request),
            interactive=asked.stdin and asked.pty is None,
            pty=asked.pty is not None,
            rows=size.rows,
            columns=size.cols,
            session_id=sandbox.id,
        )
        task = await sandbox.service.run_task(new, wait=0.0)
        pid = sandbox.new_pid()
        known = {"cmd": config.cmd, "args": config.args, "envs": config.envs, "cwd": config.cwd or ""}
        sandbox.processes[pid] = Process(task.task_id, known, asked.tag, pty=asked.pty is not None)
        return self._stream(request, sandbox, pid, 1)

    async def _connect(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_one(request, Selected)
        pid, process = self._find(sandbox, asked.process)
        task = await sandbox.service.shell_status(process.task_id, wait=0.0)
        if task.status not in LIVE_STATUSES:
            raise ProcessNotFound(str(pid))
        return self._stream(request, sandbox, pid, task.next_event)

    def _stream(self, request: Request, sandbox: Sandbox, pid: int, first: int) -> Response:
        try:
            seconds = min(max(1.0, float(header(request.scope, KEEPALIVE_HEADER))), DEFAULT_KEEPALIVE_SECONDS)
        except ValueError:
            seconds = DEFAULT_KEEPALIVE_SECONDS
        return Stream(_events(sandbox, pid, first), KEEPALIVE, seconds)

    async def _list(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        await read_body(request, NoBody, MAX_BODY_BYTES)
        listed = []
        for pid, process in list(sandbox.processes.items()):
            try:
                task = await sandbox.service.shell_status(process.task_id, wait=0.0)
            except errors.TaskNotFound:
                continue
            if task.status in LIVE_STATUSES:
                tag = {} if process.tag is None else {"tag": process.tag}
                listed.append({"config": process.config, "pid": pid, **tag})
        return JSONResponse({"processes": listed})

    async def _send_input(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_body(request, SendInput, MAX_BODY_BYTES)
        _, process = self._find(sandbox, asked.process)
        await sandbox.service.shell_input(process.task_id, _text(asked.input))
        return JSONResponse({})

    async def _stream_input(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        process: Process | None = None
        async for asked in read_frames(request, StreamInput):
            if asked.start is not None:
                _, process = self._find(sandbox, asked.start.process)
            elif asked.data is not None:
                if process is None:
                    raise errors.InvalidRequest("the stream names no process before its input")
                await sandbox.service.shell_input(process.task_id, _text(asked.data.input))
        return Stream(_only({}), {}, DEFAULT_KEEPALIVE_SECONDS)

    async def _close_stdin(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_body(request, Selected, MAX_BODY_BYTES)
        _, process = self._find(sandbox, asked.process)
        await sandbox.service.shell_input(process.task_id, eof=True)
        return JSONResponse({})

    async def _send_signal(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_body(request, SendSignal, MAX_BODY_BYTES)
        pid, process = self._find(sandbox, asked.process)
        if (await sandbox.service.shell_status(process.task_id, wait=0.0)).status not in LIVE_STATUSES:
            raise ProcessNotFound(str(pid))
        await sandbox.service.shell_cancel(process.task_id, wait=KILL_SECONDS)
        return JSONResponse({})

    async def _update(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_body(request, Update, MAX_BODY_BYTES)
        _, process = self._find(sandbox, asked.process)
        if asked.pty is not None:
            await sandbox.service.shell_resize(process.task_id, asked.pty.size.rows, asked.pty.size.cols)
        return JSONResponse({})

    def _find(self, sandbox: Sandbox, selector: Selector) -> tuple[int, Process]:
        for pid, process in sandbox.processes.items():
            if pid == selector.pid or (selector.tag is not None and process.tag == selector.tag):
                return pid, process
        raise ProcessNotFound(selector.tag or str(selector.pid))


def command_of(config: Config) -> str:
    """Return a command for the shell. The SDK names bash as the program, and its command as an argument."""
    if not config.cmd:
        raise errors.InvalidRequest("process.cmd is empty; name a program")
    if config.cmd == "/bin/bash" and config.args[:2] == ["-l", "-c"] and len(config.args) == 3:
        return config.args[2]
    return "exec " + shlex.join([config.cmd, *config.args])


def _timeout(request: Request) -> float | None:
    text = header(request.scope, TIMEOUT_HEADER)
    return int(text) / 1000 if text.isascii() and text.isdecimal() and len(text) < 16 else None


def _text(given: Input) -> str:
    try:
        return base64.b64decode(given.stdin or given.pty or "", validate=True).decode("utf-8", "replace")
    except binascii.Error:
        raise errors.InvalidRequest("the input is no base64") from None


async def _only(message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield message


async def _events(sandbox: Sandbox, pid: int, first: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the start, the output and the end of a command."""
    process = sandbox.processes[pid]
    yield {"event": {"start": {"pid": pid}}}
    async for event in sandbox.service.shell_events(process.task_id, first):
        if isinstance(event, Stdout | Stderr):
            kind = "pty" if process.pty else "stdout" if isinstance(event, Stdout) else "stderr"
            yield {"event": {"data": {kind: base64.b64encode(event.text.encode()).decode()}}}
    task = await sandbox.service.shell_status(process.task_id, wait=0.0)
    code = -1 if task.exit_code is None else task.exit_code
    ended = {"exitCode": code, "exited": task.signal is None, "status": f"exit status {code}"}
    if task.signal is not None:
        ended |= {"status": f"signal: {task.signal}", "error": f"signal: {task.signal}"}
    yield {"event": {"end": ended}}
