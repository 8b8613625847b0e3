"""WebSocket of a service on this machine, without a thread of its own: the thread that waits for a message reads it.

The library's own connection reads in a second thread. Two switches of threads for each message would take longer than
the call of a function.
"""

import select
import socket
import threading
from typing import Any

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from ingle.client.leader import NearLeader
from ingle.tools.short_frames import ShortClientProtocol

CHUNK_BYTES = 65536

CLOSE_SECONDS = 5.0
"""Time for the service to say goodbye. Then it has withdrawn the functions."""


class NearSocket:
    """One thread at a time receives; any thread sends."""

    def __init__(self, sock: socket.socket, protocol: ShortClientProtocol) -> None:
        self._socket = sock
        self._protocol = protocol
        self._lock = threading.Lock()
        """Held while the protocol is used, which knows nothing of threads."""
        self._messages: list[bytes] = []
        self._parts: list[bytes] = []
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._ended = threading.Event()
        """Set when no thread reads, or the last message was read."""
        self._ended.set()

    def make_leader(self) -> NearLeader:
        """Return the place for threads that read from now on."""
        self._ended.clear()
        return NearLeader(self._socket)

    @property
    def buffered(self) -> bool:
        """Whether `receive` returns at once."""
        return bool(self._messages)

    @classmethod
    def open(
        cls,
        url: str,
        headers: dict[str, str],
        sock: socket.socket | None,
        *,
        max_size: int,
        open_timeout: float,
    ) -> "NearSocket":
        """Connect. Raise what the library's own connection raises."""
        uri = parse_uri(url)
        if sock is None:
            sock = socket.create_connection((uri.host, uri.port), open_timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        sock.settimeout(open_timeout)
        protocol = ShortClientProtocol(uri, max_size=max_size)
        made = cls(sock, protocol)
        try:
            request = protocol.connect()
            request.headers.update(headers)
            protocol.send_request(request)
            made._flush()
            while protocol.state is State.CONNECTING and protocol.handshake_exc is None:
                made._read()
            if protocol.handshake_exc is not None:
                raise protocol.handshake_exc
        except BaseException:
            sock.close()
            raise
        sock.settimeout(None)
        return made

    def _flush(self) -> None:
        """Send what the protocol has to say. An empty piece is the end of what this side sends."""
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)
            else:
                self._socket.shutdown(socket.SHUT_WR)

    def _read(self) -> None:
        data = self._socket.recv(CHUNK_BYTES)
        with self._lock:
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            for event in self._protocol.events_received():
                if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    self._parts.append(bytes(event.data))
                    if event.fin:
                        self._messages.append(b"".join(self._parts))
                        self._parts.clear()
            self._flush()
        if not data and self._protocol.state is not State.CONNECTING:
            raise self._protocol.close_exc

    def receive(self, seconds: float | None) -> bytes:
        """Return the next frame, or raise TimeoutError or ConnectionClosed."""
        try:
            return self._next(seconds)
        except (ConnectionClosed, OSError):
            self._ended.set()
            raise

    def _next(self, seconds: float | None) -> bytes:
        while not self._messages:
            # Not left to `recv`: on a Unix socket, that is also woken by each message that the service has read.
            if not self._poll.poll(None if seconds is None else seconds * 1000):
                raise TimeoutError
            self._read()
        return self._messages.pop(0)

    def send(self, value: Any) -> None:
        self.send_text(msgspec.json.encode(value))

    def send_text(self, text: bytes) -> None:
        with self._lock:
            if self._protocol.state is not State.OPEN:
                raise ConnectionError("the connection is closed")
            self._protocol.send_text(text)
            self._flush()

    def close(self) -> None:
        """Say goodbye, wait for the service to do so, and wake the thread that receives."""
        try:
            with self._lock:
                if self._protocol.state is State.OPEN:
                    self._protocol.send_close(1000)
                    self._flush()
            self._ended.wait(CLOSE_SECONDS)
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the service has closed it before
        self._socket.close()
