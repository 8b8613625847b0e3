"""Makers of built-in objects: modules, locks, weak references, exceptions, files and the like."""

import _thread
import importlib
import io
import os
import sys
import types
import weakref
from typing import Any

from ingle_worker.snapshot import own_folder
from ingle_worker.snapshot.rebuild.registry import maker


@maker
def module(name: str) -> types.ModuleType:
    return importlib.import_module(name)


@maker
def new_module(name: str) -> types.ModuleType:
    return types.ModuleType(name)


@maker
def named(module: str, name: str) -> Any:
    """Return an attribute of a module, for objects that are compared by identity."""
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
    """Referent of a reference that was already dead."""


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
    target.__traceback__ = state.get("traceback")  # snapshots of earlier versions have none


@maker
def look(base: Any, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...], writeable: bool) -> Any:
    """Create an array that is a view of another."""
    import numpy

    made = numpy.ndarray(shape, dtype, base, offset, strides)
    if not writeable:
        made.flags.writeable = False
    return made


@maker
def file(name: Any, mode: str, kind: str, position: int, pending: bytes, text: dict[str, Any]) -> Any:
    """Open a file again at the same position, without truncating it."""
    reads = "r" in mode
    flags = os.O_CLOEXEC | (os.O_RDONLY if reads else os.O_WRONLY | os.O_CREAT)
    if "a" in mode:
        flags |= os.O_APPEND
    plain = "r" if reads else "a" if "a" in mode else "w"
    raw = io.FileIO(own_folder.absolute(os.fsdecode(name)), plain, opener=lambda path, _: os.open(path, flags, 0o666))
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
    """Create a closed file object. The file at its path is not touched."""
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
    """Connect to a database: one in memory with its content, one on disk by its path."""
    import sqlite3

    made = sqlite3.connect(path if content is not None else own_folder.absolute(path), **options)
    if content is not None:
        made.deserialize(content)
    return made


@maker
def memory(owner: Any, start: int, size: int) -> memoryview:
    return memoryview(owner)[start : start + size]
