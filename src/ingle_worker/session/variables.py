"""Description of the user's variables: name, type, shape or length, size and a short preview.

A listing runs no user code: it reads exact types it knows by their C functions, and only names the type of others. It
is bounded in time, names and characters. Beyond the bounds there are only names and types, then a count. Only a request
for one variable runs its `__repr__` and `__str__`.
"""

import _collections  # type: ignore[import-not-found]
import collections
import os
import sys
import tempfile
import time
import types
from collections.abc import Callable
from itertools import islice
from operator import itemgetter
from typing import Any

from ingle_worker.magics.subshell import Lines
from ingle_worker.session import traceback_text
from ingle_worker.wire import values
from ingle_worker.wire.messages import MoveValue, ValueMoved

MAX_SECONDS = 0.1
"""Seconds for a whole listing. Later variables have only name and type."""

MAX_NAMES = 10_000
MAX_PREVIEW_CHARS = 200
MAX_LISTING_CHARS = 1_000_000
"""Characters of a whole listing, roughly."""

MAX_TEXT_CHARS = 1_000_000
"""Characters of a single variable's text. A longer text keeps its head and tail."""

MAX_ITEMS = 20
MAX_DEPTH = 3
MAX_INT_BITS = 600
"""Bits above which an integer is not written out."""

# Descriptors of `type` itself, which a metaclass cannot override.
_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__
_qualname_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
HEAP_TYPE = 1 << 9
"""Set in the flags of every class made by a `class` statement."""

_contents_of: Callable[[Any], dict[str, Any]] = types.ModuleType.__dict__["__dict__"].__get__  # type: ignore[index]
_function = types.FunctionType
_plain = (int, float, complex, bool, type(None), type(...), range)
_sized: dict[type, Callable[[Any], int]] = {
    each: each.__len__
    for each in (
        str,
        bytes,
        bytearray,
        list,
        tuple,
        dict,
        set,
        frozenset,
        range,
        _collections.deque,
        collections.OrderedDict,
        _collections.defaultdict,
    )
}
_sized[collections.Counter] = dict.__len__
_sized[Lines] = list.__len__
_mappings = (dict, collections.OrderedDict, _collections.defaultdict, collections.Counter)


unlisted: dict[str, Any] = {}
"""Names that are left out while they refer to these objects: definitions of the user's library."""


def names_of(space: dict[Any, Any]) -> list[str]:
    """Return the names that the user made, sorted, without those that begin with an underscore.

    Unchanged definitions of the user's library are left out.
    """
    return [name for name, _ in named_values(space)]


def named_values(space: dict[Any, Any]) -> list[tuple[str, Any]]:
    # Copied in one step because threads run, and not looked up by name because a key may be any object.
    made = [
        (name, value)
        for name, value in space.copy().items()
        if type(name) is str and not name.startswith("_") and (name not in unlisted or unlisted[name] is not value)
    ]
    return sorted(made, key=itemgetter(0))


def listing(space: dict[Any, Any]) -> tuple[list[dict[str, Any]], int]:
    """Return each variable as fields of a message, and the number of those left out."""
    made = named_values(space)
    listed = describe_all(made[:MAX_NAMES])
    return listed, len(made) - len(listed)


def describe_all(made: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return variables as fields of a message, as many as fit."""
    deadline = time.monotonic() + MAX_SECONDS
    libraries = Libraries()
    listed: list[dict[str, Any]] = []
    used = 0
    for name, value in made:
        variable: dict[str, Any] = {"name": _cut(name), "type": _cut(type_name(value))}
        used += len(variable["name"]) + len(variable["type"]) + 30
        if used > MAX_LISTING_CHARS:
            break
        if used < MAX_LISTING_CHARS // 2 and time.monotonic() < deadline:
            describe(value, variable, libraries)
            used += len(variable.get("preview", ""))
        listed.append(variable)
    return listed


def type_name(value: object) -> str:
    """Return the type's name with its package, not its module: `list`, `Point`, `pandas.DataFrame`."""
    kind = type(value)
    if issubclass(kind, type):
        return "type"
    name, module = _qualname_of(kind), _module_of(kind)
    package = module.partition(".")[0] if type(module) is str else ""
    return name if package in ("", "builtins", "__main__", "ingle_worker") else f"{package}.{name}"


def describe(value: Any, variable: dict[str, Any], libraries: "Libraries") -> None:
    """Add shape, size and preview, as far as possible without user code."""
    kind = type(value)
    try:
        if libraries.describe(value, variable):
            return
        if type(kind) is not type:  # a metaclass may have any __eq__ and __hash__, so no lookup
            variable.update(size=object.__sizeof__(value), preview=_preview_named(value, kind))
            return
        length = _sized.get(kind)
        if length is not None:
            variable["length"] = length(value)
        # Classes written in C have their own; `object` would read a field that generators use for something else.
        sized = kind if length is not None or not _flags_of(kind) & HEAP_TYPE else object
        variable["size"] = sized.__sizeof__(value)  # type: ignore[call-arg]
        variable["preview"] = _cut(preview(value))
    except Exception:  # user code: a container may change meanwhile
        variable.setdefault("preview", f"<{_cut(_name_of(kind))}>")


def preview(value: Any, depth: int = MAX_DEPTH, budget: int = MAX_PREVIEW_CHARS) -> str:
    """Return a short text of a value, using exact builtin types only."""
    kind = type(value)
    if type(kind) is not type:
        return _preview_named(value, kind)
    if kind is str:
        return repr(value[:budget]) + ("…" if len(value) > budget else "")
    if kind is int:
        return repr(value) if value.bit_length() <= MAX_INT_BITS else f"<int of {value.bit_length()} bits>"
    if kind is range:
        return (
            repr(value)
            if max(map(int.bit_length, (value.start, value.stop, value.step))) <= MAX_INT_BITS
            else "<range>"
        )
    if kind in _plain:
        return repr(value)
    if kind is bytes or kind is bytearray:
        return repr(value[:budget]) + ("…" if len(value) > budget else "")
    if kind is Lines:
        return _joined("[", list.__getitem__(value, slice(MAX_ITEMS + 1)), "]", depth, budget)
    if kind is list or kind is tuple:
        opening, closing = ("[", "]") if kind is list else ("(", ",)" if len(value) == 1 else ")")
        return _joined(opening, value[: MAX_ITEMS + 1], closing, depth, budget)
    if kind is set or kind is frozenset:
        if not value:
            return f"{_name_of(kind)}()"
        opening, closing = ("{", "}") if kind is set else ("frozenset({", "})")
        return _joined(opening, list(islice(value, MAX_ITEMS + 1)), closing, depth, budget)
    if kind is _collections.deque:
        return _joined("deque([", list(islice(value, MAX_ITEMS + 1)), "])", depth, budget)
    if kind in _mappings:
        opening, closing = ("{", "}") if kind is dict else (f"{_name_of(kind)}({{", "})")
        return _joined(opening, list(islice(dict.items(value), MAX_ITEMS + 1)), closing, depth, budget, pairs=True)
    return _preview_named(value, kind)


def _preview_named(value: Any, kind: type) -> str:
    if kind is _function:
        code = value.__code__
        count = code.co_argcount + code.co_kwonlyargcount
        names = [*code.co_varnames[:count]]
        extra = list(code.co_varnames[count:])
        if code.co_flags & 0x04:
            names.insert(code.co_argcount, f"*{extra.pop(0)}")
        if code.co_flags & 0x08:
            names.append(f"**{extra.pop(0)}")
        return f"{_cut(value.__name__, 80)}({_cut(', '.join(names), 110)})"
    if kind is types.ModuleType:
        name = _contents_of(value).get("__name__")
        return f"<module {_cut(name)!r}>" if type(name) is str else "<module>"
    if issubclass(kind, type):
        return f"<class {_cut(_qualname_of(value))!r}>"
    if kind is types.BuiltinFunctionType:
        return f"<built-in function {value.__name__}>"
    return f"<{_cut(_name_of(kind))}>"


def _joined(opening: str, items: list[Any], closing: str, depth: int, budget: int, *, pairs: bool = False) -> str:
    if not items:
        return opening + closing.removeprefix(",")
    if depth == 0:
        return f"{opening}…{closing}"
    parts: list[str] = []
    for number, item in enumerate(items):
        if budget <= 0 or number == MAX_ITEMS:
            parts.append("…")
            break
        part = preview(item, depth - 1, budget)
        if pairs:
            part = f"{preview(item[0], depth - 1, budget)}: {preview(item[1], depth - 1, budget)}"
        parts.append(part)
        budget -= len(part) + 2
    return opening + ", ".join(parts) + closing


def _cut(text: str, limit: int = MAX_PREVIEW_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Libraries:
    """Types of imported libraries such as numpy and pandas, looked up once per listing."""

    def __init__(self) -> None:
        self._describers: list[tuple[type, Callable[[Any, dict[str, Any]], None]]] = []
        for module, name, describer, compiled in (
            ("numpy", "ndarray", self._array, True),
            ("pandas.core.frame", "DataFrame", self._frame, False),
            ("pandas.core.series", "Series", self._series, False),
            ("polars.dataframe.frame", "DataFrame", self._polars, False),
        ):
            kind = module_attribute(module, name)
            # numpy's type is written in C. Another one has only the same name.
            if type(kind) is type and not (compiled and _flags_of(kind) & HEAP_TYPE):
                self._describers.append((kind, describer))

    def describe(self, value: Any, variable: dict[str, Any]) -> bool:
        """Return False if the type belongs to none of the libraries."""
        for kind, describer in self._describers:
            if type(value) is kind:
                describer(value, variable)
                return True
        return False

    @staticmethod
    def _array(value: Any, variable: dict[str, Any]) -> None:
        shape, kind = list(value.shape), value.dtype.kind
        variable.update(shape=shape, size=int(value.nbytes))
        head = f"array of {value.dtype}" if kind != "V" else "array"
        if kind in "biufcSU" and value.ndim == 1 and value.itemsize <= 1000:
            items = value[:MAX_ITEMS].tolist()
            head = (
                _joined("", [*items, *([0] if shape[0] > MAX_ITEMS else [])], "", 1, MAX_PREVIEW_CHARS - 30)
                + f" ({value.dtype})"
            )
        variable["preview"] = _cut(head)

    @staticmethod
    def _frame(value: Any, variable: dict[str, Any]) -> None:
        variable["shape"] = [int(each) for each in value._mgr.shape[::-1]]
        variable["preview"] = _cut("columns: " + _columns(value.columns))
        if variable["shape"][1] <= 1000 and all(_is_plain(each) for each in value._mgr.arrays):
            variable["size"] = sum(int(each.nbytes) for each in value._mgr.arrays)

    @staticmethod
    def _series(value: Any, variable: dict[str, Any]) -> None:
        array = value._mgr.arrays[0]
        variable["shape"] = [int(each) for each in value._mgr.shape[-1:]]
        variable["preview"] = f"series of {_cut(str(value.dtype))}" if _is_plain(array) else "series"
        if _is_plain(array):
            variable["size"] = int(array.nbytes)

    @staticmethod
    def _polars(value: Any, variable: dict[str, Any]) -> None:
        variable["shape"] = [int(value.height), int(value.width)]
        variable["preview"] = _cut("columns: " + ", ".join(value.columns[:MAX_ITEMS]))
        variable["size"] = int(value.estimated_size())


def module_attribute(module: str, name: str) -> Any:
    """Return what an imported module holds under this name, or None."""
    found = sys.modules.get(module)
    return _contents_of(found).get(name) if type(found) is types.ModuleType else None


def _is_plain(array: Any) -> bool:
    """Return whether this is an array of numpy or pandas itself, not of a user's type."""
    module = _module_of(type(array))
    return type(module) is str and module.partition(".")[0] in ("numpy", "pandas")


def _columns(index: Any) -> str:
    labels = index[: MAX_ITEMS + 1]._values.tolist()
    names = [each[:40] if type(each) is str else preview(each, 1, 40) for each in labels]
    return ", ".join(names[:MAX_ITEMS]) + (", …" if len(names) > MAX_ITEMS else "")


# --- one variable ------------------------------------------------------------------------------------------


def whole(name: str, value: Any) -> tuple[dict[str, Any], list[str]]:
    """Return one variable with its `repr` and `str`. If they raise, the error replaces the text and is a notice too."""
    variable: dict[str, Any] = {"name": name, "type": _cut(type_name(value))}
    describe(value, variable, Libraries())
    notices: list[str] = []
    for field, make in (("repr", repr), ("value", str)):
        try:
            text = make(value)
            if type(text) is not str:
                text = "".join(text)  # a subclass of str may have any methods
            variable[field] = _both_ends(text)
        except Exception as error:  # user code: any class may have any __repr__
            raised = traceback_text.bare(error)
            variable[field] = f"<{raised.name}: {_cut(raised.value)}>"
            notices.append(f"{make.__name__}() of {name} raised {raised.name}: {_cut(raised.value)}")
    return variable, notices


def _both_ends(text: str) -> str:
    if len(text) <= MAX_TEXT_CHARS:
        return text
    head = MAX_TEXT_CHARS * 35 // 100
    tail = MAX_TEXT_CHARS - head
    return f"{text[:head]}\n… {len(text) - MAX_TEXT_CHARS} characters left out …\n{text[-tail:]}"


# --- values through files ------------------------------------------------------------------------------------


def move(message: MoveValue, space: "dict[str, Any]") -> ValueMoved:
    """Exchange one value through a file. Raise whatever the value or the file raises."""
    if message.kind:
        try:
            with open(message.path, "rb") as file:
                value = values.read(message.kind, file)
        except values.Unsuitable as error:
            return ValueMoved(message.ticket, error=str(error))
        finally:
            os.unlink(message.path)
        space[message.name] = value
        return ValueMoved(message.ticket)
    if message.name and message.name not in space:
        return ValueMoved(message.ticket, missing=True)
    descriptor, path = tempfile.mkstemp(prefix="value-")
    try:
        with open(descriptor, "wb") as file:
            kind = values.write(space[message.name], file) if message.name else ""
    except BaseException as error:
        os.unlink(path)
        if isinstance(error, values.Unsuitable):
            return ValueMoved(message.ticket, error=str(error))
        raise
    return ValueMoved(message.ticket, path, kind)
