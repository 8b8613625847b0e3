"""The Connect protocol with JSON, as E2B's SDK speaks it to a sandbox: single answers, and streams of frames."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.compat.requests import header, run_while_connected
from ingle.http.routes.bodies import BOUNDS, decode

FRAME = struct.Struct(">BI")
"""Flags and length before each message of a stream."""

END_OF_STREAM, COMPRESSED = 2, 1
STREAM_TYPE = "application/connect+json"

MAX_MESSAGE_BYTES = 16 * 1024 * 1024

CODES = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "failed_precondition",
    410: "not_found",
    413: "resource_exhausted",
    422: "invalid_argument",
    429: "resource_exhausted",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}

Message = TypeVar("Message", bound=Struct)


class AlreadyExists(errors.Conflict):
    """The folder to make is there."""


def error_body(error: errors.IngleError) -> dict[str, str]:
    code = "already_exists" if isinstance(error, AlreadyExists) else CODES.get(error.status, "internal")
    return {"code": code, "message": error.message}


def refuse(scope: Scope, error: errors.IngleError) -> Response:
    """Return an error in the form that the request asks for."""
    body = error_body(error)
    if header(scope, b"content-type").startswith(STREAM_TYPE):
        frame = _frame({"error": body}, END_OF_STREAM)
        return Response(frame, media_type=STREAM_TYPE)
    return JSONResponse(body, 400 if error.status == 422 else error.status)


async def read_frames(request: Request, kind: type[Message]) -> AsyncIterator[Message]:
    """Yield the messages of a stream as they arrive."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        while len(data) >= FRAME.size:
            flags, length = FRAME.unpack_from(data)
            if length > MAX_MESSAGE_BYTES or flags & COMPRESSED:
                raise errors.InvalidRequest("a message of this stream is compressed or too long")
            if len(data) < FRAME.size + length:
                break
            if not flags & END_OF_STREAM:
                yield decode(kind, bytes(data[FRAME.size : FRAME.size + length]), BOUNDS)
            del data[: FRAME.size + length]


async def read_one(request: Request, kind: type[Message]) -> Message:
    """Return the one message of a request whose answer is a stream."""
    async for message in read_frames(request, kind):
        return message
    raise errors.InvalidRequest("the request has no message")


def _frame(message: dict[str, Any], flags: int = 0) -> bytes:
    body = msgspec.json.encode(message)
    return FRAME.pack(flags, len(body)) + body


class Stream(Response):
    """Answer with a stream of messages. While there are none, the client gets a sign of life."""

    def __init__(self, messages: AsyncIterator[dict[str, Any]], keepalive: dict[str, Any], seconds: float) -> None:
        super().__init__(media_type=STREAM_TYPE)
        self._messages = messages
        self._keepalive = keepalive
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await run_while_connected(self._write(send), receive)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", STREAM_TYPE.encode())]})
        end: dict[str, Any] = {}
        following: asyncio.Future[dict[str, Any] | None] = asyncio.ensure_future(anext(self._messages, None))
        try:
            while True:
                if not (await asyncio.wait({following}, timeout=self._seconds))[0]:
                    await send({"type": "http.response.body", "body": _frame(self._keepalive), "more_body": True})
                    continue
                message = following.result()
                if message is None:
                    break
                following = asyncio.ensure_future(anext(self._messages, None))
                await send({"type": "http.response.body", "body": _frame(message), "more_body": True})
        except errors.IngleError as error:
            end = {"error": error_body(error)}
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            close: Callable[[], Any] | None = getattr(self._messages, "aclose", None)
            if close is not None:
                await close()
        await send({"type": "http.response.body", "body": _frame(end, END_OF_STREAM)})
