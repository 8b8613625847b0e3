"""Bounds on what one client may cost, added to uvicorn's protocols for HTTP and WebSockets.

uvicorn reads requests and writes answers. The subclasses here bound the time and the size of a request, the time in
which an answer is taken, and the number of open connections. A client that exceeds a bound is answered with a problem
where that is possible, and its connection is closed. Bytes that are not HTTP are answered with a problem too.
A unix socket serves its owner and root only.
"""

import asyncio
import logging
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.protocol import State

from ingle import errors
from ingle.http.auth.guard import PEER, Peer
from ingle.http.joined_writes import JoinedWrites
from ingle.http.problems import HeadTooLarge, InvalidHttp, Problem, TooSlow, UrlTooLong, encode, headers_of
from ingle.support.running_servers import peer_is_confined, peer_uid
from ingle.tools.short_frames import ShortServerProtocol

CLOSE = "ingle.close"
"""Extension of a WebSocket's scope: closes it at once, whether its client reads or not."""

BUFFERED = "ingle.buffered"
"""Extension of a WebSocket's scope: returns the number of bytes that the client has not taken yet."""

SEND = "ingle.send"
"""Extension of a WebSocket's scope: sends a text in this turn of the loop, or returns False."""

DELIVER = "ingle.deliver"
"""Extension of a WebSocket's scope: has each message handed to a function in the turn of the loop that brings it."""

WEBSOCKET_CLOSE_SECONDS = 10.0
"""Time for a client that does not read to see that its WebSocket was closed."""

LINGER_SECONDS = 1.0
"""Time for a refused client to stop sending and to read why. What it sends meanwhile is discarded."""

MAX_DISCARDED_BYTES = 1024 * 1024
"""Bytes of a refused client that are discarded; more are not even read."""

MAX_LINGERING = 256
"""Refused connections that stay open for `LINGER_SECONDS` at once. Others are closed immediately."""

SWEEP_SECONDS = 1.0
"""Interval between two checks of all connections."""

HEAD_SECONDS = 10.0
"""Time from the first byte of a request, or from the opening of its connection, to the end of its headers."""

BODY_WINDOW_SECONDS = 10.0
BODY_BYTES_PER_SECOND = 256
"""A body that is slower than this, over the window, is refused."""

ANSWER_SECONDS = 30.0
"""Time in which a client must take some of its answer."""

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_URL_BYTES = 8 * 1024
MAX_PIPELINE = 16
"""Requests that wait on one connection for the answers before theirs."""

TENANT_SHARE = 0.75
"""Share of the connections that one tenant may have, other than the owner of the server."""

BODY_HEADERS = (b"content-length", b"transfer-encoding")

logger = logging.getLogger(__name__)


class ConnectionLimit:
    """Bound on the open connections of one listener. Past it, the oldest unauthenticated one is refused."""

    def __init__(self, limit: int, local: bool = False) -> None:
        self._limit = limit
        self.local = local
        """The listener is a unix socket: the kernel tells who connects, and nobody is refused for the number."""
        self.lingering = 0
        self._held: Counter[str] = Counter()
        """Connections of each tenant."""
        # A connection stays in here when it is authenticated, until it is closed or its turn to be refused comes.
        self._by_age: dict[HttpProtocol | WebSocketProtocol, None] = {}

    def new_peer(self) -> Peer:
        """Return the client of a new connection, which counts among those of its tenant once it has shown a token."""
        return Peer(self._held, 0 if self.local else max(1, int(self._limit * TENANT_SHARE)))

    def enter(self, newcomer: "HttpProtocol | WebSocketProtocol") -> None:
        """Count a new connection. Refuse one if there are too many: the newcomer, where all others have a token."""
        if self.local:
            return
        self._by_age[newcomer] = None
        refused = len(newcomer.connections) <= self._limit
        while not refused:
            oldest = next(iter(self._by_age))
            del self._by_age[oldest]
            if not oldest.peer.authenticated:
                oldest.refuse(errors.Unavailable(f"all {self._limit} connections are in use; try again in a moment"))
                refused = True

    def leave(self, connection: "HttpProtocol | WebSocketProtocol") -> None:
        self._by_age.pop(connection, None)

    async def sweep(self, state: ServerState) -> None:
        """Check all connections for exceeded times, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for connection in list(state.connections):
                if isinstance(connection, (HttpProtocol, WebSocketProtocol)):
                    connection.sweep(now)


class Stall:
    """Time for which a client has taken nothing of what was written for it."""

    def __init__(self, transport: asyncio.Transport | JoinedWrites) -> None:
        self._transport = transport
        self._size, self._since = 0, 0.0

    def seconds(self, now: float) -> float:
        """Return how long nothing was taken; 0 when nothing waits."""
        size = self._transport.get_write_buffer_size()
        if size == 0 or size != self._size:
            self._size, self._since = size, now
        return now - self._since


def cut(transport: asyncio.Transport) -> None:
    """Reset a connection. Without the option the kernel would offer the unsent bytes for minutes."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def refusal(error: errors.IngleError) -> bytes:
    """Return a whole answer that says why the connection is closed."""
    body = encode(Problem.of(error))
    lines = [b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode())]
    lines += [b"%b: %b" % pair for pair in headers_of(error, len(body)) if pair[0] != b"connection"]
    return b"\r\n".join([*lines, b"connection: close", b"", body])


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, bounded.

    It also mends three faults of uvicorn's: headers behind a body count as headers of the request, an answer that
    comes before the end of a body can be lost to a reset, and clients of HTTP/1.0 get chunks.
    """

    def __init__(self, *, limit: ConnectionLimit, **given: Any) -> None:
        super().__init__(**given)
        self._limit = limit
        self.peer = limit.new_peer()
        websocket: Any = partial(WebSocketProtocol, limit=limit, peer=self.peer)
        self.ws_protocol_class = websocket
        self._running: RequestResponseCycle | None = None
        """The request that is being answered; `cycle` is the one that was read last."""
        self._refusal: errors.IngleError | None = None
        """The bound that a callback of the parser found exceeded."""
        self._in_head = False
        self._head_since: float | None = None
        self._progress = False
        """The parser has delivered something other than headers."""
        self._undelivered = 0
        """Bytes that were fed to the parser since then."""
        self._received = 0
        self._body_mark: tuple[float, int] | None = None
        """When the window for a body began, and the bytes that had come by then."""
        self._closes = False
        """The connection is closed behind the answer that has begun."""
        self._deaf = False
        """Bytes that still come are discarded."""
        self._discarded = 0
        self._linger: asyncio.TimerHandle | None = None

    # --- connection ---

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.transport: Any = JoinedWrites(transport, self.loop)
        self._stall = Stall(self.transport)
        self._head_since = self.loop.time()
        if self._limit.local:
            connection: socket.socket = transport.get_extra_info("socket")
            # The mode of the socket file says the same. This also holds where the mode was changed by mistake.
            if peer_uid(connection) not in (0, os.geteuid()) or peer_is_confined(connection):
                transport.abort()
        self._limit.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.leave(self)
        self.peer.leave()
        if self._linger is not None:
            self._linger.cancel()
            self._limit.lingering -= 1
        self._drop_requests()
        super().connection_lost(exc)
        # uvicorn leaves the timer running after a reset, and the timer holds the connection.
        self._unset_keepalive_if_required()

    def _drop_requests(self) -> None:
        """Tell the applications that nobody waits for their answers. uvicorn tells only the last one."""
        for cycle in (self._running, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        self.flow.resume_writing()

    def handle_websocket_upgrade(self) -> None:
        if self._running is not None:
            self.refuse(InvalidHttp("a WebSocket was asked for before the last answer; read that first"))
            return
        self._limit.leave(self)
        super().handle_websocket_upgrade()

    # --- requests ---

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._discarded += len(data)
            if self._discarded > MAX_DISCARDED_BYTES:
                self.flow.pause_reading()
            return
        self._received += len(data)
        if self._head_since is None and self._running is None:
            self._head_since = self.loop.time()
        self._progress = False
        super().data_received(data)
        self._undelivered = 0 if self._progress else self._undelivered + len(data)
        if self._undelivered > MAX_HEAD_BYTES and not self._deaf:
            self.refuse(HeadTooLarge(f"the headers are above {MAX_HEAD_BYTES} bytes; send less in them"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        scope: MutableMapping[str, Any] = self.scope  # type: ignore[assignment]
        scope[PEER] = self.peer

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._stop(UrlTooLong(f"the URL is above {MAX_URL_BYTES} bytes; put what is long into the body"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer
            if len(self.headers) >= MAX_HEADERS:
                self._stop(HeadTooLarge(f"there are more than {MAX_HEADERS} headers; send fewer"))
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_since, self._progress = False, None, True
        if sum(map(len, chain.from_iterable(self.headers))) > MAX_HEAD_BYTES:
            self._stop(HeadTooLarge(f"the headers are above {MAX_HEAD_BYTES} bytes; send less in them"))
        if len(self.pipeline) >= MAX_PIPELINE:
            self._stop(InvalidHttp(f"more than {MAX_PIPELINE} requests were sent ahead; read the answers first"))
        upgrade = self.parser.should_upgrade()
        if upgrade and self._should_upgrade() and any(name in BODY_HEADERS for name, _ in self.headers):
            # uvicorn would wait for the body, and the WebSocket would not understand the head.
            self._stop(InvalidHttp("a WebSocket begins with a request without a body; leave out Content-Length"))
        super().on_headers_complete()
        if upgrade and not self._should_upgrade():
            # The request is answered, the offer is not taken up, and what follows may be another protocol.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress = True
        super().on_message_complete()
        if self.parser.should_upgrade() and not self._should_upgrade():
            self._deaf = True

    def _stop(self, error: errors.IngleError) -> None:
        """Leave the parser from one of its callbacks. It then ends in `send_400_response`."""
        self._refusal = error
        raise error

    def send_400_response(self, msg: str) -> None:
        self.refuse(self._refusal or InvalidHttp("these bytes are not an HTTP/1.1 request; send one to /v1/sessions"))

    # --- answers ---

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, partial(self._answer, cycle, app))

    def _answer(
        self, cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None]:
        if cycle.more_body:
            send = self._closing(cycle, send)
        if scope["http_version"] == "1.0":
            send = without_chunks(cycle, send)
        return app(scope, receive, send)

    def _closing(self, cycle: RequestResponseCycle, send: Send) -> Send:
        """Wrap `send`: an answer that begins before the end of the body is the last one. The rest is not read."""

        async def send_last(message: Message) -> None:
            early = message["type"] == "http.response.start" and cycle.more_body
            if early:
                cycle.keep_alive = False
            await send(message)
            if early:
                # The cycle would close at once behind its answer. `on_response_complete` lingers instead.
                self._closes = cycle.keep_alive = True

        return send_last

    def on_response_complete(self) -> None:
        self.transport.flush()
        self._running = None
        if self._closes:
            self._close()
        else:
            super().on_response_complete()

    # --- bounds ---

    def refuse(self, error: errors.IngleError) -> None:
        """Answer with `error`, unless an answer has begun, and close."""
        if self.transport.is_closing():
            return
        begun = self._running is not None and self._running.response_started
        self._drop_requests()
        if not begun:
            self.transport.write(refusal(error))
        self._close()

    def _close(self) -> None:
        """Close behind what is written, so that a client that still sends can read it."""
        self._deaf = True
        if not self._received or self.flow.write_paused or self._limit.lingering >= MAX_LINGERING:
            self.transport.close()
            return
        # Bytes that come after a close are answered by a reset, and that can overtake the answer.
        self._limit.lingering += 1
        self._limit.leave(self)
        self.connections.discard(self)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._linger = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def sweep(self, now: float) -> None:
        running = self._running
        if self._stall.seconds(now) > ANSWER_SECONDS:
            logger.info("a client took nothing of its answer for %g s and was cut off", ANSWER_SECONDS)
            cut(self.transport)
        elif self._head_since is not None and now - self._head_since > HEAD_SECONDS:
            self.refuse(TooSlow(f"no whole request came within {HEAD_SECONDS:g} s; send it at once"))
        elif running is not None and running.more_body and not self._closes:
            self._sweep_body(now)
        else:
            self._body_mark = None

    def _sweep_body(self, now: float) -> None:
        if self._body_mark is None or self.flow.read_paused:
            # While the server does not read, the client cannot be fast enough.
            self._body_mark = (now, self._received)
        elif now - self._body_mark[0] >= BODY_WINDOW_SECONDS:
            if self._received - self._body_mark[1] < BODY_BYTES_PER_SECOND * BODY_WINDOW_SECONDS:
                slow = f"the body came at less than {BODY_BYTES_PER_SECOND} bytes a second; send it faster"
                self.refuse(TooSlow(slow))
            self._body_mark = (now, self._received)


def without_chunks(cycle: RequestResponseCycle, send: Send) -> Send:
    """Wrap `send` for a client of HTTP/1.0: a body of unknown length ends with the connection."""
    unknown = False

    async def send_plain(message: Message) -> None:
        nonlocal unknown
        if message["type"] == "http.response.start":
            unknown = all(name != b"content-length" for name, _ in message.get("headers", ()))
            cycle.chunked_encoding = False if unknown else None
        elif unknown:
            # uvicorn counts down what the header promised. Here each piece is all that was promised.
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    return send_plain


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket, bounded. The server can close it although the client does not read."""

    def __init__(self, *, limit: ConnectionLimit, peer: Peer, **given: Any) -> None:
        super().__init__(**given)
        self._limit = limit
        self.peer = peer
        self.conn = ShortServerProtocol(max_size=self.config.ws_max_size, logger=self.logger)
        self._take: Callable[[bytes], None] | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # uvicorn does this after the handshake. A handshake that fails would then leave this connection counted.
        transport.set_protocol(self)
        self.transport: Any = transport  # the one of `HttpProtocol`, which joins writes
        self._stall = Stall(self.transport)
        self._limit.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit.leave(self)
        self.peer.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The first bytes are a whole head, from the HTTP protocol. uvicorn waits for more if they make no handshake.
        if not self.handshake_initiated:
            self.refuse(InvalidHttp("this request opens no WebSocket; its headers are too long or not valid"))

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            scope: MutableMapping[str, Any] = self.scope  # type: ignore[assignment]
            scope[PEER] = self.peer
            scope["extensions"][CLOSE] = self.close_now
            scope["extensions"][BUFFERED] = self.transport.get_write_buffer_size
            scope["extensions"][SEND] = self.send_now
            scope["extensions"][DELIVER] = self.deliver_to

    def send_now(self, text: bytes) -> bool:
        """Send a text. Return False if the connection is closed, or the client has not taken all that was sent."""
        if self.conn.state is not State.OPEN or self.transport.is_closing() or self.transport.get_write_buffer_size():
            return False
        self.conn.send_text(text)
        self.transport.write_now(b"".join(self.conn.data_to_send()))
        return True

    def deliver_to(self, take: Callable[[bytes], None]) -> None:
        """Hand further messages to a function. What else happens is still the app's to receive."""
        self._take = take

    def send_receive_event_to_app(self) -> None:
        data = b"".join(self.frames)
        if self._take is None or self.close_sent or not _is_text(data):
            super().send_receive_event_to_app()
        else:
            self.frames = []
            self._take(data)

    def refuse(self, error: errors.IngleError) -> None:
        """Answer the handshake with `error` and close."""
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self.transport.write(refusal(error))
            self.transport.close()

    def close_now(self, code: int, reason: str) -> None:
        """Close behind what is written. Reset the connection if the client does not take that in time."""
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.stop_keepalive()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(WEBSOCKET_CLOSE_SECONDS, cut, self.transport)

    def shutdown(self) -> None:
        # The endpoint closes an open WebSocket, after the last events of its session.
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    def sweep(self, now: float) -> None:
        # The endpoint closes a slow WebSocket much sooner. This is for one that is closed and never flushed.
        if self._stall.seconds(now) > 2 * ANSWER_SECONDS:
            cut(self.transport)
