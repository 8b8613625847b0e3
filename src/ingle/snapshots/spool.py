"""Chunks of one transfer between two workers, in a file without a name. Every function blocks."""

import os
import threading
from pathlib import Path

from ingle import errors
from ingle.snapshots.disk_errors import make_folder


class Spool:
    """Sink and source of chunks, in the order in which they come. The last user closes it."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._fd = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        self._places: dict[bytes, tuple[int, int]] = {}
        self._size = 0
        self._lock = threading.Lock()

    def has(self, digest: bytes) -> bool:
        return digest in self._places

    def put(self, digest: bytes, data: memoryview) -> None:
        with self._lock:
            offset = self._size
            self._places[digest] = (offset, len(data))
            self._size += len(data)
        while data:
            written = os.pwrite(self._fd, data, offset)
            offset += written
            data = data[written:]

    def read(self, digest: bytes, size: int) -> bytes:
        offset, length = self._places[digest]
        data = os.pread(self._fd, length, offset)
        if len(data) != size:
            raise errors.LoadFailed("the bytes of the copy cannot be read again; check the disk")
        return data

    def close(self) -> None:
        os.close(self._fd)
