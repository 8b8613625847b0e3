"""The reference as one page of HTML, made from the OpenAPI document. It needs nothing from elsewhere, and no script."""

import json
from html import escape
from typing import Any

from starlette.responses import Response

from ingle.http.page import make_page


def render(document: dict[str, Any]) -> Response:
    info = document["info"]
    schemas = document["components"]["schemas"]
    parts = [
        "<p>Every request but <code>/healthz</code> carries <code>Authorization: Bearer TOKEN</code>, ",
        "or the cookie of a browser that signed in. Sizes are in bytes and times in seconds, as numbers. ",
        "Errors are problems of RFC 9457. For programs: <a href=/openapi.json>/openapi.json</a>.</p>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}</p>")
            rows = [
                _row(each["name"], each["in"], each["schema"], each.get("required", False))
                for each in operation["parameters"]
            ]
            for media in operation.get("requestBody", {}).get("content", {}).values():
                shape = schemas.get(media.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
                rows += _rows(shape, "body")
            if rows:
                head = "<tr><th>Field<th>In<th>Value<th>Default<th>Meaning"
                parts.append(f"<table>{head}{''.join(rows)}</table>")
            answers = [_kind(each) for each in _answers(operation)]
            if answers:
                parts.append(f"<p>Answer: {' or '.join(answers)}</p>")
    parts.append("<h1>Shapes</h1>")
    for name, shape in schemas.items():
        about = f"<p>{escape(shape['description'])}</p>" if shape.get("description") else ""
        head = "<tr><th>Field<th>Value<th>Default<th>Meaning"
        parts.append(f"<h2 id={escape(name)}>{escape(name)}</h2>{about}<table>{head}{''.join(_rows(shape))}</table>")
    return make_page(f"{info['title']} {info['version']}", "".join(parts))


def _rows(shape: dict[str, Any], place: str | None = None) -> list[str]:
    required = shape.get("required", [])
    return [_row(name, place, schema, name in required) for name, schema in shape.get("properties", {}).items()]


def _row(name: str, place: str | None, schema: dict[str, Any], required: bool) -> str:
    default = "required" if required else json.dumps(schema["default"]) if schema.get("default") is not None else ""
    where = f"<td>{place}" if place is not None else ""
    meaning = escape(schema.get("description", ""))
    return f"<tr><td><code>{escape(name)}</code>{where}<td>{_kind(schema)}<td>{escape(default)}<td>{meaning}"


def _answers(operation: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            found += [each["schema"] for each in answer.get("content", {}).values() if "schema" in each]
    return found


def _kind(schema: dict[str, Any]) -> str:
    """Return the words for a JSON schema, as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f"<a href=#{name}>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(escape(str(each)) for each in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return escape(str(schema.get("type", "anything")))
