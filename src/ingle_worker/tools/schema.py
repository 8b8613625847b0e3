"""JSON schemas of arguments: Python annotations made from them, and checks of values before a call.

Rules of a schema that this module does not know are left to the tool.
"""

from types import GenericAlias
from typing import Any, Literal, Union

from ingle_worker.wire.signatures import MAX_CHOICES, MAX_DEPTH, resolve

TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool, "null": None}

MAX_CHECKED_DEPTH = 50
MAX_SHOWN_CHARS = 200


def annotation(schema: Any, root: Any, depth: int = 0) -> Any:
    """Return the Python type of a schema. `Any` is what cannot be understood."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return Any
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and 0 < len(choices) <= MAX_CHOICES and all(_is_literal(each) for each in choices):
        return Literal[tuple(choices)]
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list) and schema[name]:
            return _union([annotation(each, root, depth + 1) for each in schema[name][:MAX_CHOICES]])
    kind = schema.get("type")
    if isinstance(kind, list) and kind:
        return _union([annotation({**schema, "type": each}, root, depth + 1) for each in kind[:MAX_CHOICES]])
    if kind == "array":
        inner = annotation(schema.get("items", {}), root, depth + 1)
        return list if inner is Any else GenericAlias(list, (inner,))
    if kind == "object":
        return dict
    return TYPES.get(kind, Any) if isinstance(kind, str) else Any


def _union(kinds: list[Any]) -> Any:
    return Any if any(each is Any for each in kinds) else Union[tuple(kinds)]  # noqa: UP007  made at run time


def _is_literal(value: Any) -> bool:
    return isinstance(value, (str, int, bool, type(None)))


PLAIN_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}

PLAIN_KEYS = frozenset(("type", "title", "description", "default", "examples"))


def plain_types(schema: Any, root: Any) -> frozenset[type]:
    """Return the types whose values all fit: `check` has nothing to find in them."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or not schema.keys() <= PLAIN_KEYS:
        return frozenset()
    kind = schema.get("type")
    return frozenset(PLAIN_TYPES.get(kind, ()) if isinstance(kind, str) else ())


def check(value: Any, schema: Any, root: Any, name: str, depth: int = 0) -> None:
    """Raise TypeError or ValueError if a JSON value does not fit its schema."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth > MAX_CHECKED_DEPTH:
        return
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and not any(_same(value, each) for each in choices):
        raise ValueError(f"{name} must be one of {_shown(choices)}, not {_shown(value)}")
    if "const" in schema and not _same(value, schema["const"]):
        raise ValueError(f"{name} must be {_shown(schema['const'])}, not {_shown(value)}")
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(kinds, list) and kinds and not any(_is_of(value, each) for each in kinds):
        raise TypeError(f"{name} must be {_words(kinds)}, not {type(value).__name__}")
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            _check_any(value, schema[key], root, name, depth)
    _check_bounds(value, schema, name)
    if isinstance(value, list):
        for place, each in enumerate(value):
            check(each, schema.get("items", {}), root, f"{name}[{place}]", depth + 1)
    elif isinstance(value, dict):
        _check_object(value, schema, root, name, depth)


def _check_object(value: dict[str, Any], schema: dict[str, Any], root: Any, name: str, depth: int) -> None:
    properties, required = schema.get("properties"), schema.get("required")
    properties = properties if isinstance(properties, dict) else {}
    if isinstance(required, list):
        for key in required:
            if isinstance(key, str) and key not in value:
                raise TypeError(f"{name} lacks {key!r}")
    others = schema.get("additionalProperties")
    for key, each in value.items():
        if key in properties:
            check(each, properties[key], root, f"{name}[{key!r}]", depth + 1)
        elif others is False:
            raise TypeError(f"{name} must not have {key[:MAX_SHOWN_CHARS]!r}; it has {_shown(list(properties))}")
        elif isinstance(others, dict):
            check(each, others, root, f"{name}[{key!r}]", depth + 1)


def _check_any(value: Any, schemas: list[Any], root: Any, name: str, depth: int) -> None:
    problem: Exception | None = None
    for each in schemas:
        try:
            check(value, each, root, name, depth + 1)
            return
        except (TypeError, ValueError) as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _check_bounds(value: Any, schema: dict[str, Any], name: str) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        size: Any = value
        low, high, what = "minimum", "maximum", ""
    elif isinstance(value, (str, list)):
        size = len(value)
        low, high = ("minLength", "maxLength") if isinstance(value, str) else ("minItems", "maxItems")
        what = " characters" if isinstance(value, str) else " items"
    else:
        return
    least, most = schema.get(low), schema.get(high)
    if isinstance(least, (int, float)) and size < least:
        raise ValueError(f"{name} must be at least {least}{what}, not {size}")
    if isinstance(most, (int, float)) and size > most:
        raise ValueError(f"{name} must be at most {most}{what}, not {size}")


def _is_of(value: Any, kind: Any) -> bool:
    if kind == "integer":
        return not isinstance(value, bool) and (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        )
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    known: dict[Any, Any] = {"string": str, "boolean": bool, "null": type(None), "array": list, "object": dict}
    return not isinstance(kind, str) or kind not in known or isinstance(value, known[kind])


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and value == other


def _words(kinds: list[Any]) -> str:
    names = {"array": "a list", "object": "a dict", "null": "None", "integer": "an integer", "boolean": "True or False"}
    return " or ".join(names.get(each, f"a {each}") if isinstance(each, str) else "any" for each in kinds)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
