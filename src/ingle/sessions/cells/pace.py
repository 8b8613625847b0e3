"""How fast cells come: while short ones follow one another, the loop stays awake for the next answer.

Only for a cell that is the only one running on this node, and only where that is quicker (see `wire.waiting`). The loop
goes round as ever meanwhile: whatever else comes is seen at once.
"""

import asyncio
from time import perf_counter

from ingle_worker.wire.waiting import SOON, Choice


class Pace:
    def __init__(self) -> None:
        self._running = 0
        self._soon = False
        """The last answer came as soon as it can."""
        self._choice = Choice()
        self._until = 0.0
        self._looking = False

    def begun(self, loop: asyncio.AbstractEventLoop) -> bool:
        """A cell is sent; whether it is the only one that runs."""
        self._running += 1
        if self._running > 1:
            self._until = 0.0
            return False
        if self._soon and self._choice.awake:
            self._until = perf_counter() + SOON
            if not self._looking:
                self._looking = True
                loop.call_soon(self._look, loop)
        return True

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if perf_counter() < self._until:
            loop.call_soon(self._look, loop)
        else:
            self._looking = False

    def ended(self, waited: float) -> None:
        """It was answered after so many seconds, those not counted in which it ran."""
        self._running -= 1
        awake, self._until = self._until > 0.0, 0.0
        close, self._soon = self._soon, waited < SOON
        if awake or (close and self._soon and not self._running):
            self._choice.took(waited)
