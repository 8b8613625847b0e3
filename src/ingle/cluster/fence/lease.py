"""The agent's lease at the store: renewed again and again, and each success reported to the watchdog."""

import asyncio
import contextlib
import logging
import os

from ingle.cluster.fence.watchdog import VARIABLE, now
from ingle.errors import IngleError
from ingle.store.leases import Leases

logger = logging.getLogger(__name__)

RENEW_SECONDS = 0.5
"""Interval of renewals: several fit into the watchdog's patience."""

RENEWAL_SECONDS = 2.5
"""Time limit of one renewal. A later success would come too late to count."""


def watchdog_descriptor() -> int | None:
    """Return the descriptor of the watchdog above this process, and hide it from child processes."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    descriptor = int(text)
    os.set_inheritable(descriptor, False)
    os.set_blocking(descriptor, False)
    return descriptor


class StoreLease:
    """Lease of one agent at the store."""

    def __init__(self, leases: Leases, incarnation: str, watchdog: int | None) -> None:
        self._leases = leases
        self._incarnation = incarnation
        self._watchdog = watchdog
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Take the lease before the first session can exist, and renew it from now on."""
        await self._renew()
        self._renewing = asyncio.get_running_loop().create_task(self._renew_forever())

    async def stop(self) -> None:
        """Give the lease up: the sessions have ended."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        with contextlib.suppress(IngleError, TimeoutError):
            await asyncio.wait_for(self._leases.release(self._incarnation), RENEWAL_SECONDS)

    async def _renew_forever(self) -> None:
        failing = False
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await asyncio.wait_for(self._renew(), RENEWAL_SECONDS)
            except (IngleError, TimeoutError) as error:
                if not failing:
                    logger.warning("the lease at the store could not be renewed: %s", error)
                failing = True
            else:
                failing = False

    async def _renew(self) -> None:
        began = now()
        await self._leases.renew(self._incarnation)
        if self._watchdog is not None:
            # A full pipe means that the watchdog hangs; it has unread renewals then.
            with contextlib.suppress(BlockingIOError):
                os.write(self._watchdog, b"%.3f\n" % began)
