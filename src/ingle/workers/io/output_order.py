"""Putting stdout and stderr back into one order. Pure bookkeeping, no I/O.

Each stream is a pipe; within one, nothing is ever reordered. When Python turns from one stream to the other, the
guest sends a mark: how many bytes it saw unread in each pipe, and when it looked. The host knows when it read
how much, so it can tell which byte of each pipe was the last before the mark: a cut. Bytes before a cut come
before bytes behind it.

Only when a read and a look overlap in time is the sum ambiguous; then the count of Python's own bytes decides: the
pipe cannot have held fewer bytes than Python and the others were known to have written.
"""

from collections import deque
from typing import Any, NamedTuple

from ingle_worker.wire.messages import Look, Mark

STDOUT, STDERR = 0, 1
HISTORY = 64
"""Reads remembered for each stream: marks arrive within a few reads of their making."""


STOP = 300
"""Bytes that a place in the order takes."""

MOST_HELD = 16 * 1024 * 1024
"""Bytes that may wait for their place: many times what two pipes hold."""


class Read(NamedTuple):
    began: int
    ended: int
    total: int


class Piece(NamedTuple):
    stream: int
    data: bytes


class Note(NamedTuple):
    """What was put in between the bytes."""

    content: Any


class _Stream:
    def __init__(self) -> None:
        self.total = 0
        self.emitted = 0
        self.foreign = 0
        """Bytes of this pipe that Python did not count as its own, as of the last certain look."""
        self.held = bytearray()
        self.reads: deque[Read] = deque()
        self.forgotten = 0
        """The total up to the last read that is no longer remembered."""

    def read(self, data: bytes, began: int, ended: int) -> None:
        self.total += len(data)
        self.held += data
        if len(self.reads) == HISTORY:
            self.forgotten = self.reads.popleft().total
        self.reads.append(Read(began, ended, self.total))

    def place(self, look: Look, before: int, after: int) -> int:
        """How many bytes of this pipe were written before the look."""
        sure = self.forgotten
        overlapping: list[int] = []
        for read in self.reads:
            if read.ended < before:
                sure = read.total
            elif read.began <= after:
                overlapping.append(read.total)
        # Foreign bytes do not become fewer: less than this cannot have been there.
        least = look.written + self.foreign
        if self.forgotten and self.reads[0].began > after:
            # A mark from before all that is remembered.
            return min(least, sure + look.unread)
        candidates = [total + look.unread for total in (sure, *overlapping)]
        fitting = [each for each in candidates if each >= least] or candidates[:1]
        if len(fitting) == 1 and look.certain:
            self.foreign = fitting[0] - look.written
        return fitting[0]


class Stop(NamedTuple):
    """A place in the order: everything up to these bytes comes first, then the note, then the rest.

    Without places, it is known only that the bytes before the note have been read, and lie before the next cut.
    """

    places: tuple[int, int] | None
    note: Any
    weight: int = 0


class Merger:
    """Asked for what it has (`take`) after the pipes were read, and the wire after them.

    Marks are sent before the bytes they speak of are written, so then those of all bytes are known. A note must
    have been followed by one more reading of the pipes.
    """

    def __init__(self) -> None:
        self._streams = (_Stream(), _Stream())
        self._stops: deque[Stop] = deque()
        self._last_cut = (0, 0)
        self._weight = 0

    def feed(self, stream: int, data: bytes, began: int, ended: int) -> None:
        """Bytes read from a pipe, with monotonic nanoseconds around the read."""
        self._streams[stream].read(data, began, ended)

    def cut(self, mark: Mark, note: Any = None, weight: int = 0) -> None:
        """A mark came; `note`, if any, is handed out exactly there. It takes about so many bytes."""
        out, err = self._streams
        places = (
            max(out.place(mark.stdout, mark.before, mark.after), self._last_cut[0]),
            max(err.place(mark.stderr, mark.before, mark.after), self._last_cut[1]),
        )
        self._last_cut = places
        self._weight += STOP + weight
        self._stops.append(Stop(places, note, STOP + weight))

    def note(self, note: Any) -> None:
        """Something came without a mark: it is handed out behind all that was written before it."""
        self._stops.append(Stop(None, note))

    @property
    def waiting(self) -> bool:
        """A stop lies beyond what has been read."""
        return bool(self._stops)

    @property
    def holds_notes(self) -> bool:
        """A note without a mark is among what waits."""
        return any(stop.places is None for stop in self._stops)

    @property
    def overfull(self) -> bool:
        """It holds more than a worker that means well ever makes it hold: its marks speak of bytes that do not come."""
        out, err = self._streams
        return self._weight + len(out.held) + len(err.held) > MOST_HELD

    @property
    def idle(self) -> bool:
        """It holds nothing that has to be put in order."""
        out, err = self._streams
        return not (self._stops or out.held or err.held)

    def take(self) -> list[Piece | Note]:
        """Everything whose place in the order is certain, in that order."""
        taken: list[Piece | Note] = []
        bound: tuple[int, int] | None = None
        while self._stops:
            places = self._stops[0].places
            if places is None:
                # The same for all that have no place before the next one that has.
                places = bound = bound or self._bound()
            else:
                bound = None
            for number in (STDOUT, STDERR):
                self._emit(number, places[number], taken)
            if any(self._streams[number].emitted < places[number] for number in (STDOUT, STDERR)):
                return taken
            stop = self._stops.popleft()
            self._weight -= stop.weight
            if stop.note is not None:
                taken.append(Note(stop.note))
        for number in (STDOUT, STDERR):
            self._emit(number, self._totals[number], taken)
        return taken

    def _bound(self) -> tuple[int, int]:
        """Where the next cut lies, but no further than what has been read."""
        out, err = self._totals
        cut = next((stop.places for stop in self._stops if stop.places is not None), (out, err))
        return min(out, cut[0]), min(err, cut[1])

    @property
    def _totals(self) -> tuple[int, int]:
        return self._streams[STDOUT].total, self._streams[STDERR].total

    def give_up_cuts(self) -> None:
        """The pipes hold nothing more: a cut that was placed too far must not hold anything back."""
        self._stops = deque(Stop(None, stop.note) for stop in self._stops if stop.note is not None)
        self._weight = 0
        self._last_cut = self._totals

    def _emit(self, number: int, until: int, taken: list[Piece | Note]) -> None:
        each = self._streams[number]
        size = min(until, each.total) - each.emitted
        if size > 0:
            taken.append(Piece(number, bytes(each.held[:size])))
            del each.held[:size]
            each.emitted += size
