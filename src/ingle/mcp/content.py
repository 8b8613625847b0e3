"""Answers of the tools: text and images for the model, the status line last, and data for programs.

Hosts refuse a result of 1 MiB, so the data for programs has no images and repeats no long text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ingle.errors import IngleError
from ingle.events import Metadata, MimeBundle, OutputPage, Result, Task, Truncated
from ingle.mcp.texts import task_text
from ingle.output.timeline import HEAD_SHARE
from ingle.render.image_info import Picture
from ingle.render.mime import picture_of
from ingle.render.model import Hints, Image, Part, Text, view
from ingle.render.page import page_text
from ingle.render.truncate import Omitted

RESULT_KEY = "ingle/result"
ERROR_KEY = "ingle/error"

META_TEXT = 20_000
"""Characters of each text in the data for programs."""

META_BUNDLES = 200_000
"""Characters of all values and displays together."""

MAX_BUNDLES = 100
MAX_LINKS = 20
META_METADATA = 4000
"""Characters of the metadata of one display, which may have any size."""
MAX_NOTICES = 100

FAILURE_CHARS = 2000
"""Characters of a refusal: it may quote what was asked for, and that may have any length."""


class ToolHints(Hints):
    """Hints that name the next MCP tool."""

    def wait(self, result: Result) -> str:
        return f"wait({', '.join([*self._session(result), f'from_event={result.next_event}'])})"


class EndedHints(ToolHints):
    """Hints for a session that ended with its answer, so nothing in it can be named."""

    def read_output(self, result: Result | OutputPage, stream: str, omitted: Omitted) -> str:
        return "run it with python_session, which stores all output"

    def is_default(self, result: Result | OutputPage) -> bool:
        return True


HINTS = ToolHints(default_session="main")
ENDED_HINTS = EndedHints()


@dataclass
class Answer:
    parts: Sequence["Part | Link"]
    meta: dict[str, Any] = field(default_factory=dict)
    is_error: bool = False


def failure(error: IngleError, text: str | None = None) -> Answer:
    """Return the answer for an error of ingle: its own message, or this text with the next step."""
    shown = shortened(text or error.message, FAILURE_CHARS)
    about = {"code": error.code, "message": shortened(error.message, FAILURE_CHARS)}
    return Answer([Text(shown)], {ERROR_KEY: about}, is_error=True)


def shortened(text: str, limit: int) -> str:
    """Return the text, or its beginning and its end if it is longer than so many characters."""
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"


@dataclass(frozen=True)
class Link:
    """Link to a figure that is not shown, readable as a resource."""

    uri: str
    name: str
    mime: str


def of_result(result: Result, *, gone: bool = False) -> Answer:
    """Return the answer for a cell. `gone`: the session ended with this cell."""
    parts: list[Part | Link] = [*view(result, ENDED_HINTS if gone else HINTS)]
    inline = {part.data for part in parts if isinstance(part, Image)}
    links = [
        Link(figure_uri(result.session_id, result.cell, number), f"figure {number} of cell {result.cell}", picture.mime)
        for number, (picture, _) in enumerate(pictures(result), 1)
        if picture.data not in inline and not gone
    ]
    # The status line stays last.
    parts[-1:-1] = links[:MAX_LINKS]
    return Answer(parts, {RESULT_KEY: for_programs(result)})


def of_task(task: Task, from_line: int = 0) -> Answer:
    bounded = msgspec.structs.replace(task, stdout=_middle_out(task.stdout)[0], stderr=_middle_out(task.stderr)[0])
    return Answer([Text(task_text(task, from_line))], data("ingle/task", bounded))


def data(key: str, value: Any) -> dict[str, Any]:
    """Return data for programs, unless it is too large."""
    built = msgspec.to_builtins(value)
    return {key: built} if len(msgspec.json.encode(built)) <= META_BUNDLES else {}


def figure_uri(session_id: str, cell: int, number: int) -> str:
    return f"ingle://sessions/{session_id}/cells/{cell}/figures/{number}"


def pictures(result: Result) -> list[tuple[Picture, Metadata]]:
    """Return the images of a cell in the order of their numbers, with their metadata."""
    shown = list(zip(result.displays, result.displays_metadata, strict=False))
    if result.result is not None:
        shown.append((result.result, result.result_metadata))
    found = ((picture_of(bundle), metadata) for bundle, metadata in shown)
    return [(picture, metadata) for picture, metadata in found if picture is not None]


def for_programs(result: Result) -> dict[str, Any]:
    """Return the result without its large parts."""
    out, out_cut = _middle_out(result.stdout)
    err, err_cut = _middle_out(result.stderr)
    bundles = _without_long([*([result.result] if result.result is not None else []), *result.displays])
    bounded = msgspec.structs.replace(
        result,
        stdout=out,
        stderr=err,
        truncated=Truncated(result.truncated.stdout + out_cut, result.truncated.stderr + err_cut),
        result=bundles[0] if result.result is not None else None,
        displays=bundles[1:] if result.result is not None else bundles,
        result_metadata=_if_small(result.result_metadata),
        displays_metadata=[_if_small(each) for each in result.displays_metadata[:MAX_BUNDLES]],
        notices=[_middle_out(notice)[0] for notice in result.notices[:MAX_NOTICES]],
        error=None
        if result.error is None
        else msgspec.structs.replace(
            result.error,
            value=_middle_out(result.error.value)[0],
            traceback=_middle_out(result.error.traceback)[0],
        ),
    )
    built: dict[str, Any] = msgspec.to_builtins(bounded)
    return built


def _if_small(metadata: Metadata) -> Metadata:
    return metadata if len(msgspec.json.encode(metadata)) <= META_METADATA else {}


def _middle_out(text: str) -> tuple[str, int]:
    left = len(text) - META_TEXT
    if left <= 0:
        return text, 0
    head = int(META_TEXT * HEAD_SHARE)
    return text[:head] + text[head - META_TEXT :], left


def _without_long(bundles: list[MimeBundle]) -> list[MimeBundle]:
    """Return the bundles without images, which are in the content, and within a total size."""
    left = META_BUNDLES
    kept: list[MimeBundle] = []
    for bundle in bundles:
        some: MimeBundle = {}
        for mime, data in bundle.items():
            if not mime.startswith("image/") and len(data) <= min(META_TEXT, left):
                some[mime] = data
                left -= len(data)
        kept.append(some)
    return kept[:MAX_BUNDLES]


# --- output pages ---


def of_page(page: OutputPage) -> Answer:
    return Answer([Text(page_text(page, HINTS))])
