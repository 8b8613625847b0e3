"""Events on disk: one file of JSON lines for a session, appended to, read by number.

The blocking half of the timeline: every method here is for a thread. The file is made when the first event goes
to disk, so that most sessions never have one.
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
"""Every so many events, or bytes, the file's position is remembered: at most this much is read in vain."""

READ_SIZE = 4 * 1024 * 1024
"""Bytes read in one go, about; the rest is for the next call."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class Spill:
    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._fd = -1
        self._firsts = array("Q")
        """The number of the first event of each block, and where in the file that begins."""
        self._starts = array("Q")
        self._using = threading.Lock()
        self.count = 0
        self.size = 0

    def append(self, events: list[AnyEvent]) -> None:
        """Write events; their numbers follow on those that are there."""
        if self._fd < 0:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o600)
        lines = bytearray()
        for event in events:
            at = self.size + len(lines)
            if (
                not self._firsts
                or self.count + 1 - self._firsts[-1] >= INDEX_STEP
                or at - self._starts[-1] >= INDEX_BYTES
            ):
                self._starts.append(at)
                self._firsts.append(self.count + 1)
            lines += _encoder.encode(event)
            lines += b"\n"
            self.count += 1
        view = memoryview(lines)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size += len(lines)

    def read(self, first: int, last: int) -> list[AnyEvent]:
        """Events number `first` to `last`, both included, counted from 1."""
        last = min(last, self.count)
        if first > last:
            return []
        block = bisect_right(self._firsts, first) - 1
        end_block = bisect_right(self._firsts, last)
        start = self._starts[block]
        while end_block > block + 1 and self._starts[end_block - 1] - start > READ_SIZE:
            # Events with images in them: fewer at once.
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
        """No more is appended: hold no descriptor; the file is opened for each reading as long as it is there."""
        with self._using:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def __del__(self) -> None:
        # Closed by whoever lets go of it last: a reader may still be at it when its session has ended.
        if self._fd >= 0:
            os.close(self._fd)
