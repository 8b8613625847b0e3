"""Making again, while a snapshot is loaded, what pickle alone cannot: functions, classes and the like.

A saved stream names these makers as `ingle_saved.<name>`, whatever module of ours they live in, so that a stream
outlives changes here. Each is called with what `reducing` wrote for it. A class comes back without its metaclass,
its `__init_subclass__` or its decorators being run a second time.
"""

import _thread
import importlib
import importlib.util
import io
import os
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from ingle_worker.session import traceback_text
from ingle_worker.snapshot import definitions

MODULE = "ingle_saved"
MAGIC = importlib.util.MAGIC_NUMBER
_TEMPLATE = (lambda: None).__code__

MAKERS: dict[str, Callable[..., Any]] = {}
"""All makers by the names they have in a stream."""


def maker(make: Any) -> Any:
    make.__module__, make.__qualname__ = MODULE, make.__name__
    MAKERS[make.__name__] = make
    return make


class Lost:
    """Code that this interpreter cannot run and has no source for."""

    def __init__(self, why: str) -> None:
        self.why = why


class CannotRebuild(Exception):
    """Something of a snapshot cannot be made here; the text says why."""


class Rebuilding:
    """What makers need to know of the session that is being loaded. One at a time."""

    def __init__(self) -> None:
        self.space: dict[str, Any] = {}
        self.defined: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        """Sources of cells by the name that code has in the stream."""
        self.renamed: dict[str, str] = {}
        self.lost: list[Lost] = []
        """Functions of the present group that nobody could make again so far."""
        self.marks: dict[int, int] = {}
        """By class: how many were lost before its own."""

    def begin(self, space: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.space = space


now = Rebuilding()


# --- functions ---------------------------------------------------------------------------------------------


@maker
def defined(key: str) -> Any:
    """A definition of a group that was loaded before."""
    try:
        return now.defined[key]
    except KeyError:
        raise CannotRebuild(f"it needs {key.partition('#')[0]!r}, which could not be loaded") from None


@maker
def code(magic: bytes, fields: dict[str, Any]) -> Any:
    """A code object; of another Python, from the source of its cell."""
    filename = fields["co_filename"]
    if magic != MAGIC:
        made = _from_source(fields)
        # What stands inside is made with it.
        inside = [each for each in fields["co_consts"] if type(each) is Lost]
        now.lost = [each for each in now.lost if each not in inside]
        if type(made) is Lost:
            now.lost.append(made)
        return made
    return _TEMPLATE.replace(**{**fields, "co_filename": now.renamed.get(filename, filename)})


def _from_source(fields: dict[str, Any]) -> Any:
    filename, name = fields["co_filename"], fields["co_name"]
    source = now.sources.get(filename)
    if source is None:
        return Lost(f"the code of {name!r} is of another Python version, and its source is not in the snapshot")
    try:
        flags = fields["co_flags"] & FUTURE_MASK
        whole = compile(source, now.renamed.get(filename, filename), "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return Lost(f"the source of {name!r} does not compile on this Python: {error}")
    wanted = (name, fields["co_firstlineno"], fields["co_argcount"], fields["co_kwonlyargcount"], fields["co_freevars"])
    stack = [whole]
    while stack:
        each = stack.pop()
        if (each.co_name, each.co_firstlineno, each.co_argcount, each.co_kwonlyargcount, each.co_freevars) == wanted:
            return each
        stack += [const for const in each.co_consts if type(const) is types.CodeType]
    return Lost(f"{name!r} was not found in the source of its cell")


FUTURE_MASK = 0
for _each in importlib.import_module("__future__").all_feature_names:
    FUTURE_MASK |= getattr(importlib.import_module("__future__"), _each).compiler_flag
FUTURE_MASK &= ~0x10


@maker
def function(made: Any, where: Any, closure: Any) -> Any:
    """`where`: None for the session's own globals, the name of a module for that module's, or a dictionary."""
    if type(made) is Lost:
        return made
    if where is None:
        where = now.space
    elif type(where) is str:
        where = vars(importlib.import_module(where))
    return types.FunctionType(made, where, made.co_name, None, closure)


@maker
def function_state(target: Any, state: dict[str, Any]) -> None:
    if type(target) is Lost:
        return
    for name, value in state.items():
        if name == "dict":
            vars(target).update(value)
        elif name == "globals":
            for each, content in value.items():
                target.__globals__.setdefault(each, content)
        elif name == "__annotations__" and sys.version_info >= (3, 14):
            setattr(target, "__annotate__" if callable(value) else name, value)
        elif name == "__annotate__" and sys.version_info < (3, 14):
            continue
        else:
            setattr(target, name, value)


@maker
def cell() -> types.CellType:
    return types.CellType()


@maker
def cell_state(target: types.CellType, contents: Any) -> None:
    target.cell_contents = contents


@maker
def match_again(pattern: Any, string: Any, start: int, end: int, span: tuple[int, int]) -> Any:
    """The match of a regular expression, found again."""
    for found in (pattern.match(string, start, end), pattern.search(string, start, end), pattern.match(string, *span)):
        if found is not None and found.span() == span:
            return found
    return None


@maker
def lru_cache(function: Any, maxsize: Any, typed: bool) -> Any:
    import functools

    return functools.lru_cache(maxsize=maxsize, typed=typed)(function)


@maker
def set_dict(target: Any, state: dict[str, Any]) -> None:
    vars(target).update(state)


# --- classes -----------------------------------------------------------------------------------------------


class _Quiet:
    """While a class is made, `__init_subclass__` of its bases is not run: it ran when the class was first made."""

    def __init__(self, bases: tuple[type, ...]) -> None:
        self._hushed: list[tuple[type, Any]] = []
        for base in {each: None for first in bases for each in definitions.mro_of(first)}:
            if "__init_subclass__" in definitions.dict_of(base) and definitions.flags_of(base) & definitions.HEAP_TYPE:
                self._hushed.append((base, definitions.dict_of(base)["__init_subclass__"]))

    def __enter__(self) -> None:
        for base, _ in self._hushed:
            type.__setattr__(base, "__init_subclass__", classmethod(lambda cls, **given: None))

    def __exit__(self, *exc: object) -> None:
        for base, own in self._hushed:
            type.__setattr__(base, "__init_subclass__", own)


@maker
def new_class(meta: type, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
    with _Quiet(bases):
        made: type = type.__new__(meta, name, bases, dict(space))
    now.marks[id(made)] = len(now.lost)
    return made


@maker
def new_enum(
    magic: bytes, meta: Any, name: str, bases: tuple[type, ...], space: dict[str, Any], members: dict[str, Any]
) -> type:
    """An enumeration. What its metaclass keeps in it differs between versions: on another, that makes it anew."""
    if magic == MAGIC:
        return new_class(meta, name, bases, space)  # type: ignore[no-any-return]
    content = meta.__prepare__(name, bases)
    for key, value in [*space.items(), *members.items()]:
        content[key] = value
    made: type = meta.__new__(meta, name, bases, content)
    return made


@maker
def enum_state(target: type, state: tuple[bytes, dict[str, Any]]) -> None:
    magic, own = state
    if magic != MAGIC:
        known = definitions.dict_of(target)
        own = {name: value for name, value in own.items() if name not in known and not name.startswith("_")}
    class_state(target, own, None)


@maker
def class_state(target: type, state: dict[str, Any], registered: list[type] | None) -> None:
    lost = {name: value for name, value in state.items() if type(value) is Lost}
    for name, value in state.items():
        if name not in lost:
            type.__setattr__(target, name, value)
    if lost and "__dataclass_fields__" in state:
        _make_dataclass_again(target)
        # A newer version may have written some that this one does not know of.
        if all(name in definitions.dict_of(target) or name.startswith("__") for name in lost):
            del now.lost[now.marks[id(target)] :]
    if registered is not None:
        abc = importlib.import_module("_abc")
        abc._abc_init(target)
        for each in registered:
            abc._abc_register(target, each)


def _make_dataclass_again(cls: type) -> None:
    """Methods that `dataclasses` wrote have no source; on another Python it writes them anew."""
    import dataclasses

    own = definitions.dict_of(cls)
    given = own["__dataclass_params__"]
    names = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only")
    options = {name: getattr(given, name) for name in names if hasattr(given, name)}
    fields = [own["__dataclass_fields__"][name] for name in own.get("__annotations__", {})]
    for each in fields:
        told = ("default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")
        about = {name: getattr(each, name) for name in told}
        type.__setattr__(
            cls, each.name, dataclasses.field(**{k: v for k, v in about.items() if v is not dataclasses.MISSING})
        )
    dataclasses.dataclass(**options)(cls)


@maker
def of_dataclasses(name: str) -> Any:
    cls = getattr(importlib.import_module("dataclasses"), name)
    return object.__new__(cls)


@maker
def as_far_as_known(target: Any, state: dict[str, Any]) -> None:
    """Set the attributes that there are in this version."""
    for name, value in state.items():
        try:
            setattr(target, name, value)
        except AttributeError:
            continue


@maker
def named_tuple(name: str, fields: tuple[str, ...], defaults: dict[str, Any], module: Any) -> type:
    import collections

    given = [defaults[field] for field in fields if field in defaults]
    made: type = collections.namedtuple(name, fields, defaults=given or None)  # type: ignore[misc]
    made.__module__ = module
    return made


@maker
def set_class_state(target: type, state: tuple[dict[str, Any], list[type] | None]) -> None:
    class_state(target, *state)


@maker
def member(magic: bytes, cls: Any, base: type | None, value: Any, name: str | None) -> Any:
    """A member of an enumeration that is itself being loaded."""
    if magic != MAGIC:
        return cls._member_map_[name] if name in cls._member_map_ else cls(value)
    return object.__new__(cls) if base is None else base.__new__(cls, value)


@maker
def new_object(cls: type) -> Any:
    return object.__new__(cls)


@maker
def object_state(target: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Put attributes where they were, past what the class has to say about attributes."""
    own, slots = state
    if own:
        object.__getattribute__(target, "__dict__").update(own)
    for name, value in slots.items():
        object.__setattr__(target, name, value)


@maker
def type_variable(kind: str, name: str, given: tuple[Any, ...], options: dict[str, Any], module: Any) -> Any:
    import typing

    made = getattr(typing, kind)(name, *given, **options)
    try:
        made.__module__ = module
    except AttributeError:
        pass
    return made


# --- others ------------------------------------------------------------------------------------------------


@maker
def module(name: str) -> types.ModuleType:
    return importlib.import_module(name)


@maker
def new_module(name: str) -> types.ModuleType:
    return types.ModuleType(name)


@maker
def named(module: str, name: str) -> Any:
    """What a module has under a name; for objects that are known by who they are."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


@maker
def view(kind: str, mapping: dict[Any, Any]) -> Any:
    return {"keys": dict.keys, "values": dict.values, "items": dict.items}[kind](mapping)


@maker
def lock(locked: bool) -> Any:
    made = _thread.allocate_lock()
    if locked:
        made.acquire()
    return made


@maker
def rlock(count: int) -> Any:
    made = _thread.RLock()
    for _ in range(count):
        made.acquire()
    return made


@maker
def weak(referent: Any, callback: Any) -> Any:
    return weakref.ref(referent, callback) if referent is not None else weakref.ref(_Gone(), callback)


class _Gone:
    """The referent of a reference that was dead already."""


@maker
def weak_values(items: dict[Any, Any]) -> Any:
    return weakref.WeakValueDictionary(items)


@maker
def weak_keys(items: list[tuple[Any, Any]]) -> Any:
    return weakref.WeakKeyDictionary(items)


@maker
def weak_set(items: list[Any]) -> Any:
    return weakref.WeakSet(items)


@maker
def context_variable(name: str, has_value: bool, value: Any) -> Any:
    import contextvars

    made: contextvars.ContextVar[Any] = contextvars.ContextVar(name)
    if has_value:
        made.set(value)
    return made


@maker
def exception(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    made = cls.__new__(cls, *args)
    made.args = args
    return made


@maker
def exception_state(target: BaseException, state: dict[str, Any]) -> None:
    vars(target).update(state["dict"])
    if "state" in state:
        target.__setstate__(state["state"])
    target.__cause__ = state["cause"]
    target.__context__ = state["context"]
    target.__suppress_context__ = state["suppress"]
    target.__traceback__ = state.get("traceback")  # a snapshot of an earlier ingle has none


@maker
def look(base: Any, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...], writeable: bool) -> Any:
    """An array that looks into another one."""
    import numpy

    made = numpy.ndarray(shape, dtype, base, offset, strides)
    if not writeable:
        made.flags.writeable = False
    return made


@maker
def file(name: Any, mode: str, kind: str, position: int, pending: bytes, text: dict[str, Any]) -> Any:
    """A file that was open, opened again at the same place. What it held before is not truncated."""
    reads = "r" in mode
    flags = os.O_CLOEXEC | (os.O_RDONLY if reads else os.O_WRONLY | os.O_CREAT)
    if "a" in mode:
        flags |= os.O_APPEND
    plain = "r" if reads else "a" if "a" in mode else "w"
    raw = io.FileIO(name, plain, opener=lambda path, _: os.open(path, flags, 0o666))
    if kind == "raw" or not reads:
        raw.seek(position)
    if kind == "raw":
        return raw
    buffered: Any = io.BufferedReader(raw) if reads else io.BufferedWriter(raw)
    if pending:
        buffered.write(pending)
    if kind == "buffered":
        if reads:
            buffered.seek(position)
        return buffered
    made = io.TextIOWrapper(buffered, **text)
    made.mode = mode  # type: ignore[misc]
    if reads:
        made.seek(position)
    return made


@maker
def closed_file(name: Any, mode: str, kind: str, text: dict[str, Any]) -> Any:
    """A file that was closed; what is at its path now is not touched."""
    raw = io.FileIO(os.devnull, "r" if "r" in mode else "w")
    raw.name = name
    made: Any = raw
    if kind != "raw":
        made = io.BufferedReader(raw) if "r" in mode else io.BufferedWriter(raw)
    if kind == "text":
        made = io.TextIOWrapper(made, **text)
        made.mode = mode
    made.close()
    return made


@maker
def standard(name: str) -> Any:
    return getattr(sys, name)


@maker
def database(content: Any, path: str, options: dict[str, Any]) -> Any:
    """A connection to a database: one in memory with its content, one in a file by its path."""
    import sqlite3

    made = sqlite3.connect(path, **options)
    if content is not None:
        made.deserialize(content)
    return made


@maker
def memory(owner: Any, start: int, size: int) -> memoryview:
    return memoryview(owner)[start : start + size]


def remember_sources() -> None:
    """Sources of loaded cells, where tracebacks and `inspect` look for them."""
    for filename, source in now.sources.items():
        traceback_text.remember_source(now.renamed.get(filename, filename), source)
