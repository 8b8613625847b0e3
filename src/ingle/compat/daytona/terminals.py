"""Terminals of a sandbox: each is a shell task, with WebSockets for what it shows and what is typed.

A client that leaves does not end its terminal. One that comes later is shown everything from the start.
"""

import asyncio
import base64
import binascii
import codecs
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.compat.daytona.files import place
from ingle.compat.daytona.processes import exit_code
from ingle.compat.daytona.sandboxes import Sandbox, Terminal
from ingle.compat.requests import moment
from ingle.events import LIVE_STATUSES, Stderr, Stdout
from ingle.http.routes.bodies import read_body
from ingle.requests import NewTask

MAX_BODY_BYTES = 1024 * 1024
KILL_SECONDS = 10.0
"""Time for a terminal to end."""

COMMAND = "exec bash -l"

EXIT_CONTROL = "X-Daytona-Pty-Exit-Control"
"""Subprotocol of clients that want to be told the exit code by a message."""

ENVS = "X-Daytona-Pty-Envs~"
"""Prefix of a subprotocol that carries environment variables."""

NORMAL = 1000

Cells = Annotated[int, Meta(ge=1, le=1000)]


class NewTerminal(Struct, rename="camel"):
    id: str
    cols: Cells = 80
    rows: Cells = 24
    cwd: str | None = None
    envs: dict[str, str] | None = None


class Size(Struct):
    cols: Cells
    rows: Cells


class TerminalNotFound(errors.NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"PTY session {name[:80]} not found")


def _find(sandbox: Sandbox, name: str) -> Terminal:
    try:
        return sandbox.terminals[name]
    except KeyError:
        raise TerminalNotFound(name) from None


async def _create(sandbox: Sandbox, new: NewTerminal) -> Terminal:
    if not new.id:
        raise errors.InvalidRequest("a PTY session has an id")
    if new.id in sandbox.terminals:
        raise errors.Conflict(f"PTY session {new.id[:80]} already exists")
    cwd, envs = place(sandbox, new.cwd or ""), new.envs or {}
    task = await sandbox.service.run_task(
        NewTask(COMMAND, cwd=cwd, env=envs, pty=True, rows=new.rows, columns=new.cols, session_id=sandbox.id), wait=0.0
    )
    if new.id in sandbox.terminals:  # made by another request meanwhile
        await sandbox.service.shell_cancel(task.task_id, wait=0)
        raise errors.Conflict(f"PTY session {new.id[:80]} already exists")
    made = Terminal(new.id, task.task_id, new.cols, new.rows, cwd, envs, datetime.now(UTC))
    sandbox.terminals[new.id] = made
    return made


# --- requests ---


async def create(sandbox: Sandbox, request: Request) -> Response:
    made = await _create(sandbox, await read_body(request, NewTerminal, MAX_BODY_BYTES))
    return JSONResponse({"sessionId": made.id}, 201)


async def list_all(sandbox: Sandbox, request: Request) -> Response:
    return JSONResponse({"sessions": [await _described(sandbox, each) for each in [*sandbox.terminals.values()]]})


async def get(sandbox: Sandbox, request: Request) -> Response:
    return JSONResponse(await _described(sandbox, _find(sandbox, request.path_params["terminal"])))


async def resize(sandbox: Sandbox, request: Request) -> Response:
    terminal = _find(sandbox, request.path_params["terminal"])
    size = await read_body(request, Size, MAX_BODY_BYTES)
    await sandbox.service.shell_resize(terminal.task_id, size.rows, size.cols)
    sandbox.terminals[terminal.id] = terminal = replace(terminal, cols=size.cols, rows=size.rows)
    return JSONResponse(await _described(sandbox, terminal))


async def delete(sandbox: Sandbox, request: Request) -> Response:
    terminal = _find(sandbox, request.path_params["terminal"])
    await sandbox.service.shell_cancel(terminal.task_id, wait=KILL_SECONDS)
    sandbox.terminals.pop(terminal.id, None)
    return JSONResponse({"message": "PTY session deleted"})


async def _described(sandbox: Sandbox, terminal: Terminal) -> dict[str, Any]:
    task = await sandbox.service.shell_status(terminal.task_id, wait=0.0)
    return {
        "id": terminal.id,
        "cols": terminal.cols,
        "rows": terminal.rows,
        "cwd": terminal.cwd,
        "envs": terminal.envs,
        "createdAt": moment(terminal.created_at),
        "active": task.status in LIVE_STATUSES,
        "lazyStart": False,
    }


# --- WebSockets ---


async def create_and_connect(sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
    """Make the terminal that the URL describes, and show it."""
    query: dict[str, Any] = dict(parse_qsl(scope["query_string"].decode("ascii", "replace")))
    try:
        new = msgspec.convert({**query, "envs": _envs(scope)}, NewTerminal, strict=False)
    except msgspec.ValidationError as error:
        raise errors.InvalidRequest(f"the PTY session cannot be made: {error}") from None
    await Connection(sandbox, await _create(sandbox, new)).run(scope, receive, send)


async def connect(sandbox: Sandbox, scope: Scope, receive: Receive, send: Send) -> None:
    terminal = _find(sandbox, scope["path_params"]["terminal"])
    await Connection(sandbox, terminal).run(scope, receive, send)


def _envs(scope: Scope) -> dict[str, str]:
    """Return the environment variables that a subprotocol carries."""
    for offered in scope.get("subprotocols", ()):
        if offered.startswith(ENVS):
            coded = offered.removeprefix(ENVS)
            try:
                data = base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4))
                return msgspec.json.decode(data, type=dict[str, str])
            except (binascii.Error, ValueError, msgspec.DecodeError):
                raise errors.InvalidRequest("the environment variables are no JSON object in base64") from None
    return {}


@dataclass
class Connection:
    """WebSocket of one client of a terminal."""

    sandbox: Sandbox
    terminal: Terminal
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    """Characters may be cut in two by messages."""

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        told = EXIT_CONTROL in scope.get("subprotocols", ())
        await send({"type": "websocket.accept", "subprotocol": EXIT_CONTROL if told else None})
        await _control(send, status="connected")
        showing = asyncio.ensure_future(self._show(send))
        typing = asyncio.ensure_future(self._type(receive))
        try:
            await asyncio.wait({showing, typing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (showing, typing):
                task.cancel()
            await asyncio.gather(showing, typing, return_exceptions=True)
        # Sending to a client that is gone raises OSError.
        with contextlib.suppress(OSError):
            if not showing.cancelled() and showing.result() is not None:
                ended = {"exitCode": showing.result()}
                if told:
                    await _control(send, status="exited", **ended)
                await send({"type": "websocket.close", "code": NORMAL, "reason": msgspec.json.encode(ended).decode()})

    async def _show(self, send: Send) -> int:
        """Send what the terminal shows, to its end. Return its exit code."""
        async for data in _shown(self.sandbox, self.terminal.task_id):
            await send({"type": "websocket.send", "bytes": data})
        return exit_code(await self.sandbox.service.shell_status(self.terminal.task_id, wait=0.0))

    async def _type(self, receive: Receive) -> None:
        """Hand on what the client types, until it leaves."""
        while (said := await receive())["type"] == "websocket.receive":
            data = said.get("bytes") or (said.get("text") or "").encode("utf-8", "replace")
            if text := self.decoder.decode(data):
                # The terminal may have ended; then its end is told, and not this.
                with contextlib.suppress(errors.IngleError):
                    await self.sandbox.service.shell_input(self.terminal.task_id, text)


async def _control(send: Send, **content: Any) -> None:
    message = msgspec.json.encode({"type": "control", **content}).decode()
    await send({"type": "websocket.send", "text": message})


async def _shown(sandbox: Sandbox, task_id: str) -> AsyncIterator[bytes]:
    async for event in sandbox.service.shell_events(task_id):
        if isinstance(event, Stdout | Stderr):
            yield event.text.encode("utf-8", "replace")
