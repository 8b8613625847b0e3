"""Repair of listings: one tool that breaks the protocol must not hide the others of its server.

The SDK refuses a whole listing for one invalid schema. Here such a schema becomes that of any arguments first.
"""

from typing import Any

from mcp_types import JSONRPCResponse

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


class RepairedStream:
    """The read stream of a transport, with repaired listings."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        return repaired(await self._stream.receive())

    def __aiter__(self) -> "RepairedStream":
        return self

    async def __anext__(self) -> Any:
        return repaired(await self._stream.__anext__())

    async def __aenter__(self) -> "RepairedStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._stream.__aexit__(*exc)


def repaired(item: Any) -> Any:
    message = getattr(item, "message", None)
    if isinstance(message, JSONRPCResponse) and isinstance(message.result.get("tools"), list):
        tools = [each for each in message.result["tools"] if isinstance(each, dict)]
        message.result["tools"] = [_tool(each) for each in tools if isinstance(each.get("name"), str)]
    return item


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    made = {"name": tool["name"], "inputSchema": _schema(tool.get("inputSchema")) or ANY_ARGUMENTS}
    if isinstance(tool.get("description"), str):
        made["description"] = tool["description"]
    if (output := _schema(tool.get("outputSchema"))) is not None:
        made["outputSchema"] = output
    hints = tool.get("annotations")
    if isinstance(hints, dict):
        made["annotations"] = {name: value for name, value in hints.items() if isinstance(value, bool)}
    return made


def _schema(schema: Any) -> dict[str, Any] | None:
    """Return a schema that the protocol allows, or None."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return None
    properties, required = schema.get("properties", {}), schema.get("required", [])
    well_formed = isinstance(properties, dict) and all(isinstance(each, dict | bool) for each in properties.values())
    if not well_formed or not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        return None
    return schema
