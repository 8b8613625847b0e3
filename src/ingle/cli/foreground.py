"""Work in the foreground of a terminal: signals are passed to it, and its end becomes an exit code.

The first Ctrl-C interrupts the work, a second one soon after ends the command. So do SIGTERM, SIGHUP and a closed pipe.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SECOND_PRESS_SECONDS = 2.0
"""A second Ctrl-C within this time ends the command."""

TIMED_OUT = 124
BROKEN_PIPE = 128 + signal.SIGPIPE


class Foreground:
    def __init__(self, interrupt: Callable[[], Coroutine[Any, Any, Any] | None]) -> None:
        """`interrupt` handles the first Ctrl-C; it returns None if nothing can be interrupted."""
        self._interrupt = interrupt
        self._loop = asyncio.get_running_loop()
        self._working: asyncio.Task[int] | None = None
        self._helpers: set[asyncio.Task[Any]] = set()
        self._pressed = -SECOND_PRESS_SECONDS
        self.ended_by: int | None = None
        """The exit code, if something other than the work ended it."""
        self._loop.add_signal_handler(signal.SIGINT, self._on_sigint)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._end, 128 + number)

    async def run(self, work: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Run the work and its helpers to their end."""
        if self.ended_by is None:
            self._working = self._loop.create_task(work())
            await asyncio.wait({self._working})
        helpers = list(self._helpers)
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)

    def help(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine beside the work, at most until its end."""
        helper = self._loop.create_task(coroutine)
        self._helpers.add(helper)
        helper.add_done_callback(self._forget)
        return helper

    def _forget(self, helper: "asyncio.Task[Any]") -> None:
        self._helpers.discard(helper)
        if not helper.cancelled():
            helper.exception()  # retrieved here; callers that need it have the task

    @property
    def exit_code(self) -> int:
        if self.ended_by is not None:
            return self.ended_by
        assert self._working is not None
        try:
            return self._working.result()
        except BrokenPipeError:
            # The reader of the output has closed its end, as `head` does.
            return BROKEN_PIPE

    def _on_sigint(self) -> None:
        now = self._loop.time()
        again = now - self._pressed < SECOND_PRESS_SECONDS
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
    """Return the number of a signal by its name, or of "signal 64" without one."""
    known = signal.Signals.__members__
    return int(known[name]) if name in known else int(name.rpartition(" ")[2])
