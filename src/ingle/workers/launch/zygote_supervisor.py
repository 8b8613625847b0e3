"""The zygotes of one interpreter: one, and more of them while sessions start faster than one can fork.

A dead zygote is replaced when the next fork is needed. Its workers live on, and so does its holder until the last of
them is gone.
"""

import asyncio
import contextlib
from collections.abc import Callable

from ingle.errors import IngleError
from ingle.support.processes import usable_cores
from ingle.workers.launch.zygote import Zygote

ORDERS_PER_ZYGOTE = 8
PRESSURE_SECONDS = 1.0
"""One more zygote is started when so many orders wait at each of them, for so long. To start one takes about a second
of CPU, so a short burst is quicker without it."""

IDLE_SECONDS = 30.0
"""Time without an order after which a zygote ends, if there is another one."""


class ZygoteSupervisor:
    """Owner of the living zygotes, and of dead ones that still have workers."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, make: Callable[[], Zygote], *, max_zygotes: int | None = None
    ) -> None:
        """`max_zygotes` is the number of cores, if not given."""
        self._loop = loop
        self._make = make
        self._max = max_zygotes or usable_cores()
        self.last: Zygote | None = None
        """The zygote that was started last; it may be dead."""
        self.coming: Zygote | None = None
        """The zygote that was created last; it may not have started yet."""
        self._zygotes: list[Zygote] = []
        """Zygotes that have started, the oldest first. Some may be dead."""
        self._starting: asyncio.Task[Zygote] | None = None
        self._retiring: asyncio.Task[None] | None = None
        self._pressed_since: float | None = None
        """When the least busy zygote began to have too many orders; None if it has not."""

    @property
    def all_living(self) -> list[Zygote]:
        return [zygote for zygote in self._zygotes if not zygote.dead]

    @property
    def living(self) -> Zygote | None:
        """Return the oldest living zygote."""
        return next((zygote for zygote in self._zygotes if not zygote.dead), None)

    @property
    def pid(self) -> int | None:
        last = self.living or self.last
        return last.pid if last is not None and last.ready.done() else None

    async def get(self) -> Zygote:
        """Return the living zygote with the fewest orders. Start one if there is none, or if all have many."""
        living = self.all_living
        if not living:
            return await asyncio.shield(self.start())
        chosen = min(living, key=lambda zygote: zygote.orders)
        if self._is_pressed(chosen.orders) and len(living) < self._max:
            self._pressed_since = None
            self.start()
        return chosen

    def _is_pressed(self, orders: int) -> bool:
        """Return whether too many orders have waited for too long."""
        if orders < ORDERS_PER_ZYGOTE:
            self._pressed_since = None
            return False
        now = self._loop.time()
        if self._pressed_since is None:
            self._pressed_since = now
        return now - self._pressed_since >= PRESSURE_SECONDS

    def start(self) -> "asyncio.Task[Zygote]":
        """Start one more zygote, or return the task of the one that is being started."""
        if self._starting is None or self._starting.done():
            self.coming = self._make()
            self._starting = self._loop.create_task(self._start(self.coming))
            # Marks the exception as retrieved, since not every caller awaits it.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._starting

    async def _start(self, zygote: Zygote) -> Zygote:
        await self._remove_over()
        try:
            await zygote.start()
        except BaseException:
            await zygote.stop()
            raise
        self.last = zygote
        self._zygotes.append(zygote)
        if len(self._zygotes) > 1 and (self._retiring is None or self._retiring.done()):
            self._retiring = self._loop.create_task(self._retire_idle())
        return zygote

    async def _remove_over(self) -> None:
        """Forget dead zygotes without sessions."""
        for over in [each for each in self._zygotes if each.over]:
            self._zygotes.remove(over)
            await over.stop()

    async def _retire_idle(self) -> None:
        """End zygotes that have nothing to do, until the oldest is the only one left."""
        while len(self._zygotes) > 1:
            await asyncio.sleep(IDLE_SECONDS)
            for zygote in self.all_living[1:]:
                if zygote.idle_for >= IDLE_SECONDS:
                    zygote.retire()
            await self._remove_over()

    async def cancel(self) -> None:
        """Cancel the start of a zygote, if there is one."""
        if self._retiring is not None and not self._retiring.done():
            self._retiring.cancel()
            await asyncio.wait({self._retiring})
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, IngleError):
                await self._starting

    async def stop(self) -> None:
        """End all zygotes, and every process that came from them."""
        await self.cancel()
        for zygote in self._zygotes:
            await zygote.stop()
