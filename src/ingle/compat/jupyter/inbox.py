"""Events of one cell on their way from the one reader of a session's timeline to the request that has begun it."""

import asyncio
from collections import deque
from typing import Any

from ingle.events import AnyEvent


class Inbox:
    """Iterator of the events of a cell. It ends when it is closed."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        """Header of the request that has begun the cell."""
        self.over = False
        """Whether the end of the cell was put in. What comes later belongs to no request that waits."""
        self._events: deque[AnyEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def put(self, event: AnyEvent) -> None:
        self._events.append(event)
        self._wake()

    def close(self) -> None:
        """End the iterator: the session has ended, and no more events come."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __aiter__(self) -> "Inbox":
        return self

    async def __anext__(self) -> AnyEvent:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._events.popleft()
