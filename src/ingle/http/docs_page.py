"""The reference as one page of HTML, made from the OpenAPI document. It needs nothing from elsewhere, and no script."""

from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
code, h2 { font-family: ui-monospace, monospace } h2 { font-size: 1rem; margin: 2rem 0 .25rem }
table { border-collapse: collapse; width: 100% } td, th { text-align: left; padding: .15rem .75rem .15rem 0 }
td { border-top: 1px solid #8884; vertical-align: top }
"""


def render(document: dict[str, Any]) -> str:
    info = document["info"]
    schemas = document["components"]["schemas"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width">',
        f"<title>{escape(info['title'])} {escape(info['version'])}</title><style>{STYLE}</style>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        "<p>Every request but <code>/healthz</code> carries <code>Authorization: Bearer TOKEN</code>. ",
        "Errors are problems of RFC 9457. For programs: <a href=/openapi.json>/openapi.json</a>.</p>",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}</p>")
            rows = [
                (each["name"], each["in"], _kind(each["schema"]))
                for each in operation["parameters"]
                if each["in"] != "path"
            ]
            for media in operation.get("requestBody", {}).get("content", {}).values():
                shape = schemas.get(media.get("schema", {}).get("$ref", "").rpartition("/")[2], {})
                rows += [(name, "body", _kind(field)) for name, field in shape.get("properties", {}).items()]
            if rows:
                lines = "".join(
                    f"<tr><td><code>{escape(name)}</code><td>{where}<td>{escape(kind)}" for name, where, kind in rows
                )
                parts.append(f"<table><tr><th>field<th>in<th>value{lines}</table>")
    parts.append("<h1>Shapes</h1>")
    for name, shape in schemas.items():
        fields = "".join(
            f"<tr><td><code>{escape(field)}</code><td>{escape(_kind(kind))}"
            for field, kind in shape.get("properties", {}).items()
        )
        parts.append(f"<h2 id={escape(name)}>{escape(name)}</h2><table>{fields}</table>")
    return "".join(parts)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(map(str, schema.get("enum", [schema.get("const")])))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
