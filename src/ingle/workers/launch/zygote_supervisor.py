"""The zygotes of one interpreter, one after another.

A dead zygote is replaced when the next fork is needed. Its workers live on, and so does its holder until the last of
them is gone.
"""

import asyncio
import contextlib
from collections.abc import Callable

from ingle.errors import IngleError
from ingle.workers.launch.zygote import Zygote


class ZygoteSupervisor:
    """Owner of the current zygote and of dead ones that still have workers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], Zygote]) -> None:
        self._loop = loop
        self._make = make
        self.last: Zygote | None = None
        """The last zygote that has started; it may be dead."""
        self.coming: Zygote | None = None
        """The zygote that was created last; it may not have started yet."""
        self._retired: list[Zygote] = []
        self._starting: asyncio.Task[Zygote] | None = None

    @property
    def living(self) -> Zygote | None:
        return self.last if self.last is not None and not self.last.dead else None

    @property
    def pid(self) -> int | None:
        last = self.last
        return last.pid if last is not None and last.ready.done() else None

    async def get(self) -> Zygote:
        """Return a living zygote, and start one if there is none."""
        living = self.living
        return living if living is not None else await asyncio.shield(self.start())

    def start(self) -> "asyncio.Task[Zygote]":
        """Start the next zygote, or return the task of the one that is being started."""
        if self._starting is None or self._starting.done():
            self.coming = self._make()
            self._starting = self._loop.create_task(self._start(self.coming))
            # Marks the exception as retrieved, since not every caller awaits it.
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._starting

    async def _start(self, zygote: Zygote) -> Zygote:
        if self.last is not None:
            self._retired.append(self.last)
            self.last = None
        for retired in [each for each in self._retired if each.over]:
            self._retired.remove(retired)
            await retired.stop()
        try:
            await zygote.start()
        except BaseException:
            await zygote.stop()
            raise
        self.last = zygote
        return zygote

    async def cancel(self) -> None:
        """Cancel the start of a zygote, if there is one."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, IngleError):
                await self._starting

    async def stop(self) -> None:
        """End all zygotes, and every process that came from them."""
        await self.cancel()
        for zygote in (*self._retired, self.last):
            if zygote is not None:
                await zygote.stop()
