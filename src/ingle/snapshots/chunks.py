"""All chunks of one tenant's snapshots, each kept once, by its hash.

They lie in packs that are never changed: a save adds one with what was not there yet. What no manifest uses any more is
removed, packs of which little is used are written anew, small ones are put together. Several servers may use one
folder: who saves or loads holds its lock with others, who removes holds it alone, or lets it be. Where somebody always
saves, it was let be once too often: then those of this server who come next wait for a moment.

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
from ingle.snapshots.disk_errors import make_folder
from ingle.snapshots.pack import Pack, Writer

SMALL = 4 * 1024 * 1024
MANY = 24
"""So many small packs are put together."""

WASTED = 0.5
"""The share of a pack that may be unused."""

SUFFIX = ".pack"

MISSED = 16
"""Times that removing was let be before it is waited for; twice as many after each time that this was in vain."""

PATIENCE = 0.5
"""Seconds for which it is: who loads or saves much may take minutes."""

LOOK = 0.005
"""How often it is tried meanwhile."""


class Blobs:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packs: dict[str, Pack] = {}
        self._where: dict[bytes, Pack] = {}
        self._changing = threading.RLock()
        self._coming = threading.Lock()
        """Held by who comes in, for as long as that takes; or by who waits for the others to be gone."""
        self._missed = 0
        self._bearable = MISSED

    def make_folder(self) -> None:
        make_folder(self._folder)

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """While this lasts nobody removes anything."""
        with contextlib.ExitStack() as stack:
            with self._coming:
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
        """See what other servers have added and removed."""
        with self._changing:
            names = {entry for entry in os.listdir(self._folder) if entry.endswith(SUFFIX)}
            for name in self._packs.keys() - names:
                self._forget(name)
            for name in names - self._packs.keys():
                # A pack is under its name only when it is whole; one that was damaged since is as good as not there.
                with contextlib.suppress(errors.SnapshotDamaged, FileNotFoundError):
                    self._add(name)

    def _add(self, name: str) -> None:
        with self._changing:
            pack = self._packs[name] = Pack.open(self._folder / name)
            for digest in pack.places:
                self._where[digest] = pack

    def _forget(self, name: str) -> None:
        pack = self._packs.pop(name)
        for digest in pack.places:
            if self._where.get(digest) is pack:
                del self._where[digest]
        # Of chunks that lie in two packs, the other one's is good too.
        for other in self._packs.values():
            for digest in pack.places.keys() & other.places.keys():
                self._where.setdefault(digest, other)

    def has(self, digest: bytes) -> bool:
        return digest in self._where

    def read(self, digest: bytes, size: int) -> bytes:
        pack = self._where.get(digest)
        if pack is None:
            raise errors.SnapshotDamaged("the snapshot", "some of its bytes are not there")
        return pack.read(digest, size)

    def begin(self) -> "Addition":
        """What one save adds."""
        return Addition(self)

    def new_file(self) -> tuple[int, str]:
        draft = f".{secrets.token_hex(8)}.part"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._folder / draft, flags, 0o600), draft

    def scratch(self) -> int:
        """A file without a name, on the same disk."""
        self.make_folder()
        fd, draft = self.new_file()
        self.drop(draft)
        return fd

    def publish(self, draft: str) -> None:
        """A draft is whole: give it its name."""
        name = secrets.token_hex(16) + SUFFIX
        os.rename(self._folder / draft, self._folder / name)
        _sync(self._folder)
        self._add(name)

    def drop(self, draft: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._folder / draft)

    # --- removing ---

    def collect(self, used: Callable[[], set[bytes]]) -> None:
        """Remove what is not used; not now, if somebody saves or loads.

        What is used is asked for while nobody can add to it: else a save that ends in between would be torn.
        """
        if self._try_to_collect(used):
            self._missed, self._bearable = 0, MISSED
            return
        self._missed += 1
        if self._missed < self._bearable:
            return
        self._missed = 0
        with self._coming:
            until = time.monotonic() + PATIENCE
            while not self._try_to_collect(used):
                if time.monotonic() > until:
                    self._bearable *= 2
                    return
                time.sleep(LOOK)
        self._bearable = MISSED

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
                self.drop(name)  # of a server that died: nobody saves now
        anew: list[str] = []
        small: list[str] = []
        for name, pack in list(self._packs.items()):
            total = sum(place.size for place in pack.places.values())
            kept = sum(place.size for digest, place in pack.places.items() if self._needs(pack, digest, used))
            if not any(self._needs(pack, digest, used) for digest in pack.places):
                self._forget(name)
                os.unlink(self._folder / name)
            elif kept < total * WASTED:
                anew.append(name)
            elif total < SMALL:
                small.append(name)
        if len(small) > MANY:
            anew += small
        if anew:
            self._write_anew(anew, used)

    def _needs(self, pack: Pack, digest: bytes, used: set[bytes]) -> bool:
        return digest in used and self._where.get(digest) is pack

    def _write_anew(self, names: list[str], used: set[bytes]) -> None:
        with self.begin() as addition:
            for name in names:
                pack = self._packs[name]
                for digest, place in pack.places.items():
                    if self._needs(pack, digest, used):
                        # What is damaged is not carried on; whoever needs it is told when he asks for it.
                        with contextlib.suppress(errors.SnapshotDamaged):
                            addition.writer.keep(digest, pack.read(digest, place.size))
            addition.finish()
        for name in names:
            self._forget(name)
            os.unlink(self._folder / name)


class Addition:
    """The chunks of one save that were not there yet, on their way into a pack."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._fd = -1
        self._draft = ""
        self.writer: Writer

    def __enter__(self) -> "Addition":
        self._fd, self._draft = self._blobs.new_file()
        self.writer = Writer(self._fd)
        return self

    def has(self, digest: bytes) -> bool:
        return self._blobs.has(digest) or self.writer.has(digest)

    def put(self, digest: bytes, data: memoryview) -> None:
        self.writer.put(digest, data)

    @property
    def size(self) -> int:
        return self.writer.size

    def finish(self) -> None:
        if self.writer.places:
            self.writer.finish()
            self._blobs.publish(self._draft)

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
        self._blobs.drop(self._draft)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
