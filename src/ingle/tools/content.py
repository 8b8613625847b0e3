"""Results of tools as the payload that goes to a session. Pure."""

from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from ingle.tools.shapes import ToolFailed

_encoder = msgspec.json.Encoder()

MAX_ERROR_CHARS = 10_000

COMPLETE = "complete"


class Block(Struct, rename="camel"):
    """Part of a result, or the resource inside of one."""

    type: str = ""
    text: str | None = None
    data: str = ""
    blob: str = ""
    mime_type: str | None = None
    uri: str = ""
    name: str = ""
    resource: "Block | None" = None


class ToolResult(Struct, rename="camel"):
    """Result of a call. Structured content stays the server's JSON: the session decodes it."""

    content: list[Block] = field(default_factory=list)
    structured_content: Raw = Raw(b"null")
    is_error: bool = False
    result_type: str = COMPLETE


_decode = msgspec.json.Decoder(ToolResult).decode


def of_json(data: bytes) -> bytes:
    """Return the payload of the JSON of an MCP result. Raise ToolFailed as `of_result` does."""
    try:
        return of_result(_decode(data))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ToolFailed("tool", f"the server's result is not one of MCP: {error}") from None


def of_result(result: ToolResult) -> bytes:
    """Return the payload of a result. Raise ToolFailed with the tool's words if it is an error."""
    if result.is_error:
        words = " ".join(block.text or "" for block in result.content if block.type == "text").strip()
        raise ToolFailed("tool", words[:MAX_ERROR_CHARS] or "the tool failed, and does not say why")
    if result.result_type != COMPLETE:
        raise ToolFailed("tool", "the tool asks for more than its arguments, which code in a session cannot give")
    structured = bytes(result.structured_content)
    if structured != b"null":
        return b'{"value":' + structured + b"}"
    return encode({"content": [_block(block) for block in result.content]})


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


def _block(block: Block) -> dict[str, Any]:
    kind = block.type
    if kind == "text":
        return {"type": "text", "text": block.text or ""}
    if kind in ("image", "audio"):
        return {"type": kind, "data": block.data, "mime_type": block.mime_type or ""}
    if kind == "resource_link":
        return {"type": "resource", "uri": block.uri, "name": block.name, "mime_type": block.mime_type or ""}
    if kind == "resource" and block.resource is not None:
        inner = block.resource
        made = {"type": "resource", "uri": inner.uri, "mime_type": inner.mime_type or ""}
        return {**made, "text": inner.text} if inner.text is not None else {**made, "data": inner.blob}
    return {"type": "text", "text": ""}
