"""Events on disk: one append-only file of JSON lines for a session, read by number.

Every method blocks and is called in a thread. The file is created with the first event, so most sessions have none.
"""

import os
import threading
from array import array
from bisect import bisect_right
from pathlib import Path

import msgspec

from ingle.events import AnyEvent

INDEX_STEP = 16
INDEX_BYTES = 1024 * 1024
"""After this many events or bytes the file position is indexed. A read skips at most that much."""

WRITE_BYTES = 1024 * 1024
"""Bytes that are gathered before a write. A larger event is written alone, so that it is in memory once."""

READ_SIZE = 4 * 1024 * 1024
"""Approximate bytes read at once; the next call reads the rest."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class DiskLog:
    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._fd = -1
        self._firsts = array("Q")
        """Number of the first event of each block; `_starts` has its position in the file."""
        self._starts = array("Q")
        self._using = threading.Lock()
        self.count = 0
        self.size = 0

    def append(self, events: list[AnyEvent]) -> None:
        """Write events; their numbers continue those in the file."""
        if self._fd < 0:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
        lines = bytearray()
        for event in events:
            if len(lines) >= WRITE_BYTES:
                self._write(lines)
                lines = bytearray()
            at = self.size + len(lines)
            if (
                not self._firsts
                or self.count + 1 - self._firsts[-1] >= INDEX_STEP
                or at - self._starts[-1] >= INDEX_BYTES
            ):
                self._starts.append(at)
                self._firsts.append(self.count + 1)
            _encoder.encode_into(event, lines, -1)
            lines += b"\n"
            self.count += 1
        self._write(lines)

    def _write(self, lines: bytearray) -> None:
        view = memoryview(lines)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size += len(lines)

    def read(self, first: int, last: int) -> list[AnyEvent]:
        """Return the events `first` to `last`, both included, counted from 1."""
        last = min(last, self.count)
        if first > last:
            return []
        block = bisect_right(self._firsts, first) - 1
        end_block = bisect_right(self._firsts, last)
        start = self._starts[block]
        while end_block > block + 1 and self._starts[end_block - 1] - start > READ_SIZE:
            # Events with images are large, so fewer are read at once.
            end_block -= 1
        if end_block < len(self._firsts):
            last, end = min(last, self._firsts[end_block] - 1), self._starts[end_block]
        else:
            end = self.size
        with self._using:
            if self._fd >= 0:
                data = os.pread(self._fd, end - start, start)
            else:
                data = self._read_again(end - start, start)
        lines = data.splitlines()
        skip = first - self._firsts[block]
        return [_decoder.decode(line) for line in lines[skip : skip + last - first + 1]]

    def _read_again(self, size: int, start: int) -> bytes:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, size, start)
        finally:
            os.close(fd)

    def rest(self) -> None:
        """Close the descriptor after the last append. Later reads open the file again."""
        with self._using:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __del__(self) -> None:
        # Not closed earlier, because a reader may still use it after its session has ended.
        if self._fd >= 0:
            os.close(self._fd)
