"""Taking apart, while a session is saved, what pickle alone cannot: functions, classes and the like.

pickle asks here about every object that is not of its own basic types. What is said names makers of `rebuilding`.
Functions and classes that an import finds again go by their name; those of the session go by value, each once: a group
that uses one of another group refers to it by its key.
"""

import _io
import _pickle
import _thread
import collections
import contextvars
import functools
import linecache
import os
import re
import stat
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from ingle_worker import definitions, rebuilding
from ingle_worker.rebuilding import MAKERS

PROTOCOL = 5
OUT_OF_BAND = 1 << 16
"""Buffers from this size on go straight from memory; smaller ones are part of the stream."""

_SIMPLE = """
BaseException Exception ArithmeticError AssertionError BufferError EOFError FloatingPointError GeneratorExit
IndexError KeyError KeyboardInterrupt LookupError MemoryError NotImplementedError OverflowError RecursionError
ReferenceError RuntimeError StopAsyncIteration SystemError TabError TypeError ValueError Warning
ZeroDivisionError BaseExceptionGroup ExceptionGroup
"""
SIMPLE_EXCEPTIONS = frozenset(_SIMPLE.split())
"""Those whose `__init__` keeps nothing but `args`."""

_m: Any = types.SimpleNamespace(**MAKERS)

_ALL_CODE_FIELDS = """
co_argcount co_posonlyargcount co_kwonlyargcount co_nlocals co_stacksize co_flags co_firstlineno co_code co_consts
co_names co_varnames co_freevars co_cellvars co_filename co_name co_qualname co_exceptiontable co_linetable
"""
_CODE_FIELDS = [name for name in _ALL_CODE_FIELDS.split() if hasattr(types.CodeType, name)]


class Unsavable(Exception):
    """An object that cannot be saved; the text says why."""


class Pickler(_pickle.Pickler):
    """Writes one group. `local` are the keys of the definitions that belong to it."""

    def __init__(
        self,
        file: Any,
        keys: dict[int, str],
        local: frozenset[str],
        views: dict[int, Any],
        buffer_callback: Callable[[Any], object] | None,
    ) -> None:
        super().__init__(file, protocol=PROTOCOL, buffer_callback=buffer_callback)
        self._keys = keys
        self._local = local
        self._views = views
        self.needed: set[str] = set()
        self.sources: set[str] = set()
        # By identity: a metaclass may have any __hash__ and __eq__, or none.
        self._ways: dict[int, Any] = {}
        self._spaces: dict[int, _Space] = {}

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        try:
            way = self._ways[id(kind)]
        except KeyError:
            way = self._ways[id(kind)] = _find_way(kind)
        return way(self, value) if way is not None else NotImplemented

    # --- definitions ---

    def defined_elsewhere(self, value: Any) -> Any:
        key = self._keys.get(id(value))
        if key is None or key in self._local:
            return None
        self.needed.add(key)
        return (_m.defined, (key,))

    def function(self, value: types.FunctionType) -> Any:
        if value.__module__ == rebuilding.MODULE:
            return NotImplemented
        if not definitions.is_definition(value):
            return _by_alias(value)
        space = value.__globals__
        main = sys.modules.get(definitions.MAIN)
        where: Any = None
        own: dict[str, Any] | None = None
        if main is None or vars(main) is not space:
            where = definitions.module_of_globals(space)
            if where is None:
                own = definitions.globals_used(value)
                where = self._spaces.setdefault(id(space), _Space(space))
        elsewhere = self.defined_elsewhere(value)
        if elsewhere is not None:
            return elsewhere
        state: dict[str, Any] = {
            "__name__": value.__name__,
            "__qualname__": value.__qualname__,
            "__module__": value.__module__,
            "__doc__": value.__doc__,
        }
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(value, name) is not None:
                state[name] = getattr(value, name)
        annotations = definitions.annotations_of(value)
        if annotations:
            state["__annotations__"] = annotations
        if getattr(value, "__type_params__", ()):
            state["__type_params__"] = value.__type_params__  # type: ignore[attr-defined]
        if vars(value):
            state["dict"] = vars(value)
        if own is not None:
            state["globals"] = own
        made = (value.__code__, where, value.__closure__)
        return (_m.function, made, state, None, None, _m.function_state)

    def code(self, value: types.CodeType) -> Any:
        if value.co_filename in linecache.cache and value.co_filename.startswith("<"):
            self.sources.add(value.co_filename)
        return (_m.code, (rebuilding.MAGIC, {name: getattr(value, name) for name in _CODE_FIELDS}))

    def cell(self, value: types.CellType) -> Any:
        try:
            contents = value.cell_contents
        except ValueError:
            return (_m.cell, ())
        return (_m.cell, (), contents if contents is not None else _NONE, None, None, _m.cell_state)

    def cls(self, value: type) -> Any:
        if not definitions.is_definition(value):
            if value is _loaded("enum", "EnumMeta"):
                return (_m.named, ("enum", "EnumMeta"))  # under this name in every version
            return _C_TYPES.get(id(value)) or _by_alias(value)
        elsewhere = self.defined_elsewhere(value)
        if elsewhere is not None:
            return elsewhere
        own = definitions.dict_of(value)
        if _is_named_tuple(value):
            return _named_tuple(value)
        space = {"__module__": definitions.module_of(value), "__qualname__": definitions.qualname_of(value)}
        for name in ("__doc__", "__slots__"):
            if name in own:
                space[name] = own[name]
        registered = None
        if "_abc_impl" in own:
            dump = sys.modules["_abc"]._get_dump(value)
            registered = [each() for each in dump[0] if each() is not None]
        state = (definitions.state_of_class(value), registered)
        made = (type(value), definitions.name_of_type(value), definitions.bases_of(value), space)
        if issubclass(type(value), _loaded("enum", "EnumMeta")):
            members = {name: each._value_ for name, each in own.get("_member_map_", {}).items()}
            content = (rebuilding.MAGIC, state[0])
            return (_m.new_enum, (rebuilding.MAGIC, *made, members), content, None, None, _m.enum_state)
        return (_m.new_class, made, state, None, None, _m.set_class_state)

    def member(self, value: Any) -> Any:
        cls = type(value)
        if not definitions.is_definition(cls):
            return NotImplemented
        key = self._keys.get(id(cls))
        if key is not None and key not in self._local:
            name = value._name_
            if name is not None and definitions.dict_of(cls)["_member_map_"].get(name) is value:
                return (getattr, (cls, name))
            return (cls, (value._value_,))
        base = next(
            (
                each
                for each in definitions.mro_of(cls)
                if each is not object and not definitions.flags_of(each) & 1 << 9
            ),
            None,
        )
        plain = None if base is None else base(value) if base in (int, float, str, bytes, tuple) else value._value_
        made = (rebuilding.MAGIC, cls, base, plain if base is not None else value._value_, value._name_)
        return (_m.member, made, dict(vars(value)), None, None, _m.set_dict)

    def by_name(self, value: Any) -> Any:
        if not definitions.is_definition(value):
            return NotImplemented
        elsewhere = self.defined_elsewhere(value)
        if elsewhere is not None:
            return elsewhere
        kind = definitions.name_of_type(type(value))
        given: tuple[Any, ...] = getattr(value, "__constraints__", ())
        options: dict[str, Any] = {}
        if kind == "NewType":
            given = (value.__supertype__,)
        elif kind == "TypeAliasType":
            given = (value.__value__,)
        elif kind != "TypeVarTuple":
            options = {"covariant": value.__covariant__, "contravariant": value.__contravariant__}
            if value.__bound__ is not None:
                options["bound"] = value.__bound__
        return (_m.type_variable, (kind, value.__name__, given, options, value.__module__))

    # --- others ---

    def module(self, value: types.ModuleType) -> Any:
        if value is sys.modules.get(definitions.MAIN):
            return (_m.module, (definitions.MAIN,))
        if definitions.is_importable_module(value):
            return (_m.module, (value.__name__,))
        self._spaces[id(vars(value))] = _Space(vars(value), value)
        state = {name: each for name, each in vars(value).items() if name != "__builtins__"}
        return (_m.new_module, (vars(value).get("__name__", "?"),), state, None, None, _m.set_dict)

    def array(self, value: Any) -> Any:
        base = value.base
        if base is not None and id(base) in self._views and not value.dtype.hasobject and type(base) is type(value):
            offset = value.__array_interface__["data"][0] - base.__array_interface__["data"][0]
            if offset >= 0 and base.flags.c_contiguous:
                made = (base, value.dtype, value.shape, offset, value.strides, bool(value.flags.writeable))
                return (_m.look, made)
        return NotImplemented

    def exception(self, value: BaseException) -> Any:
        cls = type(value)
        if cls.__reduce__ is not BaseException.__reduce__ or cls.__reduce_ex__ is not object.__reduce_ex__:
            return NotImplemented
        builtin = next(
            each for each in definitions.mro_of(cls) if not definitions.flags_of(each) & definitions.HEAP_TYPE
        )
        if definitions.name_of_type(builtin) not in SIMPLE_EXCEPTIONS:
            return NotImplemented
        state = {
            "dict": dict(vars(value)),
            "cause": value.__cause__,
            "context": value.__context__,
            "suppress": value.__suppress_context__,
        }
        return (_m.exception, (cls, value.args), state, None, None, _m.exception_state)

    def text_file(self, value: Any) -> Any:
        self._refuse_odd_file(value)
        options = {
            "encoding": value.encoding,
            "errors": value.errors,
            "line_buffering": value.line_buffering,
            "write_through": value.write_through,
        }
        mode = getattr(value, "mode", None) or value.buffer.raw.mode
        return self._file(value, mode, "text", options)

    def buffered_file(self, value: Any) -> Any:
        self._refuse_odd_file(value)
        return self._file(value, value.raw.mode, "buffered", {})

    def raw_file(self, value: Any) -> Any:
        self._refuse_odd_file(value)
        return self._file(value, value.mode, "raw", {})

    def _file(self, value: Any, mode: str, kind: str, options: dict[str, Any]) -> Any:
        """Where it is, and what was written and has not reached the disk.

        The file's place is shared with the session, and what this copy would write is written by the session too: so
        the descriptor is turned to something else before anything may be written or moved.
        """
        path = os.path.abspath(value.name)
        if "+" in mode:
            raise Unsavable("a file open for reading and writing at once")
        if "r" in mode:
            return (_m.file, (path, mode, kind, value.tell(), b"", options))
        fd = value.fileno()
        position = os.lseek(fd, 0, os.SEEK_CUR)
        aside = os.memfd_create("ingle")
        os.dup2(aside, fd, inheritable=False)
        value.flush()
        pending = os.pread(aside, os.fstat(aside).st_size, 0)
        os.close(aside)
        return (_m.file, (path, mode, kind, position, pending, options))

    def _refuse_odd_file(self, value: Any) -> None:
        if value.closed:
            raise Unsavable("a closed file")
        if not isinstance(value.name, (str, bytes)):
            raise Unsavable("an open file that has no path")
        try:
            about, there = os.fstat(value.fileno()), os.stat(value.name)
        except OSError as error:
            raise Unsavable(f"an open file whose path leads nowhere ({error.strerror})") from None
        if not stat.S_ISREG(about.st_mode) or not os.path.samestat(about, there):
            raise Unsavable("an open file that is no regular file of that path any more")

    def standard(self, value: Any) -> Any:
        for name in ("stdin", "stdout", "stderr"):
            if value is getattr(sys, name, None) or value is getattr(sys, f"__{name}__", None):
                return (_m.standard, (name,))
        return NotImplemented

    def context_variable(self, value: Any) -> Any:
        try:
            return (_m.context_variable, (value.name, True, value.get()))
        except LookupError:
            return (_m.context_variable, (value.name, False, None))

    def memory(self, value: memoryview) -> Any:
        owner = value.obj
        if value.format != "B" or value.ndim != 1 or not value.c_contiguous or type(owner) not in (bytes, bytearray):
            raise Unsavable("a memoryview of something that is neither bytes nor a bytearray")
        whole = memoryview(owner)
        start = _address(value) - _address(whole)
        return (_m.memory, (owner, start, value.nbytes))

    def database(self, value: Any) -> Any:
        path = next((row[2] for row in value.execute("PRAGMA database_list") if row[1] == "main"), "")
        options = {"isolation_level": value.isolation_level}
        if path:
            if value.in_transaction:
                raise Unsavable("a database in the middle of a transaction")
            return (_m.database, (None, path, options))
        if not hasattr(value, "serialize"):
            raise Unsavable("a database in memory, which this Python cannot copy (3.11 can)")
        return (_m.database, (value.serialize(), ":memory:", options))


def _address(view: memoryview) -> int:
    import ctypes

    if not view.nbytes:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if not view.readonly else _readonly_address(view)


def _readonly_address(view: memoryview) -> int:
    import ctypes

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


class _Space:
    """Stands for globals that are neither the session's nor a module's: of them each function brings what it uses."""

    def __init__(self, space: dict[str, Any], module: types.ModuleType | None = None) -> None:
        self._alive = space
        self._module = module

    def __reduce__(self) -> Any:
        return (dict, ()) if self._module is None else (vars, (self._module,))


_GENERATED: frozenset[str] = frozenset(vars(collections.namedtuple("_", "")))


def _is_named_tuple(cls: type) -> bool:
    own = definitions.dict_of(cls)
    return definitions.bases_of(cls) == (tuple,) and own.keys() | {"__orig_bases__", "__annotations__"} >= _GENERATED


def _named_tuple(cls: type) -> Any:
    """One that `collections.namedtuple` made is made by it again, whatever Python that is then."""
    own = definitions.dict_of(cls)
    fields = own["_fields"]
    state = {name: each for name, each in own.items() if name not in _GENERATED and name not in fields}
    state.update({"__qualname__": definitions.qualname_of(cls), "__doc__": own["__doc__"]})
    made = (definitions.name_of_type(cls), fields, own["_field_defaults"], definitions.module_of(cls))
    return (_m.named_tuple, made, (state, None), None, None, _m.set_class_state)


def _by_alias(value: Any) -> Any:
    alias = definitions.alias_of(value)
    return NotImplemented if alias is None else (_m.named, (value.__module__, alias))


def _match(pickler: Pickler, value: Any) -> Any:
    made = (value.re, value.string, value.pos, value.endpos, value.span())
    again = _m.match_again(*made)
    if again is None or again.regs != value.regs:
        raise Unsavable("a match that is not found again")
    return (_m.match_again, made)


def _rlock(value: Any) -> Any:
    count = 0
    if value._is_owned():
        state = value._release_save()
        count = state[0]
        value._acquire_restore(state)
    return (_m.rlock, (count,))


def _view(kind: str) -> Callable[[Pickler, Any], Any]:
    import gc

    return lambda pickler, value: (_m.view, (kind, gc.get_referents(value)[0]))


def _weak(pickler: Pickler, value: Any) -> Any:
    return (_m.weak, (weakref.ReferenceType.__call__(value), value.__callback__))


def _lru(pickler: Pickler, value: Any) -> Any:
    if definitions.is_importable(value):
        return NotImplemented
    options = value.cache_parameters()
    wrapped = value.__wrapped__
    state = {name: each for name, each in vars(value).items() if name not in ("__wrapped__", "cache_parameters")}
    return (_m.lru_cache, (wrapped, options["maxsize"], options["typed"]), state, None, None, _m.set_dict)


def _no(why: str) -> Callable[[Pickler, Any], Any]:
    def refuse(pickler: Pickler, value: Any) -> Any:
        raise Unsavable(why)

    return refuse


class _None:
    def __reduce__(self) -> Any:
        return (type(None), ())


_NONE = _None()
"""pickle takes a state of None for no state; this becomes None when it is loaded."""

_C_TYPES: dict[int, Any] = {
    id(each): (_m.named, ("types", name))
    for name, each in vars(types).items()
    if isinstance(each, type) and definitions.module_of(each) == "builtins"
}

WAYS: dict[type, Callable[[Pickler, Any], Any]] = {
    types.FunctionType: Pickler.function,
    types.CodeType: Pickler.code,
    types.CellType: Pickler.cell,
    types.ModuleType: Pickler.module,
    property: lambda pickler, value: (property, (value.fget, value.fset, value.fdel, value.__doc__)),
    classmethod: lambda pickler, value: (classmethod, (value.__func__,)),
    staticmethod: lambda pickler, value: (staticmethod, (value.__func__,)),
    types.MethodType: lambda pickler, value: (types.MethodType, (value.__func__, value.__self__)),
    types.MappingProxyType: lambda pickler, value: (types.MappingProxyType, (dict(value),)),
    types.GetSetDescriptorType: lambda pickler, value: (getattr, (value.__objclass__, value.__name__)),
    type({}.keys()): _view("keys"),
    type({}.values()): _view("values"),
    type({}.items()): _view("items"),
    super: lambda pickler, value: (super, (value.__thisclass__, value.__self__)),
    _thread.LockType: lambda pickler, value: (_m.lock, (value.locked(),)),
    _thread.RLock: lambda pickler, value: _rlock(value),
    weakref.ReferenceType: _weak,
    weakref.WeakValueDictionary: lambda pickler, value: (_m.weak_values, (dict(value),)),
    weakref.WeakKeyDictionary: lambda pickler, value: (_m.weak_keys, (list(value.items()),)),
    weakref.WeakSet: lambda pickler, value: (_m.weak_set, (list(value),)),
    functools._lru_cache_wrapper: _lru,
    contextvars.ContextVar: Pickler.context_variable,
    memoryview: Pickler.memory,
    _io.TextIOWrapper: Pickler.text_file,
    _io.BufferedReader: Pickler.buffered_file,
    _io.BufferedWriter: Pickler.buffered_file,
    _io.BufferedRandom: Pickler.buffered_file,
    _io.FileIO: Pickler.raw_file,
    re.Match: _match,
    types.GeneratorType: _no("a generator: its place in running code cannot be saved"),
    types.CoroutineType: _no("a coroutine: its place in running code cannot be saved"),
    types.AsyncGeneratorType: _no("an asynchronous generator: its place in running code cannot be saved"),
    types.FrameType: _no("a frame of running code"),
    types.TracebackType: _no("a traceback: it holds frames of running code"),
}


_STATE_METHODS = frozenset(
    {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"}
)


def _hides_its_state(kind: type) -> bool:
    """A class of plain objects that answers for every attribute, also for those that pickle asks for."""
    own = [definitions.dict_of(each) for each in definitions.mro_of(kind)[:-1]]
    return (
        any("__getattr__" in each for each in own)
        and not any(_STATE_METHODS & each.keys() for each in own)
        and all(definitions.is_heap(each) for each in definitions.mro_of(kind)[:-1])
    )


def _plain_object(pickler: Pickler, value: Any) -> Any:
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


_BY_IDENTITY = {id(kind): way for kind, way in WAYS.items()}


def _find_way(kind: type) -> Any:
    way = _BY_IDENTITY.get(id(kind))
    if way is not None:
        return way
    if issubclass(kind, type):
        return Pickler.cls
    if definitions.is_by_name(kind):
        return Pickler.by_name
    if isinstance(kind, _loaded("enum", "EnumMeta")):
        return Pickler.member
    if issubclass(kind, BaseException):
        return Pickler.exception
    if _hides_its_state(kind):
        return _plain_object
    if type(kind).__hash__ is None:
        # pickle looks types up in a table, which such a one cannot be.
        return lambda pickler, value: value.__reduce_ex__(PROTOCOL)
    if kind is _loaded("numpy", "ndarray"):
        return Pickler.array
    if kind is _loaded("sqlite3", "Connection"):
        return Pickler.database
    if kind.__module__ in ("ingle_worker.streams", "ingle_worker.stdin"):
        return Pickler.standard
    if kind is _loaded("socket", "socket") or kind is _loaded("_socket", "socket"):
        return _no("a socket: the other end knows this process only")
    if kind is _loaded("threading", "Thread"):
        return _no("a thread")
    if kind is _loaded("subprocess", "Popen"):
        return _no("a running process")
    return _dataclass_mark if kind.__module__ == "dataclasses" else None


def _dataclass_mark(pickler: Pickler, value: Any) -> Any:
    """`MISSING` and the like are known by who they are."""
    for name, each in vars(sys.modules["dataclasses"]).items():
        if each is value:
            return (_m.named, ("dataclasses", name))
    name = definitions.name_of_type(type(value))
    if name in ("Field", "_DataclassParams"):
        # Which attributes these have differs between versions.
        own = {slot: getattr(value, slot) for slot in type(value).__slots__ if hasattr(value, slot)}
        return (_m.of_dataclasses, (name,), own, None, None, _m.as_far_as_known)
    return NotImplemented


def _loaded(module: str, name: str) -> type:
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else _Nothing


class _Nothing:
    """Stands for a type of a library that is not there: nothing is of it."""


def why_not(error: BaseException) -> str:
    """The reason, in one line."""
    text = str(error).strip().replace("\n", " ") or type(error).__name__
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, Unsavable):
        return text[:300]
    return f"{type(error).__name__}: {text}"[:300]
