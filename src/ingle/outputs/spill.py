"""Events on disk: one file of JSON lines for a session, appended to, read by number.

The blocking half of the timeline: every method here is for a thread. The file is made when the first event goes
to disk, so that most sessions never have one.
"""

import os
import threading
from array import array
from pathlib import Path

import msgspec

from ingle.events import AnyEvent

INDEX_STEP = 16
"""Every so many events the file's position is remembered: at most this many are decoded in vain."""

READ_SIZE = 4 * 1024 * 1024
"""Bytes read in one go, about; the rest is for the next call."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AnyEvent)


class Spill:
    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._fd = -1
        self._index = array("Q")
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
            if self.count % INDEX_STEP == 0:
                self._index.append(self.size + len(lines))
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
        block = (first - 1) // INDEX_STEP
        end_block = (last - 1) // INDEX_STEP + 1
        start = self._index[block]
        while end_block > block + 1 and self._index[end_block - 1] - start > READ_SIZE:
            # Events with images in them: fewer at once.
            end_block -= 1
        last = min(last, end_block * INDEX_STEP)
        end = self._index[end_block] if end_block < len(self._index) else self.size
        with self._using:
            if self._fd >= 0:
                data = os.pread(self._fd, end - start, start)
            else:
                data = self._read_again(end - start, start)
        lines = data.splitlines()
        skip = first - 1 - block * INDEX_STEP
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
