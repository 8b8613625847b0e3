"""Background tasks of a server, restarted when they fail."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

RESTART_SECONDS = 1.0
"""Time before a failed task is restarted."""

logger = logging.getLogger(__name__)


async def run_forever(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` until cancelled. Log each failure, and start it again."""
    while True:
        try:
            await work()
        except Exception:  # the edge of a background task: otherwise it would end silently
            logger.exception("%s: failed, and is started again", what)
        await asyncio.sleep(RESTART_SECONDS)
