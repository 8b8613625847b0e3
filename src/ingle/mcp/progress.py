"""Progress of one call: a client that waits gets a sign of life in time, whatever the call is waiting for."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

PROGRESS_SECONDS = 3.5
"""Clients are promised the first progress within 4 s, and then progress every 5 s."""

LINE_SHOWN = 200
"""Characters of a line that are shown as progress."""

Send = Callable[[float, str], Awaitable[None]]
"""Sends the elapsed seconds and a line to the client."""


class Progress:
    def __init__(self, send: Send, interval: float = PROGRESS_SECONDS) -> None:
        self._send = send
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._due = self._began + interval
        self._handlers = 0
        """Handlers that report by themselves at the moment."""

    @property
    def left(self) -> float:
        """Return the seconds until the next report is due."""
        return max(0.0, self._due - self._loop.time())

    async def report(self, line: str) -> None:
        now = self._loop.time()
        self._due = now + self._interval
        await self._send(now - self._began, line)

    @contextmanager
    def by_handler(self) -> Iterator[None]:
        """Leave it to the caller to report in time, with what it knows."""
        self._handlers += 1
        try:
            yield
        finally:
            self._handlers -= 1

    @contextmanager
    def kept_up(self, line: str) -> Iterator[None]:
        """Report this line whenever no handler has reported in time."""
        reporting: list[asyncio.Task[None]] = []

        def begin() -> None:
            reporting.append(self._loop.create_task(self._keep_up(line)))

        # Most calls are over sooner, and cost no task.
        timer = self._loop.call_at(self._due, begin)
        try:
            yield
        finally:
            timer.cancel()
            for task in reporting:
                task.cancel()

    async def _keep_up(self, line: str) -> None:
        while True:
            await asyncio.sleep(self.left if not self._handlers else self._interval)
            if not self._handlers and not self.left:
                await self.report(line)


def last_line(*texts: str) -> str:
    """Return the last line with text, which shows the progress."""
    for text in texts:
        lines = text[-LINE_SHOWN * 10 :].replace("\r", "\n").split("\n")
        for line in reversed(lines):
            if line.strip():
                return line.strip()[-LINE_SHOWN:]
    return ""
