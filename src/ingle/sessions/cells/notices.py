"""Notices of a session: for the result of the next cell, and for listings."""

from ingle.events import Exit
from ingle.render.phrases import counted

MAX_TAIL_BYTES = 200
"""Bytes of background output that its notice shows."""


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


class BackgroundOutput:
    """Output of threads, tasks and processes of earlier cells that no answer has announced yet."""

    def __init__(self) -> None:
        self._lines = 0
        self._bytes = 0
        self._tail = b""

    def add(self, data: bytes) -> None:
        self._lines += data.count(b"\n")
        self._bytes += len(data)
        self._tail = (self._tail + data[-MAX_TAIL_BYTES:])[-MAX_TAIL_BYTES:]

    def notice(self, cell: int, *, during: bool = False) -> list[str]:
        """Return a notice if there was output after this cell, or `during` it. The output is read with this cell's."""
        if not self._bytes:
            return []
        when = f"{'during' if during else 'after'} cell {cell}" if cell else "before the first cell"
        lines = self._lines + (not self._tail.endswith(b"\n"))
        end = "…" if self._bytes > len(self._tail) else ""
        tail = self._tail.decode("utf-8", "replace").strip()
        where = f"; all of it is in the stream 'background' of cell {cell}" if cell else ""
        return [f"code in the background printed {counted(lines, 'line')} {when}: {end}{tail!r}{where}"]

    def take(self, cell: int, *, during: bool = False) -> list[str]:
        """Return the notice, and begin to count anew."""
        taken = self.notice(cell, during=during)
        if taken:
            self._lines = self._bytes = 0
            self._tail = b""
        return taken


def loss_notice(exit: Exit, cell: int | None, *, restores: bool) -> str:
    """Return the notice for the next cell after a worker was lost, in this cell or between cells."""
    if restores:
        return process_ended(exit)
    after = f"cell {cell}" if cell is not None else "the last cell"
    ended = process_ended(exit, "the one before")
    return f"this is a new process: {ended} after {after}, and its variables, functions and imports are gone"


def process_ended(exit: Exit, process: str = "the session's process") -> str:
    """Return how the process of a session has ended, as a sentence without its full stop."""
    message = exit.message or "ended"
    return message if message.startswith("the session's") else f"{process} {message}"
