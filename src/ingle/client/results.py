"""The result of a cell in the client: to read, check, raise, or show in a notebook.

Output of a session is untrusted: its HTML is shown in a sandboxed frame that cannot reach the page around it.
"""

import base64
import html
import os
from typing import Any

from ingle import events
from ingle.batches import ItemProblem
from ingle.events import MimeBundle

FAILED_STATUSES = frozenset({"error", "interrupted", "exit", "not_run"})

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Mime types with base64 data."""

FIGURES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/svg+xml": "svg",
}
"""Mime types of images, and the ends of their files' names."""

REPR_CHARS = 80
"""Characters of the text that the short form of a result shows."""

FRAME_HEIGHT = 360
"""Height in pixels of the frame for HTML in a notebook; the user can resize it."""


class CellFailed(Exception):
    """Raised by `Result.raise_for_error`. The message has the cell's traceback.

    `result` has the rest: `result.error.name`, `result.exit.code`, `result.timed_out`, and the printed text.
    """

    def __init__(self, result: "Result") -> None:
        super().__init__(result)
        self.result = result

    def __str__(self) -> str:
        result = self.result
        if result.error is not None:
            told = result.error.traceback.rstrip("\n") or f"{result.error.name}: {result.error.value}"
        elif result.exit is not None:
            told = f"the session's process {_how(result.exit)}"
        elif isinstance(result, ItemResult) and result.problem is not None:
            told = result.problem.detail
        else:
            told = f"the cell ended as {result.status}"
        where = f"cell {result.cell} of session {result.session_id!r}"
        if isinstance(result, ItemResult):
            where = f"item {result.id!r}"
        late = " was stopped at its timeout" if result.timed_out else " failed"
        return "\n".join([f"{where}{late}", told, *result.notices])


class Result(events.Result):
    """The result of a cell at the moment of the request.

    `status` is `ok`, `error`, `interrupted` or `exit`; `running` or `waiting_for_input` if the cell has not ended.
    An exception in the cell is in `error`; only `raise_for_error()` raises.
    """

    def __repr__(self) -> str:
        text = self.text
        shown = f": {text[:REPR_CHARS]!r}{'…' if len(text) > REPR_CHARS else ''}" if text else ""
        return f"<{type(self).__name__} of cell {self.cell} in {self.session_id!r}, {self.status}{shown}>"

    @property
    def ok(self) -> bool:
        """Whether the cell ended successfully."""
        return self.status == "ok"

    @property
    def text(self) -> str:
        """Everything a person would read: output, shown values, the traceback. No final newline.

        All of stdout comes before stderr; `Session.stream` has the original order.
        """
        pieces = [self.stdout, self.stderr, *(_plain(bundle) for bundle in self._shown())]
        if self.error is not None:
            pieces.append(self.error.traceback or f"{self.error.name}: {self.error.value}")
        elif self.exit is not None and self.exit.message is not None and self.exit.code != 0:
            pieces.append(f"the session's process {self.exit.message}")
        return "\n".join(piece.removesuffix("\n") for piece in pieces if piece)

    def raise_for_error(self) -> "Result":
        """Raise `CellFailed` if the cell failed, else return the result itself.

        A cell that still runs or waits for input has not failed.
        """
        if self.status in FAILED_STATUSES:
            raise CellFailed(self)
        return self

    @property
    def figures(self) -> list[tuple[str, bytes]]:
        """The images that the cell showed, in order: the mime type and the bytes of each."""
        found = []
        for bundle in self._shown():
            kind = next((each for each in FIGURES if each in bundle), None)
            if kind is not None:
                text = bundle[kind]
                found.append((kind, base64.b64decode(text) if kind in IMAGES else text.encode()))
        return found

    def png(self, number: int = 1) -> bytes:
        """Return the PNG image that the cell showed; with several, the one of this number, from 1."""
        found = [data for kind, data in self.figures if kind == "image/png"]
        if not 1 <= number <= len(found):
            raise LookupError(f"cell {self.cell} showed {len(found)} PNG images; there is no number {number}")
        return found[number - 1]

    def save_figures(self, folder: "str | os.PathLike[str]" = ".") -> list[str]:
        """Write each image that the cell showed to a file of the folder, and return their paths.

        Files are named after the cell: `cell-3-1.png`. The folder is created if it is missing.
        """
        os.makedirs(folder, exist_ok=True)
        paths = []
        for number, (kind, data) in enumerate(self.figures, 1):
            paths.append(os.path.join(folder, f"cell-{self.cell}-{number}.{FIGURES[kind]}"))
            with open(paths[-1], "wb") as file:
                file.write(data)
        return paths

    def _shown(self) -> list[MimeBundle]:
        return [*self.displays, *([self.result] if self.result is not None else [])]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> MimeBundle:
        """Return the mime bundle for a notebook."""
        bundle = {"text/plain": self.text}
        shown = self._shown()
        if not any(set(each) - {"text/plain"} for each in shown):
            return bundle
        parts = [_preformatted(text) for text in (self.stdout, self.stderr) if text]
        parts += [_as_html(each) for each in shown]
        if self.error is not None:
            parts.append(_preformatted(self.error.traceback))
        bundle["text/html"] = "\n".join(parts)
        if len(parts) == 1:
            # A single image is also included as such, for readers without HTML.
            bundle.update({kind: shown[0][kind] for kind in IMAGES if kind in shown[0]})
        return bundle


class ItemResult(Result):
    """The result of one item of `Client.map`. Its session has ended.

    `limit` is `time` or `memory` if the item met that limit. An item that could not be started has the status
    `not_run` and a `problem`.
    """

    id: str | int = ""
    limit: str | None = None
    problem: ItemProblem | None = None


def _how(exit: events.Exit) -> str:
    return exit.message or (f"ended by {exit.signal}" if exit.signal else f"ended with exit code {exit.code}")


def _plain(bundle: MimeBundle) -> str:
    return bundle.get("text/plain") or (f"<{', '.join(sorted(bundle))}>" if bundle else "")


def _preformatted(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _as_html(bundle: MimeBundle) -> str:
    for kind in IMAGES:
        if kind in bundle:
            data = "".join(bundle[kind].split())
            return f'<img src="data:{kind};base64,{html.escape(data)}">'
    if "image/svg+xml" in bundle or "text/html" in bundle:
        page = bundle.get("text/html") or bundle["image/svg+xml"]
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0;resize:vertical;overflow:auto"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(page)}"></iframe>'
    return _preformatted(_plain(bundle))
