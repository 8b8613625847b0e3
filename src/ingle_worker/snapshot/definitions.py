"""Definitions of a session that no import can find again: functions, classes, type variables.

This module runs no user code: it reads attributes without asking a metaclass.
"""

import importlib.machinery
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

MAIN = "__main__"
HEAP_TYPE, IMMUTABLE, NO_INSTANCES = 1 << 9, 1 << 8, 1 << 7
"""Flags of types. Only C code sets the last two."""

name_of_type: Callable[[type], str] = type.__dict__["__name__"].__get__
qualname_of: Callable[[type], str] = type.__dict__["__qualname__"].__get__
module_of: Callable[[type], Any] = type.__dict__["__module__"].__get__
bases_of: Callable[[type], tuple[type, ...]] = type.__dict__["__bases__"].__get__
dict_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__

_BY_NAME = ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType")
BY_NAME: tuple[type, ...] = tuple(each for name in _BY_NAME if isinstance(each := getattr(typing, name, None), type))
"""Types whose objects pickle by name, which fails for those that a session made."""

_found: dict[int, tuple[Any, bool]] = {}
"""Cache of lookups. It references the object, so that its id stays valid."""


def forget() -> None:
    _found.clear()


def is_definition(value: Any) -> bool:
    kind = type(value)
    if kind is types.FunctionType or issubclass(kind, type) or is_by_name(kind):
        known = _found.get(id(value))
        if known is None:
            known = _found[id(value)] = (value, not is_importable(value))
        return known[1]
    return False


def is_heap(cls: type) -> bool:
    """Return whether a class was made by a `class` statement, not in C."""
    return flags_of(cls) & (HEAP_TYPE | IMMUTABLE | NO_INSTANCES) == HEAP_TYPE


def derives(kind: type, *bases: type) -> bool:
    """Return whether a type is one of these or a subclass. Abstract classes have no say."""
    mro = mro_of(kind)
    return any(each is base for each in mro for base in bases)


def is_by_name(kind: type) -> bool:
    return any(kind is each for each in BY_NAME)


def name_of(definition: Any) -> str:
    if issubclass(type(definition), type):
        return qualname_of(definition)
    name = getattr(definition, "__qualname__", None) or getattr(definition, "__name__", "?")
    return name if type(name) is str else "?"


def is_importable(value: Any) -> bool:
    if issubclass(type(value), type):
        module: Any = module_of(value)
        name: Any = qualname_of(value)
        if not is_heap(value):
            return True  # written in C: it cannot be rebuilt
    else:
        module = getattr(value, "__module__", None)
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if type(module) is not str or type(name) is not str or module == MAIN:
        return False
    if alias_of(value) is not None:
        return True
    if "<" in name:
        return False
    found: Any = sys.modules.get(module)
    if found is None:
        return False
    for part in name.split("."):
        try:
            found = dict_of(found)[part] if issubclass(type(found), type) else vars(found)[part]
        except (KeyError, TypeError):
            # An attribute that the module creates on access, or one of a base class.
            found = getattr(found, part, None)
        if type(found) is staticmethod:
            found = found.__func__
    return found is value


def alias_of(value: Any) -> str | None:
    """Return the name under which its module has the object, if it differs from its own."""
    module = module_of(value) if issubclass(type(value), type) else getattr(value, "__module__", None)
    found = sys.modules.get(module) if type(module) is str and module != MAIN else None
    if type(found) is not types.ModuleType:
        return None
    own = qualname_of(value) if issubclass(type(value), type) else getattr(value, "__qualname__", None)
    if type(own) is str and vars(found).get(own) is value:
        return None
    return next((name for name, each in vars(found).copy().items() if each is value and type(name) is str), None)


def is_importable_module(module: types.ModuleType) -> bool:
    name = vars(module).get("__name__")
    # Code may have cleared sys.modules. An imported module can be imported again.
    if type(name) is not str or name == MAIN or sys.modules.get(name, module) is not module:
        return False
    spec = vars(module).get("__spec__")
    return isinstance(spec, importlib.machinery.ModuleSpec) or name in sys.builtin_module_names


def module_of_globals(space: dict[str, Any]) -> str | None:
    """Return the name of the module with these globals, if it can be imported again."""
    name = space.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    if type(module) is types.ModuleType and vars(module) is space and is_importable_module(module):
        return name
    return None


def is_own_globals(space: dict[str, Any]) -> bool:
    """Return whether these are globals of neither the session nor a module, but of an `exec`."""
    main = sys.modules.get(MAIN)
    return not (main is not None and vars(main) is space) and module_of_globals(space) is None


def globals_used(function: types.FunctionType) -> dict[str, Any]:
    """Return the globals that a function's code may look up."""
    names: set[str] = set()
    stack = [function.__code__]
    while stack:
        code = stack.pop()
        names.update(code.co_names)
        stack += [each for each in code.co_consts if type(each) is types.CodeType]
    space = function.__globals__
    return {name: space[name] for name in sorted(names | {"__name__"}) if name in space}


def parts_of(definition: Any) -> list[Any]:
    """Return the objects that are saved with a definition."""
    if type(definition) is types.FunctionType:
        parts = [definition.__closure__, definition.__defaults__, definition.__kwdefaults__, vars(definition)]
        parts.append(annotations_of(definition))
        if is_own_globals(definition.__globals__):
            parts += globals_used(definition).values()
        return parts
    if issubclass(type(definition), type):
        return [*state_of_class(definition).values(), *bases_of(definition), type(definition)]
    return [value for value in _parts_by_name(definition).values() if not isinstance(value, (str, bool))]


def _parts_by_name(definition: Any) -> dict[str, Any]:
    if hasattr(definition, "__supertype__"):
        return {"supertype": definition.__supertype__}
    if hasattr(definition, "__value__"):
        return {"value": definition.__value__}
    return {"constraints": getattr(definition, "__constraints__", ()), "bound": getattr(definition, "__bound__", None)}


def annotations_of(function: types.FunctionType) -> Any:
    # Since 3.14 user code computes them on access. That code is saved.
    return getattr(function, "__annotate__", None) if sys.version_info >= (3, 14) else function.__annotations__


NOT_STATE = frozenset(
    {"__dict__", "__weakref__", "__slots__", "__module__", "__qualname__", "__doc__", "_abc_impl", "__slotnames__"}
)


def state_of_class(cls: type) -> dict[str, Any]:
    """Return the attributes of a class that are restored after its creation."""
    own = dict(dict_of(cls))
    for name in NOT_STATE | slots_of(cls):
        own.pop(name, None)
    if sys.version_info >= (3, 14):
        own.pop("__annotations_cache__", None)
        if "__annotate_func__" in own:
            own["__annotate__"] = own.pop("__annotate_func__")
    return own


def slots_of(cls: type) -> set[str]:
    """Return the names of the class's slots."""
    return {
        name
        for name, value in dict_of(cls).items()
        if type(value) is types.MemberDescriptorType and value.__objclass__ is cls
    }
