"""The guest's side of a channel: chunks go out if the host needs them, and come back in order.

Data is cut into chunks of at most 4 MiB and hashed where it lies. What is large is never copied; what pickle hands over
in small pieces is gathered until a chunk is full. A bounded amount waits for the host's word.
"""

import json
import mmap
import socket
import sys
from typing import Any

from ingle_worker.wire import snapshot_channel

WAITING = 16 * 1024 * 1024
"""Bytes of gathered data that may wait for the host's answer."""

LARGE = 1 << 20
"""A piece from this size on begins a chunk of its own, so that what changes before it does not change its chunks."""

SHIFTING = 1 << 18
"""Size of the chunks of a stream's small pieces."""


def _sha256() -> Any:
    """The interpreter's quickest; looked for where it was installed, not in the session's folder."""
    before = sys.path
    sys.path = [each for each in before if each]
    try:
        import hashlib

        return hashlib.sha256
    finally:
        sys.path = before


class Offers:
    """Everything that goes out in one save."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._hash = _sha256()
        self._known: set[bytes] = set()
        self._pending: list[tuple[bytes, memoryview]] = []
        self._held = 0

    def chunk(self, data: memoryview, *, held: bool) -> tuple[str, int]:
        """Offer one chunk; its name. `held`: its memory is ours, and free again once it is gone."""
        digest = self._hash(data).digest()
        if digest not in self._known:
            self._known.add(digest)
            self._pending.append((digest, data))
            if held:
                self._held += data.nbytes
            if self._held > WAITING or len(self._pending) >= snapshot_channel.MAX_OFFERED:
                self.flush()
        return digest.hex(), data.nbytes

    def mark(self) -> int:
        return len(self._pending)

    def flush(self) -> None:
        pending, self._pending, self._held = self._pending, [], 0
        if not pending:
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
    """What pickle writes one group to."""

    def __init__(self, offers: Offers) -> None:
        self._offers = offers
        self._gathered: list[bytes] = []
        self._size = 0
        self.names: list[tuple[str, int]] = []

    def write(self, data: Any) -> int:
        size = len(data)
        if size >= LARGE:
            self.cut()
            cut_whole(self._offers, memoryview(data), self.names)
        else:
            self._gathered.append(bytes(data))
            self._size += size
            if self._size >= SHIFTING:
                self.cut()
        return size

    def cut(self) -> None:
        if self._size:
            data = b"".join(self._gathered)
            self._gathered, self._size = [], 0
            self.names.append(self._offers.chunk(memoryview(data), held=True))


def cut_whole(offers: Offers, view: memoryview, names: list[tuple[str, int]], *, held: bool = True) -> None:
    """Chunks of something that lies in memory as it is."""
    flat = view.cast("B") if view.ndim != 1 or view.format != "B" else view
    starts = range(0, flat.nbytes, snapshot_channel.MAX_CHUNK)
    names += [offers.chunk(flat[start : start + snapshot_channel.MAX_CHUNK], held=held) for start in starts]


class Nowhere:
    """Takes what is written and forgets it: to see whether something can be saved at all."""

    def write(self, data: Any) -> int:
        return len(data)


# --- loading -----------------------------------------------------------------------------------------------

READ_AHEAD = 1 << 18


class Incoming:
    """The bytes of a snapshot in their order. As a file it gives what is left of the present stream."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._ahead = b""
        self._at = 0
        self._left = 0

    def begin(self, size: int) -> None:
        self._left = size

    def drain(self) -> None:
        """Pass over what is left of the stream."""
        while self._left:
            self.read(min(self._left, READ_AHEAD))

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
        if view.nbytes >= READ_AHEAD:
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
        self._ahead, self._at = self._socket.recv(READ_AHEAD), 0
        if not self._ahead:
            raise EOFError("the snapshot ended too early")

    def readline(self) -> bytes:
        line = bytearray()
        while self._left and not line.endswith(b"\n"):
            line += self.read(1)
        return bytes(line)

    def buffer(self, size: int, numpy: Any) -> Any:
        """Memory with the next bytes in it. With numpy it is an array: then it can be told who looks into it."""
        memory: Any
        if numpy is not None:
            memory = numpy.empty(size, "u1")
        elif size >= LARGE:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            memory = bytearray(size)
        self.begin(size)
        self.readinto(memory)
        return memory

    def close(self) -> None:
        self._socket.close()


def read_into(source: socket.socket, view: memoryview) -> None:
    while view.nbytes:
        count = source.recv_into(view)
        if not count:
            raise EOFError("the host ended before the snapshot did")
        view = view[count:]
