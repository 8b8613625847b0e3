"""Reduction of objects that pickle alone cannot save: functions, classes and the like.

pickle calls `reducer_override` for every object that is not of a basic type. The results name makers of `rebuild`.
Importable functions and classes are saved by name. Those of the session are saved by value, once, and other groups
refer to them by key.
"""

import _abc  # type: ignore[import-not-found]
import _io
import _pickle
import _thread
import contextvars
import functools
import linecache
import re
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from ingle_worker.snapshot import definitions, reduce_builtin, reduce_running, reduce_torch
from ingle_worker.snapshot.rebuild.registry import MAGIC, MAKERS, MODULE

PROTOCOL = 5
C_HAS_A_LIMIT = sys.hexversion >= 0x030C0000
OUT_OF_BAND = 1 << 16
"""Buffers of this size are sent directly from memory. Smaller ones are part of the stream."""

OF_DRIVER = ("Stream", "Event", "CUDAGraph", "MemPool")
"""Types of `torch.cuda` whose objects exist in one process only."""

_m: Any = types.SimpleNamespace(**MAKERS)

_ALL_CODE_FIELDS = """
co_argcount co_posonlyargcount co_kwonlyargcount co_nlocals co_stacksize co_flags co_firstlineno co_code co_consts
co_names co_varnames co_freevars co_cellvars co_filename co_name co_qualname co_exceptiontable co_linetable
"""
_CODE_FIELDS = [name for name in _ALL_CODE_FIELDS.split() if hasattr(types.CodeType, name)]


class Reducer:
    """Reducer of the objects of one group. `local` are the keys of its own definitions."""

    def __init__(self, keys: dict[int, str], local: frozenset[str], views: dict[int, Any]) -> None:
        self._keys = keys
        self._local = local
        self._views = views
        self.needed: set[str] = set()
        self.sources: set[str] = set()
        # By id: a metaclass may have any __hash__ and __eq__, or none.
        self._reducers: dict[int, Any] = {}
        self._spaces: dict[int, _Globals] = {}
        self._memories: dict[int, reduce_torch.Memory] = {}

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        try:
            reducer = self._reducers[id(kind)]
        except KeyError:
            reducer = self._reducers[id(kind)] = _find_reducer(kind)
        return reducer(self, value) if reducer is not None else NotImplemented

    # --- definitions ---

    def defined_elsewhere(self, value: Any) -> Any:
        key = self._keys.get(id(value))
        if key is None or key in self._local:
            return None
        self.needed.add(key)
        return (_m.defined, (key,))

    def function(self, value: types.FunctionType) -> Any:
        if value.__module__ == MODULE:
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
                where = self._spaces.setdefault(id(space), _Globals(space))
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
        self._note_source(value)
        return (_m.code, (MAGIC, {name: getattr(value, name) for name in _CODE_FIELDS}))

    def _note_source(self, code: types.CodeType) -> None:
        if code.co_filename in linecache.cache and code.co_filename.startswith("<"):
            self.sources.add(code.co_filename)

    def trace(self, value: types.TracebackType) -> Any:
        for code in reduce_running.codes_of(value):
            self._note_source(code)
        return reduce_running.traceback(value)

    def cell(self, value: types.CellType) -> Any:
        try:
            contents = value.cell_contents
        except ValueError:
            return (_m.cell, ())
        return (_m.cell, (), contents if contents is not None else _NONE, None, None, _m.cell_state)

    def cls(self, value: type) -> Any:
        if not definitions.is_definition(value):
            if value is reduce_builtin.loaded("enum", "EnumMeta"):
                return (_m.named, ("enum", "EnumMeta"))  # every version has this name
            return _C_TYPES.get(id(value)) or _by_alias(value)
        elsewhere = self.defined_elsewhere(value)
        if elsewhere is not None:
            return elsewhere
        own = definitions.dict_of(value)
        if reduce_builtin.is_named_tuple(value):
            return reduce_builtin.named_tuple(value)
        space = {"__module__": definitions.module_of(value), "__qualname__": definitions.qualname_of(value)}
        for name in ("__doc__", "__slots__"):
            if name in own:
                space[name] = own[name]
        registered = None
        if "_abc_impl" in own:
            dump = _abc._get_dump(value)
            registered = [each() for each in dump[0] if each() is not None]
        state = (definitions.state_of_class(value), registered)
        made = (type(value), definitions.name_of_type(value), definitions.bases_of(value), space)
        if issubclass(type(value), reduce_builtin.loaded("enum", "EnumMeta")):
            members = {name: each._value_ for name, each in own.get("_member_map_", {}).items()}
            content = (MAGIC, state[0])
            return (_m.new_enum, (MAGIC, *made, members), content, None, None, _m.enum_state)
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
        builtin = (each for each in definitions.mro_of(cls) if each is not object and not definitions.is_heap(each))
        base = next(builtin, None)
        plain = None if base is None else base(value) if base in (int, float, str, bytes, tuple) else value._value_
        made = (MAGIC, cls, base, plain if base is not None else value._value_, value._name_)
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
        self._spaces[id(vars(value))] = _Globals(vars(value), value)
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

    def tensor(self, value: Any) -> Any:
        return reduce_torch.tensor(value, self._memories)


class _Globals:
    """Placeholder for globals of neither the session nor a module. Each function adds those it uses."""

    def __init__(self, space: dict[str, Any], module: types.ModuleType | None = None) -> None:
        self._alive = space
        self._module = module

    def __reduce__(self) -> Any:
        return (dict, ()) if self._module is None else (vars, (self._module,))


def _by_alias(value: Any) -> Any:
    alias = definitions.alias_of(value)
    return NotImplemented if alias is None else (_m.named, (value.__module__, alias))


class _None:
    def __reduce__(self) -> Any:
        return (type(None), ())


_NONE = _None()
"""pickle treats a state of None as no state. This object becomes None when it is loaded."""

_C_TYPES: dict[int, Any] = {
    id(each): (_m.named, ("types", name))
    for name, each in vars(types).items()
    if isinstance(each, type) and definitions.module_of(each) == "builtins"
}


class Pickler(Reducer, _pickle.Pickler):
    def __init__(self, file: Any, on_buffer: Callable[[Any], object] | None, *group: Any) -> None:
        _pickle.Pickler.__init__(self, file, protocol=PROTOCOL, buffer_callback=on_buffer)
        Reducer.__init__(self, *group)


def deep_pickler() -> Any:
    """Return a pickler class that is limited only by `sys.setrecursionlimit`. Since 3.12 C code has its own limit of a
    few hundred or thousand levels."""
    if not C_HAS_A_LIMIT:
        return Pickler
    import pickle

    class DeepPickler(Reducer, pickle._Pickler):
        def __init__(self, file: Any, on_buffer: Callable[[Any], object] | None, *group: Any) -> None:
            pickle._Pickler.__init__(self, file, protocol=PROTOCOL, buffer_callback=on_buffer)
            Reducer.__init__(self, *group)

    return DeepPickler


REDUCERS: dict[type, Callable[[Reducer, Any], Any]] = {
    types.FunctionType: Reducer.function,
    types.CodeType: Reducer.code,
    types.CellType: Reducer.cell,
    types.ModuleType: Reducer.module,
    types.TracebackType: Reducer.trace,
}
"""Reducers that need the group."""

PLAIN_REDUCERS: dict[type, Callable[[Any], Any]] = {
    property: lambda value: (property, (value.fget, value.fset, value.fdel, value.__doc__)),
    classmethod: lambda value: (classmethod, (value.__func__,)),
    staticmethod: lambda value: (staticmethod, (value.__func__,)),
    types.MethodType: lambda value: (types.MethodType, (value.__func__, value.__self__)),
    types.MappingProxyType: lambda value: (types.MappingProxyType, (dict(value),)),
    types.GetSetDescriptorType: lambda value: (getattr, (value.__objclass__, value.__name__)),
    type({}.keys()): reduce_builtin.view("keys"),
    type({}.values()): reduce_builtin.view("values"),
    type({}.items()): reduce_builtin.view("items"),
    super: lambda value: (super, (value.__thisclass__, value.__self__)),
    _thread.LockType: lambda value: (_m.lock, (value.locked(),)),
    _thread.RLock: reduce_builtin.rlock,
    weakref.ReferenceType: reduce_builtin.weak,
    weakref.WeakValueDictionary: lambda value: (_m.weak_values, (dict(value),)),
    weakref.WeakKeyDictionary: lambda value: (_m.weak_keys, (list(value.items()),)),
    weakref.WeakSet: lambda value: (_m.weak_set, (list(value),)),
    functools._lru_cache_wrapper: reduce_builtin.lru_cache,
    contextvars.ContextVar: reduce_builtin.context_variable,
    memoryview: reduce_builtin.memory,
    _io.TextIOWrapper: reduce_builtin.text_file,
    _io.BufferedReader: reduce_builtin.buffered_file,
    _io.BufferedWriter: reduce_builtin.buffered_file,
    _io.BufferedRandom: reduce_builtin.buffered_file,
    _io.FileIO: reduce_builtin.raw_file,
    re.Match: reduce_builtin.match,
    types.FrameType: reduce_builtin.refuse("a frame of running code"),
}


def _without_group(reducer: Callable[[Any], Any]) -> Callable[[Reducer, Any], Any]:
    return lambda pickler, value: reducer(value)


_BY_IDENTITY: dict[int, Callable[[Reducer, Any], Any]] = {
    **{id(kind): reducer for kind, reducer in REDUCERS.items()},
    **{id(kind): _without_group(reducer) for kind, reducer in PLAIN_REDUCERS.items()},
}


def _find_reducer(kind: type) -> Any:
    reducer = _BY_IDENTITY.get(id(kind))
    if reducer is not None:
        return reducer
    if issubclass(kind, type):
        return Reducer.cls
    if definitions.is_by_name(kind):
        return Reducer.by_name
    if isinstance(kind, reduce_builtin.loaded("enum", "EnumMeta")):
        return Reducer.member
    if kind is reduce_builtin.loaded("numpy", "ndarray"):
        return Reducer.array
    if kind is reduce_builtin.loaded("torch", "Tensor") or kind is reduce_builtin.loaded("torch.nn", "Parameter"):
        return Reducer.tensor
    if kind is reduce_builtin.loaded("torch", "Generator"):
        return _without_group(reduce_torch.generator)
    plain = _find_plain_reducer(kind)
    return None if plain is None else _without_group(plain)


def _find_plain_reducer(kind: type) -> Callable[[Any], Any] | None:
    if issubclass(kind, BaseException):
        return reduce_builtin.exception
    if reduce_builtin.hides_its_state(kind):
        return reduce_builtin.plain_object
    if type(kind).__hash__ is None:
        # pickle looks types up in a table, which needs a hash.
        return lambda value: value.__reduce_ex__(PROTOCOL)
    if kind is reduce_builtin.loaded("sqlite3", "Connection"):
        return reduce_builtin.database
    if kind.__module__ in ("ingle_worker.session.output_streams", "ingle_worker.session.input_stream"):
        return reduce_builtin.standard
    if definitions.derives(kind, reduce_builtin.loaded("concurrent.futures", "Future")):
        return reduce_running.future
    if definitions.derives(kind, reduce_builtin.loaded("asyncio.futures", "Future")):
        return reduce_builtin.refuse("it belongs to the event loop, which is not saved")
    if reduce_torch.host_copies is not None and _shares_gpu_data(kind):
        return _of_another_library
    active = reduce_running.reducer_of(kind)
    if active is not None:
        return active  # type: ignore[no-any-return]
    if kind is reduce_builtin.loaded("subprocess", "Popen"):
        return reduce_builtin.refuse("a running process")
    if definitions.derives(kind, *(reduce_builtin.loaded("torch.cuda", name) for name in OF_DRIVER)):
        return reduce_builtin.refuse("it belongs to the driver of a GPU")
    return reduce_builtin.dataclass_mark if kind.__module__ == "dataclasses" else None


def _shares_gpu_data(kind: type) -> bool:
    """Return whether this is a type of another library than torch whose objects may be on a GPU."""
    if definitions.derives(kind, reduce_builtin.loaded("torch", "Tensor")):
        return False
    return any("__cuda_array_interface__" in definitions.dict_of(each) for each in definitions.mro_of(kind))


def _of_another_library(value: Any) -> Any:
    """Refuse an array on a GPU. Its own code would call the driver, which may never answer a forked process."""
    # JAX has one type for arrays on GPUs and in memory.
    devices = getattr(value, "devices", None)
    if callable(devices) and all(getattr(each, "platform", "") == "cpu" for each in devices()):
        return NotImplemented
    raise reduce_builtin.Unsavable("it is on a GPU, and only data of torch is copied from there")


def why_not(error: BaseException) -> str:
    """Return the reason in one line."""
    text = str(error).strip().replace("\n", " ") or type(error).__name__
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, reduce_builtin.Unsavable):
        return text[:300]
    return f"{type(error).__name__}: {text}"[:300]
