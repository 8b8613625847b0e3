"""Resources that a host may read without a tool: sessions, variables, output, figures. Also two prompts."""

import base64
import contextlib
import re
from dataclasses import dataclass, field

import msgspec

from ingle import errors
from ingle.mcp.content import pictures
from ingle.mcp.views import MIME, VIEWS, page
from ingle.output.pages import MAX_LINES
from ingle.service import Service

JSON = "application/json"
TEXT = "text/plain"
PNG = "image/png"

MAX_TEXT = 500_000
"""Characters of one resource: hosts refuse 1 MiB. The text says where read_output continues."""


MAX_FIGURE = 8 * 1024 * 1024
"""Bytes of a figure that is sent at once."""


class ResourceNotFound(Exception):
    """The message lists the existing resources."""


@dataclass(frozen=True)
class Listed:
    uri: str
    name: str
    description: str
    mime: str


@dataclass(frozen=True)
class Found:
    mime: str
    data: str
    is_base64: bool = False


SESSION = r"ingle://sessions/([A-Za-z0-9._-]{1,64})"

FIXED = (Listed("ingle://sessions", "sessions", "All live sessions.", JSON),)

TEMPLATES = (
    Listed("ingle://sessions/{session_id}/variables", "variables", "The variables of a session.", JSON),
    Listed("ingle://sessions/{session_id}/cells/{cell}/output", "output", "All output of a cell.", TEXT),
    Listed("ingle://sessions/{session_id}/cells/{cell}/figures/{figure}", "figure", "A figure in full size.", PNG),
)


async def read(service: Service, uri: str) -> Found:
    try:
        if (view := next((each for each in VIEWS if each.uri == uri), None)) is not None:
            return Found(MIME, page(view.name))
        if uri == "ingle://sessions":
            return _json(await service.list_sessions())
        if match := re.fullmatch(SESSION + "/variables", uri):
            return _json(await service.variables(match[1]))
        if match := re.fullmatch(SESSION + r"/cells/([0-9]{1,9})/output", uri):
            return Found(TEXT, await _output(service, match[1], int(match[2])))
        if match := re.fullmatch(SESSION + r"/cells/([0-9]{1,9})/figures/([0-9]{1,6})", uri):
            return await _figure(service, match[1], int(match[2]), int(match[3]))
    except errors.IngleError as error:
        raise ResourceNotFound(error.message) from None
    known = ", ".join(each.uri for each in (*FIXED, *TEMPLATES))
    raise ResourceNotFound(f"there is no resource {uri[:200]!r}; use one of {known}")


def _json(value: object) -> Found:
    return Found(JSON, msgspec.json.encode(value).decode())


async def _output(service: Service, session_id: str, cell: int) -> str:
    lines: list[str] = []
    size, from_line = 0, 1
    while True:
        page = await service.read_output(session_id, cell, stream="both", from_line=from_line, lines=MAX_LINES)
        for line in page.lines:
            size += len(line.text) + 1
            if size > MAX_TEXT:
                lines.append(f"… cut before line {line.number}: read_output(cell={cell}, from_line={line.number})")
                return "\n".join(lines)
            lines.append(line.text)
        if page.next_line is None:
            return "\n".join(lines)
        from_line = page.next_line


async def _figure(service: Service, session_id: str, cell: int, number: int) -> Found:
    """Return the full-size figure if it is stored, else the shown one."""
    found = pictures(await service.wait(session_id, cell, wait=0))
    if not 1 <= number <= len(found):
        raise ResourceNotFound(f"cell {cell} of session {session_id} has {len(found)} figures, and no number {number}")
    picture, metadata = found[number - 1]
    match metadata.get(picture.mime):
        case {"full": {"file": str() as file}}:
            with contextlib.suppress(errors.FigureNotFound):
                data = await service.figure(session_id, file)
                if len(data) <= MAX_FIGURE:
                    return Found(picture.mime, base64.b64encode(data).decode(), is_base64=True)
    return Found(picture.mime, picture.data, is_base64=True)


@dataclass(frozen=True)
class Prompt:
    name: str
    description: str
    text: str
    arguments: dict[str, str] = field(default_factory=dict)


PROMPTS = (
    Prompt(
        "explore_data",
        "Look at a data file in a live session.",
        "Load {path} in session `main` with python_session. Look at its shape, types, missing and odd values, "
        "step by step in small cells, and plot what helps. Then tell me what is in it and what to be careful about.",
        {"path": "The file to look at."},
    ),
    Prompt(
        "explain_last_error",
        "Find the cause of the last exception in session `main`.",
        "The last cell in session `main` raised. With python_session run `import pdb; pdb.pm()`, look around with "
        "send_input (w, p, up, down), leave with q. Then explain the cause and propose the smallest fix.",
    ),
)


def prompt_text(name: str, given: dict[str, str]) -> str:
    for prompt in PROMPTS:
        if prompt.name == name:
            missing = [each for each in prompt.arguments if each not in given]
            if missing:
                raise KeyError(f"the prompt {name} needs {', '.join(missing)}")
            return prompt.text.format(**{each: given[each] for each in prompt.arguments})
    raise KeyError(f"there is no prompt {name[:80]!r}; use one of {', '.join(each.name for each in PROMPTS)}")
