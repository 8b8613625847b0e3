"""Which variables have changed since a moment: bound to another object, or with other bytes when pickled.

The bytes are hashed and not kept. Time and size are bounded; variables that were not compared are named.
"""

import hashlib
import pickle
import time
import types
from typing import Any

MAX_BYTES = 32 * 1024**2
"""Size of a value that is compared."""

_FIXED = (int, float, complex, bool, str, bytes, type(None), range, slice)
"""Types of values that never change."""

_NAMED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
"""Types of values that are compared by identity alone."""


class Comparison:
    def __init__(self) -> None:
        self._noted: dict[str, tuple[Any, bytes]] = {}
        """By name: the value, and the hash of its bytes; empty if it is not known."""

    def note(self, space: dict[str, Any], seconds: float) -> None:
        """Begin to compare from now on."""
        until = time.monotonic() + seconds
        self._noted = {name: (value, _digest(value, until)) for name, value in _visible(space)}

    def compare(self, space: dict[str, Any], seconds: float) -> tuple[list[str], list[str]]:
        """Return the names that have changed, and those that could not be compared. Forget what was noted."""
        until = time.monotonic() + seconds
        noted, self._noted = self._noted, {}
        changed, unknown = [], []
        for name, value in _visible(space):
            if name not in noted:
                continue
            before, digest = noted[name]
            if value is not before:
                changed.append(name)
            elif not isinstance(value, (*_FIXED, *_NAMED)):
                now = _digest(value, until)
                if not digest or not now:
                    unknown.append(name)
                elif now != digest:
                    changed.append(name)
        return changed, unknown


def _visible(space: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in space.items() if type(name) is str and not name.startswith("_")]


class _NotCompared(Exception):
    """The value is too large, or the time is over."""


class _Hash:
    """File that hashes what is written to it."""

    def __init__(self, until: float) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._left = MAX_BYTES
        self._until = until

    def write(self, data: Any) -> int:
        size = len(data) if isinstance(data, (bytes, bytearray)) else memoryview(data).nbytes
        self._left -= size
        if self._left < 0 or time.monotonic() > self._until:
            raise _NotCompared
        self.hash.update(data)
        return size


def _digest(value: Any, until: float) -> bytes:
    """Return the hash of a value's bytes, or nothing if it cannot be told in time."""
    if isinstance(value, (*_FIXED, *_NAMED)) or time.monotonic() > until:
        return b""
    size = getattr(value, "nbytes", 0)
    if isinstance(size, int) and size > MAX_BYTES:
        return b""
    target = _Hash(until)
    try:
        pickle.Pickler(target, pickle.HIGHEST_PROTOCOL).dump(value)
    except Exception:  # user code: an object that cannot be pickled raises anything
        return b""
    return target.hash.digest()
