"""Timelines in the store: the events of a session, in segments of its file.

Each epoch writes segments of its own, from the oldest byte that it keeps. A save says which epoch and how many bytes
belong to it, so a writer that was killed or has lost its claim leaves nothing that is read. A short timeline is part of
the save itself.
"""

import os
from pathlib import Path

from msgspec import Struct

from ingle.store.objects import quoted
from ingle.store.store import Store
from ingle.support.threads import in_thread

FOLDER = "timelines"

SEGMENT_BYTES = 1024 * 1024
"""A segment that is smaller is written again with what came after it."""

MAX_INLINE_BYTES = 32 * 1024
"""A timeline up to this size is part of each save, and has no segments."""

MAX_BYTES = 64 * 1024 * 1024
"""Bytes of a timeline in the store. Older events are on the disk of the server only."""


class TimelineMark(Struct, frozen=True, array_like=True):
    """Part of a timeline that belongs to a save."""

    epoch: int = 0
    first: int = 0
    """Positions in the file of that epoch's server."""
    end: int = 0
    inline: bytes = b""
    """This part of the file, if it is in no segment."""


class StoredTimeline:
    def __init__(self, store: Store, key: str, epoch: int, path: Path) -> None:
        """`path` is the file of the timeline on this server."""
        tenant, _, name = key.rpartition("/")
        self._store = store
        self._folder = f"{FOLDER}/{quoted(tenant)}/{quoted(name)}/"
        self._epoch = epoch
        self._path = path
        self._starts: list[int] = []
        """Positions of segments. The last one may grow."""
        self._end = 0

    def _segment(self, epoch: int, start: int) -> str:
        return f"{self._folder}{epoch:010d}/{start:015d}"

    async def push(self) -> TimelineMark:
        """Upload what the file has, up to its last whole line."""
        while True:
            start, data = await in_thread(self._read)
            if not self._starts and len(data) <= MAX_INLINE_BYTES:
                return TimelineMark(self._epoch, start, start + len(data), data)
            if start + len(data) > self._end:
                await self._store.write(self._segment(self._epoch, start), data)
                if start not in self._starts:
                    self._starts.append(start)
                self._end = start + len(data)
            if len(data) < SEGMENT_BYTES:
                break
            self._starts.append(self._end)
        first = next((each for each in self._starts if each >= self._end - MAX_BYTES), self._end)
        return TimelineMark(self._epoch, first, self._end)

    def _read(self) -> tuple[int, bytes]:
        """Return the position and the content of the segment that is not full yet."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0, b""
        try:
            start = self._starts[-1] if self._starts else self._first(fd)
            data = os.pread(fd, SEGMENT_BYTES, start)
            while not data.endswith(b"\n") and len(data) >= SEGMENT_BYTES:
                more = os.pread(fd, SEGMENT_BYTES, start + len(data))  # one event may be larger than a segment
                data += more[: more.find(b"\n") + 1] or more
                if not more:
                    break
            return start, data[: data.rfind(b"\n") + 1]
        finally:
            os.close(fd)

    def _first(self, fd: int) -> int:
        """Return the start of the first line that is stored."""
        start = max(0, os.fstat(fd).st_size - MAX_BYTES)
        while start and (data := os.pread(fd, SEGMENT_BYTES, start)):
            if (found := data.find(b"\n")) >= 0:
                return start + found + 1
            start += len(data)
        return start

    async def fetch(self, mark: TimelineMark) -> None:
        """Write the part of a timeline that belongs to a save to the file."""
        if not mark.end:
            return
        parts = [mark.inline]
        start = mark.first + len(mark.inline)
        while start < mark.end:
            # The next segment begins where this one ends. The last one may have grown since.
            data = await self._store.read(self._segment(mark.epoch, start))
            if not data:
                break
            parts.append(data[: mark.end - start])
            start += len(data)
        await in_thread(lambda: self._write(parts))

    def _write(self, parts: list[bytes]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # An index that this machine wrote earlier is of another file.
        self._path.with_name(self._path.name + ".index").unlink(missing_ok=True)
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            for part in parts:
                file.write(part)

    async def tidy(self, mark: TimelineMark) -> None:
        """Remove segments that no save needs: those of earlier epochs, and the oldest of this one."""
        kept = f"{self._folder}{mark.epoch:010d}/"
        for entry in await self._store.list(self._folder):
            number = entry.path.removeprefix(kept)
            if entry.path < kept or (number != entry.path and int(number) < mark.first):
                await self._store.delete(entry.path)

    async def remove(self) -> None:
        """Remove the segments of this epoch, and of those before."""
        after = f"{self._folder}{self._epoch + 1:010d}/"
        for entry in await self._store.list(self._folder):
            if entry.path < after:
                await self._store.delete(entry.path)
