"""Budgets of calls: how many, for how long, and how many bytes, for each cell and for the session."""

from dataclasses import dataclass

from ingle.settings import Settings
from ingle.tools.shapes import ToolFailed


@dataclass
class Spent:
    """What calls have used."""

    calls: int = 0
    seconds: float = 0.0
    bytes: int = 0

    def add(self, seconds: float, size: int) -> None:
        self.seconds += seconds
        self.bytes += size


class Budget:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.session = Spent()
        self._cell = Spent()
        self._number = 0

    def begin(self, cell: int | None, size: int) -> list[Spent]:
        """Count a call, and return what its use is added to. Raise ToolFailed if a budget is used up."""
        counted = [self.session]
        if cell is not None:
            if cell != self._number:
                self._number, self._cell = cell, Spent()
            counted.append(self._cell)
        for spent, owner in zip(counted, ("session", "cell"), strict=False):
            self._check(spent, owner)
        for spent in counted:
            spent.calls += 1
            spent.bytes += size
        return counted

    def _check(self, spent: Spent, owner: str) -> None:
        for unit in ("calls", "seconds", "bytes"):
            limit = getattr(self._settings, f"tool_{unit}_{owner}")
            if limit and getattr(spent, unit) >= limit:
                raise ToolFailed(
                    "budget", f"this {owner} has used its budget for tools: {limit:g} {unit} (tool_{unit}_{owner})"
                )
