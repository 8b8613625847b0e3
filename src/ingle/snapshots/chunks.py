"""The chunks of one tenant's snapshots, each stored once, by its hash.

Chunks are in packs that never change. A save adds one pack with its new chunks. Unused packs are removed, mostly unused
ones are rewritten, and small ones are merged. Several servers may share a folder: saving and loading hold its lock
shared, removing holds it exclusively. If removing finds no free moment for long, new saves and loads wait for it.

Every function blocks, and is called in a thread.
"""

import contextlib
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ingle import errors
from ingle.snapshots.disk_errors import make_folder, sync_folder
from ingle.snapshots.pack import Pack, Writer

SMALL_PACK_BYTES = 4 * 1024 * 1024
MAX_SMALL_PACKS = 24
"""Small packs above this number are merged."""

MAX_UNUSED_SHARE = 0.5
"""Share of a pack that may be unused."""

SUFFIX = ".pack"

ATTEMPTS_BEFORE_BLOCKING = 16
"""Failed attempts to remove before it blocks others. The number doubles after each timeout."""

MAX_BLOCK_SECONDS = 0.5
"""Maximum time to block others, because a large load or save may take minutes."""

RETRY_SECONDS = 0.005
"""Pause between two attempts meanwhile."""


class ChunkStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packs: dict[str, Pack] = {}
        self._where: dict[bytes, Pack] = {}
        self._index_lock = threading.RLock()
        self._entry_lock = threading.Lock()
        """Held while acquiring the shared lock, or by a removal that waits for the others."""
        self._missed = 0
        self._max_missed = ATTEMPTS_BEFORE_BLOCKING

    def make_folder(self) -> None:
        make_folder(self._folder)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the lock shared, so that nothing is removed meanwhile."""
        with contextlib.ExitStack() as stack:
            with self._entry_lock:
                stack.enter_context(self._locked(fcntl.LOCK_SH))
            self.refresh()
            yield

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        self.make_folder()
        fd = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)

    def refresh(self) -> None:
        """Notice packs that other servers added or removed."""
        with self._index_lock:
            names = {entry for entry in os.listdir(self._folder) if entry.endswith(SUFFIX)}
            for name in self._packs.keys() - names:
                self._forget(name)
            for name in names - self._packs.keys():
                # A pack gets its name when it is complete. One that was damaged since then is ignored.
                with contextlib.suppress(errors.SnapshotDamaged, FileNotFoundError):
                    self._add(name)

    def _add(self, name: str) -> None:
        with self._index_lock:
            pack = self._packs[name] = Pack.open(self._folder / name)
            for digest in pack.places:
                self._where[digest] = pack

    def _forget(self, name: str) -> None:
        pack = self._packs.pop(name)
        for digest in pack.places:
            if self._where.get(digest) is pack:
                del self._where[digest]
        # A chunk in two packs is still in the other one.
        for other in self._packs.values():
            for digest in pack.places.keys() & other.places.keys():
                self._where.setdefault(digest, other)

    def has(self, digest: bytes) -> bool:
        return digest in self._where

    def read(self, digest: bytes, size: int) -> bytes:
        pack = self._where.get(digest)
        if pack is None:
            raise errors.SnapshotDamaged("the snapshot", "some of its bytes are missing")
        return pack.read(digest, size)

    def begin(self) -> "Addition":
        """Start the addition of one save."""
        return Addition(self)

    def new_file(self) -> tuple[int, str]:
        draft = f".{secrets.token_hex(8)}.part"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._folder / draft, flags, 0o600), draft

    def scratch(self) -> int:
        """Return a descriptor of an unnamed file on the same disk."""
        self.make_folder()
        fd, draft = self.new_file()
        self.drop(draft)
        return fd

    def publish(self, draft: str) -> None:
        """Give a complete draft its name."""
        name = secrets.token_hex(16) + SUFFIX
        os.rename(self._folder / draft, self._folder / name)
        sync_folder(self._folder)
        self._add(name)

    def drop(self, draft: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folder / draft)

    # --- removing ---

    def collect(self, used: Callable[[], set[bytes]]) -> None:
        """Remove unused chunks, or return if another thread or server is saving or loading.

        `used` is called under the exclusive lock, because a save that ends in between would lose its chunks.
        """
        if self._try_to_collect(used):
            self._missed, self._max_missed = 0, ATTEMPTS_BEFORE_BLOCKING
            return
        self._missed += 1
        if self._missed < self._max_missed:
            return
        self._missed = 0
        with self._entry_lock:
            until = time.monotonic() + MAX_BLOCK_SECONDS
            while not self._try_to_collect(used):
                if time.monotonic() > until:
                    self._max_missed *= 2
                    return
                time.sleep(RETRY_SECONDS)
        self._max_missed = ATTEMPTS_BEFORE_BLOCKING

    def _try_to_collect(self, used: Callable[[], set[bytes]]) -> bool:
        try:
            with self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                self.refresh()
                self._collect(used())
        except BlockingIOError:
            return False
        return True

    def _collect(self, used: set[bytes]) -> None:
        for name in os.listdir(self._folder):
            if name.endswith(".part"):
                self.drop(name)  # left by a dead server, since no one is saving now
        rewritten: list[str] = []
        small: list[str] = []
        for name, pack in list(self._packs.items()):
            total = sum(place.size for place in pack.places.values())
            kept = sum(place.size for digest, place in pack.places.items() if self._needs(pack, digest, used))
            if not any(self._needs(pack, digest, used) for digest in pack.places):
                self._forget(name)
                os.unlink(self._folder / name)
            elif kept < total * MAX_UNUSED_SHARE:
                rewritten.append(name)
            elif total < SMALL_PACK_BYTES:
                small.append(name)
        if len(small) > MAX_SMALL_PACKS:
            rewritten += small
        if rewritten:
            self._rewrite(rewritten, used)

    def _needs(self, pack: Pack, digest: bytes, used: set[bytes]) -> bool:
        return digest in used and self._where.get(digest) is pack

    def _rewrite(self, names: list[str], used: set[bytes]) -> None:
        with self.begin() as addition:
            for name in names:
                pack = self._packs[name]
                for digest, place in pack.places.items():
                    if self._needs(pack, digest, used):
                        # A damaged chunk is dropped; loading a snapshot that needs it reports it.
                        with contextlib.suppress(errors.SnapshotDamaged):
                            addition.writer.keep(digest, pack.read(digest, place.size))
            addition.finish()
        for name in names:
            self._forget(name)
            os.unlink(self._folder / name)


class Addition:
    """The new chunks of one save, written to a new pack."""

    def __init__(self, store: ChunkStore) -> None:
        self._store = store
        self._fd = -1
        self._draft = ""
        self.writer: Writer

    def __enter__(self) -> "Addition":
        self._fd, self._draft = self._store.new_file()
        self.writer = Writer(self._fd)
        return self

    def has(self, digest: bytes) -> bool:
        return self._store.has(digest) or self.writer.has(digest)

    def put(self, digest: bytes, data: memoryview) -> None:
        self.writer.put(digest, data)

    @property
    def size(self) -> int:
        return self.writer.size

    def finish(self) -> None:
        if self.writer.places:
            self.writer.finish()
            self._store.publish(self._draft)

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
        self._store.drop(self._draft)
