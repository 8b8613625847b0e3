"""Tools of the MCP server, from their table."""

import json
from typing import Any

from ingle.mcp import arguments, tools
from ingle.mcp.facts import Facts, description
from reference.markdown import kind_of, table

OF_A_HOST = Facts(folder="/project", durable=True, shell_starts_there=True)
"""The facts of `ingle mcp` in a project."""


def tools_section() -> str:
    """Return the table of tools, then each with its description and arguments."""
    index = table(
        ("Tool", "Arguments", "What it does", "Listed with"),
        ((f"[`{tool.name}`](#{tool.name})", _names(tool), tool.title, _set(tool)) for tool in tools.TABLE),
    )
    return "\n".join([index, *(_described(tool) for tool in tools.TABLE)])


def _set(tool: tools.Tool) -> str:
    return next(f"`{name}`" for name, names in tools.SETS.items() if tool.name in names)


def _names(tool: tools.Tool) -> str:
    return ", ".join(f"`{name}`" for name in _schema(tool)["properties"])


def _schema(tool: tools.Tool) -> dict[str, Any]:
    return arguments.schema_of(tool.arguments)


def _described(tool: tools.Tool) -> str:
    schema = _schema(tool)
    required = schema.get("required", [])
    rows = [
        (
            f"`{name}`",
            kind_of(each),
            "required" if name in required else _default(each),
            each.get("description", ""),
        )
        for name, each in schema["properties"].items()
    ]
    text = f"### {tool.name}\n\n{description(tool, OF_A_HOST)}\n"
    return f"{text}\n{table(('Argument', 'Value', 'Default', 'Meaning'), rows)}" if rows else text


def _default(schema: dict[str, Any]) -> str:
    return f"`{json.dumps(schema['default'])}`" if schema.get("default") is not None else ""
