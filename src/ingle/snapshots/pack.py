"""A pack: a file of chunks with an index at its end. A portable snapshot is a pack with a manifest.

    8 bytes   magic number and version
    256 bytes the mask (version 2)
    …         chunks, one after the other: masked in version 2, unmasked in version 1
    …         the index, JSON: hash, offset and size of each chunk; optionally a manifest and its signature
    32 bytes  SHA-256 of the index
    8 bytes   length of the index
    8 bytes   end marker

A pack has no compression and no file names, so reading it cannot use much memory or write files. Every offset is
checked against the file, every chunk against its hash.

A session chooses the bytes of its chunks, and a portable file may be anywhere. So its chunks are XORed with a random
mask that the session cannot know. No other program finds text, code or an archive of the session's choice in it.
"""

import hashlib
import os
import stat
import struct
import threading
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ingle import errors
from ingle.snapshots.manifest import Digest
from ingle.support import bounded_json
from ingle.support.bounded_json import Bounds
from ingle_worker.wire import snapshot_channel

HEAD, MASKED_HEAD = b"INGLE\0\x01\n", b"INGLE\0\x02\n"
MASK_BYTES = 256
TAIL = b"\n\x01\0ELGNI"
END = struct.Struct(">32sQ8s")
MAX_INDEX = 256 * 1024 * 1024
MAX_PORTABLE_INDEX = 96 * 1024 * 1024

PORTABLE = Bounds(elements=4 * snapshot_channel.MAX_CHUNKS + 100, text=4 * MAX_PORTABLE_INDEX)
"""Bounds of a portable file's index. The manifest in it is one text, with bounds of its own."""


class Index(Struct, frozen=True):
    chunks: list[tuple[Digest, int, int]]
    """Hash, offset, size."""
    manifest: str = ""
    signature: str = ""


class Place(NamedTuple):
    offset: int
    size: int


_index = msgspec.json.Decoder(Index)


def mask(data: "bytes | memoryview", key: bytes, offset: int) -> bytes:
    """XOR bytes at this offset of a file with its mask. The same call removes the mask."""
    if not key:
        return bytes(data)
    start = offset % len(key)
    stream = (key * (len(data) // len(key) + 2))[start : start + len(data)]
    return (int.from_bytes(data, "little") ^ int.from_bytes(stream, "little")).to_bytes(len(data), "little")


class Writer:
    """Writes chunks to a file that the caller names and closes; masked if the file leaves the data folder."""

    def __init__(self, fd: int, *, masked: bool = False) -> None:
        self._fd = fd
        self._mask = os.urandom(MASK_BYTES) if masked else b""
        head = (MASKED_HEAD if masked else HEAD) + self._mask
        self._at = len(head)
        self.places: dict[bytes, Place] = {}
        self.size = 0
        """Bytes of all chunks."""
        self._lock = threading.Lock()
        write_whole(fd, head)

    def has(self, digest: bytes) -> bool:
        return digest in self.places

    def put(self, digest: bytes, data: memoryview) -> None:
        """Add a chunk after checking its hash. Several threads may do so at once."""
        if hashlib.sha256(data).digest() != digest:
            raise errors.SaveFailed("the session's copy sent other bytes than it had offered; nothing was saved")
        with self._lock:
            if digest not in self.places:
                self.keep(digest, data)

    def keep(self, digest: bytes, data: "memoryview | bytes") -> None:
        """Add a chunk that was checked before."""
        write_whole(self._fd, mask(data, self._mask, self._at) if self._mask else data)
        self.places[digest] = Place(self._at, len(data))
        self._at += len(data)
        self.size += len(data)

    def finish(self, manifest: bytes = b"", signature: str = "") -> None:
        """Write the index, and sync the file to disk."""
        chunks = [(digest.hex(), place.offset, place.size) for digest, place in self.places.items()]
        index = msgspec.json.encode(Index(chunks, manifest.decode(), signature))
        write_whole(self._fd, index)
        write_whole(self._fd, END.pack(hashlib.sha256(index).digest(), len(index), TAIL))
        os.fsync(self._fd)


class Pack:
    """Reader of an untrusted pack. Errors call it `name`.

    A pack with a path is opened for each chunk, because packs are many and file descriptors few.
    """

    def __init__(self, fd: int, name: str, path: Path | None = None) -> None:
        self._fd = fd
        self._path = path
        self.name = name
        try:
            index = self._read_index()
        except BaseException:
            os.close(fd)
            raise
        self.manifest = index.manifest.encode()
        self.signature = index.signature
        self.places: dict[bytes, Place] = {
            bytes.fromhex(digest): Place(offset, size) for digest, offset, size in index.chunks
        }
        if path is not None:
            self.close()

    @classmethod
    def open(cls, path: Path) -> "Pack":
        return cls(_open(path), path.name, path)

    def _read_index(self) -> Index:
        about = os.fstat(self._fd)
        if not stat.S_ISREG(about.st_mode):
            raise errors.SnapshotDamaged(self.name, "it is not a regular file")
        self.size = about.st_size
        head = os.pread(self._fd, len(HEAD), 0)
        if head not in (HEAD, MASKED_HEAD):
            raise errors.SnapshotDamaged(self.name, "it is not a snapshot of ingle")
        self._mask = os.pread(self._fd, MASK_BYTES, len(HEAD)) if head == MASKED_HEAD else b""
        end = os.pread(self._fd, END.size, max(self.size - END.size, 0))
        if self.size < len(HEAD) + END.size or not end.endswith(TAIL):
            raise errors.SnapshotDamaged(self.name, "its end is missing")
        digest, length, _ = END.unpack(end)
        start = self.size - END.size - length
        if length > (MAX_PORTABLE_INDEX if self._path is None else MAX_INDEX) or start < len(HEAD):
            raise errors.SnapshotDamaged(self.name, "its index is longer than the file, or than an index may be")
        data = os.pread(self._fd, length, start)
        if hashlib.sha256(data).digest() != digest:
            raise errors.SnapshotDamaged(self.name, "its index was changed")
        try:
            if self._path is None:  # packs in the data folder were bounded when they were written
                bounded_json.check(data, PORTABLE)
            index = _index.decode(data)
            for chunk, offset, size in index.chunks:
                if len(bytes.fromhex(chunk)) != 32:
                    raise ValueError("a hash of the wrong length")
                if not 0 <= size <= snapshot_channel.MAX_CHUNK or offset < len(HEAD) or offset + size > start:
                    raise ValueError("a chunk outside the file")
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise errors.SnapshotDamaged(self.name, f"its index cannot be read ({error})") from None
        return index

    def read(self, digest: bytes, size: int) -> bytes:
        """Return one chunk after checking its hash."""
        place = self.places.get(digest)
        data = b"" if place is None else self._read(place)
        if place is None or place.size != size or hashlib.sha256(data).digest() != digest:
            raise errors.SnapshotDamaged(self.name, "some of its bytes are missing or were changed")
        return data

    def _read(self, place: Place) -> bytes:
        try:
            if self._path is None:
                return mask(os.pread(self._fd, place.size, place.offset), self._mask, place.offset)
            fd = _open(self._path)
            try:
                return mask(os.pread(fd, place.size, place.offset), self._mask, place.offset)
            finally:
                os.close(fd)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise errors.DataFolderFailed(
                f"{self.name} cannot be read: {error.strerror or error}; check the disk, and retry"
            ) from None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def write_whole(fd: int, data: "bytes | memoryview") -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
