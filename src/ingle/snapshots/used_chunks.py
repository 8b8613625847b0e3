"""Chunks that the manifests of one tenant name: all others may be removed, and those of files count for the quota.

Every function blocks, and is called in a thread.
"""

import contextlib
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ingle import errors
from ingle.snapshots.manifest import Manifest

CURRENT = ".json"
DIGEST = re.compile(rb'"([0-9a-f]{64})"')


@dataclass(frozen=True)
class Used:
    """Chunks that one manifest names."""

    stamp: tuple[int, int, int]
    """Version of the manifest."""
    chunks: set[bytes]
    files: dict[str, int]
    """Sizes of chunks of files, by hash."""


class UsedChunks:
    def __init__(self, folder: Path, read: Callable[[Path], Manifest]) -> None:
        """`read` returns the manifest of a path, of any writer."""
        self._folder = folder
        self._read = read
        self._lock = threading.Lock()
        self._used: dict[Path, Used] = {}

    def all(self) -> set[bytes]:
        return set[bytes]().union(*(each.chunks for each in self._find()))

    def of_files(self) -> dict[str, int]:
        """Return the sizes of all chunks of files, by hash."""
        found: dict[str, int] = {}
        for each in self._find():
            found |= each.files
        return found

    def _find(self) -> list[Used]:
        """Return what the manifests of now name. Each is read once."""
        with self._lock:
            seen = set()
            for path in self._folder.glob("*/*" + CURRENT):
                with contextlib.suppress(FileNotFoundError, errors.SnapshotNotFound):
                    about = path.stat()
                    stamp = (about.st_ino, about.st_mtime_ns, about.st_size)
                    known = self._used.get(path)
                    if known is None or known.stamp != stamp:
                        self._used[path] = self._used_by(path, stamp)
                    seen.add(path)
            for gone in self._used.keys() - seen:
                del self._used[gone]
            return list(self._used.values())

    def _used_by(self, path: Path, stamp: tuple[int, int, int]) -> Used:
        try:
            found = self._read(path)
        except errors.SnapshotDamaged:
            # A later version of ingle may have written it, so every possible hash counts as used.
            named = {bytes.fromhex(digest.decode()) for digest in DIGEST.findall(path.read_bytes())}
            return Used(stamp, named, {})
        files = {} if found.files is None else dict(found.files.contents)
        return Used(stamp, {bytes.fromhex(digest) for digest, _ in found.pieces()}, files)
