"""Commands, programs and shells of a sandbox: all are shell tasks of its session."""

import contextlib
import shlex
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.compat.daytona.files import place
from ingle.compat.daytona.sandboxes import Sandbox
from ingle.compat.requests import run_while_connected
from ingle.events import LIVE_STATUSES, Stderr, Stdout, Task
from ingle.http.routes.bodies import read_body
from ingle.requests import NewTask

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_RESULT_CHARS = 16 * 1024 * 1024

END_SECONDS = 365 * 86400.0
"""Time to wait for a command without a timeout."""

STDOUT_MARK, STDERR_MARK = b"\1\1\1", b"\2\2\2"
"""Marks in front of output that is followed, by its stream."""


class TimedOut(errors.IngleError):
    """The command took longer than it was given."""

    code, status = "timed_out", 408


class Execute(Struct):
    command: str
    cwd: str | None = None
    envs: dict[str, str] | None = None
    timeout: int | None = None


class CodeRun(Struct):
    code: str
    language: str | None = None
    argv: list[str] | None = None
    envs: dict[str, str] | None = None
    timeout: int | None = None


class NewShell(Struct, rename="camel"):
    session_id: str


class ShellCommand(Struct, rename="camel"):
    command: str
    run_async: bool | None = None
    var_async: bool | None = None


class ShellInput(Struct):
    data: str


async def execute(sandbox: Sandbox, request: Request) -> Response:
    asked = await read_body(request, Execute, MAX_BODY_BYTES)
    new = NewTask(
        asked.command,
        cwd=place(sandbox, asked.cwd or ""),
        env=asked.envs or {},
        timeout=asked.timeout or None,
        session_id=sandbox.id,
    )
    return JSONResponse(await _result(sandbox, new))


async def run_code(sandbox: Sandbox, request: Request) -> Response:
    """Run a program in a process of its own, which keeps no state."""
    asked = await read_body(request, CodeRun, MAX_BODY_BYTES)
    if asked.language not in (None, "", "python"):
        raise errors.InvalidRequest(f"ingle runs Python, and not {asked.language[:80]!r}")
    new = NewTask(
        "exec " + shlex.join(["python", "-", *(asked.argv or [])]),
        cwd=sandbox.home,
        env=asked.envs or {},
        timeout=asked.timeout or None,
        stdin=asked.code,
        session_id=sandbox.id,
    )
    return JSONResponse({**await _result(sandbox, new), "artifacts": {"charts": []}})


async def _result(sandbox: Sandbox, new: NewTask) -> dict[str, Any]:
    """Run a command to its end. Return its exit code, and its output in the order in which it was written."""
    task = await sandbox.service.run_task(new, wait=END_SECONDS if new.timeout is None else new.timeout + 5)
    if task.timed_out:
        raise TimedOut(f"the command took more than {new.timeout:g} s, and was ended")
    return {"exitCode": exit_code(task), "result": await _output(sandbox, task.task_id)}


async def _output(sandbox: Sandbox, task_id: str, kinds: tuple[type, ...] = (Stdout, Stderr)) -> str:
    """Return what a command has written so far to these streams."""
    last = (await sandbox.service.shell_status(task_id, wait=0.0)).next_event - 1
    parts, size = [], 0
    if last < 1:
        return ""
    async for event in sandbox.service.shell_events(task_id):
        if isinstance(event, kinds) and isinstance(event, Stdout | Stderr):
            parts.append(event.text)
            size += len(event.text)
        # A command that still runs has more events later.
        if event.seq >= last or size > MAX_RESULT_CHARS:
            break
    return "".join(parts)[:MAX_RESULT_CHARS]


def exit_code(task: Task) -> int:
    """Return the exit code of a command; -1 if a signal ended it."""
    return -1 if task.exit_code is None else task.exit_code


# --- shells that stay alive ---


class ShellNotFound(errors.NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"session not found: {name[:80]}")


def _shell(sandbox: Sandbox, params: dict[str, str]) -> tuple[str, dict[str, str]]:
    name = params["shell"]
    if name not in sandbox.shells:
        raise ShellNotFound(name)
    return name, sandbox.shells[name]


async def create_shell(sandbox: Sandbox, request: Request) -> Response:
    asked = await read_body(request, NewShell, MAX_BODY_BYTES)
    if asked.session_id in sandbox.shells:
        raise errors.Conflict(f"session {asked.session_id[:80]} already exists")
    await sandbox.service.run_task(NewTask("true", session_id=sandbox.id, shell_session=asked.session_id))
    sandbox.shells[asked.session_id] = {}
    return Response(status_code=201)


async def list_shells(sandbox: Sandbox, request: Request) -> Response:
    return JSONResponse([await _described(sandbox, name) for name in sandbox.shells])


async def get_shell(sandbox: Sandbox, request: Request) -> Response:
    name, _ = _shell(sandbox, request.path_params)
    return JSONResponse(await _described(sandbox, name))


async def delete_shell(sandbox: Sandbox, request: Request) -> Response:
    name, _ = _shell(sandbox, request.path_params)
    await sandbox.service.shell_end(name, session_id=sandbox.id)
    del sandbox.shells[name]
    return Response(status_code=204)


async def run_in_shell(sandbox: Sandbox, request: Request) -> Response:
    name, commands = _shell(sandbox, request.path_params)
    asked = await read_body(request, ShellCommand, MAX_BODY_BYTES)
    wait = 0.0 if asked.run_async or asked.var_async else END_SECONDS
    new = NewTask(asked.command, session_id=sandbox.id, shell_session=name)
    task = await sandbox.service.run_task(new, wait=wait)
    commands[task.task_id] = asked.command
    if not wait:
        return JSONResponse({"cmdId": task.task_id}, 202)
    return JSONResponse({"cmdId": task.task_id, "exitCode": exit_code(task), **await _logs(sandbox, task.task_id)})


async def get_command(sandbox: Sandbox, request: Request) -> Response:
    return JSONResponse(await _command(sandbox, *_find_command(sandbox, request.path_params)))


async def command_logs(sandbox: Sandbox, request: Request) -> Response:
    task_id, _ = _find_command(sandbox, request.path_params)
    return JSONResponse(await _logs(sandbox, task_id))


async def follow_logs(sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
    """Send what a command has written and will write to its end, each piece with a mark of its stream."""
    task_id, _ = _find_command(sandbox, scope["path_params"])
    await receive()
    await send({"type": "websocket.accept"})
    # Sending to a client that is gone raises OSError.
    with contextlib.suppress(OSError):
        if await run_while_connected(_show_logs(sandbox, task_id, send), receive):
            await send({"type": "websocket.close", "code": 1000})


async def _show_logs(sandbox: Sandbox, task_id: str, send: Send) -> None:
    async for event in sandbox.service.shell_events(task_id):
        if isinstance(event, Stdout | Stderr):
            mark = STDOUT_MARK if isinstance(event, Stdout) else STDERR_MARK
            await send({"type": "websocket.send", "bytes": mark + event.text.encode("utf-8", "replace")})


async def command_input(sandbox: Sandbox, request: Request) -> Response:
    task_id, _ = _find_command(sandbox, request.path_params)
    asked = await read_body(request, ShellInput, MAX_BODY_BYTES)
    await sandbox.service.shell_input(task_id, asked.data)
    return Response(status_code=204)


def _find_command(sandbox: Sandbox, params: dict[str, str]) -> tuple[str, str]:
    _, commands = _shell(sandbox, params)
    task_id = params["command"]
    if task_id not in commands:
        raise errors.NotFound(f"command not found: {task_id[:80]}")
    return task_id, commands[task_id]


async def _logs(sandbox: Sandbox, task_id: str) -> dict[str, str]:
    return {
        "output": await _output(sandbox, task_id),
        "stdout": await _output(sandbox, task_id, (Stdout,)),
        "stderr": await _output(sandbox, task_id, (Stderr,)),
    }


async def _described(sandbox: Sandbox, name: str) -> dict[str, Any]:
    commands = [await _command(sandbox, *each) for each in sandbox.shells[name].items()]
    return {"sessionId": name, "commands": commands}


async def _command(sandbox: Sandbox, task_id: str, text: str) -> dict[str, Any]:
    task = await sandbox.service.shell_status(task_id, wait=0.0)
    ended = {} if task.status in LIVE_STATUSES else {"exitCode": exit_code(task)}
    return {"id": task_id, "command": text, **ended}
