"""Results of tools as the payload that goes to a session. Pure."""

from typing import Any

import msgspec

from ingle.tools.shapes import ToolFailed

_encoder = msgspec.json.Encoder()

MAX_ERROR_CHARS = 10_000


def of_mcp(result: Any) -> bytes:
    """Return the payload of an MCP result. Raise ToolFailed with the tool's words if it is an error."""
    if result.is_error:
        words = " ".join(block.text for block in result.content if block.type == "text").strip()
        raise ToolFailed("tool", words[:MAX_ERROR_CHARS] or "the tool failed, and does not say why")
    if result.structured_content is not None:
        return of_value(result.structured_content)
    return encode({"content": [_block(block) for block in result.content]})


def of_value(value: Any) -> bytes:
    return encode({"value": value})


def encode(payload: Any) -> bytes:
    """Return JSON. A lone surrogate is shown escaped, as in Python."""
    try:
        return _encoder.encode(payload)
    except UnicodeEncodeError:
        return _encoder.encode(_encodable(payload))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list) else value


def _block(block: Any) -> dict[str, Any]:
    kind = block.type
    if kind == "text":
        return {"type": "text", "text": block.text}
    if kind in ("image", "audio"):
        return {"type": kind, "data": block.data, "mime_type": block.mime_type}
    if kind == "resource_link":
        return {
            "type": "resource",
            "uri": str(block.uri),
            "name": block.name,
            "mime_type": block.mime_type or "",
        }
    if kind == "resource":
        inner = block.resource
        made = {"type": "resource", "uri": str(inner.uri), "mime_type": inner.mime_type or ""}
        text = getattr(inner, "text", None)
        return {**made, "text": text} if text is not None else {**made, "data": inner.blob}
    return {"type": "text", "text": ""}
