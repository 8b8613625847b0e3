"""The guest's end of the snapshot channel: chunks are sent if the host needs them, and received in order.

Data is split into chunks of at most 4 MiB and hashed in place. Large data is never copied; small pieces from pickle are
joined until a chunk is full. A bounded amount waits for the host's answer.
"""

import contextlib
import importlib
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ingle_worker.wire import snapshot_channel

MAX_PENDING_BYTES = 16 * 1024 * 1024
"""Maximum bytes of joined data that wait for the host's answer."""

MAX_UNSENT_BYTES = 256 * 1024 * 1024
"""Maximum bytes of other data that waits: the host stores one part while the next is hashed."""

HASH_THREADS = 4
MIN_PARALLEL_CHUNKS = 8
"""A block of fewer chunks is hashed without threads."""

LARGE_BYTES = 1 << 20
"""A piece of this size starts its own chunk, so that changes before it do not change its chunks."""

SMALL_CHUNK_BYTES = 1 << 18
"""Chunk size for small pieces of a stream."""


def _installed(name: str) -> Any:
    """Import a module from the installation, never from the session's folder."""
    before = sys.path
    sys.path = [each for each in before if each]
    try:
        return importlib.import_module(name)
    finally:
        sys.path = before


def sha256() -> Any:
    """Return the fastest SHA-256."""
    return _installed("hashlib").sha256


def in_threads(work: Callable[[memoryview], bytes], pieces: list[memoryview]) -> Iterator[bytes]:
    """Yield the results in order, computed ahead by a few threads. Where none can be started, compute them here."""
    pool = _installed("concurrent.futures.thread").ThreadPoolExecutor(min(HASH_THREADS, os.cpu_count() or 1))
    try:
        yield from pool.map(work, pieces)
    except RuntimeError:  # a limit of the session
        yield from map(work, pieces)
    finally:
        pool.shutdown(wait=False)


class Offers:
    """Sender of all chunks of one save."""

    def __init__(self, fd: int, *, hashed: bool = True, silent: bool = False) -> None:
        """Chunks that are not `hashed` are numbered. A `silent` sender sends none of them, only the summary."""
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._hash = sha256() if hashed else None
        self._silent = silent
        self._count = 0
        self._known: set[bytes] = set()
        self._pending: list[tuple[bytes, memoryview]] = []
        self._owned_bytes = self._unsent_bytes = 0

    def block(self, pieces: list[memoryview], *, owned: bool) -> list[tuple[str, int]]:
        """Offer the chunks of one block. Return their names and sizes."""
        if len(pieces) < MIN_PARALLEL_CHUNKS or self._hash is None:
            return [self.chunk(each, owned=owned) for each in pieces]
        names = in_threads(self._name, pieces)
        return [self._offer(digest, each, owned) for digest, each in zip(names, pieces)]  # noqa: B905

    def chunk(self, data: memoryview, *, owned: bool) -> tuple[str, int]:
        """Offer one chunk and return its name and size. `owned`: its memory is ours and is freed when it was sent."""
        return self._offer(self._name(data), data, owned)

    def _offer(self, digest: bytes, data: memoryview, owned: bool) -> tuple[str, int]:
        if digest not in self._known:
            self._known.add(digest)
            self._pending.append((digest, data))
            if owned:
                self._owned_bytes += data.nbytes
            self._unsent_bytes += data.nbytes
            full = self._owned_bytes > MAX_PENDING_BYTES or self._unsent_bytes > MAX_UNSENT_BYTES
            if full or len(self._pending) >= snapshot_channel.MAX_OFFERED:
                self.flush()
        return digest.hex(), data.nbytes

    def _name(self, data: memoryview) -> bytes:
        if self._hash is not None:
            digest: bytes = self._hash(data).digest()
            return digest
        self._count += 1
        return self._count.to_bytes(snapshot_channel.DIGEST_BYTES, "big")

    def mark(self) -> int:
        return len(self._pending)

    def flush(self) -> None:
        pending, self._pending, self._owned_bytes, self._unsent_bytes = self._pending, [], 0, 0
        if not pending or self._silent:
            return
        self._send(
            snapshot_channel.OFFER,
            b"".join([snapshot_channel.ENTRY.pack(digest, data.nbytes) for digest, data in pending]),
        )
        kind, needed = self._receive()
        if kind != snapshot_channel.NEEDED or len(needed) != len(pending):
            raise OSError("the host answered an offer with something else")
        for wanted, (_, data) in zip(needed, pending):  # noqa: B905
            if wanted:
                self._send(snapshot_channel.CHUNK, data)

    def finish(self, summary: dict[str, Any]) -> None:
        self.flush()
        self._send(snapshot_channel.SUMMARY, json.dumps(summary, ensure_ascii=True, separators=(",", ":")).encode())
        self._socket.close()

    def _send(self, kind: int, data: Any) -> None:
        view = memoryview(data).cast("B") if not isinstance(data, bytes) else memoryview(data)
        prefix = snapshot_channel.PREFIX.pack(kind, view.nbytes)
        sent = self._socket.sendmsg([prefix, view])
        if sent < len(prefix):
            self._socket.sendall(prefix[sent:])
            sent = len(prefix)
        sent -= len(prefix)
        if sent < view.nbytes:
            self._socket.sendall(view[sent:])

    def _receive(self) -> tuple[int, bytes]:
        kind, size = snapshot_channel.PREFIX.unpack(self._exactly(snapshot_channel.PREFIX.size))
        return kind, self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        read_into(self._socket, memoryview(data))
        return bytes(data)


class Stream:
    """File object that pickle writes one group to."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers
        self._joined: list[bytes] = []
        self._size = 0
        self.names: list[tuple[str, int]] = []

    def write(self, data: Any) -> int:
        size = len(data)
        if size >= LARGE_BYTES:
            self.end_chunk()
            offer_block(self._offers, memoryview(data), self.names)
        else:
            self._joined.append(bytes(data))
            self._size += size
            if self._size >= SMALL_CHUNK_BYTES:
                self.end_chunk()
        return size

    def end_chunk(self) -> None:
        if self._size:
            data = b"".join(self._joined)
            self._joined, self._size = [], 0
            self.names.append(self._offers.chunk(memoryview(data), owned=True))


def offer_block(offers: Offers, view: memoryview, names: list[tuple[str, int]], *, owned: bool = True) -> None:
    """Offer the chunks of one block of memory."""
    flat = view.cast("B") if view.ndim != 1 or view.format != "B" else view
    starts = range(0, flat.nbytes, snapshot_channel.MAX_CHUNK)
    names += offers.block([flat[start : start + snapshot_channel.MAX_CHUNK] for start in starts], owned=owned)


class NullFile:
    """File object that drops all data, to test whether a value can be saved."""

    def write(self, data: Any) -> int:
        return len(data)


# --- loading -----------------------------------------------------------------------------------------------

READ_AHEAD_BYTES = 1 << 18


class Incoming:
    """Receiver of a snapshot's bytes in order. As a file it ends with the current stream."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._ahead = b""
        self._at = 0
        self._left = 0

    def begin(self, size: int) -> None:
        self._left = size

    def drain(self) -> None:
        """Skip the rest of the stream."""
        while self._left:
            self.read(min(self._left, READ_AHEAD_BYTES))

    def read(self, size: int = -1) -> bytes:
        size = self._left if size < 0 else min(size, self._left)
        if size <= len(self._ahead) - self._at:
            data = self._ahead[self._at : self._at + size]
            self._at += size
            self._left -= size
            return data
        made = bytearray(size)
        self.readinto(made)
        return bytes(made)

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")[: self._left]
        size = view.nbytes
        self._left -= size
        ready = self._ahead[self._at : self._at + size]
        view[: len(ready)] = ready
        self._at += len(ready)
        view = view[len(ready) :]
        if view.nbytes >= READ_AHEAD_BYTES:
            read_into(self._socket, view)
            return size
        while view.nbytes:
            self._fill()
            ready = self._ahead[: view.nbytes]
            view[: len(ready)] = ready
            self._at = len(ready)
            view = view[len(ready) :]
        return size

    def _fill(self) -> None:
        self._ahead, self._at = self._socket.recv(READ_AHEAD_BYTES), 0
        if not self._ahead:
            raise EOFError("the snapshot ended too early")

    def readline(self) -> bytes:
        line = bytearray()
        while self._left and not line.endswith(b"\n"):
            line += self.read(1)
        return bytes(line)

    def buffer(self, size: int, numpy: Any) -> Any:
        """Return memory with the next bytes. With numpy it is an array, so that views into it are known."""
        made = memory(size) if numpy is None else numpy.empty(size, "u1")
        self.begin(size)
        self.readinto(made)
        return made

    def close(self) -> None:
        self._socket.close()


def memory(size: int) -> Any:
    """Return new memory. A large piece lies in huge pages where the system has them."""
    if size < LARGE_BYTES:
        return bytearray(size)
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        made.madvise(mmap.MADV_HUGEPAGE)
    return made


def read_into(source: socket.socket, view: memoryview) -> None:
    while view.nbytes:
        count = source.recv_into(view)
        if not count:
            raise EOFError("the host ended before the snapshot did")
        view = view[count:]
