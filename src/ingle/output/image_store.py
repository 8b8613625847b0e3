"""Full-size images on disk, stored under the hash of their bytes. The oldest are removed when the limit is reached.

The name is computed here from the bytes, and names from the worker are ignored. One thread at a time uses the disk.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Coroutine
from pathlib import Path

_NAME = re.compile("[0-9a-f]{64}")

MIN_IMAGE_BYTES = 4096
"""Least size of an image: the disk space of a small file."""


class ImageStore:
    def __init__(self, folder: str, limit: int) -> None:
        self._name = folder
        self._limit = limit
        self._sizes: dict[str, int] = {}
        self._total = 0
        self._lock = asyncio.Lock()
        self._closed = False
        self.waiting = 0
        """Bytes that are not on disk yet."""

    def store(self, data: bytes) -> Coroutine[None, None, None]:
        """Store these bytes. If the disk fails, the image is lost and cannot be found later."""
        self.waiting += max(len(data), MIN_IMAGE_BYTES)
        return self._store(data)

    @property
    def _folder(self) -> Path:
        return Path(self._name)

    async def _store(self, data: bytes) -> None:
        try:
            async with self._lock:
                if not self._closed:
                    await asyncio.to_thread(self._write, data)
        except OSError:
            return
        finally:
            self.waiting -= max(len(data), MIN_IMAGE_BYTES)

    async def resume(self) -> None:
        """Find the images that an earlier server has stored."""
        async with self._lock:
            self._sizes = await asyncio.to_thread(self._find)
            self._total = sum(self._sizes.values())

    def _find(self) -> dict[str, int]:
        try:
            found = [(each.stat(), each.name) for each in os.scandir(self._name) if _NAME.fullmatch(each.name)]
        except OSError:
            return {}
        found.sort(key=lambda each: each[0].st_mtime_ns)
        return {name: max(about.st_size, MIN_IMAGE_BYTES) for about, name in found}

    async def close(self) -> None:
        """Stop writing."""
        self._closed = True
        async with self._lock:
            return

    def _write(self, data: bytes) -> None:
        name = hashlib.sha256(data).hexdigest()
        if name in self._sizes or len(data) > self._limit:
            return
        size = max(len(data), MIN_IMAGE_BYTES)
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
        """Return the bytes with that name, or None. Waits for an image that is being written."""
        async with self._lock:
            if name not in self._sizes:  # only names computed here are ever used as a path
                return None
            try:
                return await asyncio.to_thread((self._folder / name).read_bytes)
            except OSError:
                return None
