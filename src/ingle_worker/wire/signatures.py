"""Names and signatures of tools in Python, made from their JSON schemas. Pure, and shared with the host.

Schemas come from strangers. They are read as data with bounds on depth and size, and whatever cannot be understood
means "any value". No text of a schema is ever executed.
"""

import keyword
import unicodedata
from typing import Any, NamedTuple

MAX_DEPTH = 8
"""Depth to which a type is described. Recursive schemas end here."""

MAX_PARAMETERS = 200
MAX_CHOICES = 20
MAX_NAME_CHARS = 64
MAX_TYPE_CHARS = 120

TYPES: dict[str, tuple[str, ...]] = {
    "string": ("str",),
    "integer": ("int",),
    "number": ("float",),
    "boolean": ("bool",),
    "null": ("None",),
    "array": ("list",),
    "object": ("dict",),
}
"""Python types by the names that JSON schema has for them."""


class Parameter(NamedTuple):
    """A parameter of a tool's function."""

    name: str
    """Name in Python."""
    key: str
    """Name in the schema."""
    schema: dict[str, Any]
    required: bool


def python_name(text: str) -> str:
    """Return an identifier that looks like this text and is no keyword."""
    text = unicodedata.normalize("NFKC", text[:MAX_NAME_CHARS])
    name = "".join(char if char == "_" or ("a" + char).isidentifier() else "_" for char in text)
    if not name.isidentifier():
        name = "_" + name
    # Names with two leading underscores belong to Python.
    if name.startswith("__"):
        name = "_" + name.lstrip("_")
    return name + "_" if keyword.iskeyword(name) or name == "_" else name


def python_names(texts: list[str], taken: frozenset[str] = frozenset()) -> list[str]:
    """Return an identifier for each text, all different. Exact identifiers come first."""
    used = set(taken)
    names: dict[int, str] = {}
    for exact in (True, False):
        for place, text in enumerate(texts):
            base = python_name(text)
            if place in names or (base == text) is not exact:
                continue
            name, number = base, 2
            while name in used:
                name, number = f"{base}_{number}", number + 1
            used.add(name)
            names[place] = name
    return [names[place] for place in range(len(texts))]


def parameters(schema: Any) -> list[Parameter] | None:
    """Return the parameters of a tool, required ones first. None: the schema cannot be understood."""
    closed = isinstance(schema, dict) and schema.get("additionalProperties") is False
    properties = schema.get("properties", {} if closed else None) if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or len(properties) > MAX_PARAMETERS:
        return None
    wanted = schema.get("required", [])
    required = {each for each in wanted if isinstance(each, str)} if isinstance(wanted, list) else set()
    keys = [key for key in properties if isinstance(key, str)]
    keys.sort(key=lambda key: key not in required)
    return [
        Parameter(name, key, properties[key] if isinstance(properties[key], dict) else {}, key in required)
        for name, key in zip(python_names(keys), keys, strict=True)
    ]


def resolve(schema: Any, root: Any) -> Any:
    """Return the schema that a `$ref` leads to, within the same document. {}: it leads nowhere."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        found, path = root, schema["$ref"]
        if not path.startswith("#"):
            return {}
        for part in path[1:].split("/"):
            if part:
                part = part.replace("~1", "/").replace("~0", "~")
                found = found.get(part) if isinstance(found, dict) else None
        schema = found if isinstance(found, (dict, bool)) else {}
    return {}


def type_text(schema: Any, root: Any, depth: int = 0) -> str:
    """Return the Python type of a schema as text: `str`, `list[int]`, `'a' | 'b'`."""
    schema = resolve(schema, root)
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return "Any"
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list) and 0 < len(choices) <= MAX_CHOICES:
        return " | ".join(repr(each) if isinstance(each, str) else str(each) for each in choices)
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list) and schema[name]:
            texts = [type_text(each, root, depth + 1) for each in schema[name][:MAX_CHOICES]]
            return " | ".join(dict.fromkeys(texts))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(dict.fromkeys(type_text({**schema, "type": each}, root, depth + 1) for each in kind))
    names = TYPES.get(kind) if isinstance(kind, str) else None
    if names is None:
        return "Any"
    if kind == "array":
        inner = type_text(schema.get("items", {}), root, depth + 1)
        return "list" if inner == "Any" else f"list[{inner}]"
    return names[0]


def short_type(schema: Any, root: Any) -> str:
    text = type_text(schema, root)
    return text if len(text) <= MAX_TYPE_CHARS else "Any"


def signature_text(name: str, schema: Any, output: Any = None) -> str:
    """Return a tool as Python shows a function: `search(query: str, limit: int = 10) -> dict`."""
    found = parameters(schema)
    if found is None:
        return f"{name}(**arguments)"
    parts = []
    for each in found:
        default = "" if each.required else f" = {default_text(each.schema)}"
        parts.append(f"{each.name}: {short_type(each.schema, schema)}{default}")
    returns = "" if not isinstance(output, dict) else f" -> {short_type(output, output)}"
    return f"{name}({', '.join(parts)}){returns}"


def default_text(schema: dict[str, Any]) -> str:
    """Return the default of an optional parameter. `...` is the tool's own."""
    if "default" not in schema:
        return "..."
    text = repr(schema["default"])
    return text if len(text) <= MAX_TYPE_CHARS else "..."


def visible(text: Any, limit: int) -> str:
    """Return a stranger's text without control characters, bounded."""
    if not isinstance(text, str):
        return ""
    if len(text) <= limit and text.isprintable():
        return text
    shown = "".join(char if char in "\n\t" or char.isprintable() else " " for char in text[: limit + 1])
    return shown if len(shown) <= limit else shown[:limit] + "…"
