"""Events of one cell on their way from the one reader of a session's timeline to the request that has begun it."""

import asyncio
from collections import deque
from typing import Any

from ingle.events import AnyEvent

MAX_EVENTS = 64
"""Events that wait for a client. More stay in the timeline, which is bounded."""


class Inbox:
    """Iterator of the events of a cell. It ends when it is closed."""

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        """Header of the request that has begun the cell."""
        self.over = False
        """Whether the request waits for no more events: the end of the cell was put in, or the request was left."""
        self._events: deque[AnyEvent] = deque()
        self._changed = asyncio.Event()
        """Set when an event was put in or taken, or the inbox was closed or left."""
        self._closed = False

    async def put(self, event: AnyEvent) -> None:
        """Add an event. Wait while too many wait for the client."""
        while len(self._events) >= MAX_EVENTS and not self.over:
            await self._change()
        self._events.append(event)
        self._changed.set()

    def close(self) -> None:
        """End the iterator: the session has ended, and no more events come."""
        self._closed = True
        self._changed.set()

    def leave(self) -> None:
        """Take no more events."""
        self.over = True
        self._events.clear()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def __aiter__(self) -> "Inbox":
        return self

    async def __anext__(self) -> AnyEvent:
        while not self._events:
            if self._closed:
                raise StopAsyncIteration
            await self._change()
        self._changed.set()
        return self._events.popleft()
