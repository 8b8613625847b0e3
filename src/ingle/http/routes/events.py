"""A session's events over a WebSocket, from any number on, with execute, input and interrupt as messages.

Each event is one text frame with the JSON of the NDJSON stream. Each message of the client is answered by one reply
with its `id`: a cell number or a problem. The cell itself comes as events.

A client that stops reading costs its socket buffer and one event. After `PATIENCE_SECONDS` it is closed and told the
number to continue with. The timeline keeps all events, so nothing is lost. Closing a WebSocket ends no cell.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.http.limits import BUFFERED, CLOSE
from ingle.http.problems import POLICY_VIOLATION, Problem, visible
from ingle.http.routes.bodies import BOUNDS
from ingle.requests import NewCell, Script
from ingle.service import Service
from ingle.support import bounded_json

PATIENCE_SECONDS = 15.0
"""Time that one event may wait until the client takes it."""

CHECKS = 4
"""Checks within that time."""

MAX_OPS = 32
"""Messages of one client that run at once. The next is not read until one of them is answered."""

BAD_MESSAGE, NO_SESSION, TOO_SLOW, STOPPING = 4400, 4404, 4408, 1001

REASON_BYTES = 123
"""Bytes of a reason that fit into a close frame."""


class Execute(Struct, forbid_unknown_fields=True, tag_field="op", tag="execute"):
    id: str
    code: str
    timeout: float | None = None
    envs: dict[str, str] | None = None
    queue: bool = False
    script: Script | None = None


class Input(Struct, forbid_unknown_fields=True, tag_field="op", tag="input"):
    id: str
    text: str = ""
    eof: bool = False


class Interrupt(Struct, forbid_unknown_fields=True, tag_field="op", tag="interrupt"):
    id: str


Message = Execute | Input | Interrupt


class Started(Struct, tag_field="type", tag="reply"):
    """The cell that was started, answered or interrupted; null when there was none to interrupt."""

    id: str
    cell: int | None


class Refused(Struct, tag_field="type", tag="reply"):
    id: str
    problem: Problem


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


class Watch:
    """Connection of one client to one session."""

    def __init__(self, service: Service, session_id: str, first: int) -> None:
        self._service = service
        self._session_id = session_id
        self._next = first
        self._patience = PATIENCE_SECONDS
        self._sending_since: float | None = None
        self._writing = asyncio.Lock()
        self._over = False
        self._ops: set[asyncio.Task[None]] = set()
        self._closing: tuple[int, str] | None = None

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        extensions = scope.get("extensions", {})
        self._close_now: Callable[[int, str], None] | None = extensions.get(CLOSE)
        self._buffered: Callable[[], int] | None = extensions.get(BUFFERED)
        loop = asyncio.get_running_loop()
        await receive()
        await send({"type": "websocket.accept"})
        tasks: list[asyncio.Task[None]] = [
            loop.create_task(self._send_events()),
            loop.create_task(self._take_messages(receive)),
            loop.create_task(self._close_if_slow()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._over = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            failure = task.exception()
            # Sending to a client that is gone raises OSError.
            if failure is not None and not isinstance(failure, OSError):
                raise failure
        if self._closing is not None:
            code, reason = self._closing
            reason = visible(reason).encode()[:REASON_BYTES].decode(errors="ignore")
            if self._close_now is not None:
                self._close_now(code, reason)
            else:
                await send({"type": "websocket.close", "code": code, "reason": reason})
        # A requested cell starts when its turn comes, even if the client is gone.
        await asyncio.gather(*self._ops, return_exceptions=True)

    async def _write(self, value: Struct) -> None:
        async with self._writing:
            if self._over:
                return
            self._sending_since = asyncio.get_running_loop().time()
            await self._send({"type": "websocket.send", "text": _encoder.encode(value).decode()})
            self._sending_since = None

    async def _send_events(self) -> None:
        try:
            async for event in self._service.events(self._session_id, self._next):
                await self._write(event)
                self._next = event.seq + 1
        except errors.SessionNotFound as error:
            self._closing = (NO_SESSION, error.message)
            return
        if self._service.stopping:
            self._closing = (STOPPING, "the server is stopping")
        else:
            self._closing = (NO_SESSION, f"session {self._session_id!r} has ended")

    async def _close_if_slow(self) -> None:
        loop = asyncio.get_running_loop()
        size = 0
        while True:
            await asyncio.sleep(self._patience / CHECKS)
            if self._service.caller.revoked:
                self._closing = (POLICY_VIOLATION, "the token was revoked")
                return
            before, size = size, self._buffered() if self._buffered is not None else 0
            if size < before and self._sending_since is not None:
                # The client took a part of a large event.
                self._sending_since = loop.time()
            since = self._sending_since
            if since is not None and loop.time() - since >= self._patience:
                late = f"nothing was read for {self._patience:g} s"
                self._closing = (TOO_SLOW, f"{late}; come back with from={self._next}")
                return

    # --- messages of the client ---

    async def _take_messages(self, receive: Receive) -> None:
        while True:
            said = await receive()
            if said["type"] != "websocket.receive":
                return
            try:
                # Bytes that are not UTF-8 are reported as bad JSON as well.
                data = said.get("bytes") or (said.get("text") or "").encode()
                bounded_json.check(data, BOUNDS)
                message = _decoder.decode(data)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                self._closing = (BAD_MESSAGE, f"not a message: {error}")
                return
            if len(self._ops) >= MAX_OPS:
                await asyncio.wait(self._ops, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._ops.add(task)
            task.add_done_callback(self._ops.discard)

    async def _answer(self, message: Message) -> None:
        try:
            await self._write(Started(message.id, await self._do(message)))
        except errors.IngleError as error:
            await self._write(Refused(message.id, Problem.of(error)))

    def _do(self, message: Message) -> Coroutine[Any, Any, int | None]:
        if isinstance(message, Execute):
            new = NewCell(message.code, message.timeout, message.envs or {}, message.queue, None, message.script)
            return self._service.begin_cell(self._session_id, new)
        if isinstance(message, Input):
            return self._input(message)
        return self._interrupt()

    async def _input(self, message: Input) -> int:
        return (await self._service.input(self._session_id, message.text, eof=message.eof, wait=0)).cell

    async def _interrupt(self) -> int | None:
        result = await self._service.interrupt(self._session_id, wait=0)
        return None if result is None else result.cell
