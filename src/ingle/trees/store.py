"""Bytes of files in trees: one file for each hash, counted by the trees that need it.

A store belongs to one tenant of one server, and ends with the server: what has to last goes into a snapshot. So the
hashes and the counts are in memory, and names on disk mean nothing. A file never changes once it has a hash.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ingle.render.phrases import size
from ingle.snapshots.manifest import Chunk
from ingle.trees.tree import Tree
from ingle_worker.wire.snapshot_channel import MAX_CHUNK

READ_BYTES = 1 << 20


class NotKept(Exception):
    """The files are not kept. The message says why."""


@dataclass
class Stored:
    path: Path
    size: int
    holders: int = 1
    chunks: list[Chunk] | None = None
    """Hashes and sizes of its parts, once they were asked for."""


class KeptTree:
    """A tree whose files the store holds. The caller that takes it releases it."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.holders = 1


@dataclass(frozen=True)
class KeptLayer:
    """What a copy has written to a granted folder, apart from the folder itself. The caller releases both trees."""

    before: KeptTree
    """Entries of the folder that it is about, as they are."""
    after: KeptTree
    """The same entries as the copy sees them."""
    contested: tuple[str, ...] = ()
    """Files among them that another process has changed since the layer was made, as they are shown."""


@dataclass(frozen=True)
class Trees:
    """Files of a session at one moment, or why they are not kept."""

    own: KeptTree | NotKept
    tracked: Mapping[str, KeptTree | NotKept] = field(default_factory=dict)
    """Those of tracked folders, by folder."""
    layers: Mapping[str, KeptLayer] = field(default_factory=dict)
    """What is to be changed in granted folders, by folder."""


class TreeStore:
    def __init__(self, folder: Path, quota: int) -> None:
        """`quota` is the number of bytes that all files together may have."""
        self._folder = folder
        self._quota = quota
        self._lock = threading.Lock()
        """Of what is in memory. The event loop takes it too, so it is never held while a file is touched."""
        self._folder_lock = threading.Lock()
        """Of the folder, which exists only while there are files."""
        self._files: dict[str, Stored] = {}
        """By hash."""
        self._reserved = 0
        self.used = 0
        """Bytes of all files."""

    def begin(self) -> "Addition":
        """Begin to keep a tree."""
        return Addition(self)

    def open(self, digest: str) -> int:
        """Return a descriptor for reading a file."""
        return os.open(self._files[digest].path, os.O_RDONLY | os.O_CLOEXEC)

    def copy_to(self, digest: str, path: Path) -> None:
        """Have the bytes of a file at another path too. The copy is on the disk when this returns."""
        source = self._files[digest].path
        try:
            os.link(source, path)
        except OSError:  # another file system, or too many links
            shutil.copyfile(source, path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def chunks(self, digest: str) -> list[Chunk]:
        """Return the hashes and sizes of the parts in which a snapshot stores a file."""
        stored = self._files[digest]
        if stored.size <= MAX_CHUNK:
            return [(digest, stored.size)] if stored.size else []
        if stored.chunks is None:
            with open(stored.path, "rb") as file:
                stored.chunks = [
                    (hashlib.sha256(part).hexdigest(), len(part)) for part in iter(lambda: file.read(MAX_CHUNK), b"")
                ]
        return stored.chunks

    def share(self, kept: KeptTree) -> KeptTree:
        """Count one more holder of a kept tree."""
        with self._lock:
            assert kept.holders
            kept.holders += 1
        return kept

    def release(self, kept: KeptTree) -> None:
        """Give up a kept tree. Remove files that no other tree needs."""
        with self._lock:
            kept.holders -= 1
            last = not kept.holders
        if last:
            self.drop(kept.tree.digests)

    # --- for an addition ---

    def reserve(self, count: int) -> None:
        """Set bytes of the quota aside. Raise NotKept if there are not so many left."""
        with self._lock:
            left = max(0, self._quota - self.used - self._reserved)
            if count > left:
                raise NotKept(f"they need {size(count)}, and {size(left)} of {size(self._quota)} are left (keep_disk)")
            self._reserved += count

    def unreserve(self, count: int) -> None:
        with self._lock:
            self._reserved -= count

    def hold(self, digest: str) -> bool:
        """Count a holder of a file. Return False if there is no such file."""
        with self._lock:
            stored = self._files.get(digest)
            if stored is None:
                return False
            stored.holders += 1
            return True

    def drop(self, digests: Iterable[str]) -> None:
        """Count a holder less of each. Remove files without any."""
        unused: list[Path] = []
        with self._lock:
            for digest in digests:
                stored = self._files[digest]
                stored.holders -= 1
                if not stored.holders:
                    del self._files[digest]
                    self.used -= stored.size
                    unused.append(stored.path)
        for path in unused:
            path.unlink(missing_ok=True)
        self._remove_if_empty()

    def _remove_if_empty(self) -> None:
        if not self._files:
            with self._folder_lock, contextlib.suppress(OSError):
                self._folder.rmdir()

    def new_draft(self) -> tuple[Path, int]:
        """Return a new file, and a descriptor to write to it."""
        path = self._folder / secrets.token_hex(16)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._folder_lock:
            try:
                return path, os.open(path, flags, 0o600)
            except FileNotFoundError:
                self._folder.mkdir(mode=0o700, parents=True)
                return path, os.open(path, flags, 0o600)

    def add(self, draft: Path) -> str:
        """Take a complete draft over, and count its first holder. Return its hash."""
        digest, length = measure(draft)
        with self._lock:
            stored = self._files.get(digest)
            if stored is None:
                self._files[digest] = Stored(draft, length)
                self.used += length
                return digest
            stored.holders += 1
        draft.unlink()
        return digest


class Addition:
    """Files of a tree that is being taken. They are held until it is complete, and released if that fails."""

    def __init__(self, store: TreeStore) -> None:
        self._store = store
        self._held: Counter[str] = Counter()
        self._reserved = 0
        self._drafts: list[Path] = []

    def __enter__(self) -> "Addition":
        return self

    def reserve(self, count: int) -> None:
        self._store.reserve(count)
        self._reserved += count

    def hold(self, digest: str) -> bool:
        """Hold a file that the store has. Return whether it has it."""
        if digest in self._held:
            return True
        held = self._store.hold(digest)
        if held:
            self._held[digest] += 1
        return held

    def new_draft(self) -> tuple[Path, int]:
        path, fd = self._store.new_draft()
        self._drafts.append(path)
        return path, fd

    def add(self, draft: Path) -> str:
        """Take a complete draft over. Return its hash."""
        digest = self._store.add(draft)
        self._drafts.remove(draft)
        self._held[digest] += 1
        return digest

    def finish(self, tree: Tree) -> KeptTree:
        """Return the kept tree. Each of its files is held once from now on."""
        held, self._held = self._held, Counter()
        held.subtract(dict.fromkeys(tree.digests, 1))
        self._store.drop((+held).elements())
        return KeptTree(tree)

    def __exit__(self, *exc: object) -> None:
        for draft in self._drafts:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
        self._store.drop(self._held.elements())
        self._store.unreserve(self._reserved)


def measure(draft: Path) -> tuple[str, int]:
    """Return the hash and the size of a draft that no process writes to any more."""
    fd = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            # The kernel grants this only if no descriptor is open for writing, in any process.
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            raise NotKept("another process still writes to what was read") from None
        except OSError:
            pass  # a file system without leases
        hasher, length = hashlib.sha256(), 0
        while data := os.read(fd, READ_BYTES):
            hasher.update(data)
            length += len(data)
        return hasher.hexdigest(), length
    finally:
        os.close(fd)
