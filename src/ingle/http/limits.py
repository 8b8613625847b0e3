"""The connections: HTTP/1.1 by httptools' parser, uvicorn's WebSockets, with bounds on what a client may cost.

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
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools
import uvicorn
from starlette.types import Scope
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from ingle import errors
from ingle.http.auth.guard import WELCOME
from ingle.http.corking import Corked, Turn
from ingle.http.exchanges import STATUS_LINES, Application, Exchange
from ingle.http.problems import HeadTooLarge, InvalidHttp, Problem, TooSlow, UrlTooLong, encode, headers_of
from ingle.support.running_servers import peer_is_confined, peer_uid

CLOSE = "ingle.close"
"""The extension of a WebSocket's scope by which it is closed at once, whether its client reads or not."""

BUFFERED = "ingle.buffered"
"""The extension that tells how many bytes wait to be taken by the client."""

LINGER = 10.0
"""How long a client that does not read may take to find out that it was closed."""

SAY_WHY = 1.0
"""How long a refused client may still send, unheard, so that it gets to reading why."""

MAX_UNHEARD = 1024 * 1024
"""Bytes of that; what is more is not even read."""

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

ASGI = {"version": "3.0", "spec_version": "2.3"}

logger = logging.getLogger(__name__)


class Lobby:
    """The connections of one door. Past the limit, whoever has shown no token goes first, the oldest of them."""

    def __init__(self, limit: int, local: bool = False) -> None:
        self._limit = limit
        self.local = local
        self.strangers: dict[Protocol, None] = {}
        self.lingering = 0
        self.turn = Turn()

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

    def __init__(self, transport: asyncio.Transport | Corked) -> None:
        self._transport = transport
        self._size, self._since = 0, 0.0

    def lasts(self, now: float) -> float:
        """For how long nothing was taken; 0 when nothing waits."""
        size = self._transport.get_write_buffer_size()
        if size == 0 or size != self._size:
            self._size, self._since = size, now
        return now - self._since


def cut(transport: asyncio.Transport | Corked) -> None:
    """End a connection now. Without the option the kernel would go on offering what nobody takes, for minutes."""
    connection: socket.socket | None = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Protocol(asyncio.Protocol):
    """HTTP/1.1: an exchange for each request, one answered after the other."""

    def __init__(
        self,
        *,
        app: Application,
        lobby: Lobby,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = app
        self._config = config
        self.state = server_state
        self._app_state = app_state
        self._lobby = lobby
        self.loop = asyncio.get_running_loop()
        self.connections: set[Any] = server_state.connections
        self.tasks = server_state.tasks
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] | None = []
        """Of the request whose head is being read; None while a body is, and whatever stands behind it."""
        self._asking: Exchange | None = None
        """Whose request is being read, or was read last."""
        self._answering: Exchange | None = None
        self._ahead: deque[Exchange] = deque()
        self._read_paused = False
        self.write_paused = False
        self.writable = asyncio.Event()
        self._refusal: errors.IngleError | None = None
        self._deaf = False
        """What still comes is not listened to."""
        self._unheard = 0
        self._idle_since: float | None = None
        self._head_since: float | None = None
        self._head_bytes = 0
        self._received = 0
        self._mark: tuple[float, int] | None = None

    # --- the connection ---

    def connection_made(self, transport: Any) -> None:
        self.transport = Corked(transport, self._lobby.turn)
        self.connections.add(self)
        self._server, self._client = get_local_addr(transport), get_remote_addr(transport)
        self._stall = Stall(self.transport)
        self._head_since = self.loop.time()
        if self._lobby.local:
            connection: socket.socket = transport.get_extra_info("socket")
            # The mode of the socket says the same; this holds also where the file was opened up by mistake.
            if peer_uid(connection) not in (0, os.geteuid()) or peer_is_confined(connection):
                transport.abort()
        self._lobby.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)
        self._lobby.leave(self)
        self._lose()

    def _lose(self) -> None:
        """No exchange has anybody to answer."""
        for exchange in (self._answering, *self._ahead):
            if exchange is not None:
                exchange.lose()
        self._ahead.clear()
        self.writable.set()

    def shutdown(self) -> None:
        """The server is about to end: answer what was asked, and no more."""
        if self._answering is None:
            self.transport.close()
        elif self._asking is not None:
            self._asking.keep_alive = False

    def pause_writing(self) -> None:
        self.write_paused = True
        self.writable.clear()

    def resume_writing(self) -> None:
        self.write_paused = False
        self.writable.set()

    def pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self._read_paused and not self._ahead:
            self._read_paused = False
            self.transport.resume_reading()

    # --- requests ---

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None or self._deaf:
            self._unheard += len(data)
            if self._unheard > MAX_UNHEARD:
                self.pause_reading()
            return
        self._received += len(data)
        self._idle_since = None
        if self._head_since is None and self._answering is None:
            self._head_since = self.loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            # The parser ends here for whatever a callback raises, as well as for what is no HTTP.
            no_http = InvalidHttp("these bytes are not an HTTP/1.1 request; send one to /v1/sessions")
            self.refuse(self._refusal or no_http)
            return
        except httptools.HttpParserUpgrade:
            self._upgrade()
        if self._head_since is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.refuse(HeadTooLarge(f"the headers are above {MAX_HEAD} bytes; send less in them"))

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headers is not None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._head_since, self._head_bytes = None, 0
        headers, self._headers = self._headers or [], None
        if len(self._url) > MAX_URL:
            self._refusal = UrlTooLong(f"the URL is above {MAX_URL} bytes; put what is long into the body")
        elif len(headers) > MAX_HEADERS:
            self._refusal = HeadTooLarge(f"there are more than {MAX_HEADERS} headers; send fewer")
        elif len(self._ahead) >= MAX_PIPELINE:
            self._refusal = InvalidHttp(f"more than {MAX_PIPELINE} requests were sent ahead; read the answers first")
        if self._refusal is not None:
            raise self._refusal
        parser = self._parser
        version: str = parser.get_http_version()
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        scope: Scope = {
            "type": "http",
            "asgi": ASGI,
            "http_version": version,
            "server": self._server,
            "client": self._client,
            "scheme": "http",
            "root_path": "",
            "headers": headers,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
        }
        if self in self._lobby.strangers:
            scope[WELCOME] = self._welcome
        keep_alive = version == "1.1" and parser.should_keep_alive()
        exchange = Exchange(self, scope, keep_alive)
        self._asking = exchange
        if parser.should_upgrade() and _asks_for_websocket(headers):
            # Nothing is begun: the parser stops behind the head, and the connection is handed on.
            return
        if self._answering is None:
            self._begin(exchange)
        else:
            self._ahead.append(exchange)
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._asking is not None:
            self._asking.take(body)

    def on_message_complete(self) -> None:
        self._url, self._headers = b"", []
        if self._asking is not None:
            self._asking.take_end()

    def _welcome(self) -> None:
        self._lobby.leave(self)

    def _begin(self, exchange: Exchange) -> None:
        self._answering = exchange
        exchange.begin(self._app)

    def answered(self, exchange: Exchange) -> None:
        """The answer of the one that was begun is written, to its end."""
        self._answering = None
        if not exchange.keep_alive:
            self._part(unread=exchange.more_body)
        elif not self.transport.is_closing():
            if self._ahead:
                self._begin(self._ahead.popleft())
            else:
                self._idle_since = self.loop.time()
            self.resume_reading()

    def _upgrade(self) -> None:
        """What comes next on this connection is no HTTP."""
        asking = self._asking
        assert asking is not None
        if not _asks_for_websocket(asking.scope["headers"]):
            # What was offered is not taken up; the request itself is answered like any other, and nothing after it.
            asking.keep_alive, self._deaf = False, True
        elif self._answering is not None:
            self.refuse(InvalidHttp("a WebSocket was asked for before the last answer; read that first"))
        else:
            self.connections.discard(self)
            self._lobby.leave(self)
            self._head_since = None
            ws: Any = self._config.ws_protocol_class
            protocol = ws(config=self._config, server_state=self.state, app_state=self._app_state)
            protocol.connection_made(self.transport)
            target = asking.scope["raw_path"] + b"?" + asking.scope["query_string"]
            lines = [b"%b %b HTTP/1.1" % (asking.scope["method"].encode(), target)]
            lines += [b"%b: %b" % pair for pair in asking.scope["headers"]]
            protocol.data_received(b"\r\n".join([*lines, b"\r\n"]))
            self.transport.set_protocol(protocol)

    # --- bounds ---

    def refuse(self, error: errors.IngleError) -> None:
        """Say why, if nothing was said yet, and close."""
        self._refusal = error
        if self.transport.is_closing():
            return
        answering, asking = self._answering, self._asking
        under_way = answering is not None and answering.started
        answered_early = asking is not None and asking.complete and asking.more_body
        self._lose()
        if not (under_way or answered_early):
            body = encode(Problem.of(error))
            lines = [STATUS_LINES[error.status]]
            lines += [b"%b: %b" % pair for pair in headers_of(error, len(body)) if pair[0] != b"connection"]
            self.transport.write(b"\r\n".join([*lines, b"connection: close", b"", body]))
        self._part(unread=self._received > 0)

    def _part(self, unread: bool) -> None:
        """Close, behind what is written."""
        if unread and not self.write_paused and self._lobby.lingering < MAX_LINGERING:
            self._deaf = True
            # What is still on its way would be answered by a reset, and that can overtake our words.
            self._lobby.lingering += 1
            self.connections.discard(self)
            self.transport.write_eof()
            self.resume_reading()
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
        elif self._idle_since is not None and now - self._idle_since > self._config.timeout_keep_alive:
            self.transport.close()
        elif self._answering is not None and self._answering.more_body:
            self._watch_body(now)
        else:
            self._mark = None

    def _watch_body(self, now: float) -> None:
        if self._mark is None or self._read_paused:
            # It is we who do not read.
            self._mark = (now, self._received)
        elif now - self._mark[0] >= BODY_WINDOW:
            if self._received - self._mark[1] < BODY_RATE * BODY_WINDOW:
                self.refuse(TooSlow(f"the body came at less than {BODY_RATE} bytes a second; send it faster"))
            self._mark = (now, self._received)


def _asks_for_websocket(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in headers)


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
