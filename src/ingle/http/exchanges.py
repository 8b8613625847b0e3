"""One request and its answer: what an application is given, and how its answer is written.

The body comes as the application takes it. An answer whose length is known leaves in one write, head and body
together; one without goes out piece by piece as it is made. What an application has not finished, no client takes for
whole: the connection is closed.

Where a request has come whole before it is looked at, as small ones do, an application may answer it in one step.
"""

import asyncio
import functools
import logging
import re
import typing
from collections.abc import Callable, Coroutine, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.types import Message, Receive, Scope, Send

if TYPE_CHECKING:
    from ingle.http.limits import Protocol

HIGH_WATER = 64 * 1024
"""Bytes of a body that wait for the application, above which no more is read."""

BODILESS = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)

STATUS_LINES = {each.value: f"HTTP/1.1 {each.value} {each.phrase}".encode() for each in HTTPStatus}

MEMORY = 1024
"""Lines of heads that are remembered: most answers have the same few."""

_UNSAFE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

logger = logging.getLogger(__name__)


class Answer(NamedTuple):
    """One that is known as a whole."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


Whole = Callable[[Scope, bytes | bytearray], Coroutine[Any, Any, Answer | None] | None]
"""Answers a request with this body. None, with nothing done, where it is to come as to any application."""


def not_whole(scope: Scope, body: bytes | bytearray) -> None:
    """Nothing is answered in one step."""


class Application(typing.Protocol):
    @property
    def whole(self) -> Whole: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class Exchange:
    # What most requests never change stands here once.
    gone = False
    """Whoever asked takes no answer any more."""
    more_body = True
    """Of the request."""
    started = False
    complete = False
    _body: bytes | bytearray = b""
    _news = False
    _waiter: asyncio.Future[None] | None = None
    _head = b""
    _left: int | None = None
    _chunked = False
    _bodiless = False
    _invited = False

    def __init__(self, connection: "Protocol", scope: Scope, keep_alive: bool) -> None:
        self._connection = connection
        self.scope = scope
        self.keep_alive = keep_alive

    def begin(self, app: Application) -> None:
        self._task = self._connection.loop.create_task(self._run(app))
        self._connection.tasks.add(self._task)

    async def _run(self, app: Application) -> None:
        try:
            if not self.more_body and (answering := app.whole(self.scope, self._body)) is not None:
                answer = await answering
                if answer is not None:
                    await self._send_whole(answer)
                    return
            await app(self.scope, self.receive, self.send)
        except Exception:
            # An application answers for whatever it raises; if it could not, there is nothing left to say.
            logger.exception("an answer could not be made")
        finally:
            self._connection.tasks.discard(self._task)
            if not self.complete and not self.gone:
                self._connection.transport.close()

    # --- what the connection brings ---

    def take(self, body: bytes) -> None:
        if self.complete:
            return
        if self._body:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += body
            if len(self._body) > HIGH_WATER:
                self._connection.pause_reading()
        else:
            self._body = body
        self._news = True
        if self._waiter is not None:
            self._wake()

    def take_end(self) -> None:
        self.more_body = False
        self._news = True
        if self._waiter is not None:
            self._wake()

    def lose(self) -> None:
        """Nobody is there to be answered."""
        self.gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- what the application calls ---

    async def receive(self) -> Message:
        while not (self._news or self.gone or self.complete):
            self._invite()
            self._connection.resume_reading()
            self._waiter = self._connection.loop.create_future()
            await self._waiter
        if self.gone or self.complete:
            return {"type": "http.disconnect"}
        self._news = False
        body, self._body = self._body, b""
        return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}

    def _invite(self) -> None:
        """Whoever keeps the body back until it is wanted is told that it is."""
        if self.more_body and not (self._invited or self.started):
            self._invited = True
            if any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.scope["headers"]):
                self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def send(self, message: Message) -> None:
        connection = self._connection
        if connection.write_paused and not self.gone:
            await connection.writable.wait()
        if self.gone:
            return
        if not self.started:
            self._start(message)
        elif self.complete:
            raise RuntimeError("an answer goes on after its end")
        else:
            self._go_on(message)

    async def _send_whole(self, answer: Answer) -> None:
        if self._connection.write_paused and not self.gone:
            await self._connection.writable.wait()
        if self.gone:
            return
        self._connection.transport.write(self._head_of(answer.status, answer.headers) + answer.body)
        self._end()

    def _start(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"an answer begins with {message['type']}")
        self._head = self._head_of(message["status"], message.get("headers", ()))
        if self._left is None:
            # Nobody knows when the first of its body comes.
            self._connection.transport.write(self._head)
            self._head = b""

    def _head_of(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        self.started = True
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
        for name, value in (*self._connection.state.default_headers, *headers):
            if name == b"content-length":
                self._left = int(value)
            elif name == b"connection":
                # Whether it goes on is told once, below.
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            lines.append(_line(name, value))
        if not self.keep_alive:
            lines.append(b"connection: close")
        if self.scope["method"] == "HEAD" or status in BODILESS:
            self._bodiless, self._left = True, 0
        elif self._left is None and self.scope["http_version"] == "1.1":
            self._chunked = True
            lines.append(b"transfer-encoding: chunked")
        lines.append(b"\r\n")
        return b"\r\n".join(lines)

    def _go_on(self, message: Message) -> None:
        if message["type"] != "http.response.body":
            raise RuntimeError(f"an answer goes on with {message['type']}")
        body: bytes = b"" if self._bodiless else message.get("body", b"")
        more: bool = message.get("more_body", False)
        transport = self._connection.transport
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("an answer is not as long as its content-length says")
            data = self._head + body if self._head else body
            self._head = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                data += b"0\r\n\r\n"
        else:
            data = body
        if more:
            transport.write(data)
            return
        transport.write(data)
        self._end()

    def _end(self) -> None:
        self.complete = True
        if self._waiter is not None:
            self._wake()
        self._connection.answered(self)


@functools.lru_cache(MEMORY)
def _line(name: bytes, value: bytes) -> bytes:
    line = b"%b: %b" % (name, value)
    if _UNSAFE.search(line):
        raise RuntimeError("a header holds what would end it")
    return line
