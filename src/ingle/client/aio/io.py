"""The parts that differ between asynchronous and synchronous code: sleep, threads, locks, sockets. See `sync.io`."""

import asyncio
import inspect
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from ingle.client.decode import Event
from ingle.client.results import ItemResult

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

T = TypeVar("T")

__all__ = [
    "EventStream",
    "HttpClient",
    "HttpTransport",
    "ItemResults",
    "LineStream",
    "Lock",
    "WebSocket",
    "aclosing",
    "body_of",
    "call",
    "in_thread",
    "sleep",
]

EventStream = AsyncGenerator[Event, None]
LineStream = AsyncGenerator[bytes, None]
ItemResults = AsyncGenerator[ItemResult, None]
HttpClient = httpx.AsyncClient
HttpTransport = httpx.AsyncHTTPTransport
Lock = asyncio.Lock
sleep = asyncio.sleep


async def in_thread(function: Callable[..., T], *given: Any) -> T:
    """Call a blocking function without blocking the event loop."""
    return await asyncio.to_thread(function, *given)


async def body_of(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of a body. Reading each may block."""
    while (piece := await in_thread(next, pieces, None)) is not None:
        yield piece


async def call(callback: Callable[..., Any], *given: Any) -> Any:
    """Call a user's callback, which may be a coroutine function."""
    answer = callback(*given)
    return await answer if inspect.isawaitable(answer) else answer


class WebSocket:
    def __init__(self, connection: "ClientConnection") -> None:
        self._connection = connection

    @classmethod
    async def open(cls, url: str, headers: dict[str, str], sock: socket.socket | None, **options: Any) -> "WebSocket":
        # Imported late, because most clients never stream.
        from websockets.asyncio.client import connect

        if sock is not None:
            sock.setblocking(False)
            options["sock"] = sock
        return cls(await connect(url, additional_headers=headers, compression=None, **options))

    async def receive(self, seconds: float | None) -> bytes:
        """Return the next frame, or raise TimeoutError."""
        if seconds is None:
            return await self._connection.recv(decode=False)
        async with asyncio.timeout(seconds):
            return await self._connection.recv(decode=False)

    async def close(self) -> None:
        await self._connection.close()
