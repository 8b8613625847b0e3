"""Errors as RFC 9457 problems, and the middleware that answers every error with one.

Each problem has `type`, `title`, `status`, `detail` and the stable `code` of `ingle.errors`; `detail` says what to do
next. An unexpected error is logged with its traceback, and the client gets it without.
"""

import logging
import math
from collections.abc import Awaitable, Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingle import errors
from ingle.http.translations import NO_TRANSLATIONS, Translations

MEDIA_TYPE = "application/problem+json"

POLICY_VIOLATION = 1008
"""Close code of a WebSocket that was refused, or whose token was revoked."""

logger = logging.getLogger(__name__)


class InvalidJson(errors.InvalidRequest):
    """The body is not JSON."""

    code, status = "invalid_json", 400


class InvalidHttp(errors.InvalidRequest):
    """The bytes are not an HTTP request."""

    code, status = "invalid_http", 400


class TooSlow(errors.IngleError):
    """The request arrives too slowly."""

    code, status = "too_slow", 408


class UrlTooLong(errors.InvalidRequest):
    code, status = "url_too_long", 414


class HeadTooLarge(errors.InvalidRequest):
    code, status = "head_too_large", 431


class RangeNotSatisfiable(errors.IngleError):
    """The file has no bytes in the requested range."""

    code, status = "range_not_satisfiable", 416

    def __init__(self, size: int) -> None:
        super().__init__(
            f"the file has {size} bytes, and none of those that were asked for; ask for others, or for all"
        )
        self.size = size


class MethodNotAllowed(errors.IngleError):
    code, status = "method_not_allowed", 405


class Problem(msgspec.Struct, omit_defaults=True):
    type: str
    title: str
    status: int
    detail: str
    code: str
    cell: int | None = None
    """The running cell, when the session is busy."""
    trial: str | None = None
    """The open trial, when the session waits for its end."""
    retry_after: float | None = None
    """Seconds after which the same request may succeed, where known."""

    @classmethod
    def of(cls, error: errors.IngleError) -> "Problem":
        return cls(
            type=f"urn:ingle:problem:{error.code}",
            title=error.code.replace("_", " ").capitalize(),
            status=error.status,
            detail=visible(error.message),
            code=error.code,
            cell=error.cell if isinstance(error, errors.Busy) else None,
            trial=error.trial if isinstance(error, errors.TrialOpen) else None,
            retry_after=error.retry_after,
        )


def encode(problem: Problem) -> bytes:
    return msgspec.json.encode(problem)


def visible(text: str) -> str:
    """Return text that can be encoded. A name from a client may hold lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def headers_of(error: errors.IngleError, length: int) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(length).encode()),
    ]
    if isinstance(error, errors.Unauthorized):
        headers.append((b"www-authenticate", b'Bearer realm="ingle"'))
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(error.retry_after)))
    if isinstance(error, RangeNotSatisfiable):
        headers.append((b"content-range", b"bytes */%d" % error.size))
    if isinstance(error, errors.TooLarge):
        # The rest of the body is not read, so the connection cannot be used again.
        headers.append((b"connection", b"close"))
    return headers


class ProblemMiddleware:
    """Outermost middleware: answers every error with a problem, or in the form of the request's own protocol."""

    def __init__(self, app: ASGIApp, translations: Translations = NO_TRANSLATIONS) -> None:
        self._app = app
        self._translations = translations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        def watched(message: Message) -> Awaitable[None]:
            nonlocal started
            started = True
            return send(message)

        # With an `app` in the scope the router raises its errors. Otherwise it would answer in plain text.
        scope["app"] = self
        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:
            return
        except Exception as error:  # the edge of a request
            named = _named(scope, error)
            if started:
                # The answer has begun. The server closes the connection, and the client sees an unfinished answer.
                logger.error("an answer could not be finished: %s", named.message)
            elif (translation := self._translations.find(scope)) is not None:
                await translation.refuse(scope, named)(scope, receive, send)
            else:
                headers = error.headers if isinstance(error, HTTPException) else None
                await _send(scope, send, named, headers or {})


def _named(scope: Scope, error: Exception) -> errors.IngleError:
    if isinstance(error, errors.IngleError):
        return error
    if isinstance(error, HTTPException):
        return _of_router(scope, error)
    logger.error("%s %s failed", scope.get("method", "websocket"), scope["path"], exc_info=error)
    return errors.IngleError("ingle failed and has logged why; the sessions are not harmed")


def _of_router(scope: Scope, refused: HTTPException) -> errors.IngleError:
    path = scope["path"][:200]
    if refused.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = sorted((refused.headers or {}).get("Allow", "").split(", "))
        return MethodNotAllowed(f"{path} does not take {scope['method']}; it takes {', '.join(allowed)}")
    return errors.NotFound(f"there is no route {path!r}; begin with GET /v1/sessions, or read /docs")


async def _send(scope: Scope, send: Send, error: errors.IngleError, more: Mapping[str, str]) -> None:
    """Answer with the problem, and with `more` headers."""
    body = encode(Problem.of(error))
    status, headers = error.status, headers_of(error, len(body))
    headers += [(name.lower().encode(), value.encode()) for name, value in more.items()]
    prefix = ""
    if scope["type"] == "websocket":
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": HTTPStatus(status).phrase})
            return
        prefix = "websocket."
    await send({"type": f"{prefix}http.response.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}http.response.body", "body": body})
