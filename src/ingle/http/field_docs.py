"""Meanings of fields for the OpenAPI document, from the docstrings that follow the fields in the source.

An installation without sources has no meanings; everything else in the document stays.
"""

import ast
import inspect
import sys
import types
import typing
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec


def describe_fields(shapes: Iterable[Any], schemas: dict[str, Any]) -> None:
    """Add a description to each field of the schemas, which `shapes` and the structs inside them made."""
    for kind in _structs(shapes):
        properties = schemas.get(kind.__name__, {}).get("properties", {})
        meanings = field_meanings(kind)
        for field in msgspec.structs.fields(kind):
            schema = properties.get(field.encode_name)
            if schema is not None and field.name in meanings:
                schema.setdefault("description", meanings[field.name])


def _structs(shapes: Iterable[Any]) -> set[type[msgspec.Struct]]:
    """Return all structs in these types."""
    found: set[type[msgspec.Struct]] = set()
    left = list(shapes)
    while left:
        shape = left.pop()
        if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
            if shape not in found:
                found.add(shape)
                left += typing.get_type_hints(shape).values()
        elif not isinstance(shape, (str, types.FunctionType)):
            left += typing.get_args(shape)
    return found


def field_meanings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a class, its base classes included."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        found |= _module_meanings(each.__module__).get(each.__name__, {})
    return found


@cache
def _module_meanings(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of fields by class. The module is parsed once, since `inspect` parses it for each class."""
    if module.partition(".")[0] != "ingle":
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError):
        return {}
    return {node.name: _class_meanings(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _class_meanings(definition: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for field, after in zip(definition.body, definition.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(after.value.value)).replace("\n", " ")
    return found
