"""The parts that differ between asynchronous and synchronous code: sleep, threads, locks, sockets. See `sync.io`."""

import asyncio
import inspect
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import msgspec

from ingle.client.decode import Event
from ingle.client.functions import Function, result_of
from ingle.client.results import ItemResult
from ingle.tools.shapes import FunctionCall, FunctionCancelled

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

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
    "aclosing",
    "body_of",
    "call",
    "in_thread",
    "open_near",
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

    async def send(self, value: Any) -> None:
        await self.send_text(msgspec.json.encode(value))

    async def send_text(self, text: bytes) -> None:
        """Send a text in UTF-8."""
        await self._connection.send(text, text=True)

    async def close(self) -> None:
        await self._connection.close()


CallSocket = WebSocket
"""Connection that carries calls of functions of this program."""


async def open_near(url: str, headers: dict[str, str], sock: socket.socket | None, **options: Any) -> CallSocket:
    """Open a WebSocket of a service on this machine, for calls."""
    return await WebSocket.open(url, headers, sock, proxy=None, **options)


class Calls:
    """Calls of functions of this program: each in a task of its own, a blocking function in a thread."""

    def __init__(self) -> None:
        self._serving: asyncio.Task[None] | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(
        self,
        socket: CallSocket,
        receive: Callable[[], Awaitable[FunctionCall | FunctionCancelled | None]],
        answer: Callable[[FunctionCall], Coroutine[Any, Any, None]],
    ) -> None:
        """Answer each call that `receive` returns from the socket, until it returns None."""
        self._serving = asyncio.get_running_loop().create_task(self._serve(receive, answer))

    async def _serve(
        self,
        receive: Callable[[], Awaitable[FunctionCall | FunctionCancelled | None]],
        answer: Callable[[FunctionCall], Coroutine[Any, Any, None]],
    ) -> None:
        while (wanted := await receive()) is not None:
            if isinstance(wanted, FunctionCall):
                number = wanted.id
                task = self._tasks[number] = asyncio.get_running_loop().create_task(answer(wanted))
                task.add_done_callback(lambda task, number=number: self._tasks.pop(number, None))  # type: ignore[misc]
            elif wanted.id in self._tasks:
                self._tasks[wanted.id].cancel()

    async def run(self, function: Function, arguments: bytes) -> bytes:
        """Call a function and return the fields of the answer."""
        if function.is_async:
            return result_of(await function(function.bind(arguments)))
        return await asyncio.to_thread(function.call_blocking, arguments)

    async def stop(self) -> None:
        for task in [*self._tasks.values(), *([self._serving] if self._serving is not None else [])]:
            if task is not asyncio.current_task():
                task.cancel()
