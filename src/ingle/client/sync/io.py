"""The parts that differ between synchronous and asynchronous code: sleep, threads, locks, sockets. See `aio.io`.

It has no event loop, so any thread may use it, also inside a running loop.
"""

import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from ingle.client.decode import Event
from ingle.client.results import ItemResult

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

T = TypeVar("T")

__all__ = [
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

    def receive(self, seconds: float | None) -> bytes:
        """Return the next frame, or raise TimeoutError."""
        return self._connection.recv(seconds, decode=False)

    def close(self) -> None:
        self._manager.__exit__(None, None, None)
