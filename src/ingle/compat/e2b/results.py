"""Events of a cell as lines of E2B's code interpreter. Pure functions."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from ingle.events import AnyEvent, DisplayShown, Done, ErrorRaised, ResultShown, Stderr, Stdout

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
"""Fields of a result by mime type. Other types stand in `extra`."""

PARSED = ("json", "data", "chart")

QUOTES = ("'", '"')

NO_INPUT = {
    "type": "error",
    "name": "StdinNotImplementedError",
    "value": "raw_input was called, but this frontend does not support input requests.",
    "traceback": "",
}
RESTARTED = {"type": "error", "name": "ContextRestarting", "value": "Context was restarted", "traceback": ""}
KEEPALIVE = {"type": "keepalive"}
END = {"type": "end_of_execution"}

_encoder = msgspec.json.Encoder()


def line(event: dict[str, Any]) -> bytes:
    return _encoder.encode(event) + b"\n"


def count(number: int) -> dict[str, Any]:
    return {"type": "number_of_executions", "execution_count": number}


def translate(event: AnyEvent) -> dict[str, Any] | None:
    """Return an event as E2B has it; None for one that E2B does not have."""
    if isinstance(event, Stdout | Stderr):
        kind = "stdout" if isinstance(event, Stdout) else "stderr"
        moment = datetime.fromtimestamp(event.time, UTC).isoformat()
        return {"type": kind, "text": event.text, "timestamp": moment}
    if isinstance(event, ResultShown):
        return _result(event.data, main=True)
    if isinstance(event, DisplayShown):
        return _result(event.data, main=False)
    if isinstance(event, ErrorRaised):
        return {"type": "error", "name": event.name, "value": event.value, "traceback": event.traceback}
    if isinstance(event, Done) and (ended := event.result.exit) is not None and (ended.signal or ended.code):
        return RESTARTED
    return None


def _result(data: dict[str, str], *, main: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "result"}
    extra: dict[str, Any] = {}
    for mime, content in data.items():
        name = FIELDS.get(mime)
        if name is None:
            extra[mime] = content
        elif name in PARSED:
            found[name] = _parsed(content)
        elif name == "text":
            found[name] = unquoted(content)
        else:
            found[name] = content
    if found.get("text") == "" and len(data) > 1:
        del found["text"]
    return {**found, "extra": extra, "is_main_result": main}


def _parsed(content: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content


def unquoted(text: str) -> str:
    """Return a text without the quotes of a string's repr."""
    if len(text) > 1 and text[0] in QUOTES and text[0] == text[-1]:
        return text[1:-1]
    return text
