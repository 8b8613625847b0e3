"""Waits for a condition, with a bound."""

import asyncio
import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Poll a condition; return True as soon as it holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


async def until(condition: Callable[[], object], seconds: float = 10.0) -> bool:
    """Poll a condition while the event loop runs; return True as soon as it holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True
