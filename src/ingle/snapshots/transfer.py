"""Bytes between a worker and the disk, over a channel: a conversation that blocks, held in a thread of its own.

What comes from the worker is untrusted: sizes are bounded before anything is read, chunks are checked against their
hashes, the summary against the chunks that came. Nothing of it is ever unpickled here.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from ingle import errors
from ingle.snapshots import manifest
from ingle_worker.wire import snapshot_channel

SILENCE = 120.0
"""Seconds in which a copy that is being saved must say something, and one that is loaded take something."""

NOT_SAVED = "the session could not be saved: "

AHEAD = 8
"""Chunks that are read and checked while others are sent."""

READERS = 2
"""One thread hashes 1.6 GB a second, which is less than a socket takes."""

TOGETHER = 256 * 1024
"""Small chunks are sent together up to so many bytes."""


class Sink(Protocol):
    """Where chunks of a save go."""

    def has(self, digest: bytes) -> bool: ...

    def put(self, digest: bytes, data: memoryview) -> None: ...


class Source(Protocol):
    """Where chunks of a snapshot come from."""

    def read(self, digest: bytes, size: int) -> bytes: ...


def receive(connection: socket.socket, sink: Sink, limit: int) -> manifest.Summary:
    """Take a whole save. The summary names only chunks that are there."""
    try:
        return _Receiving(connection, sink, limit).run()
    except TimeoutError:
        raise errors.SaveFailed(f"the session's copy said nothing for {SILENCE:g} s, and was given up") from None
    except OSError as error:
        raise unsaved(error) from None


class CopyLost(errors.SaveFailed):
    """It ended, or closed its end; how, its exit status says."""


def unsaved(error: OSError) -> errors.SaveFailed:
    """What the system says of the disk."""
    return errors.SaveFailed(f"{NOT_SAVED}{error.strerror or error}; make room, and save again")


class _Receiving:
    def __init__(self, connection: socket.socket, sink: Sink, limit: int) -> None:
        self._connection = connection
        self._sink = sink
        self._limit = limit
        self._sizes: dict[bytes, int] = {}
        self._total = 0
        self._buffer = bytearray(snapshot_channel.MAX_CHUNK)

    def run(self) -> manifest.Summary:
        self._connection.settimeout(SILENCE)
        while True:
            kind, size = self._prefix()
            if (
                kind == snapshot_channel.OFFER
                and 0 < size <= snapshot_channel.MAX_OFFERED * snapshot_channel.ENTRY.size
            ):
                self._answer(bytes(self._exactly(size)))
            elif kind == snapshot_channel.SUMMARY and size <= snapshot_channel.MAX_SUMMARY:
                data = bytearray(size)
                self._fill(memoryview(data))
                return self._check(manifest.read_summary(bytes(data)))
            else:
                raise errors.SaveFailed("the session's copy broke the protocol; nothing was kept")

    def _answer(self, offer: bytes) -> None:
        if len(offer) % snapshot_channel.ENTRY.size:
            raise errors.SaveFailed("the session's copy broke the protocol; nothing was kept")
        entries = list(snapshot_channel.ENTRY.iter_unpack(offer))
        for digest, size in entries:
            if not 0 < size <= snapshot_channel.MAX_CHUNK:
                raise errors.SaveFailed("the session's copy offered a chunk that is too large; nothing was kept")
            self._total += size
            self._sizes[digest] = size
        if self._total > self._limit:
            raise errors.TooLarge(
                f"the session holds more than {self._limit} bytes; raise max_snapshot, or delete what is not needed"
            )
        needed = bytes(not self._sink.has(digest) for digest, _ in entries)
        self._connection.sendall(snapshot_channel.PREFIX.pack(snapshot_channel.NEEDED, len(needed)) + needed)
        for (digest, size), wanted in zip(entries, needed, strict=True):
            if wanted:
                if self._prefix() != (snapshot_channel.CHUNK, size):
                    raise errors.SaveFailed("the session's copy sent another chunk than it was asked for")
                self._sink.put(digest, self._exactly(size))

    def _prefix(self) -> tuple[int, int]:
        kind, size = snapshot_channel.PREFIX.unpack(self._exactly(snapshot_channel.PREFIX.size))
        return kind, size

    def _exactly(self, size: int) -> memoryview:
        view = memoryview(self._buffer)[:size]
        self._fill(view)
        return view

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self._connection.recv_into(view)
            if not count:
                raise CopyLost(
                    "the session's copy ended before it had told everything: code of an object's own (__reduce__, "
                    "__getstate__) may have ended it, or a limit; the session itself goes on"
                )
            view = view[count:]

    def _check(self, summary: manifest.Summary) -> manifest.Summary:
        for digest, size in summary.pieces():
            try:
                known = self._sizes.get(bytes.fromhex(digest))
            except ValueError:
                known = None
            if known != size:
                raise errors.SaveFailed("the session's copy named bytes that it never sent; nothing was kept")
        return summary


def send(connection: socket.socket, source: Source, pieces: Iterator[manifest.Chunk]) -> None:
    """Send all of these, in order, each checked. Damage is an error, and what comes after it is not sent.

    Reading and hashing go on in another thread while this one sends: both release the interpreter's lock.
    """
    connection.settimeout(SILENCE)
    try:
        with ThreadPoolExecutor(READERS) as reader:
            for data in _ahead(reader, lambda piece: source.read(bytes.fromhex(piece[0]), piece[1]), pieces):
                connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return  # the worker has closed it, and tells itself why
    except TimeoutError:
        raise errors.LoadFailed(f"the session took nothing for {SILENCE:g} s while it was loaded") from None


def _ahead(
    reader: ThreadPoolExecutor, read: Callable[[manifest.Chunk], bytes], pieces: Iterator[manifest.Chunk]
) -> Iterator[bytes]:
    waiting: deque[Future[bytes]] = deque()
    gathered: list[manifest.Chunk] = []
    size = 0

    def read_all(batch: list[manifest.Chunk]) -> bytes:
        return read(batch[0]) if len(batch) == 1 else b"".join(map(read, batch))

    for piece in pieces:
        gathered.append(piece)
        size += piece[1]
        if size >= TOGETHER:
            waiting.append(reader.submit(read_all, gathered))
            gathered, size = [], 0
        if len(waiting) >= AHEAD:
            yield waiting.popleft().result()
    if gathered:
        waiting.append(reader.submit(read_all, gathered))
    while waiting:
        yield waiting.popleft().result()
