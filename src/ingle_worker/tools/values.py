"""Values of tools: arguments as JSON, results as Python values, failures as exceptions."""

import binascii
import json
import os
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 100


class ToolError(Exception):
    """A tool failed, was refused, or cannot be reached. The text has the tool's own words.

    `kind` is `tool` (the tool says that it failed), `denied`, `budget`, `unknown`, `unavailable`, `timeout` or
    `cancelled`.
    """

    def __init__(self, message: str, kind: str = "tool") -> None:
        super().__init__(message)
        self.kind = kind


ToolError.__module__ = "ingle_tools"


class Media(bytes):
    """Bytes of an image or a sound, with their `mime_type`."""

    mime_type: str = ""

    def __reduce__(self) -> Any:
        return (_media, (bytes(self), self.mime_type))


class Resource:
    """A resource that a tool returned: its `uri`, its `mime_type`, and its `text` or `data`. A link has neither."""

    def __init__(
        self, uri: str, mime_type: str = "", text: str | None = None, data: bytes | None = None, name: str = ""
    ) -> None:
        self.uri = uri
        self.mime_type = mime_type
        self.text = text
        self.data = data
        self.name = name

    def __repr__(self) -> str:
        size = "" if self.text is None else f", {len(self.text)} characters"
        size = size if self.data is None else f", {len(self.data)} bytes"
        return f"<Resource {self.uri}{size}>"


Media.__module__ = Resource.__module__ = "ingle_tools"


def _media(data: bytes, mime_type: str) -> Media:
    made = Media(data)
    made.mime_type = mime_type
    return made


_media.__module__ = "ingle_tools"


# --- arguments ---


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it. Raise TypeError for what it has not."""
    if depth > MAX_DEPTH:
        raise ValueError(f"an argument is nested deeper than {MAX_DEPTH}, or contains itself")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("a dict in an argument of a tool has keys of type str")
        return {key: plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each, depth + 1) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return binascii.b2a_base64(value, newline=False).decode("ascii")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for name in ("tolist", "isoformat", "model_dump"):  # arrays of numpy, dates, models of pydantic
        convert = getattr(type(value), name, None)
        if callable(convert):
            return plain(convert(value), depth + 1)
    kind = type(value)
    raise TypeError(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be an argument of a tool")


# Used directly: `json.dumps` makes an encoder for each value, and `json.loads` looks for an encoding and for spaces.
_encode_json: Callable[[Any, int], Any] = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, None, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
)
_scan_json: Callable[[str, int], tuple[Any, int]] = json.scanner.c_make_scanner(  # type: ignore[attr-defined]
    json.JSONDecoder()
)


def encode(value: Any) -> bytes:
    """Return JSON of a value made by `plain`. Raise ValueError for what is not a number."""
    return "".join(_encode_json(value, 0)).encode("ascii")


# --- results ---


def failure_of(data: bytes) -> ToolError:
    plain = json.loads(data)
    return ToolError(plain["message"], plain["kind"])


def result_of(data: bytes) -> Any:
    """Return the Python value of a result: structured content as it is, or else its blocks.

    One block is returned alone, several as a list, none as None.
    """
    try:
        plain, _ = _scan_json(data.decode("utf-8", "surrogatepass"), 0)
    except StopIteration:
        raise ToolError("the tool returned what is not JSON") from None
    if "value" in plain:
        return plain["value"]
    blocks = [_block(each) for each in plain["content"]]
    return blocks[0] if len(blocks) == 1 else blocks or None


def _block(block: dict[str, Any]) -> Any:
    kind = block.get("type")
    if kind == "text":
        return block.get("text", "")
    if kind in ("image", "audio", "bytes"):
        return _media(_bytes(block.get("data", "")), block.get("mime_type", ""))
    if kind == "resource":
        data = block.get("data")
        return Resource(
            block.get("uri", ""),
            block.get("mime_type", ""),
            block.get("text"),
            None if data is None else _bytes(data),
            block.get("name", ""),
        )
    return block


def _bytes(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text)
    except ValueError:
        raise ToolError("the tool returned bytes that are not base64") from None
