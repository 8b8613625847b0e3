"""What differs between waiting with `await` and without: sleeping, threads, locks, sockets. `aio.io` is its twin.

There is no event loop in here: it may be used from any thread, inside a running loop too.
"""

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from ingle.client.decode import Event

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

T = TypeVar("T")

__all__ = ["EventStream", "HttpClient", "HttpTransport", "Lock", "WebSocket", "call", "closing", "in_thread", "sleep"]

EventStream = Generator[Event, None, None]
HttpClient = httpx.Client
HttpTransport = httpx.HTTPTransport
Lock = threading.Lock
sleep = time.sleep


def in_thread(function: Callable[..., T], *given: Any) -> T:
    """Call what blocks: here that is no matter."""
    return function(*given)


def call(callback: Callable[..., Any], *given: Any) -> Any:
    """Call what a user gave."""
    return callback(*given)


class WebSocket:
    def __init__(self, manager: "AbstractContextManager[ClientConnection]") -> None:
        # Some versions of websockets connect when the context is entered, others before.
        self._manager = manager
        self._connection = manager.__enter__()

    @classmethod
    def open(cls, url: str, headers: dict[str, str], sock: socket.socket | None, **options: Any) -> "WebSocket":
        # Late: most clients never stream.
        from websockets.sync.client import connect

        if sock is not None:
            options["sock"] = sock
        return cls(connect(url, additional_headers=headers, compression=None, **options))

    def receive(self, seconds: float | None) -> bytes:
        """The next frame; TimeoutError when none came in time."""
        return self._connection.recv(seconds, decode=False)

    def close(self) -> None:
        self._manager.__exit__(None, None, None)
