"""The connections: uvicorn's protocols, with bounds on what a client may cost, and our own ends to them.

A request must come within a time and a size, an answer must be taken, and only so many connections are open; whoever
oversteps is told with a problem where that is possible, and closed. What is no HTTP is answered with a problem too. A
unix socket is open to its owner and to root. A WebSocket can be closed with a reason while its client does not read,
and is not cut off before its last events when the server stops.
"""

import asyncio
import logging
import os
import socket
import struct
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from ingle import errors
from ingle.http.corking import Corked
from ingle.http.guard import WELCOME
from ingle.http.problems import HeadTooLarge, InvalidHttp, Problem, TooSlow, UrlTooLong, encode, headers_of
from ingle.servers import peer_is_confined, peer_uid

CLOSE = "ingle.close"
"""The extension of a WebSocket's scope by which it is closed at once, whether its client reads or not."""

BUFFERED = "ingle.buffered"
"""The extension that tells how many bytes wait to be taken by the client."""

LINGER = 10.0
"""How long a client that does not read may take to find out that it was closed."""

SAY_WHY = 1.0
"""How long a refused client may still send, unheard, so that it gets to reading why."""

MAX_LINGERING = 256
"""Refused connections that are kept open for that at once."""

SWEEP = 1.0
"""How often connections are looked at."""

HEAD_PATIENCE = 10.0
"""From the first byte of a request, or the opening of its connection, to the end of its headers."""

BODY_WINDOW = 10.0
BODY_RATE = 256
"""A body that brings fewer bytes a second than this, over the window, is given up."""

ANSWER_PATIENCE = 30.0
"""How long nothing at all of an answer may be taken."""

MAX_HEAD = 64 * 1024
MAX_HEADERS = 100
MAX_URL = 8 * 1024
MAX_PIPELINE = 16
"""Requests sent ahead on one connection."""

logger = logging.getLogger(__name__)


class Lobby:
    """The connections of one door. Past the limit, whoever has shown no token goes first, the oldest of them."""

    def __init__(self, limit: int, local: bool = False) -> None:
        self._limit = limit
        self.local = local
        self.strangers: dict[Protocol, None] = {}
        self.lingering = 0

    def enter(self, newcomer: "Protocol") -> None:
        if self.local:
            return
        self.strangers[newcomer] = None
        if len(newcomer.connections) > self._limit:
            oldest = next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.refuse(errors.Unavailable(f"all {self._limit} connections are in use; try again in a moment"))

    def leave(self, known: "Protocol") -> None:
        """It has shown a token, or is gone."""
        self.strangers.pop(known, None)

    async def sweep(self, state: ServerState) -> None:
        """Look after all connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP)
            now = loop.time()
            for connection in list(state.connections):
                if isinstance(connection, (Protocol, WatchProtocol)):
                    connection.sweep(now)


class Stall:
    """Whether a client takes what was written for it: some of it, within a time."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._size, self._since = 0, 0.0

    def lasts(self, now: float) -> float:
        """For how long nothing was taken; 0 when nothing waits."""
        size = self._transport.get_write_buffer_size()
        if size == 0 or size != self._size:
            self._size, self._since = size, now
        return now - self._since


def cut(transport: asyncio.Transport) -> None:
    """End a connection now. Without the option the kernel would go on offering what nobody takes, for minutes."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Protocol(HttpToolsProtocol):
    def __init__(self, *, lobby: Lobby, **given: Any) -> None:
        super().__init__(**given)
        self._lobby = lobby
        self._refusal: errors.IngleError | None = None
        self._head_since: float | None = None
        self._head_bytes = 0
        self._received = 0
        self._mark: tuple[float, int] | None = None

    def connection_made(self, transport: Any) -> None:
        transport = Corked(transport, self.loop)
        super().connection_made(transport)
        self._stall = Stall(transport)
        self._head_since = self.loop.time()
        if self._lobby.local:
            connection: socket.socket = transport.get_extra_info("socket")
            # The mode of the socket says the same; this holds also where the file was opened up by mistake.
            if peer_uid(connection) not in (0, os.geteuid()) or peer_is_confined(connection):
                transport.abort()
        self._lobby.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lobby.leave(self)
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        self._lobby.leave(self)
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._received += len(data)
        if self._head_since is None and (self.cycle is None or self.cycle.response_complete):
            self._head_since = self.loop.time()
        super().data_received(data)
        if self._head_since is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.refuse(HeadTooLarge(f"the headers are above {MAX_HEAD} bytes; send less in them"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self in self._lobby.strangers:
            scope: Any = self.scope
            scope[WELCOME] = self._welcome

    def _welcome(self) -> None:
        self._lobby.leave(self)

    def on_headers_complete(self) -> None:
        self._head_since, self._head_bytes = None, 0
        if len(self.url) > MAX_URL:
            self._refusal = UrlTooLong(f"the URL is above {MAX_URL} bytes; put what is long into the body")
        elif len(self.headers) > MAX_HEADERS:
            self._refusal = HeadTooLarge(f"there are more than {MAX_HEADERS} headers; send fewer")
        elif len(self.pipeline) >= MAX_PIPELINE:
            self._refusal = InvalidHttp(f"more than {MAX_PIPELINE} requests were sent ahead; read the answers first")
        if self._refusal is not None:
            raise self._refusal
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        # The parser ends here for whatever a callback raises, as well as for what is no HTTP.
        self.refuse(self._refusal or InvalidHttp("these bytes are not an HTTP/1.1 request; send one to /v1/sessions"))

    def refuse(self, error: errors.IngleError) -> None:
        """Say why, if nothing was said yet, and close."""
        self._refusal = error
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = encode(Problem.of(error))
            head = b"".join(b"%s: %s\r\n" % pair for pair in headers_of(error, len(body)) if pair[0] != b"connection")
            status = b"HTTP/1.1 %d %s\r\n" % (error.status, HTTPStatus(error.status).phrase.encode())
            self.transport.write(status + head + b"connection: close\r\n\r\n" + body)
        if self._received and self._lobby.lingering < MAX_LINGERING:
            # What is still on its way would be answered by a reset, and that can overtake our words.
            self._lobby.lingering += 1
            self.connections.discard(self)
            self.transport.write_eof()
            self.flow.resume_reading()
            self.loop.call_later(SAY_WHY, self._let_go)
        else:
            self.transport.close()

    def _let_go(self) -> None:
        self._lobby.lingering -= 1
        self.transport.abort()

    def sweep(self, now: float) -> None:
        if self._stall.lasts(now) > ANSWER_PATIENCE:
            logger.info("a client took nothing of its answer for %g s and was cut off", ANSWER_PATIENCE)
            cut(self.transport)
        elif self._head_since is not None and now - self._head_since > HEAD_PATIENCE:
            self.refuse(TooSlow(f"no whole request came within {HEAD_PATIENCE:g} s; send it at once"))
        elif self.cycle is not None and self.cycle.more_body and not self.cycle.response_complete:
            self._watch_body(now)
        else:
            self._mark = None

    def _watch_body(self, now: float) -> None:
        if self._mark is None or self.flow.read_paused:
            # It is we who do not read.
            self._mark = (now, self._received)
        elif now - self._mark[0] >= BODY_WINDOW:
            if self._received - self._mark[1] < BODY_RATE * BODY_WINDOW:
                self.refuse(TooSlow(f"the body came at less than {BODY_RATE} bytes a second; send it faster"))
            self._mark = (now, self._received)


class WatchProtocol(WebSocketsSansIOProtocol):
    """A WebSocket that the server can close although nobody reads at the other end."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._stall = Stall(transport)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions: Any = self.scope["extensions"]
            extensions[CLOSE] = self.close_now
            extensions[BUFFERED] = self.transport.get_write_buffer_size

    def close_now(self, code: int, reason: str) -> None:
        """Close behind what is written already. The connection is cut if that is not taken within `LINGER`."""
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.stop_keepalive()
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER, cut, self.transport)

    def shutdown(self) -> None:
        # An open one is closed by its endpoint, after the last events of its session.
        if not self.handshake_complete or self.close_sent:
            super().shutdown()

    def sweep(self, now: float) -> None:
        # Its endpoint closes it much sooner; this is for one that is closed, and never flushed.
        if self._stall.lasts(now) > 2 * ANSWER_PATIENCE:
            cut(self.transport)
