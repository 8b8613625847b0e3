"""Hashes of a folder's files as they were last read, so that unchanged files are not read again.

A hash is used again only if the file cannot have changed since: same inode, size, time of change and time of status
change. That is not enough for a file that was written in the same tick of the kernel's clock, and for one that a
process could write through a mapping or a descriptor. Those are read every time.
"""

from typing import NamedTuple

TICK_NANOSECONDS = 50_000_000
"""Age at which a file's times are certain to differ from those of a later change. Ticks take up to 10 ms."""


class Stamp(NamedTuple):
    inode: int
    size: int
    modified: int
    changed: int


class Known(NamedTuple):
    stamp: Stamp
    digest: str
    sure: bool
    """Whether a later change shows in the stamp."""


class Index:
    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def digest(self, path: str, stamp: Stamp, writable: frozenset[int]) -> str | None:
        """Return the hash of a file that has this stamp now. None: it has to be read.

        `writable` are inodes that a process has mapped or open for writing.
        """
        known = self._known.get(path)
        if known is None or not known.sure or known.stamp != stamp or stamp.inode in writable:
            return None
        return known.digest

    def learn(self, path: str, stamp: Stamp, digest: str, began: int, writable: frozenset[int]) -> None:
        """Note the hash of a file that was read after the moment `began`, in nanoseconds."""
        sure = stamp.changed < began - TICK_NANOSECONDS and stamp.inode not in writable
        self._known[path] = Known(stamp, digest, sure)

    def keep_only(self, paths: set[str]) -> None:
        """Forget all other files."""
        for path in self._known.keys() - paths:
            del self._known[path]

    def holds(self, inodes: frozenset[int]) -> bool:
        """Return whether one of these inodes is a file here."""
        return any(each.stamp.inode in inodes for each in self._known.values())
