"""Reduction of built-in objects that pickle does not know: files, locks, exceptions, databases.

Each function returns a reduce value that names a maker of `rebuild` and its arguments. An object that cannot be saved
raises `Unsavable` with the reason.
"""

import collections
import ctypes
import gc
import os
import stat
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from ingle_worker.snapshot import definitions, own_folder
from ingle_worker.snapshot.rebuild.registry import MAKERS

_m: Any = types.SimpleNamespace(**MAKERS)

_SIMPLE = """
BaseException Exception ArithmeticError AssertionError BufferError EOFError FloatingPointError GeneratorExit
IndexError KeyError KeyboardInterrupt LookupError MemoryError NotImplementedError OverflowError RecursionError
ReferenceError RuntimeError StopAsyncIteration SystemError TabError TypeError ValueError Warning
ZeroDivisionError BaseExceptionGroup ExceptionGroup
"""
SIMPLE_EXCEPTIONS = frozenset(_SIMPLE.split())
"""Exceptions whose `__init__` stores only `args`."""


class Unsavable(Exception):
    """An object that cannot be saved. The message says why."""


def forget() -> None:
    _redirected.clear()


def loaded(module: str, name: str) -> type:
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else _Nothing


class _Nothing:
    """Placeholder for a type of a library that is not loaded. No object has it."""


def exception(value: BaseException) -> Any:
    cls = type(value)
    state: dict[str, Any] = {
        "dict": {},
        "cause": value.__cause__,
        "context": value.__context__,
        "suppress": value.__suppress_context__,
        "traceback": value.__traceback__,
    }
    builtin = next(each for each in definitions.mro_of(cls) if not definitions.flags_of(each) & definitions.HEAP_TYPE)
    own_way = cls.__reduce__ is not BaseException.__reduce__ or cls.__reduce_ex__ is not object.__reduce_ex__
    if own_way or definitions.name_of_type(builtin) not in SIMPLE_EXCEPTIONS:
        taken = value.__reduce_ex__(5)
        if type(taken) is not tuple or not 2 <= len(taken) <= 3:
            return NotImplemented
        if len(taken) == 3 and taken[2] is not None:
            state["state"] = taken[2]
        return (*taken[:2], state, None, None, _m.exception_state)
    state["dict"] = dict(vars(value))
    return (_m.exception, (cls, value.args), state, None, None, _m.exception_state)


_redirected: dict[int, tuple[Any, Any]] = {}
"""Files whose descriptor was redirected, with their reduce value, by id."""


def text_file(value: Any) -> Any:
    options = {
        "encoding": value.encoding,
        "errors": value.errors,
        "line_buffering": value.line_buffering,
        "write_through": value.write_through,
    }
    mode = getattr(value, "mode", None) or value.buffer.raw.mode
    return _file(value, mode, "text", options)


def buffered_file(value: Any) -> Any:
    return _file(value, value.raw.mode, "buffered", {})


def raw_file(value: Any) -> Any:
    return _file(value, value.mode, "raw", {})


def _file(value: Any, mode: str, kind: str, options: dict[str, Any]) -> Any:
    """Return the path, position and unwritten data of a file.

    The session shares the file position and will write the buffered data itself. So the descriptor of this copy is
    redirected before a flush.
    """
    if not isinstance(value.name, (str, bytes)):
        raise Unsavable("a file that has no path")
    if value.closed:
        return (_m.closed_file, (value.name, mode, kind, options))
    path = own_folder.relative(os.path.abspath(os.fsdecode(value.name)))
    if "+" in mode:
        raise Unsavable("a file open for reading and writing at once")
    if "r" in mode:
        _refuse_odd_file(value, path)
        return (_m.file, (path, mode, kind, value.tell(), b"", options))
    known = _redirected.get(id(value))
    if known is not None:
        return known[1]
    _refuse_odd_file(value, path)
    fd = value.fileno()
    position = os.lseek(fd, 0, os.SEEK_CUR)
    buffer = os.memfd_create("ingle")
    os.dup2(buffer, fd, inheritable=False)
    value.flush()
    pending = os.pread(buffer, os.fstat(buffer).st_size, 0)
    os.close(buffer)
    _redirected[id(value)] = (value, (_m.file, (path, mode, kind, position, pending, options)))
    return _redirected[id(value)][1]


def _refuse_odd_file(value: Any, path: str) -> None:
    try:
        about, there = os.fstat(value.fileno()), os.stat(own_folder.absolute(path))
    except OSError as error:
        raise Unsavable(f"an open file whose path no longer exists ({error.strerror})") from None
    if not stat.S_ISREG(about.st_mode) or not os.path.samestat(about, there):
        raise Unsavable("an open file that is no longer the regular file at its path")


def standard(value: Any) -> Any:
    for name in ("stdin", "stdout", "stderr"):
        if value is getattr(sys, name, None) or value is getattr(sys, f"__{name}__", None):
            return (_m.standard, (name,))
    return NotImplemented


def context_variable(value: Any) -> Any:
    try:
        return (_m.context_variable, (value.name, True, value.get()))
    except LookupError:
        return (_m.context_variable, (value.name, False, None))


def memory(value: memoryview) -> Any:
    owner = value.obj
    if value.format != "B" or value.ndim != 1 or not value.c_contiguous or type(owner) not in (bytes, bytearray):
        raise Unsavable("a memoryview of something that is neither bytes nor a bytearray")
    whole = memoryview(owner)
    start = _address(value) - _address(whole)
    return (_m.memory, (owner, start, value.nbytes))


def database(value: Any) -> Any:
    path = next((row[2] for row in value.execute("PRAGMA database_list") if row[1] == "main"), "")
    options = {"isolation_level": value.isolation_level}
    if path:
        if value.in_transaction:
            raise Unsavable("a database in the middle of a transaction")
        return (_m.database, (None, own_folder.relative(path), options))
    if not hasattr(value, "serialize"):
        raise Unsavable("a database in memory, which this Python cannot copy (3.11 can)")
    return (_m.database, (value.serialize(), ":memory:", options))


def _address(view: memoryview) -> int:
    if not view.nbytes:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if not view.readonly else _readonly_address(view)


def _readonly_address(view: memoryview) -> int:
    class Raw(ctypes.Structure):
        _fields_ = [
            ("buf", ctypes.c_void_p),
            ("obj", ctypes.py_object),
            *[(name, ctypes.c_ssize_t) for name in ("len", "itemsize")],
            ("readonly", ctypes.c_int),
            ("ndim", ctypes.c_int),
            *[(name, ctypes.c_void_p) for name in ("format", "shape", "strides", "suboffsets", "internal")],
        ]

    raw = Raw()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get(ctypes.py_object(view), ctypes.byref(raw), 0)
    try:
        return raw.buf or 0
    finally:
        release(ctypes.byref(raw))


_GENERATED: frozenset[str] = frozenset(vars(collections.namedtuple("_", "")))


def is_named_tuple(cls: type) -> bool:
    own = definitions.dict_of(cls)
    return definitions.bases_of(cls) == (tuple,) and own.keys() | {"__orig_bases__", "__annotations__"} >= _GENERATED


def named_tuple(cls: type) -> Any:
    """Reduce a named tuple class to a call of `collections.namedtuple`, which works in every Python version."""
    own = definitions.dict_of(cls)
    fields = own["_fields"]
    state = {name: each for name, each in own.items() if name not in _GENERATED and name not in fields}
    state.update({"__qualname__": definitions.qualname_of(cls), "__doc__": own["__doc__"]})
    made = (definitions.name_of_type(cls), fields, own["_field_defaults"], definitions.module_of(cls))
    return (_m.named_tuple, made, (state, None), None, None, _m.set_class_state)


def match(value: Any) -> Any:
    made = (value.re, value.string, value.pos, value.endpos, value.span())
    again = _m.match_again(*made)
    if again is None or again.regs != value.regs:
        raise Unsavable("a match that cannot be repeated")
    return (_m.match_again, made)


def rlock(value: Any) -> Any:
    count = 0
    if value._is_owned():
        state = value._release_save()
        count = state[0]
        value._acquire_restore(state)
    return (_m.rlock, (count,))


def view(kind: str) -> Callable[[Any], Any]:
    return lambda value: (_m.view, (kind, gc.get_referents(value)[0]))


def weak(value: Any) -> Any:
    return (_m.weak, (weakref.ReferenceType.__call__(value), value.__callback__))


def lru_cache(value: Any) -> Any:
    if definitions.is_importable(value):
        return NotImplemented
    options = value.cache_parameters()
    wrapped = value.__wrapped__
    state = {name: each for name, each in vars(value).items() if name not in ("__wrapped__", "cache_parameters")}
    return (_m.lru_cache, (wrapped, options["maxsize"], options["typed"]), state, None, None, _m.set_dict)


def refuse(why: str) -> Callable[[Any], Any]:
    def refusing(value: Any) -> Any:
        raise Unsavable(why)

    return refusing


_STATE_METHODS = frozenset(
    {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"}
)


def hides_its_state(kind: type) -> bool:
    """Return whether `__getattr__` of a plain class would also answer for the attributes that pickle looks up."""
    own = [definitions.dict_of(each) for each in definitions.mro_of(kind)[:-1]]
    return (
        any("__getattr__" in each for each in own)
        and not any(_STATE_METHODS & each.keys() for each in own)
        and all(definitions.is_heap(each) for each in definitions.mro_of(kind)[:-1])
    )


def plain_object(value: Any) -> Any:
    cls = type(value)
    slots = {}
    for each in definitions.mro_of(cls)[:-1]:
        for name in definitions.slots_of(each):
            try:
                slots[name] = definitions.dict_of(each)[name].__get__(value)
            except AttributeError:
                continue
    try:
        own: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    return (_m.new_object, (cls,), (own, slots), None, None, _m.object_state)


def dataclass_mark(value: Any) -> Any:
    """Reduce `MISSING` and the like to their names, because they are compared by identity."""
    for name, each in vars(sys.modules.get("dataclasses", types)).items():
        if each is value:
            return (_m.named, ("dataclasses", name))
    name = definitions.name_of_type(type(value))
    if name in ("Field", "_DataclassParams"):
        # These have other attributes in other versions.
        own = {slot: getattr(value, slot) for slot in type(value).__slots__ if hasattr(value, slot)}
        return (_m.of_dataclasses, (name,), own, None, None, _m.as_far_as_known)
    return NotImplemented
