"""Tables of Markdown, and the docstrings that Python throws away."""

import ast
import inspect
import re
from collections.abc import Iterable
from functools import cache
from typing import Any


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table, one line for each row."""
    names = list(head)
    rule = "|---" * len(names) + "|\n"
    return _line(names) + rule + "".join(_line(row) for row in rows)


def _line(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {text} |" if (text := _cell(each)) else " |" for each in cells) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


@cache
def field_meanings(kind: type[Any]) -> dict[str, str]:
    """Return the docstring of each field of a class, its base classes included."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        try:
            tree = ast.parse(inspect.getsource(each))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body  # type: ignore[attr-defined]
        for field, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                value = after.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    found[field.target.id] = inspect.cleandoc(value.value)  # type: ignore[union-attr]
    return found


def summary(kind: Any) -> str:
    """Return the docstring of a class or function, or nothing if it only inherits one."""
    own = kind.__dict__.get("__doc__") if isinstance(kind, type) else kind.__doc__
    return inspect.cleandoc(own or "")


def kind_of(schema: dict[str, Any], link: Any = None) -> str:
    """Return the words for a JSON schema: `text`, `list of Line`, `number or null`."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return str(link(name)) if link else f"`{name}`"
    if "anyOf" in schema:
        return " or ".join(kind_of(each, link) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {kind_of(schema.get('items', {}), link)}"
    words = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "object"}
    return words.get(str(kind), str(kind))
