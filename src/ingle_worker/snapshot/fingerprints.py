"""Hashes of the bytes that each variable would be saved as, to tell which variables have changed.

Values of builtin types and of some libraries, and importable definitions, are hashed by any process: no code of the
user runs for them. All others are hashed in a copy of the worker, which exits afterwards. There the list of variables
is sent first, and each hash as soon as it is known. So a variable that takes too long, or ends the copy, costs those
after it and no others. Each variable is hashed alone: what another one shares with it makes no difference.
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

MAX_PLAIN_BYTES = 32 * 1024**2
"""Size of a value that any process hashes: the session waits for that."""

LIBRARIES = frozenset(
    {
        "builtins",
        "collections",
        "datetime",
        "decimal",
        "fractions",
        "numpy",
        "pandas",
        "pathlib",
        "pyarrow",
        "uuid",
    }
)
"""Packages whose types are saved by their own code alone. The contents of their objects are looked at one by one."""

CYTHON_FUNCTION = "cython_function_or_method"
"""Type of functions in compiled modules of pandas. Each version of Cython has its own."""


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
    """A value that may need code of the user to be saved."""


class _PlainPickler(_pickle.Pickler):
    dispatch_table: Any = types.MappingProxyType({})
    """Empty, instead of the one in which a session may register its own functions."""

    def reducer_override(self, value: Any) -> Any:
        """Refuse a value that is no part of a library. Pickle asks for all that it does not save by itself."""
        kind = type(value)
        # A class that is not saved by name is one of the session's, whatever its own type.
        if _import_name(value) or (_is_of_library(kind) and not issubclass(kind, type)):
            return NotImplemented
        raise _NotPlain


def add_to(listed: "list[dict[str, Any]]", named: "list[tuple[str, Any]]", seconds: float) -> None:
    """Add identities to the descriptions of these variables, and the hashes that need no code of the user."""
    until = monotonic() + seconds
    make_hash = chunks.sha256()
    for about, (_, value) in zip(listed, named):  # noqa: B905
        about["identity"] = id(value)
        small = about.get("size", 0) <= MAX_PLAIN_BYTES
        about["digest"] = _plain_digest(value, make_hash, until) if small else ""


def _plain_digest(value: Any, make_hash: Any, until: float) -> str:
    """Return the hash of a value, or nothing if it needs code of the user or more time."""
    hasher = Hasher(make_hash, until)
    try:
        name = _import_name(value)
        if name:
            hasher.write(name.encode("utf-8", "surrogatepass"))
        else:
            _PlainPickler(hasher, reduce.PROTOCOL, buffer_callback=hasher.add_buffer).dump(value)
        return hasher.digest
    except (Exception, TimeUp):  # a thread may change a container meanwhile
        return ""


def _import_name(value: Any) -> str:
    """Return the name that saves a module, function or class, or nothing if it is not saved by name."""
    kind = type(value)
    if kind is types.ModuleType:
        return f"module {vars(value)['__name__']}" if definitions.is_importable_module(value) else ""
    if issubclass(kind, type):
        # Not by its attributes: a metaclass may have code for them.
        module, name = definitions.module_of(value), definitions.qualname_of(value)
    elif kind is types.FunctionType or kind is types.BuiltinFunctionType or _is_cython(kind):
        module, name = value.__module__, value.__qualname__
    else:
        return ""
    return f"{module}.{name}" if _is_held(value, module, name) else ""


def _is_cython(kind: type) -> bool:
    # Its functions have a member for their module, where other types have the name of theirs.
    return (
        definitions.qualname_of(kind) == CYTHON_FUNCTION
        and type(definitions.module_of(kind)) is types.MemberDescriptorType
    )


def _is_of_library(kind: type) -> bool:
    module, name = definitions.module_of(kind), definitions.qualname_of(kind)
    return type(module) is str and module.partition(".")[0] in LIBRARIES and _is_held(kind, module, name)


def _is_held(value: Any, module: Any, name: str) -> bool:
    """Return whether a module has the value by this name, so that no session has made it."""
    found = sys.modules.get(module) if type(module) is str and module != definitions.MAIN else None
    # Not by getattr: modules may have code for names that they do not hold.
    return type(found) is types.ModuleType and vars(found).get(name) is value


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
