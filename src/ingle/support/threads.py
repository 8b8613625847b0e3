"""Blocking work in threads, from coroutines."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def finished(running: Awaitable[T]) -> T:
    """Return the result of work in a thread. Cancelling waits for its end: it uses what its caller closes."""
    future = asyncio.ensure_future(running)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future})
        raise


async def in_thread(work: Callable[[], T]) -> T:
    """Return the result of blocking work, which is done when this returns or raises."""
    return await finished(asyncio.to_thread(work))
