"""The connections: uvicorn's protocols, with our own ends to them.

What is no HTTP is answered with a problem. A unix socket is open to its owner and to root. A WebSocket can be closed
with a reason while its client does not read, and is not cut off before its last events when the server stops.
"""

import os
import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ingle.http.problems import MEDIA_TYPE, InvalidHttp, Problem, encode
from ingle.servers import peer_uid

CLOSE = "ingle.close"
"""The extension of a WebSocket's scope by which it is closed at once, whether its client reads or not."""

LINGER = 10.0
"""How long a client that does not read may take to find out that it was closed."""


class Protocol(HttpToolsProtocol):
    """HTTP, with a problem also for what is no HTTP."""

    def send_400_response(self, msg: str) -> None:
        error = InvalidHttp("these bytes are not an HTTP/1.1 request; send one to /v1/sessions")
        body = encode(Problem.of(error))
        head = (
            f"HTTP/1.1 {error.status} Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class LocalProtocol(Protocol):
    """HTTP on a unix socket: for processes of the same user, and of root."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        connection: socket.socket = transport.get_extra_info("socket")
        # The mode of the socket says the same; this holds also where the file was opened up by mistake.
        if peer_uid(connection) not in (0, os.geteuid()):
            transport.abort()


class WatchProtocol(WebSocketsSansIOProtocol):
    """A WebSocket that the server can close although nobody reads at the other end."""

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions: Any = self.scope["extensions"]
            extensions[CLOSE] = self.close_now

    def close_now(self, code: int, reason: str) -> None:
        """Close behind what is written already. The connection is cut if that is not taken within `LINGER`."""
        if self.close_sent or self.disconnected or self.transport.is_closing():
            return
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER, self.transport.abort)

    def shutdown(self) -> None:
        # An open one is closed by its endpoint, after the last events of its session.
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
