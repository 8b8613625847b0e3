"""Transfer of snapshots between a worker and the disk over a socket. It blocks, and has its own thread.

Data from the worker is untrusted. Sizes are bounded before reading, and chunks are checked against their hashes. The
summary is checked against the received chunks. Nothing is ever unpickled here.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from ingle import errors
from ingle.snapshots import manifest
from ingle_worker.wire import snapshot_channel

SILENCE_SECONDS = 120.0
"""Time in which the worker must send or receive something."""

NOT_SAVED = "the session could not be saved: "

CHUNKS_AHEAD = 8
"""Chunks to read and check in advance while others are sent."""

READER_THREADS = 4
"""One thread hashes 1.6 GB per second, which is less than a socket accepts."""

WRITER_THREADS = 3
"""Threads that check and store chunks while the next ones are received."""

BATCH_BYTES = 256 * 1024
"""Small chunks are sent together up to this size, and stored without a thread."""


class Sink(Protocol):
    """Destination of a save's chunks. Several threads put chunks into it at once."""

    def has(self, digest: bytes) -> bool: ...

    def put(self, digest: bytes, data: memoryview) -> None: ...


class Source(Protocol):
    """Source of a snapshot's chunks."""

    def read(self, digest: bytes, size: int) -> bytes: ...


def receive(connection: socket.socket, sink: Sink, limit: int) -> manifest.Summary:
    """Receive a whole save. Its summary names only chunks that were received or are in the sink."""
    try:
        return _Receiver(connection, sink, limit).run()
    except TimeoutError:
        raise errors.SaveFailed(f"the session's copy sent nothing for {SILENCE_SECONDS:g} s; retry") from None
    except OSError as error:
        raise unsaved(error) from None


def receive_list(connection: socket.socket) -> manifest.Summary:
    """Receive the list of what a save would hold, without its chunks."""
    return _Receiver(connection, _Nothing(), 0, listed_only=True).run()


class _Nothing:
    """Sink that no chunk comes to."""

    def has(self, digest: bytes) -> bool:
        return True

    def put(self, digest: bytes, data: memoryview) -> None:
        """Take nothing."""


class CopyLost(errors.SaveFailed):
    """The worker's copy ended or closed the socket; its exit status says why."""


def unsaved(error: OSError) -> errors.SaveFailed:
    """Return the error for a failed write."""
    return errors.SaveFailed(f"{NOT_SAVED}{error.strerror or error}; free some disk space, and save again")


class _Receiver:
    def __init__(self, connection: socket.socket, sink: Sink, limit: int, *, listed_only: bool = False) -> None:
        self._connection = connection
        self._listed_only = listed_only
        self._sink = sink
        self._limit = limit
        self._sizes: dict[bytes, int] = {}
        self._total = 0
        self._buffer = bytearray(snapshot_channel.MAX_CHUNK)
        self._writers = ThreadPoolExecutor(WRITER_THREADS, "ingle-chunks")
        self._storing: deque[tuple[Future[None], bytearray]] = deque()
        """Chunks that are being stored, and their memory."""

    def run(self) -> manifest.Summary:
        try:
            return self._run()
        finally:
            self._writers.shutdown()

    def _run(self) -> manifest.Summary:
        self._connection.settimeout(SILENCE_SECONDS)
        while True:
            kind, size = self._prefix()
            if (
                kind == snapshot_channel.OFFER
                and 0 < size <= snapshot_channel.MAX_OFFERED * snapshot_channel.ENTRY.size
            ):
                self._answer(bytes(self._exactly(size)))
            elif kind == snapshot_channel.SUMMARY and size > snapshot_channel.MAX_SUMMARY:
                raise errors.SaveFailed("the list of what to save is too long; delete names you do not need")
            elif kind == snapshot_channel.SUMMARY:
                data = bytearray(size)
                self._fill(memoryview(data))
                while self._storing:
                    self._storing.popleft()[0].result()
                return self._check(manifest.read_summary(bytes(data)))
            else:
                raise errors.SaveFailed("the session's copy broke the protocol; nothing was saved")

    def _answer(self, offer: bytes) -> None:
        if len(offer) % snapshot_channel.ENTRY.size:
            raise errors.SaveFailed("the session's copy broke the protocol; nothing was saved")
        entries = list(snapshot_channel.ENTRY.iter_unpack(offer))
        for digest, size in entries:
            if not 0 < size <= snapshot_channel.MAX_CHUNK:
                raise errors.SaveFailed("the session's copy offered a chunk that is too large; nothing was saved")
            self._total += size
            self._sizes[digest] = size
        if len(self._sizes) > snapshot_channel.MAX_CHUNKS:
            raise errors.TooLarge(
                f"the session has more than {snapshot_channel.MAX_CHUNKS} parts to save; delete names you do not need"
            )
        if self._total > self._limit:
            raise errors.TooLarge(
                f"the session holds more than {self._limit} bytes; raise max_snapshot, or delete data you do not need"
            )
        needed = bytes(not self._sink.has(digest) for digest, _ in entries)
        self._connection.sendall(snapshot_channel.PREFIX.pack(snapshot_channel.NEEDED, len(needed)) + needed)
        for (digest, size), wanted in zip(entries, needed, strict=True):
            if wanted:
                if self._prefix() != (snapshot_channel.CHUNK, size):
                    raise errors.SaveFailed("the session's copy sent another chunk than was requested")
                self._store(digest, size)

    def _store(self, digest: bytes, size: int) -> None:
        """Receive a chunk and store it; a large one in a thread, while the next is received."""
        if size < BATCH_BYTES:
            self._sink.put(digest, self._exactly(size))
            return
        memory = bytearray()
        if len(self._storing) >= CHUNKS_AHEAD:
            stored, memory = self._storing.popleft()
            stored.result()
        if len(memory) < size:
            memory = bytearray(size)
        view = memoryview(memory)[:size]
        self._fill(view)
        self._storing.append((self._writers.submit(self._sink.put, digest, view), memory))

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
                    "the session's copy ended before it had sent everything: an object's own code (__reduce__, "
                    "__getstate__) may have ended it, or a limit; the session itself still runs"
                )
            view = view[count:]

    def _check(self, summary: manifest.Summary) -> manifest.Summary:
        if self._listed_only:
            return summary
        for digest, size in summary.pieces():
            try:
                known = self._sizes.get(bytes.fromhex(digest))
            except ValueError:
                known = None
            if known != size:
                raise errors.SaveFailed("the session's copy named bytes that it never sent; nothing was saved")
        return summary


def send(connection: socket.socket, source: Source, pieces: Iterator[manifest.Chunk]) -> None:
    """Send these chunks in order, each checked. Damage raises, and nothing after it is sent.

    Other threads read and hash while this one sends. Both release the interpreter's lock.
    """
    connection.settimeout(SILENCE_SECONDS)
    try:
        with ThreadPoolExecutor(READER_THREADS) as reader:
            for data in _ahead(reader, lambda piece: source.read(bytes.fromhex(piece[0]), piece[1]), pieces):
                connection.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return  # the worker has closed the socket, and reports the reason itself
    except TimeoutError:
        raise errors.LoadFailed(f"the session read nothing for {SILENCE_SECONDS:g} s while loading; retry") from None


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
        if size >= BATCH_BYTES:
            waiting.append(reader.submit(read_all, gathered))
            gathered, size = [], 0
        if len(waiting) >= CHUNKS_AHEAD:
            yield waiting.popleft().result()
    if gathered:
        waiting.append(reader.submit(read_all, gathered))
    while waiting:
        yield waiting.popleft().result()
