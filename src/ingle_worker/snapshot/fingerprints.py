"""Hashes of the bytes that each variable would be saved as, to tell which variables have changed.

It runs in a copy of the worker, which exits afterwards. The list of all variables is sent first, and each hash as soon
as it is known. So a variable that takes too long, or ends the copy, costs those after it and no others. Each variable
is hashed alone: what another one shares with it makes no difference.
"""

import gc
import json
import socket
import types
from time import monotonic
from typing import Any

from ingle_worker.session import variables
from ingle_worker.snapshot import chunks, save
from ingle_worker.wire import snapshot_channel

BLOCK_BYTES = 1 << 22
"""Bytes that are hashed at once. The time is looked at after each."""

PARTS_PER_MESSAGE = 1000


class TimeUp(BaseException):
    """The time for all variables together is over. No `except Exception` of the user's code catches it."""


class Hasher:
    """File object that hashes what is written to it, until a moment."""

    def __init__(self, make: Any, until: float) -> None:
        self._hash = make()
        self._until = until

    def write(self, data: Any) -> int:
        view = memoryview(data)
        flat = view.cast("B") if view.ndim != 1 or view.format != "B" else view
        for start in range(0, flat.nbytes, BLOCK_BYTES):
            if monotonic() > self._until:
                raise TimeUp
            self._hash.update(flat[start : start + BLOCK_BYTES])
        return flat.nbytes

    def add_buffer(self, buffer: Any) -> bool:
        """Hash a buffer in place. Return True if pickle has to copy it instead."""
        try:
            view = buffer.raw()
        except BufferError:
            return True  # not contiguous
        self.write(view)
        return False

    @property
    def digest(self) -> str:
        digest: str = self._hash.hexdigest()
        return digest


def send(fd: int, main: types.ModuleType, seconds: float) -> None:
    """Send the variables and their hashes over the channel."""
    until = monotonic() + seconds
    with socket.socket(fileno=fd) as connection:
        connection.setblocking(True)
        gc.disable()
        named = variables.named_values(vars(main))[: variables.MAX_NAMES]
        listed = [{**about, "preview": None} for about in variables.describe_all(named)]
        for start in range(0, len(named), PARTS_PER_MESSAGE):
            part = slice(start, start + PARTS_PER_MESSAGE)
            _send(connection, [[about, id(value)] for about, (_, value) in zip(listed[part], named[part])])  # noqa: B905
        _send(connection, [])
        save.prepare(main)
        make = chunks.sha256()
        for number, (_, value) in enumerate(named):
            digest = _digest(value, make, until)
            if digest is None and monotonic() > until:
                return
            if digest is not None:
                _send(connection, [number, digest])


def _digest(value: Any, make_hash: Any, until: float) -> "str | None":
    """Return the hash of a value, or None if it cannot be saved or the time is over."""

    def attempt(make: Any) -> str:
        hasher = Hasher(make_hash, until)
        make(hasher, hasher.add_buffer, {}, frozenset(), {}).dump(value)
        return hasher.digest

    try:
        if monotonic() > until:
            return None
        digest: str = save.pickled(attempt)
        return digest
    except BaseException:  # user code runs here
        return None


def _send(connection: socket.socket, content: "list[Any]") -> None:
    data = json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode()
    connection.sendall(snapshot_channel.PREFIX.pack(snapshot_channel.FINGERPRINTS, len(data)) + data)
