"""Turns: the one lock of a session. Only the holder of the turn uses the worker.

A cell holds its turn until it has ended. A fork, a checkpoint, a save, a request about variables hold it for a moment.
Waiters are served in order. While a cell holds the turn, a request that does not want to queue is refused as busy.
"""

import asyncio
import time
from collections import deque
from typing import Final

from ingle import errors

CELL: Final = "cell"
TRIAL: Final = "trial"
"""Labels of turns that are held for long: requests are refused meanwhile, unless they want to queue."""


class Turn:
    """Permission to use the worker, for the purpose that `label` names."""

    __slots__ = ("_began", "label", "number", "trial", "waiting")

    def __init__(self, label: str) -> None:
        self.label = label
        self.number = 0
        """Number of the cell, once it has begun."""
        self.trial = ""
        """Name of the trial that holds the turn."""
        self.waiting = False
        """Whether the cell waits for input."""
        self._began = 0.0

    def begin_cell(self, number: int) -> None:
        """Note that the cell has begun, for requests that are refused because of it."""
        self.number = number
        self._began = time.monotonic()

    def busy(self, next_cell: int) -> errors.Busy:
        """Return the error for a request that this turn refuses."""
        if self.trial:
            return errors.TrialOpen(next_cell, self.trial)
        if not self.number:
            return errors.Busy(next_cell, 0.0)
        return errors.Busy(self.number, time.monotonic() - self._began, waiting=self.waiting)


class _Waiter:
    __slots__ = ("granted", "next_cell", "queued", "turn")

    def __init__(self, turn: Turn, next_cell: int, *, queued: bool) -> None:
        self.turn = turn
        self.next_cell = next_cell
        self.queued = queued
        """Whether it waits while cells run."""
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Turns:
    def __init__(self) -> None:
        self.holder: Turn | None = None
        self.queue: deque[_Waiter] = deque()
        self._closed: errors.IngleError | None = None

    @property
    def free(self) -> bool:
        return self.holder is None and not self.queue and self._closed is None

    @property
    def has_cell(self) -> bool:
        """Return whether a cell runs, or is about to begin."""
        return self.holder is not None and self.holder.label == CELL

    @property
    def trial(self) -> str | None:
        """Return the name of the trial that holds the turn, if one does."""
        return self.holder.trial or None if self.holder is not None else None

    @property
    def _is_long(self) -> bool:
        return self.holder is not None and self.holder.label in (CELL, TRIAL)

    def try_take(self, label: str) -> Turn | None:
        """Return the turn if it is free."""
        if not self.free:
            return None
        self.holder = Turn(label)
        return self.holder

    async def take(self, label: str, next_cell: int, *, queue: bool = False, first: bool = False) -> Turn:
        """Return the turn when it comes. Raise Busy while a cell holds it, unless the request wants to `queue`.

        With `first`, the request goes to the head of the queue. `next_cell` is the number that Busy gives for a cell
        that has not begun yet.
        """
        if self._closed is not None:
            raise self._closed
        turn = Turn(label)
        holder = self.holder
        if holder is None and not self.queue:
            self.holder = turn
            return turn
        if holder is not None and self._is_long and not queue:
            raise holder.busy(next_cell)
        waiter = _Waiter(turn, next_cell, queued=queue)
        if first:
            self.queue.appendleft(waiter)
        else:
            self.queue.append(waiter)
        try:
            await waiter.granted
        except asyncio.CancelledError:
            if waiter in self.queue:
                self.queue.remove(waiter)
            else:
                # The turn came in the moment of the cancellation.
                self.release(turn)
            raise
        return turn

    def release(self, turn: Turn) -> None:
        """Give up a turn, and grant the next one. Do nothing if the turn is not held any more."""
        if turn is not self.holder:
            return
        self.holder = None
        while self.queue:
            waiter = self.queue.popleft()
            if not waiter.granted.done():
                self.holder = waiter.turn
                waiter.granted.set_result(None)
                if self._is_long:
                    self._refuse_unqueued()
                return

    def _refuse_unqueued(self) -> None:
        """Refuse the waiters that waited for a short use of the worker, and would now wait for a cell."""
        for waiter in [each for each in self.queue if not each.queued]:
            self.queue.remove(waiter)
            if not waiter.granted.done():
                waiter.granted.set_exception(errors.Busy(waiter.next_cell, 0.0))

    def close(self, error: errors.IngleError) -> None:
        """Grant no more turns. Every waiter gets this error."""
        self._closed = error
        for waiter in self.queue:
            if not waiter.granted.done():
                waiter.granted.set_exception(error)
        self.queue.clear()
