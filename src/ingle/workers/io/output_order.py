"""The order of stdout and stderr, restored from two pipes. Pure bookkeeping, no I/O.

Each stream is a pipe, and bytes of one pipe are never reordered. When Python turns from one stream to the other, the
guest sends a mark: how many bytes it saw unread in each pipe, and when it looked. The host knows when it read how many
bytes. So it can compute which byte of each pipe was the last one before the mark. That place is a cut: bytes before a
cut come before bytes behind it.

The sum is ambiguous only when a read and a look overlap in time. Then the count of Python's own bytes decides: the
pipe cannot have held fewer bytes than Python and other writers were known to have written.
"""

from collections import deque
from typing import Any, NamedTuple

from ingle_worker.wire.messages import Look, Mark

STDOUT, STDERR = 0, 1
HISTORY = 64
"""Reads remembered for each stream. A mark arrives within a few reads after it was made."""

STOP_BYTES = 300
"""Memory that a place in the order takes."""

MAX_HELD_BYTES = 16 * 1024 * 1024
"""Bytes that may wait for their place: many times the capacity of two pipes."""


class Read(NamedTuple):
    """One read of a pipe, with monotonic nanoseconds, and the bytes of that pipe so far."""

    began: int
    ended: int
    total: int


class Piece(NamedTuple):
    """Bytes of a stream."""

    stream: int
    data: bytes


class Note(NamedTuple):
    """A message between the bytes."""

    content: Any


class _Stream:
    def __init__(self) -> None:
        self.total = 0
        self.emitted = 0
        self.foreign = 0
        """Bytes of this pipe that were not written by Python, as of the last certain look."""
        self.held = bytearray()
        self.reads: deque[Read] = deque()
        self.forgotten = 0
        """Total up to the last read that is no longer remembered."""

    def read(self, data: bytes, began: int, ended: int) -> None:
        self.total += len(data)
        self.held += data
        if len(self.reads) == HISTORY:
            self.forgotten = self.reads.popleft().total
        self.reads.append(Read(began, ended, self.total))

    def place(self, look: Look, before: int, after: int) -> int:
        """Return how many bytes of this pipe were written before the look."""
        sure = self.forgotten
        overlapping: list[int] = []
        for read in self.reads:
            if read.ended < before:
                sure = read.total
            elif read.began <= after:
                overlapping.append(read.total)
        # Bytes of other writers do not become fewer, so at least this many were there.
        least = look.written + self.foreign
        if self.forgotten and self.reads[0].began > after:
            # The mark is older than all remembered reads.
            return min(least, sure + look.unread)
        candidates = [total + look.unread for total in (sure, *overlapping)]
        fitting = [each for each in candidates if each >= least] or candidates[:1]
        if len(fitting) == 1 and look.certain:
            self.foreign = fitting[0] - look.written
        return fitting[0]


class Stop(NamedTuple):
    """A place in the order: the bytes up to `places` come first, then the note, then the rest.

    Without places, it is only known that the bytes before the note have been read, and lie before the next cut.
    """

    places: tuple[int, int] | None
    note: Any
    weight: int = 0


class Merger:
    """Merger of two streams. `take` is called after the pipes were read, and the wire after them.

    Marks are sent before the bytes that they describe, so the marks of all bytes are known then. A note must have been
    followed by one more read of the pipes.
    """

    def __init__(self) -> None:
        self._streams = (_Stream(), _Stream())
        self._stops: deque[Stop] = deque()
        self._last_cut = (0, 0)
        self._weight = 0

    def feed(self, stream: int, data: bytes, began: int, ended: int) -> None:
        """Add bytes read from a pipe, with monotonic nanoseconds around the read."""
        self._streams[stream].read(data, began, ended)

    def cut(self, mark: Mark, note: Any = None, weight: int = 0) -> None:
        """Add a mark. `note`, if any, is returned exactly there, and takes about `weight` bytes of memory."""
        out, err = self._streams
        places = (
            max(out.place(mark.stdout, mark.before, mark.after), self._last_cut[0]),
            max(err.place(mark.stderr, mark.before, mark.after), self._last_cut[1]),
        )
        self._last_cut = places
        self._weight += STOP_BYTES + weight
        self._stops.append(Stop(places, note, STOP_BYTES + weight))

    def note(self, note: Any) -> None:
        """Add a message without a mark. It is returned behind all bytes that were written before it."""
        self._stops.append(Stop(None, note))

    @property
    def waiting(self) -> bool:
        """Whether a place in the order lies beyond the bytes that were read."""
        return bool(self._stops)

    @property
    def holds_notes(self) -> bool:
        """Whether a note without a mark waits."""
        return any(stop.places is None for stop in self._stops)

    @property
    def overfull(self) -> bool:
        """Whether it holds more than a well-behaved worker can cause: its marks describe bytes that do not come."""
        out, err = self._streams
        return self._weight + len(out.held) + len(err.held) > MAX_HELD_BYTES

    @property
    def idle(self) -> bool:
        """Whether it holds nothing."""
        out, err = self._streams
        return not (self._stops or out.held or err.held)

    def take(self) -> list[Piece | Note]:
        """Return everything whose place in the order is certain, in that order."""
        taken: list[Piece | Note] = []
        bound: tuple[int, int] | None = None
        while self._stops:
            places = self._stops[0].places
            if places is None:
                # The same bound for all notes without a mark before the next cut.
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
        """Return the place of the next cut, or the end of the bytes that were read, if that comes first."""
        out, err = self._totals
        cut = next((stop.places for stop in self._stops if stop.places is not None), (out, err))
        return min(out, cut[0]), min(err, cut[1])

    @property
    def _totals(self) -> tuple[int, int]:
        return self._streams[STDOUT].total, self._streams[STDERR].total

    def give_up_cuts(self) -> None:
        """Drop all cuts. The pipes hold nothing more, so a cut that was placed too far must not hold anything back."""
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
