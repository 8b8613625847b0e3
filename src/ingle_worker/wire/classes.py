"""Dataclasses that are made quickly.

The library compiles up to seven functions for one of its own, and there are sixty messages: a quarter of the time that
a guest took to start. Only `__init__` has to be compiled for each. What else a message can do is the same for all, and
that nobody changes one is seen to by the type checker.
"""

import dataclasses
from typing import Any


def dataclass(cls: Any = None, *, frozen: bool = False) -> Any:
    """As `dataclasses.dataclass`."""
    if cls is None:
        return dataclass
    for name, method in (("__eq__", _is_equal), ("__repr__", _show), ("__hash__", None)):
        setattr(cls, name, method)
    return dataclasses.dataclass(eq=False, repr=False, match_args=False)(cls)


def _fields(one: Any) -> dict[str, Any]:
    """Of one that was decoded, a field that was left out is its class's only."""
    return {name: getattr(one, name) for name in type(one).__dataclass_fields__}


def _is_equal(one: object, other: object) -> Any:
    return _fields(one) == _fields(other) if type(one) is type(other) else NotImplemented


def _show(one: object) -> str:
    return f"{type(one).__name__}({', '.join(f'{name}={value!r}' for name, value in _fields(one).items())})"
