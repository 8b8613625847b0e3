"""Hashes of the bytes that each variable would be saved as, to tell which variables have changed.

Values of builtin types and importable definitions are hashed by any process: no code of the user runs for them. All
others are hashed in a copy of the worker, which exits afterwards. There the list of variables is sent first, and each
hash as soon as it is known. So a variable that takes too long, or ends the copy, costs those after it and no others.
Each variable is hashed alone: what another one shares with it makes no difference.
"""

import _pickle
import gc
import json
import socket
import sys
import types
from time import monotonic
from typing import Any

from ingle_worker.session import variables
from ingle_worker.snapshot import chunks, definitions, reduce, save
from ingle_worker.wire import snapshot_channel

BLOCK_BYTES = 1 << 22
"""Bytes that are hashed at once. The time is looked at after each."""

PARTS_PER_MESSAGE = 1000

_DEFINITIONS = (types.FunctionType, types.BuiltinFunctionType, type)
"""Types of what is saved by name if a module holds it. A class with another metaclass may have any attributes."""


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


# --- without code of the user ---


class _NotPlain(Exception):
    """A value that is not made of builtin types alone."""


class _PlainPickler(_pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Refuse a value: pickle asks for those that are not exactly of a builtin type."""
        raise _NotPlain


def add_to(listed: "list[dict[str, Any]]", named: "list[tuple[str, Any]]", seconds: float) -> None:
    """Add identities to the descriptions of these variables, and the hashes that need no code of the user."""
    until = monotonic() + seconds
    make_hash = chunks.sha256()
    for about, (_, value) in zip(listed, named):  # noqa: B905
        about["identity"] = id(value)
        about["digest"] = _plain_digest(value, make_hash, until)


def _plain_digest(value: Any, make_hash: Any, until: float) -> str:
    """Return the hash of a value, or nothing if it needs code of the user or more time."""
    hasher = Hasher(make_hash, until)
    try:
        name = _import_name(value)
        if name:
            hasher.write(name.encode("utf-8", "surrogatepass"))
        else:
            _PlainPickler(hasher, reduce.PROTOCOL).dump(value)
        return hasher.digest
    except (Exception, TimeUp):  # a thread may change a container meanwhile
        return ""


def _import_name(value: Any) -> str:
    """Return the name that saves a module, function or class, or nothing if it is not saved by name."""
    kind = type(value)
    if kind is types.ModuleType:
        return f"module {vars(value)['__name__']}" if definitions.is_importable_module(value) else ""
    if not any(kind is each for each in _DEFINITIONS):  # a metaclass may have any __eq__
        return ""
    module, name = value.__module__, value.__qualname__
    found = sys.modules.get(module) if type(module) is str and module != definitions.MAIN else None
    # Not by getattr: modules may have code for names that they do not hold.
    return f"{module}.{name}" if type(found) is types.ModuleType and vars(found).get(name) is value else ""


# --- in a copy ---


def send(fd: int, main: types.ModuleType, seconds: float, names: "list[str]") -> None:
    """Send the variables with these names, or all, and their hashes over the channel."""
    until = monotonic() + seconds
    with socket.socket(fileno=fd) as connection:
        connection.setblocking(True)
        gc.disable()
        named = variables.named_values(vars(main))
        if names:
            wanted = set(names)
            named = [each for each in named if each[0] in wanted]
        named = named[: variables.MAX_NAMES]
        listed = variables.describe_all(named)
        add_to(listed, named, seconds)
        for start in range(0, len(listed), PARTS_PER_MESSAGE):
            _send(connection, listed[start : start + PARTS_PER_MESSAGE])
        _send(connection, [])
        save.prepare(main)
        make_hash = chunks.sha256()
        for number, (about, (_, value)) in enumerate(zip(listed, named)):  # noqa: B905
            if about["digest"]:
                continue
            digest = _digest(value, make_hash, until)
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
