"""The result of a cell as the client hands it out: to be read, checked, raised, or shown in a notebook.

What a session made is not trusted, wherever it is shown: its HTML goes into a frame of its own origin, where it can
draw but not reach the page around it.
"""

import html
from typing import Any

from ingle import events
from ingle.events import MimeBundle

ENDED_BADLY = frozenset({"error", "interrupted", "exit"})

IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Types that a bundle carries in base64."""

FRAME_HEIGHT = 360
"""Pixels of the frame in which a notebook shows HTML; its corner can be dragged."""


class CellFailed(Exception):
    """What `Result.raise_for_error` raises. The message is what the cell would have shown, its traceback included.

    `result` has the rest: `result.error.name`, `result.exit.code`, `result.timed_out`, what was printed before.
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
        else:
            told = f"the cell ended as {result.status}"
        where = f"cell {result.cell} of session {result.session_id!r}"
        late = " was stopped at its timeout" if result.timed_out else " failed"
        return "\n".join([f"{where}{late}", told, *result.notices])


class Result(events.Result):
    """The result of a cell, as it was when it was asked for.

    `status` is `ok`, `error`, `interrupted` or `exit`; while the cell goes on, `running` or `waiting_for_input`.
    An exception in the cell is in `error`; nothing is raised before you say `raise_for_error()`.
    """

    @property
    def ok(self) -> bool:
        """Whether the cell has ended well."""
        return self.status == "ok"

    @property
    def text(self) -> str:
        """What a person would have read: output, values shown, the traceback. No newline at the end.

        It has all of stdout before stderr; `Session.stream` keeps the order in which they came.
        """
        pieces = [self.stdout, self.stderr, *(_plain(bundle) for bundle in self._shown())]
        if self.error is not None:
            pieces.append(self.error.traceback or f"{self.error.name}: {self.error.value}")
        elif self.exit is not None and self.exit.message is not None and self.exit.code != 0:
            pieces.append(f"the session's process {self.exit.message}")
        return "\n".join(piece.removesuffix("\n") for piece in pieces if piece)

    def raise_for_error(self) -> "Result":
        """Raise `CellFailed` if the cell ended in any way but well; else the result itself, to go on with.

        A cell that still runs, or waits for input, has not failed.
        """
        if self.status in ENDED_BADLY:
            raise CellFailed(self)
        return self

    def _shown(self) -> list[MimeBundle]:
        return [*self.displays, *([self.result] if self.result is not None else [])]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> MimeBundle:
        """What a notebook shows for it."""
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
            # A lone picture as what it is, for those who show no HTML.
            bundle.update({kind: shown[0][kind] for kind in IMAGES if kind in shown[0]})
        return bundle


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
