"""A dataclass decorator that is fast to apply.

The library compiles up to seven functions per class, a quarter of the guest's start for sixty messages. Here only
`__init__` is compiled. The other methods are shared, and the type checker ensures that messages are not changed.
"""

import dataclasses
from typing import Any


def dataclass(cls: Any = None, *, frozen: bool = False) -> Any:
    """Replace `dataclasses.dataclass` for messages."""
    if cls is None:
        return dataclass
    for name, method in (("__eq__", _is_equal), ("__repr__", _show), ("__hash__", None)):
        setattr(cls, name, method)
    return dataclasses.dataclass(eq=False, repr=False, match_args=False)(cls)


def _fields(one: Any) -> dict[str, Any]:
    """Return all fields. In a decoded message, omitted fields exist on the class only."""
    return {name: getattr(one, name) for name in type(one).__dataclass_fields__}


def _is_equal(one: object, other: object) -> Any:
    return _fields(one) == _fields(other) if type(one) is type(other) else NotImplemented


def _show(one: object) -> str:
    return f"{type(one).__name__}({', '.join(f'{name}={value!r}' for name, value in _fields(one).items())})"
