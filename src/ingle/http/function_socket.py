"""WebSocket with functions of a client that a session may call.

The client sends its functions first. Each call is one frame to the client, and each answer one frame from it. When the
connection ends, calls in flight fail and the functions are withdrawn.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, Struct
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.http.limits import DELIVER, SEND
from ingle.http.problems import Problem, visible
from ingle.http.routes.events import BAD_MESSAGE, NO_SESSION, REASON_BYTES
from ingle.nodes import ProvidedFunctions
from ingle.nodes.tools import LocalFunctions
from ingle.service import Service
from ingle.support import bounded_json
from ingle.tools.functions import payload_of
from ingle.tools.shapes import CLIENT, ToolSpec

BOUNDS = bounded_json.Bounds(elements=1_000_000, text=64 * 1024**2, depth=110)
"""Bounds of one message of a client: its functions, or the result of a call."""

MAX_ERROR_CHARS = 10_000


class Provide(Struct, forbid_unknown_fields=True, tag_field="op", tag="provide"):
    """First message: the functions, and the name of the server under which code finds them."""

    functions: list[ToolSpec]
    server: str = CLIENT


class Returned(Struct, forbid_unknown_fields=True, tag_field="op", tag="return"):
    """Result of a call: a JSON value, or bytes in base64."""

    id: int
    value: Raw = Raw(b"null")
    data: str | None = None
    mime_type: str = "application/octet-stream"


class Raised(Struct, forbid_unknown_fields=True, tag_field="op", tag="raise"):
    """Failure of a call, in words."""

    id: int
    message: str


class Provided(Struct, tag_field="type", tag="provided"):
    """Answer to the first message: the functions can be called now."""

    server: str


class Refused(Struct, tag_field="type", tag="refused"):
    problem: Problem


_encoder = msgspec.json.Encoder()
_first = bounded_json.Decoder(Provide, BOUNDS)
_answers: "msgspec.json.Decoder[Returned | Raised]" = msgspec.json.Decoder(Returned | Raised)


class FunctionSocket:
    """Connection of one client that provides functions to one session."""

    def __init__(self, service: Service, session_id: str) -> None:
        self._service = service
        self._session_id = session_id
        self._closing: tuple[int, str] | None = None

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions = scope.get("extensions", {})
        self._send = send
        self._send_now: Callable[[bytes], bool] | None = extensions.get(SEND)
        await receive()
        await send({"type": "websocket.accept"})
        provided = await self._begin(receive)
        if provided is not None:
            loop = asyncio.get_running_loop()
            self._over = loop.create_future()
            take = partial(self._take, provided)
            if DELIVER in extensions:
                extensions[DELIVER](take)
            if isinstance(provided, LocalFunctions):
                provided.send_by(self._write_now)
            tasks = [loop.create_task(self._send_calls(provided)), loop.create_task(self._receive(receive, take))]
            try:
                await asyncio.wait([*tasks, self._over], return_when=asyncio.FIRST_COMPLETED)
            finally:
                provided.close()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        if self._closing is not None:
            code, reason = self._closing
            reason = visible(reason).encode()[:REASON_BYTES].decode(errors="ignore")
            await send({"type": "websocket.close", "code": code, "reason": reason})

    async def _begin(self, receive: Receive) -> ProvidedFunctions | None:
        data = _data_of(await receive())
        if data is None:
            return None
        try:
            wanted = _first.decode(data)
            provided = await self._service.provide(self._session_id, wanted.server, wanted.functions)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self._closing = (BAD_MESSAGE, f"not a message: {error}")
            return None
        except errors.IngleError as error:
            await self._write(Refused(Problem.of(error)))
            self._closing = (NO_SESSION, error.message)
            return None
        await self._write(Provided(wanted.server))
        return provided

    async def _send_calls(self, provided: ProvidedFunctions) -> None:
        async for each in provided.calls():
            await self._write(each)
        self._closing = (NO_SESSION, f"session {self._session_id!r} has ended")

    async def _write(self, value: Struct) -> None:
        if not self._write_now(value):
            await self._send({"type": "websocket.send", "text": _encoder.encode(value).decode()})

    def _write_now(self, value: Struct) -> bool:
        """Send a message in this turn of the loop. Return False if the client does not take it at once."""
        return self._send_now is not None and self._send_now(_encoder.encode(value))

    async def _receive(self, receive: Receive, take: Callable[[bytes], None]) -> None:
        while (data := _data_of(await receive())) is not None:
            take(data)

    def _take(self, provided: ProvidedFunctions, data: bytes) -> None:
        """Take an answer of the client. The connection ends with one that cannot be read."""
        try:
            bounded_json.check(data, BOUNDS)
            said = _answers.decode(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            if not self._over.done():
                self._closing = (BAD_MESSAGE, f"not a message: {error}")
                self._over.set_result(None)
            return
        if isinstance(said, Returned):
            provided.answer(said.id, payload_of(said.value, said.data, said.mime_type))
        else:
            provided.fail(said.id, said.message[:MAX_ERROR_CHARS])


def _data_of(message: MutableMapping[str, Any]) -> bytes | None:
    """Return the bytes of a frame; None at the end of the connection."""
    if message["type"] != "websocket.receive":
        return None
    data: bytes = message.get("bytes") or (message.get("text") or "").encode()
    return data
