"""Upkeep of a store: work that one of all servers does now and then.

A server that begins writes the object of the task. Others see by the store's time that it is not due yet. Two that
begin at the same moment do the work twice, which does no harm.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from ingle.errors import IngleError
from ingle.store.leases import Leases
from ingle.store.store import Store

FOLDER = "upkeep/"

INTERVAL_SECONDS = 3600.0
"""Time after which a task is due again."""

SPREAD = (0.1, 1.0)
"""Shares of it after which a server looks again. Servers that were started together look at different times."""

logger = logging.getLogger(__name__)


async def repeat(store: Store, leases: Leases, task: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work of a task when it is due, until cancelled."""
    while True:
        await asyncio.sleep(INTERVAL_SECONDS * random.uniform(*SPREAD))
        try:
            if await _begin(store, leases, task):
                await work()
        except IngleError as error:
            logger.warning("the upkeep of the store failed (%s), and is tried again later: %s", task, error.message)


async def _begin(store: Store, leases: Leases, task: str) -> bool:
    """Begin a task if it is due. Return whether it is."""
    path = FOLDER + task
    now = await leases.time()
    if any(now - each.modified < INTERVAL_SECONDS for each in await store.list(path)):
        return False
    await store.write(path, b"")
    return True
