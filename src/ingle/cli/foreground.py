"""Work that somebody waits for at a terminal: Ctrl-C and signals on their way to it, its end as an exit code.

A first Ctrl-C is for the work, a second one soon after it for the command; so are SIGTERM and SIGHUP, and a pipe that
nobody reads any more.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SECOND_PRESS = 2.0
"""A Ctrl-C so soon after another means the command, not the work."""

TIMED_OUT = 124
BROKEN_PIPE = 128 + signal.SIGPIPE


class Foreground:
    def __init__(self, interrupt: Callable[[], Coroutine[Any, Any, Any] | None]) -> None:
        """`interrupt` is what a first Ctrl-C does; None when there is nothing yet, or no more, to be interrupted."""
        self._interrupt = interrupt
        self._loop = asyncio.get_running_loop()
        self._working: asyncio.Task[int] | None = None
        self._helpers: set[asyncio.Task[Any]] = set()
        self._pressed = -SECOND_PRESS
        self.ended_by: int | None = None
        """The exit code, where it was not the work that ended it."""
        self._loop.add_signal_handler(signal.SIGINT, self._on_sigint)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._end, 128 + number)

    async def run(self, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """To its end, and that of all who help with it."""
        if self.ended_by is None:
            self._working = self._loop.create_task(work())
            await asyncio.wait({self._working})
        helpers = list(self._helpers)
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)

    def help(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Do this beside the work, for as long as that goes on."""
        helper = self._loop.create_task(coroutine)
        self._helpers.add(helper)
        helper.add_done_callback(self._forget)
        return helper

    def _forget(self, helper: "asyncio.Task[Any]") -> None:
        self._helpers.discard(helper)
        if not helper.cancelled():
            helper.exception()  # seen: the work may have ended under it, and who wants to know has the task

    @property
    def exit_code(self) -> int:
        if self.ended_by is not None:
            return self.ended_by
        assert self._working is not None
        try:
            return self._working.result()
        except BrokenPipeError:
            # Whoever read our output has enough of it, as `head` does.
            return BROKEN_PIPE

    def _on_sigint(self) -> None:
        now = self._loop.time()
        again = now - self._pressed < SECOND_PRESS
        self._pressed = now
        interrupting = None if again else self._interrupt()
        if interrupting is None:
            self._end(128 + signal.SIGINT)
        else:
            self.help(interrupting)

    def _end(self, code: int) -> None:
        self.ended_by = code
        if self._working is not None:
            self._working.cancel()


def signal_number(name: str) -> int:
    """Of a signal by its name, or as "signal 64" where it has none."""
    known = signal.Signals.__members__
    return int(known[name]) if name in known else int(name.rpartition(" ")[2])
