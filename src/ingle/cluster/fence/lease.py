"""The agent's lease at the store: renewed again and again, and each success reported to the watchdog.

Each renewal is told to the gateways before it is written. `ingle.store.leases` says what they conclude from it.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator

from ingle.cluster.fence.watchdog import VARIABLE, now
from ingle.errors import IngleError, StoreFailed
from ingle.store.leases import Leases, Renewal, new_renewal
from ingle.store.store import ATTEMPTS, FINAL, Store

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
    """Lease of one agent at the store. It is the only one that renews it."""

    def __init__(self, store: Store, incarnation: str, watchdog: int | None) -> None:
        """The store is the lease's own: it is closed with it, after the sessions have ended."""
        self._store = store
        self._leases = Leases(store)
        self._incarnation = incarnation
        self._watchdog = watchdog
        self._generation = 0
        self._failing = False
        self._renewing: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._current: Renewal | None = None
        self._told = asyncio.Event()
        """Set when the current renewal is replaced."""

    async def start(self) -> None:
        """Take the lease before the first session can exist, and renew it from now on."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._renew()
                break
            except StoreFailed as error:
                if attempt == ATTEMPTS or isinstance(error, FINAL):
                    raise
                self._failing = True
                await asyncio.sleep(RENEW_SECONDS)
        self._renewing = asyncio.get_running_loop().create_task(self._renew_forever())

    async def stop(self) -> None:
        """Give the lease up: the sessions have ended.

        A renewal that is under way is waited for. Cancelled, it would go on in its thread, and be written after the
        lease was given up.
        """
        self._stopping.set()
        if self._renewing is not None:
            await asyncio.wait({self._renewing})
            await self._release()
        self._store.close()

    async def _release(self, before: int | None = None) -> None:
        """Remove the lease, or its generations `before` the one in use. A store that fails keeps them."""
        with contextlib.suppress(IngleError, TimeoutError):
            async with asyncio.timeout(RENEWAL_SECONDS):
                await self._leases.release(self._incarnation, before)

    async def renewals(self) -> AsyncIterator[Renewal]:
        """Yield the current renewal, and each that follows. A slow reader misses some."""
        while True:
            told = self._told
            if self._current is not None:
                yield self._current
            await told.wait()

    async def _renew_forever(self) -> None:
        while not await self._stops_within(RENEW_SECONDS):
            try:
                await self._renew()
            except IngleError as error:
                if not self._failing:
                    logger.warning("the lease at the store could not be renewed: %s", error)
                self._failing = True
                continue
            if self._failing:
                self._failing = False
                await self._release(before=self._generation)

    async def _stops_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    async def _renew(self) -> None:
        began = now()
        self._tell(new_renewal(self._generation))
        assert self._current is not None
        try:
            async with asyncio.timeout(RENEWAL_SECONDS):
                await self._leases.renew(self._incarnation, self._current)
        except (IngleError, TimeoutError) as error:
            # The store may still carry it out, after later ones: those are written elsewhere.
            self._generation += 1
            if isinstance(error, IngleError):
                raise
            raise StoreFailed(
                f"the store {self._store.name} did not answer within {RENEWAL_SECONDS:g} s; check the network and the "
                "store, and retry"
            ) from None
        if self._watchdog is not None:
            # A full pipe means that the watchdog hangs; it has unread renewals then.
            with contextlib.suppress(BlockingIOError):
                os.write(self._watchdog, b"%.3f\n" % began)

    def _tell(self, renewal: Renewal) -> None:
        self._current = renewal
        self._told.set()
        self._told = asyncio.Event()
