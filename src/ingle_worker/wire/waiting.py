"""Which way of waiting for the other side is the quicker one: asleep, or awake. Pure bookkeeping, for both sides.

Where one short cell follows another, being woken takes longer than the cell does. Who stays awake is there at once, and
his core has not forgotten what it was doing; but on a machine that has other work he keeps others from it. Nobody knows
beforehand which it is. So both ways are measured in turn, and the quicker one is taken for a while.
"""

SOON = 0.00025
"""Seconds that a wait may take to be counted as short, and the most that anybody stays awake in vain."""

TRIAL = 16
"""Short waits after which the two ways are compared."""

WHILE = 496
"""Short waits for which the quicker one is taken, before the other is tried again."""

WARM = 0.00003
"""Seconds by which who stayed awake is quicker afterwards."""


class Choice:
    def __init__(self) -> None:
        self.awake = False
        """How to wait now, if the wait is likely to be short."""
        self._waits = self._left = TRIAL
        self._sum = 0.0
        self._averages: list[float | None] = [None, None]
        """Seconds that a wait took, asleep and awake."""

    def took(self, seconds: float) -> None:
        """A wait was short, or who stayed awake for it gave up."""
        self._sum += seconds if seconds < SOON else 2 * SOON
        self._left -= 1
        if self._left:
            return
        awake, averages = self.awake, self._averages
        averages[awake] = self._sum / self._waits - (WARM if awake else 0.0)
        asleep_for, awake_for = averages
        if asleep_for is None or awake_for is None or self._waits == WHILE:
            self.awake, self._waits = not awake, TRIAL
        else:
            self.awake, self._waits = awake_for < asleep_for, WHILE
        self._left, self._sum = self._waits, 0.0
