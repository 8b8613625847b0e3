"""Events on disk: one append-only file of JSON lines for a session, read by number.

Every method blocks and is called in a thread. The file is created with the first event, so most sessions have none.
Numbers rise from line to line. They have gaps where a server was killed before it wrote its last events.
"""

import contextlib
import os
import re
import threading
from array import array
from bisect import bisect_right
from pathlib import Path

import msgspec

from ingle.events import AnyEvent, Done

INDEX_STEP = 16
INDEX_BYTES = 1024 * 1024
"""After this many events or bytes the file position is indexed. A read skips at most that much."""

WRITE_BYTES = 1024 * 1024
"""Bytes that are gathered before a write. A larger event is written alone, so that it is in memory once."""

READ_SIZE = 4 * 1024 * 1024
"""Approximate bytes read at once; the next call reads the rest."""

READ_EVENTS = 64
"""Most events read at once."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)
_NUMBER = re.compile(rb'\{"type":"\w+","seq":(\d{1,15}),')


class DiskLog:
    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._fd = -1
        self.firsts = array("Q")
        """Number of the first event of each block; `starts` has its position in the file."""
        self.starts = array("Q")
        self._in_block = 0
        """Events of the last block."""
        self._using = threading.Lock()
        self._owner: str | None = None
        self.last = 0
        """Number of the last event."""
        self.size = 0

    def resume(self, firsts: "array[int]", starts: "array[int]", last: int, size: int, owner: str) -> None:
        """Go on with the file of an earlier server. `owner` is the session's name now, and may have been another."""
        self._owner = owner
        self.firsts, self.starts, self.last, self.size = firsts, starts, last, size
        self._in_block = INDEX_STEP  # the next event begins a block

    def append(self, events: list[AnyEvent]) -> None:
        """Write events; their numbers continue those in the file. After an error it is as it was before."""
        with self._using:
            self._open()
            firsts, starts, in_block, size = array("Q"), array("Q"), self._in_block, self.size
            start = self.starts[-1] if self.starts else 0
            lines = bytearray()
            for event in events:
                if len(lines) >= WRITE_BYTES:
                    size = self._write(lines, size)
                    lines = bytearray()
                at = size + len(lines)
                if not (self.firsts or firsts) or in_block >= INDEX_STEP or at - start >= INDEX_BYTES:
                    starts.append(at)
                    firsts.append(event.seq)
                    start, in_block = at, 0
                _encoder.encode_into(event, lines, -1)
                lines += b"\n"
                in_block += 1
            self.size = self._write(lines, size)
            self.firsts += firsts
            self.starts += starts
            self._in_block = in_block
            self.last = events[-1].seq

    def _open(self) -> None:
        if self._fd < 0:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (0 if self.size else os.O_TRUNC)
            self._fd = os.open(self._path, flags, 0o600)

    def _write(self, lines: bytearray, at: int) -> int:
        """Write at this position. Return the position after it."""
        view = memoryview(lines)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written
        return at

    def read(self, first: int, last: int) -> list[AnyEvent]:
        """Return the events with numbers from `first` to `last`, up to a fixed number of them."""
        found: list[AnyEvent] = []
        block = max(bisect_right(self.firsts, first) - 1, 0)
        while not found and block < len(self.firsts) and first <= last and self.firsts[block] <= last:
            start = self.starts[block]
            end_block = min(block + READ_EVENTS // INDEX_STEP + 1, bisect_right(self.firsts, last))
            while end_block > block + 1 and self.starts[end_block - 1] - start > READ_SIZE:
                # Events with images are large, so fewer are read at once.
                end_block -= 1
            end = self.starts[end_block] if end_block < len(self.starts) else self.size
            found = _decode(self._read(end - start, start), first, last)
            block = end_block
        return found if self._owner is None else [_owned(event, self._owner) for event in found]

    def _read(self, size: int, start: int) -> bytes:
        with self._using:
            if self._fd >= 0:
                return os.pread(self._fd, size, start)
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.pread(fd, size, start)
            finally:
                os.close(fd)

    def rest(self) -> None:
        """Close the descriptor. Later calls open the file again."""
        with self._using:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __del__(self) -> None:
        # Not closed earlier, because a reader may still use it after its session has ended.
        if self._fd >= 0:
            os.close(self._fd)


def _decode(data: bytes, first: int, last: int) -> list[AnyEvent]:
    """Return the events of these lines within the numbers. A line of a later version is left out."""
    found: list[AnyEvent] = []
    for line in data.splitlines():
        number = number_of(line)
        if number > last or len(found) == READ_EVENTS:
            break
        if number >= first:
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(_decoder.decode(line))
    return found


def _owned(event: AnyEvent, owner: str) -> AnyEvent:
    """Return the event as one of the session of that name."""
    if event.session_id == owner:
        return event
    if isinstance(event, Done):
        event.result.session_id = owner
    return msgspec.structs.replace(event, session_id=owner)


def number_of(line: bytes) -> int:
    """Return the number of the event in a line, which may be long; 0 if the line holds no event."""
    match = _NUMBER.match(line)
    return 0 if match is None else int(match[1])
