"""Messages of JSON-RPC, one per line, as a read stream of the MCP SDK. No thread and no task is behind it."""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Any, Self

import anyio


class Lines:
    """Bytes that arrive, cut into lines. The owner bounds what waits for its end."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield each line that is complete, without its end."""
        if data and not self._buffer and data.find(b"\n") == len(data) - 1:  # one whole line, most often
            yield data[:-1]
            return
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            yield line
        self._searched = len(self._buffer)

    @property
    def waiting(self) -> int:
        """Number of bytes of the line that is not complete."""
        return self._searched

    def take(self) -> bytes:
        """Return and forget the line that is not complete."""
        taken = bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return taken


class MessageStream:
    """Queue of messages with the methods of a stream. It ends with `end`, after the last message."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: deque[Any] = deque()
        self._woken: asyncio.Future[None] | None = None
        self.over = asyncio.Event()

    def put(self, message: Any) -> None:
        self._messages.append(message)
        self._wake()

    def end(self) -> None:
        self.over.set()
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def receive(self) -> Any:
        while not self._messages:
            if self.over.is_set():
                raise anyio.EndOfStream
            self._woken = self._loop.create_future()
            await self._woken
        return self._messages.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    # The SDK closes its streams after use, but these end with the process.

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass
