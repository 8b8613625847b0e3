"""Notices of a session: for the result of the next cell, and for listings."""

from ingle.events import Exit


class Notices:
    def __init__(self) -> None:
        self._pending: list[str] = []
        self._lasting: list[str] = []
        self.of_start: list[str] = []
        """Problems of the current worker's start. They last as long as the worker."""

    def add(self, notice: str) -> bool:
        """Add a notice to the next cell's result. Return False if it is there already."""
        if notice in self._pending:
            return False
        self._pending.append(notice)
        return True

    def add_lasting(self, notice: str) -> None:
        """Show a notice in listings for as long as the session lives."""
        if notice not in self._lasting:
            self._lasting.append(notice)

    def replace(self, notices: list[str]) -> None:
        """Replace the notices for the next cell, which are not true any more."""
        self._pending = list(notices)

    def take(self) -> list[str]:
        """Return the notices for the next cell's result, and forget them."""
        pending, self._pending = self._pending, []
        return pending

    @property
    def all(self) -> list[str]:
        return [*dict.fromkeys([*self.of_start, *self._lasting, *self._pending])]


def loss_notice(exit: Exit, cell: int | None, *, restores: bool) -> str:
    """Return the notice for the next cell after a worker was lost, in this cell or between cells."""
    if restores:
        return f"the worker {exit.message}"
    after = f"cell {cell}" if cell is not None else "the last cell"
    return (
        f"this is a fresh worker: the one before {exit.message} after {after}, and its variables, "
        "functions and imports are gone"
    )
