"""Transcript of a session: notes and cells with their outputs, gathered from its events, as a notebook stores them."""

from dataclasses import dataclass, field
from typing import Any

from ingle.events import (
    AnyEvent,
    DisplayShown,
    Done,
    ErrorRaised,
    Note,
    Notice,
    ResultShown,
    StateChanged,
    Stderr,
    Stdout,
)
from ingle.render.notebook import Outputs
from ingle.requests import Author

MAX_CHARS = 64_000_000
"""Characters of all outputs together. Later ones are left out, and the cell says so."""

LEFT_OUT = "… the transcript is full; this output was left out …\n"

CLEARED = "# the code of this cell was cleared"


@dataclass(frozen=True)
class TextPart:
    """A note between cells."""

    text: str
    raw: bool = False


@dataclass
class CellPart:
    """A cell with its outputs, in the form of a notebook."""

    number: int
    code: str
    started_at: float
    author: Author | None = None
    outputs: list[dict[str, Any]] = field(default_factory=list)
    status: str = "running"
    execution_time: float | None = None
    undone: bool = False
    """Whether a rollback has undone the cell: its effects are not in the session's state."""


Part = TextPart | CellPart


class Transcript:
    """Gathers the events of a session, from the first on."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._before: dict[int, int] = {}
        """By cell, the cell that had just run in the state that it began with."""
        self._state_of = 0
        """The cell that has just run in the state so far."""
        self._outputs = Outputs()
        self._cell: CellPart | None = None
        self._chars = 0

    def parts(self) -> list[Part]:
        """Return the parts so far."""
        kept = {cell := self._state_of}
        while cell := self._before.get(cell, 0):
            kept.add(cell)
        for part in self._parts:
            if isinstance(part, CellPart):
                part.undone = part.number not in kept
        return self._parts

    def take(self, event: AnyEvent) -> None:
        match event:
            case Note():
                self._parts.append(TextPart(event.text, event.raw))
            case Notice(back_to=int(cell)):
                self._state_of = cell
            case StateChanged(state="running") if event.cell is not None:
                if self._cell is None or self._cell.number != event.cell:
                    self._begin(event.cell, event)
            case Done() if self._cell is not None and event.cell == self._cell.number:
                self._cell.status = event.result.status
                self._cell.execution_time = event.result.execution_time
            case Stdout() | Stderr() | ResultShown() | DisplayShown() | ErrorRaised() if self._cell is not None:
                self._add(event)
            case _:
                pass

    def _begin(self, number: int, event: StateChanged) -> None:
        code = CLEARED if event.code is None else event.code
        self._cell = CellPart(number, code, event.time, event.author, self._outputs.begin_cell())
        self._parts.append(self._cell)
        self._before[number], self._state_of = self._state_of, number

    def _add(self, event: AnyEvent) -> None:
        assert self._cell is not None
        if self._chars > MAX_CHARS:
            note = {"name": "stderr", "output_type": "stream", "text": LEFT_OUT}
            if note not in self._cell.outputs[-1:]:
                self._cell.outputs.append(note)
            return
        self._chars += _length(event)
        self._outputs.take(event)


def _length(event: AnyEvent) -> int:
    match event:
        case Stdout() | Stderr():
            return len(event.text)
        case ResultShown() | DisplayShown():
            return sum(map(len, event.data.values()))
        case ErrorRaised():
            return len(event.traceback)
    return 0
