"""Operations of the HTTP interface and their fields, from the OpenAPI document."""

import json
import re
from functools import cache
from typing import Any

from ingle.http.app import operations
from ingle.http.openapi import make_document
from ingle.service import Service
from ingle.settings import Settings
from reference.markdown import field_meanings, kind_of, table

Rows = list[tuple[str, str, dict[str, Any], bool, type[Any] | None]]
"""Name, place (`path`, `query`, `header`, `body`), schema, whether it is required, and its class."""


@cache
def _document() -> dict[str, Any]:
    # The document depends on the table of operations alone, so no service needs to run.
    return make_document(_operations())


@cache
def _operations() -> list[Any]:
    return operations(Service(Settings(), None))  # type: ignore[arg-type]


def _rows() -> list[tuple[Any, str, dict[str, Any]]]:
    """Return each operation with its path and its description in the document."""
    paths = _document()["paths"]
    plain = [(row, re.sub(r":\w+}", "}", row.path)) for row in _operations()]
    return [(row, path, paths[path][row.method.lower()]) for row, path in plain]


def _fields(row: Any, described: dict[str, Any]) -> Rows:
    found: Rows = [
        (each["name"], each["in"], each["schema"], False, row.query)
        for each in described["parameters"]
        if each["in"] != "path"
    ]
    if isinstance(row.body, type):
        shape = _document()["components"]["schemas"].get(row.body.__name__, {})
        required = shape.get("required", [])
        found += [
            (name, "body", schema, name in required, row.body) for name, schema in shape.get("properties", {}).items()
        ]
    return found


def operations_table() -> str:
    """Return the table of all operations: request, fields, meaning."""
    rows = []
    for row, path, described in _rows():
        names = [f"**`{name}`**" if needed else f"`{name}`" for name, _, _, needed, _ in _fields(row, described)]
        if described.get("requestBody") and not isinstance(row.body, type):
            names.append("the bytes")
        rows.append((f"`{row.method} {path}`", ", ".join(names), described["summary"]))
    return table(("Request", "Body, query and headers", "What it does"), rows)


def fields() -> str:
    """Return the fields of each operation that takes some, with their kinds, defaults and meanings."""
    parts = []
    for row, path, described in _rows():
        found = _fields(row, described)
        if not found:
            continue
        lines = [
            (
                f"`{name}`",
                place,
                kind_of(schema),
                "required" if needed else _default(schema),
                schema.get("description") or _meaning(kind, name),
            )
            for name, place, schema, needed, kind in found
        ]
        head = ("Field", "In", "Value", "Default", "Meaning")
        parts.append(f"### `{row.method} {path}`\n\n{described['summary']}\n\n{table(head, lines)}")
    return "\n".join(parts)


def _default(schema: dict[str, Any]) -> str:
    return f"`{json.dumps(schema['default'])}`" if schema.get("default") is not None else ""


def _meaning(kind: type[Any] | None, name: str) -> str:
    return "" if kind is None else field_meanings(kind).get(name, "")
