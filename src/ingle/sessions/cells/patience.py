"""Waiting with a bound, for many at a time: one timer, set to the first time that is over.

Nearly all who wait are answered long before their time; a timer of their own would be set and cancelled for nothing,
at every cell.
"""

import asyncio

NEVER = float("inf")


class Patience:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = NEVER

    def begin(self, waiter: "asyncio.Future[None]", deadline: float) -> None:
        """Set this future when the loop's clock shows the deadline, if nobody has by then."""
        self._until[waiter] = deadline
        if deadline < self._rings_at:
            self._set(deadline)

    def end(self, waiter: "asyncio.Future[None]") -> None:
        """Whoever waited has gone on."""
        del self._until[waiter]

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, NEVER
        now = self._loop.time()
        later = NEVER
        for waiter, deadline in self._until.items():
            if waiter.done():
                continue
            if deadline <= now:
                waiter.set_result(None)
            else:
                later = min(later, deadline)
        if later != NEVER:
            self._set(later)

    def close(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
