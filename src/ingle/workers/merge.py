"""Putting stdout and stderr back into one order. Pure bookkeeping, no I/O.

Each stream is a pipe; within one, nothing is ever reordered. When Python turns from one stream to the other, the
guest sends a mark: how many bytes it saw unread in each pipe, and when it looked. The host knows when it read
how much, so it can tell which byte of each pipe was the last before the mark: a cut. Bytes before a cut come
before bytes behind it.

Only when a read and a look overlap in time is the sum ambiguous; then the count of Python's own bytes decides.
"""

from collections import deque
from typing import NamedTuple

from ingle_worker.wire.messages import Look, Mark

STDOUT, STDERR = 0, 1
HISTORY = 64
"""Reads remembered for each stream: marks arrive within a few reads of their making."""


class Read(NamedTuple):
    began: int
    ended: int
    total: int


class Piece(NamedTuple):
    stream: int
    data: bytes


class _Stream:
    def __init__(self) -> None:
        self.total = 0
        self.emitted = 0
        self.foreign = 0
        self.held = bytearray()
        self.reads: deque[Read] = deque(maxlen=HISTORY)

    def place(self, look: Look, before: int, after: int) -> int:
        """How many bytes of this pipe were written before the look."""
        sure = 0
        overlapping: list[int] = []
        for read in self.reads:
            if read.ended < before:
                sure = read.total
            elif read.began <= after:
                overlapping.append(read.total)
        if not overlapping and not sure:
            # All remembered reads came later, or there was none: what was read before them is the base.
            sure = 0 if len(self.reads) < HISTORY else self.reads[0].total
        candidates = [total + look.unread for total in (sure, *overlapping)]
        expected = look.written + self.foreign
        found = expected if expected in candidates else candidates[0]
        found = max(found, look.written)
        if len(candidates) == 1:
            self.foreign = max(0, found - look.written)
        return found


class Merger:
    def __init__(self) -> None:
        self._streams = (_Stream(), _Stream())
        self._cuts: deque[tuple[int, int]] = deque()

    def feed(self, stream: int, data: bytes, began: int, ended: int) -> None:
        """Bytes read from a pipe, with monotonic nanoseconds around the read."""
        each = self._streams[stream]
        each.total += len(data)
        each.held += data
        each.reads.append(Read(began, ended, each.total))

    def cut(self, mark: Mark) -> None:
        out, err = self._streams
        places = (
            out.place(mark.stdout, mark.before, mark.after),
            err.place(mark.stderr, mark.before, mark.after),
        )
        last = self._cuts[-1] if self._cuts else (out.emitted, err.emitted)
        self._cuts.append((max(places[0], last[0]), max(places[1], last[1])))

    @property
    def waiting(self) -> bool:
        """A cut lies beyond what has been read; its bytes are in the pipes already."""
        return bool(self._cuts)

    def take(self) -> list[Piece]:
        """Everything whose place in the order is certain, in that order."""
        pieces: list[Piece] = []
        while self._cuts:
            cut = self._cuts[0]
            for number in (STDOUT, STDERR):
                self._emit(number, cut[number], pieces)
            if any(self._streams[number].emitted < cut[number] for number in (STDOUT, STDERR)):
                return pieces
            self._cuts.popleft()
        for number in (STDOUT, STDERR):
            self._emit(number, self._streams[number].total, pieces)
        return pieces

    def give_up_cuts(self) -> None:
        """The pipes hold nothing more: a cut that was placed too far must not hold bytes back."""
        self._cuts.clear()

    def _emit(self, number: int, until: int, pieces: list[Piece]) -> None:
        each = self._streams[number]
        size = min(until, each.total) - each.emitted
        if size > 0:
            pieces.append(Piece(number, bytes(each.held[:size])))
            del each.held[:size]
            each.emitted += size
