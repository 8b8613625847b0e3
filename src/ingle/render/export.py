"""Transcripts as files: a notebook, a script, Markdown, and a page of HTML that runs nothing.

The page has no script. Its policy forbids scripts and all requests, HTML of cells is in frames without rights, and
pictures are data. Everything else is escaped text.
"""

import base64
import binascii
import html
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from ingle.render.phrases import duration
from ingle.render.terminal_text import clean
from ingle.render.transcript import CellPart, Part, TextPart
from ingle.requests import Author

FORMATS = {
    "ipynb": "application/x-ipynb+json",
    "py": "text/x-python",
    "md": "text/markdown",
    "html": "text/html",
}
"""Media type by format."""

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
"""Content policy of the page. Frames with HTML of cells inherit it."""

PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")

SVG = "image/svg+xml"

UNDONE = "undone by a rollback"

_MAGIC = re.compile(r"^[%!?]|^[\w.]+\?{1,2}$")
"""Line that only a session understands."""

_FENCES = re.compile(r"^\s*(`{3,})", re.MULTILINE)

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
pre { font: 13px/1.45 ui-monospace, monospace; overflow-x: auto; padding: .6rem .8rem; margin: .3rem 0; }
pre.code { background: color-mix(in srgb, canvastext 7%, canvas); border-radius: 6px; }
pre.stderr { background: color-mix(in srgb, orange 12%, canvas); }
pre.error { background: color-mix(in srgb, red 10%, canvas); }
.about { font-size: .8rem; opacity: .7; margin-top: 1.6rem; }
.undone { opacity: .5; }
iframe { width: 100%; height: 22rem; border: 1px solid color-mix(in srgb, canvastext 20%, canvas); resize: vertical; }
img { max-width: 100%; background: white; }
"""


def export(parts: list[Part], name: str, form: str) -> bytes:
    """Return the transcript of the session of that name in one of `FORMATS`."""
    text = {"ipynb": _notebook, "py": _script, "md": _markdown, "html": _page}[form](parts, name)
    return text.encode("utf-8", "replace")


def author_text(author: Author | None) -> str:
    """Return the author of a cell for people."""
    if author is None:
        return ""
    client = f"{author.client} " if author.client else ""
    return f"{client}({author.name} over {author.via})"


def _notebook(parts: list[Part], name: str) -> str:
    cells: list[dict[str, Any]] = []
    for place, part in enumerate(parts, 1):
        if isinstance(part, TextPart):
            kind = "raw" if part.raw else "markdown"
            cells.append({"cell_type": kind, "id": f"note-{place}", "metadata": {}, "source": part.text})
            continue
        about: dict[str, Any] = {"started_at": part.started_at, "status": part.status}
        if part.author is not None:
            about["author"] = author_text(part.author)
        if part.execution_time is not None:
            about["execution_time"] = part.execution_time
        if part.undone:
            # A raw cell is not run with the others. It has no outputs.
            source = f"# cell {part.number}: {UNDONE}\n{part.code}"
            metadata = {"ingle": {**about, "undone": True}}
            cells.append({"cell_type": "raw", "id": f"cell-{part.number}", "metadata": metadata, "source": source})
            continue
        cells.append(
            {
                "cell_type": "code",
                "execution_count": part.number,
                "id": f"cell-{part.number}",
                "metadata": {"ingle": about},
                "outputs": part.outputs,
                "source": part.code,
            }
        )
    document = {
        "cells": cells,
        "metadata": {
            "ingle": {"session": name},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _script(parts: list[Part], name: str) -> str:
    """Return a script with a mark before each cell, as editors know it. Lines that are no Python are comments."""
    pieces = [f"# session {name}\n"]
    for part in parts:
        if isinstance(part, TextPart):
            pieces.append("# %% [markdown]\n" + _commented(part.text) + "\n")
            continue
        lines = part.code.rstrip("\n").split("\n")
        if part.undone:
            pieces.append(f"# %% [raw]\n# cell {part.number}: {UNDONE}\n{_commented(part.code)}\n")
            continue
        if lines[0].startswith("%%"):
            code = _commented("\n".join(lines))
        else:
            code = "\n".join(_commented(line) if _MAGIC.match(line) else line for line in lines)
        pieces.append(f"# %% cell {part.number}\n{code}\n")
    return "\n".join(pieces)


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.splitlines() or [""])


# --- Markdown ---


def _markdown(parts: list[Part], name: str) -> str:
    pieces = [f"# Session {name}\n"]
    for part in parts:
        if isinstance(part, TextPart):
            pieces.append(part.text.rstrip("\n") + "\n")
            continue
        if part.undone:
            pieces.append(f"*Cell {part.number}: {UNDONE}*\n")
        pieces.append(_fenced(part.code, "python"))
        pieces += [_markdown_output(output) for output in part.outputs]
    return "\n".join(pieces)


def _markdown_output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return _fenced(clean(output["text"]), "text")
    if output["output_type"] == "error":
        return _fenced(clean("\n".join(output["traceback"])), "text")
    data = output["data"]
    if picture := _picture(data):
        return f"![]({picture})\n"
    if "text/markdown" in data:
        return str(data["text/markdown"]).rstrip("\n") + "\n"
    return _fenced(clean(str(data.get("text/plain", ""))), "text")


def _fenced(text: str, language: str) -> str:
    """Return a block of code. Its fence is longer than any in the text."""
    longest = max((len(found[1]) for found in _FENCES.finditer(text)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}\n"


# --- HTML ---


def _page(parts: list[Part], name: str) -> str:
    title = html.escape(f"Session {name}")
    body = "\n".join(piece for part in parts for piece in _shown(part))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n<style>{_STYLE}</style>\n'
        f"</head>\n<body>\n<h1>{title}</h1>\n{body}\n</body>\n</html>\n"
    )


def _shown(part: Part) -> Iterator[str]:
    if isinstance(part, TextPart):
        yield _pre(part.text, "note")
        return
    yield f'<p class="about">{html.escape(_about(part))}</p>'
    yield _pre(part.code, "code undone" if part.undone else "code")
    for output in part.outputs:
        yield _shown_output(output, part.number)


def _about(part: CellPart) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(part.started_at))
    took = "" if part.execution_time is None else f" after {duration(part.execution_time)}"
    author = f" · {author_text(part.author)}" if part.author is not None else ""
    undone = f" · {UNDONE}" if part.undone else ""
    return f"cell {part.number}{author} · {at} · {part.status}{took}{undone}"


def _shown_output(output: dict[str, Any], cell: int) -> str:
    if output["output_type"] == "stream":
        return _pre(clean(output["text"]), "stderr" if output["name"] == "stderr" else "stdout")
    if output["output_type"] == "error":
        return _pre(clean("\n".join(output["traceback"])), "error")
    data = output["data"]
    if picture := _picture(data):
        return f'<img alt="picture of cell {cell}" src="{picture}">'
    if "text/html" in data:
        frame = html.escape(str(data["text/html"]))
        return f'<iframe sandbox="" title="output of cell {cell}" srcdoc="{frame}"></iframe>'
    return _pre(clean(str(data.get("text/plain", ""))), "value")


def _pre(text: str, kind: str) -> str:
    return f'<pre class="{kind}">{html.escape(text)}</pre>'


def _picture(data: dict[str, Any]) -> str:
    """Return the picture of an output as a URL that holds it; empty without one."""
    for mime in PICTURES:
        if mime in data and (encoded := _base64(data[mime])):
            return f"data:{mime};base64,{encoded}"
    if SVG in data:
        # As a picture it can neither run scripts nor load anything.
        return f"data:{SVG};base64,{base64.b64encode(str(data[SVG]).encode('utf-8', 'replace')).decode()}"
    return ""


def _base64(text: Any) -> str:
    """Return base64 text that is nothing else; empty if it is not."""
    joined = "".join(str(text).split())
    try:
        base64.b64decode(joined, validate=True)
    except (ValueError, binascii.Error):
        return ""
    return joined
