"""Background work: loops that restart after a failure, and tasks that nobody has to wait for."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ingle.errors import IngleError

RESTART_SECONDS = 1.0
"""Time before a failed task is restarted."""

logger = logging.getLogger(__name__)

T = TypeVar("T")
U = TypeVar("U")


async def run_forever(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until cancelled. Log each failure, and start it again."""
    while True:
        try:
            await work()
        except Exception:  # the edge of a background task: otherwise it would end silently
            logger.exception("%s: failed, and is started again", what)
        await asyncio.sleep(RESTART_SECONDS)


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run work that must not be left halfway. A caller that is cancelled meanwhile ends after it."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # retrieved here, since the caller leaves
        raise asyncio.CancelledError
    return task.result()


async def both(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Do two things at the same time, and return both results. If one fails, wait for the other and raise the error."""
    one, other = await asyncio.gather(first, second, return_exceptions=True)
    if isinstance(one, BaseException):
        raise one
    if isinstance(other, BaseException):
        raise other
    return one, other


class Tasks:
    """Tasks of one owner. Each runs to its end even if its caller leaves, unless the owner cancels all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()  # retrieved here, since the caller may have left
        if error is not None and not isinstance(error, IngleError):
            logger.error("a background task failed", exc_info=error)

    def cancel(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def wait(self) -> None:
        """Wait until all of them have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)
