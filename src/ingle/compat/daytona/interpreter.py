"""Interpreter of a sandbox: one WebSocket for each run of code, and contexts that are sessions of their own."""

import contextlib
import secrets
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.compat.daytona.sandboxes import Context, Sandbox
from ingle.compat.requests import moment
from ingle.events import Done, ErrorRaised, InputWanted, Stderr, Stdout
from ingle.http.routes.bodies import BOUNDS, decode, read_body
from ingle.requests import NewCell
from ingle_worker.wire import states

MAX_BODY_BYTES = 1024 * 1024
CONTEXT_BYTES = 6
DEFAULT_SECONDS = 600
"""Time for a run whose request names none."""

DEFAULT = "default"
PREPARE_SECONDS = 10.0

NORMAL, GOING_AWAY, UNREADABLE, REFUSED, TIMED_OUT = 1000, 1001, 1002, 1008, 4008
"""Codes that close the WebSocket of a run."""

MAX_REASON_BYTES = 120


class NewContext(Struct):
    cwd: str | None = None
    language: str | None = None


class Execute(Struct, rename="camel"):
    code: str
    context_id: str | None = None
    envs: dict[str, str] | None = None
    timeout: int | None = None


class Closed(Exception):
    """The WebSocket ends with this code and this reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


async def create_context(sandbox: Sandbox, request: Request) -> Response:
    asked = await read_body(request, NewContext, MAX_BODY_BYTES)
    if asked.language not in (None, "", "python"):
        raise errors.InvalidRequest(f"ingle runs Python, and not {asked.language[:80]!r}")
    name = f"{sandbox.id}.{secrets.token_hex(CONTEXT_BYTES)}"
    new = msgspec.structs.replace(sandbox.options(), session_id=name, shares=sandbox.id)
    info = await sandbox.service.create(new)
    if asked.cwd:
        code = f"import os\nos.chdir({asked.cwd!r})\ndel os"
        result = await sandbox.service.execute_cell(name, NewCell(code, PREPARE_SECONDS))
        if result.error is not None:
            await sandbox.service.end_session(name)
            raise errors.InvalidRequest(f"the context cannot begin in {asked.cwd[:200]!r}: {result.error.value}")
    context = Context(name, asked.cwd or info.cwd, datetime.now(UTC))
    sandbox.contexts[name] = context
    return JSONResponse(_described(context))


async def list_contexts(sandbox: Sandbox, request: Request) -> Response:
    return JSONResponse({"contexts": [_described(each) for each in sandbox.contexts.values()]})


async def delete_context(sandbox: Sandbox, request: Request) -> Response:
    context_id = request.path_params["context_id"]
    if context_id == DEFAULT:
        raise errors.InvalidRequest("the default context cannot be deleted")
    if context_id not in sandbox.contexts:
        raise errors.NotFound(f"context with ID '{context_id[:80]}' not found")
    del sandbox.contexts[context_id]
    await sandbox.service.end_session(context_id)
    return JSONResponse({"message": "Context deleted successfully"})


def _described(context: Context) -> dict[str, Any]:
    created = moment(context.created_at)
    return {"id": context.id, "cwd": context.cwd, "createdAt": created, "active": True, "language": "python"}


async def execute(sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
    """Run code that the first message names. A client that leaves does not end the run."""
    await receive()
    await send({"type": "websocket.accept"})
    try:
        code = await _run(sandbox, receive, send)
        reason = ""
    except Closed as closed:
        code, reason = closed.code, closed.reason
    except errors.IngleError as error:
        code, reason = REFUSED, error.message
    except OSError:
        return  # the client is gone
    short = reason.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode(errors="ignore")
    with contextlib.suppress(OSError):
        await send({"type": "websocket.close", "code": code, "reason": short})


async def _run(sandbox: Sandbox, receive: Receive, send: Send) -> int:
    """Run the code and send what it shows. Return the code that closes the WebSocket."""
    asked = await _request(receive)
    session_id = sandbox.id
    if asked.context_id not in (None, "", DEFAULT):
        if asked.context_id not in sandbox.contexts:
            raise Closed(REFUSED, f"context with ID '{asked.context_id}' not found")
        session_id = asked.context_id
    seconds = DEFAULT_SECONDS if asked.timeout is None else asked.timeout
    new = NewCell(asked.code, timeout=float(seconds) or None, envs=asked.envs or {}, queue=True)
    cell = await sandbox.service.begin_cell(session_id, new)
    async for event in sandbox.service.cell_events(session_id, cell):
        if isinstance(event, Stdout | Stderr):
            await _send(send, "stdout" if isinstance(event, Stdout) else "stderr", text=event.text)
        elif isinstance(event, InputWanted):
            await sandbox.service.input(session_id, eof=True, wait=0.0)
        elif isinstance(event, ErrorRaised):
            await _send(send, "error", name=event.name, value=event.value, traceback=event.traceback)
        elif isinstance(event, Done):
            result = event.result
            ended = result.exit is not None and bool(result.exit.signal or result.exit.code)
            interrupted = result.status == states.INTERRUPTED or result.timed_out
            await _send(send, "control", text="interrupted" if interrupted else "completed")
            if result.timed_out:
                raise Closed(TIMED_OUT, "Execution timed out")
            return GOING_AWAY if ended else NORMAL
    raise Closed(GOING_AWAY, "the session has ended")


async def _request(receive: Receive) -> Execute:
    message = await receive()
    if message["type"] != "websocket.receive":
        raise Closed(NORMAL, "")
    try:
        data = message.get("bytes") or (message.get("text") or "").encode()
        asked = decode(Execute, data, BOUNDS)
    except errors.InvalidRequest as error:
        raise Closed(UNREADABLE, error.message) from None
    if not asked.code:
        raise Closed(REFUSED, "Code is required")
    if asked.timeout is not None and asked.timeout < 0:
        raise Closed(REFUSED, "Timeout must be 0 or more")
    return asked


async def _send(send: Send, kind: str, **more: str) -> None:
    frame = {"type": kind, "text": "", "name": "", "value": "", "traceback": "", **more}
    await send({"type": "websocket.send", "text": msgspec.json.encode(frame).decode()})
