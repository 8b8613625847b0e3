"""Static lookup: the object that a dotted name refers to, and the names that an object has.

No user code runs: properties, `__getattr__`, `__dir__` and descriptors written in Python are not called. A descriptor
written in C is read, because numbers of rows and the like are such.
"""

import builtins
import inspect
import types
from collections.abc import Sequence
from typing import Any

MAX_NAMES = 20_000
"""Names of one object that are looked at."""

_contents_of = types.ModuleType.__dict__["__dict__"].__get__  # type: ignore[index]
_bases_of = type.__dict__["__mro__"].__get__
_class_dict_of = type.__dict__["__dict__"].__get__
_functions = (types.FunctionType, types.MethodType, types.MethodDescriptorType, types.WrapperDescriptorType)
_c_descriptors = (types.GetSetDescriptorType, types.MemberDescriptorType)


def is_class(value: Any) -> bool:
    """Return whether this is a class. `isinstance` would ask the object for its `__class__`."""
    return issubclass(type(value), type)


def is_module(value: Any) -> bool:
    return issubclass(type(value), types.ModuleType)


class NotFound(Exception):
    """There is no such name, or its value is known only to user code."""


def find(space: dict[Any, Any], path: Sequence[str]) -> Any:
    """Return the object of a dotted name, as a list of its parts. The last part may be a property, as such."""
    value = _global(space, path[0])
    for name in path[1:]:
        value = attribute(_known(value), name)
    return value


def find_value(space: dict[Any, Any], path: Sequence[str]) -> Any:
    """Return the object of a dotted name. Raise NotFound for a property, because its value is not known."""
    return _known(find(space, path))


def _known(value: Any) -> Any:
    """Return the value. Raise NotFound if it is a descriptor that would have to make the value."""
    kind = type(value)
    if not (is_class(value) or kind in _functions) and any(
        "__get__" in _class_dict_of(each) for each in _bases_of(kind)
    ):
        raise NotFound
    return value


def _global(space: dict[Any, Any], name: str) -> Any:
    for names in (space, vars(builtins)):
        if name in names:
            return names[name]
    raise NotFound(name)


def attribute(value: Any, name: str) -> Any:
    """Return an attribute. A property, and what else only user code could tell, is returned as the descriptor."""
    try:
        found = inspect.getattr_static(value, name)
    except AttributeError:
        raise NotFound(name) from None
    kind = type(found)
    if kind is staticmethod or kind is classmethod:
        return found.__func__
    if kind in _c_descriptors and not is_class(value):
        try:
            return found.__get__(value, type(value))
        except Exception:  # a library may refuse to read it now
            return found
    return found


def names_of(value: Any) -> dict[str, Any]:
    """Return the names of an object with what its dictionaries hold for them, those of its classes included."""
    kind = type(value)
    found: dict[str, Any] = {}
    if is_module(value):
        contents = _contents_of(value)
        _add(found, contents)
        listed = contents.get("__all__")
        if type(listed) in (list, tuple):
            _add(found, dict.fromkeys(each for each in listed if type(each) is str))
        return found
    if is_class(value):
        for each in _bases_of(value):
            _add(found, _class_dict_of(each))
        return found
    try:
        own = attribute(value, "__dict__")
    except NotFound:
        own = None
    if type(own) is dict:
        _add(found, own)
    for each in _bases_of(kind):
        _add(found, _class_dict_of(each))
    return found


def _add(found: dict[str, Any], more: Any) -> None:
    for name, value in list(more.items()):
        if len(found) >= MAX_NAMES:
            return
        if type(name) is str:
            found.setdefault(name, value)
