"""What a server does for as long as it lives, and nobody waits for: no failure ends it, and none goes unseen."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

PAUSE = 1.0
"""Before a chore that has failed is begun anew."""

logger = logging.getLogger(__name__)


async def keep_up(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Work that ends only when it is cancelled; begun anew if it fails, which is told to the log."""
    while True:
        try:
            await work()
        except Exception:  # the border of a chore: else it would end in silence, and with it what it is there to see to
            logger.exception("%s: failed, and is begun anew", what)
        await asyncio.sleep(PAUSE)
