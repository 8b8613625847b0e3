"""The parts that differ between synchronous and asynchronous code: sleep, threads, locks, sockets. See `aio.io`.

It has no event loop, so any thread may use it, also inside a running loop.
"""

import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, TypeVar, Union

import httpx
import msgspec

from ingle.client.decode import Event
from ingle.client.functions import Function
from ingle.client.leader import Leader
from ingle.client.results import ItemResult
from ingle.tools.shapes import FunctionCall, FunctionCancelled

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from ingle.client.near_socket import NearSocket

T = TypeVar("T")

__all__ = [
    "CallSocket",
    "Calls",
    "EventStream",
    "HttpClient",
    "HttpTransport",
    "ItemResults",
    "LineStream",
    "Lock",
    "WebSocket",
    "body_of",
    "call",
    "closing",
    "in_thread",
    "open_near",
    "sleep",
]

EventStream = Generator[Event, None, None]
LineStream = Generator[bytes, None, None]
ItemResults = Generator[ItemResult, None, None]
HttpClient = httpx.Client
HttpTransport = httpx.HTTPTransport
Lock = threading.Lock
sleep = time.sleep


def in_thread(function: Callable[..., T], *given: Any) -> T:
    """Call a blocking function."""
    return function(*given)


def body_of(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a body."""
    return pieces


def call(callback: Callable[..., Any], *given: Any) -> Any:
    """Call a user's callback."""
    return callback(*given)


class WebSocket:
    def __init__(self, manager: "AbstractContextManager[ClientConnection]") -> None:
        # Some versions of websockets connect on entering the context, others before.
        self._manager = manager
        self._connection = manager.__enter__()

    @classmethod
    def open(cls, url: str, headers: dict[str, str], sock: socket.socket | None, **options: Any) -> "WebSocket":
        # Imported late, because most clients never stream.
        from websockets.sync.client import connect

        if sock is not None:
            options["sock"] = sock
        return cls(connect(url, additional_headers=headers, compression=None, **options))

    buffered = False

    def make_leader(self) -> Leader:
        return Leader()

    def receive(self, seconds: float | None) -> bytes:
        """Return the next frame, or raise TimeoutError."""
        return self._connection.recv(seconds, decode=False)

    def send(self, value: Any) -> None:
        self.send_text(msgspec.json.encode(value))

    def send_text(self, text: bytes) -> None:
        """Send a text in UTF-8."""
        self._connection.send(text, text=True)

    def close(self) -> None:
        self._manager.__exit__(None, None, None)


CallSocket = Union[WebSocket, "NearSocket"]
"""Connection that carries calls of functions of this program."""


def open_near(url: str, headers: dict[str, str], sock: socket.socket | None, **options: Any) -> CallSocket:
    """Open a WebSocket of a service on this machine, for calls."""
    from ingle.client.near_socket import NearSocket

    return NearSocket.open(url, headers, sock, **options)


MAX_THREADS = 64
"""Functions that run at the same time. More wait for one of them to end."""


class Calls:
    """Calls of functions of this program, in threads.

    One thread leads: it waits for the next call and then carries it out itself, which saves a switch of threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0
        self._over = False

    def start(
        self,
        socket: CallSocket,
        receive: Callable[[], FunctionCall | FunctionCancelled | None],
        answer: Callable[[FunctionCall], None],
    ) -> None:
        """Answer each call that `receive` returns from the socket, until it returns None."""
        self._socket = socket
        self._leader = socket.make_leader()
        self._receive = receive
        self._answer = answer
        self._add_thread()

    def _add_thread(self) -> None:
        """Start a thread, unless one is idle."""
        with self._lock:
            if self._idle or self._threads >= MAX_THREADS:
                return
            self._idle += 1
            self._threads += 1
        threading.Thread(target=self._serve, name="ingle-functions", daemon=True).start()

    def _serve(self) -> None:
        leader = self._leader
        leader.wait()
        self._count_idle(-1)
        while (wanted := None if self._over else self._receive()) is not None:
            if isinstance(wanted, FunctionCancelled):  # a call that runs in a thread cannot be given up
                continue
            self._add_thread()
            leader.lend(wanted=self._socket.buffered)
            self._answer(wanted)
            if not leader.take_back():
                self._count_idle(1)
                leader.wait()
                self._count_idle(-1)
        self._over = True
        with self._lock:
            self._threads -= 1
            last = self._threads == 0
        # Each thread wakes the next one to its end.
        if last:
            leader.close()
        else:
            leader.lend(wanted=True)

    def _count_idle(self, change: int) -> None:
        with self._lock:
            self._idle += change

    def run(self, function: Function, arguments: bytes) -> bytes:
        """Call a function and return the fields of the answer."""
        return function.call_blocking(arguments)

    def stop(self) -> None:
        """The threads end with the connection."""
        self._over = True
