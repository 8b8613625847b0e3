"""Makers of classes, enumerations and their instances."""

import importlib
from typing import Any

from ingle_worker.snapshot import definitions
from ingle_worker.snapshot.rebuild.registry import CURRENT, MAGIC, Lost, maker


class _NoInitSubclass:
    """Context that disables `__init_subclass__` of the bases: it ran when the class was first created."""

    def __init__(self, bases: tuple[type, ...]) -> None:
        self._disabled: list[tuple[type, Any]] = []
        for base in {each: None for first in bases for each in definitions.mro_of(first)}:
            if "__init_subclass__" in definitions.dict_of(base) and definitions.flags_of(base) & definitions.HEAP_TYPE:
                self._disabled.append((base, definitions.dict_of(base)["__init_subclass__"]))

    def __enter__(self) -> None:
        for base, _ in self._disabled:
            type.__setattr__(base, "__init_subclass__", classmethod(lambda cls, **given: None))

    def __exit__(self, *exc: object) -> None:
        for base, own in self._disabled:
            type.__setattr__(base, "__init_subclass__", own)


@maker
def new_class(meta: type, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> type:
    with _NoInitSubclass(bases):
        made: type = type.__new__(meta, name, bases, dict(space))
    load = CURRENT.get()
    load.marks[id(made)] = len(load.lost)
    return made


@maker
def new_enum(
    magic: bytes, meta: Any, name: str, bases: tuple[type, ...], space: dict[str, Any], members: dict[str, Any]
) -> type:
    """Create an enumeration. Its attributes differ between Python versions, so another one calls the metaclass."""
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
        _regenerate_dataclass(target)
        # A newer version may have methods that this one lacks.
        if all(name in definitions.dict_of(target) or name.startswith("__") for name in lost):
            load = CURRENT.get()
            del load.lost[load.marks[id(target)] :]
    if registered is not None:
        abc = importlib.import_module("_abc")
        abc._abc_init(target)
        for each in registered:
            abc._abc_register(target, each)


def _regenerate_dataclass(cls: type) -> None:
    """Generate the methods of a dataclass again, which have no source, on another Python version."""
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
    """Set the attributes that exist in this version."""
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
    """Create a member of an enumeration that is being loaded too."""
    if magic != MAGIC:
        return cls._member_map_[name] if name in cls._member_map_ else cls(value)
    return object.__new__(cls) if base is None else base.__new__(cls, value)


@maker
def new_object(cls: type) -> Any:
    return object.__new__(cls)


@maker
def object_state(target: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Set attributes without calling `__setattr__` of the class."""
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
