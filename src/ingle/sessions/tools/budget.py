"""Budgets of calls: how many, for how long, and how many bytes, for each cell and for the session."""

from dataclasses import dataclass
from typing import NoReturn

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


@dataclass
class Limits:
    """What the calls of a cell or a session may use; 0 for any amount."""

    owner: str
    calls: int
    seconds: float
    bytes: int

    def check(self, spent: Spent) -> None:
        """Raise ToolFailed if nothing is left."""
        if self.calls and spent.calls >= self.calls:
            self._refuse("calls", self.calls)
        if self.seconds and spent.seconds >= self.seconds:
            self._refuse("seconds", self.seconds)
        if self.bytes and spent.bytes >= self.bytes:
            self._refuse("bytes", self.bytes)

    def _refuse(self, unit: str, limit: float) -> NoReturn:
        used = f"this {self.owner} has used its budget for tools: {limit:g} {unit} (tool_{unit}_{self.owner})"
        raise ToolFailed("budget", used)


class Budget:
    def __init__(self, settings: Settings) -> None:
        self._of_session = Limits(
            "session", settings.tool_calls_session, settings.tool_seconds_session, settings.tool_bytes_session
        )
        self._of_cell = Limits("cell", settings.tool_calls_cell, settings.tool_seconds_cell, settings.tool_bytes_cell)
        self.session = Spent()
        self._cell = Spent()
        self._number = 0

    def begin(self, cell: int | None, size: int) -> list[Spent]:
        """Count a call, and return what its use is added to. Raise ToolFailed if a budget is used up."""
        self._of_session.check(self.session)
        counted = [self.session]
        if cell is not None:
            if cell != self._number:
                self._number, self._cell = cell, Spent()
            self._of_cell.check(self._cell)
            counted.append(self._cell)
        for spent in counted:
            spent.calls += 1
            spent.bytes += size
        return counted
