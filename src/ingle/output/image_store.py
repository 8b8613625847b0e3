"""Images of full size, kept on disk under the hash of their bytes, oldest out when there are too many.

The name is made here, of the bytes that came: what a worker says an image is called means nothing. The disk is
touched in a thread, by one at a time.
"""

import asyncio
import hashlib
import os
from collections.abc import Coroutine
from pathlib import Path

LEAST = 4096
"""What an image counts at least: so much a file takes of the disk."""


class Figures:
    def __init__(self, folder: str, limit: int) -> None:
        self._name = folder
        self._limit = limit
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._lock = asyncio.Lock()
        self._closed = False
        self.waiting = 0
        """Bytes that are not on disk yet."""

    def keep(self, data: bytes) -> Coroutine[None, None, None]:
        """Store these bytes. A disk that does not take them costs the image: it is not found later."""
        self.waiting += max(len(data), LEAST)
        return self._keep(data)

    @property
    def _folder(self) -> Path:
        return Path(self._name)

    async def _keep(self, data: bytes) -> None:
        try:
            async with self._lock:
                if not self._closed:
                    await asyncio.to_thread(self._write, data)
        except OSError:
            return
        finally:
            self.waiting -= max(len(data), LEAST)

    async def close(self) -> None:
        """Nothing is written from now on."""
        self._closed = True
        async with self._lock:
            return

    def _write(self, data: bytes) -> None:
        name = hashlib.sha256(data).hexdigest()
        if name in self._sizes or len(data) > self._limit:
            return
        size = max(len(data), LEAST)
        while self._sizes and self._total + size > self._limit:
            oldest = next(iter(self._sizes))
            (self._folder / oldest).unlink(missing_ok=True)
            self._total -= self._sizes.pop(oldest)
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = self._folder / f"{name}.part"
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        unfinished.rename(self._folder / name)
        self._sizes[name] = size
        self._total += size

    async def read(self, name: str) -> bytes | None:
        """The bytes of that name, or None. One that is being written is waited for."""
        async with self._lock:
            if name not in self._sizes:  # which holds names made here: no other is ever a path
                return None
            try:
                return await asyncio.to_thread((self._folder / name).read_bytes)
            except OSError:
                return None
