"""Events and descriptions as contents of Jupyter's messages; pure functions."""

import fnmatch
from typing import Annotated, Any

from msgspec import Meta, Struct

from ingle.events import AnyEvent, CellInfo, DisplayShown, ErrorRaised, MimeBundle, Result, ResultShown, Stderr, Stdout
from ingle.introspection import Completeness, Completion, Inspection
from ingle.render.notebook import data_of, metadata_of
from ingle_worker.wire import states

PROTOCOL_VERSION = "5.3"
"""Version of Jupyter's messages."""

MAX_HISTORY = 1000
"""Cells of a history."""

MAX_PATTERN_CHARS = 1000

Natural = Annotated[int, Meta(ge=0)]

JUPYTER_TYPES = "_jupyter_types_experimental"

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

DIED = "DeadKernelError"
"""Name of the error of a cell whose process ended without being asked to."""


def kernel_info(version: str, python: str) -> dict[str, Any]:
    """Return what a kernel tells about itself. `version` is ingle's, `python` the interpreter's."""
    return {
        "status": "ok",
        "protocol_version": PROTOCOL_VERSION,
        "implementation": "ingle",
        "implementation_version": version,
        "banner": f"Python {python} in an ingle session",
        "help_links": [],
        "language_info": language_info(python),
    }


def language_info(python: str) -> dict[str, Any]:
    return {
        "name": "python",
        "version": python,
        "mimetype": "text/x-python",
        "file_extension": ".py",
        "pygments_lexer": "ipython3",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "nbconvert_exporter": "python",
    }


def output(event: AnyEvent) -> tuple[str, dict[str, Any]] | None:
    """Return the type and content of the message that an event becomes; None for one that shows nothing."""
    match event:
        case Stdout() | Stderr():
            return "stream", {"name": "stdout" if isinstance(event, Stdout) else "stderr", "text": event.text}
        case ResultShown():
            shown = {"data": _data(event.data), "metadata": metadata_of(event.metadata)}
            return "execute_result", {**shown, "execution_count": event.cell}
        case DisplayShown():
            transient = {} if event.display_id is None else {"display_id": event.display_id}
            shown = {"data": _data(event.data), "metadata": metadata_of(event.metadata), "transient": transient}
            return "update_display_data" if event.update else "display_data", shown
        case ErrorRaised():
            return "error", error(event.name, event.value, event.traceback)
    return None


def _data(bundle: MimeBundle) -> dict[str, Any]:
    """Return a mime bundle without the view of a widget that has another form.

    That view needs a connection to its object. A page without one would show an error in its place.
    """
    data = data_of(bundle)
    if len(data) > 1:
        data.pop(WIDGET_VIEW, None)
    return data


def error(name: str, value: str, traceback: str) -> dict[str, Any]:
    return {"ename": name, "evalue": value, "traceback": traceback.rstrip("\n").split("\n") if traceback else []}


def ending(result: Result) -> list[tuple[str, dict[str, Any]]]:
    """Return the messages at the end of a cell: its notices as output on stderr, and the death of its process."""
    messages: list[tuple[str, dict[str, Any]]] = []
    if result.notices:
        messages.append(("stream", {"name": "stderr", "text": "".join(f"ingle: {each}\n" for each in result.notices)}))
    if (died := death(result)) is not None:
        messages.append(("error", died))
    return messages


def death(result: Result) -> dict[str, Any] | None:
    """Return the error of a cell whose process ended without being asked to."""
    if result.status != states.EXIT or result.exit is None or (result.exit.signal is None and not result.exit.code):
        return None
    return error(DIED, result.exit.message or "the process of the session ended", "")


def execute_reply(result: Result) -> dict[str, Any]:
    """Return the content of the reply to a request to run code."""
    count = {"execution_count": result.cell}
    if result.error is not None:
        return {"status": "error", **count, **error(result.error.name, result.error.value, result.error.traceback)}
    if (died := death(result)) is not None:
        return {"status": "error", **count, **died}
    return {"status": "ok", **count, "user_expressions": {}, "payload": []}


def user_expression(result: Result) -> dict[str, Any]:
    """Return the value of an expression, or why it has none."""
    if result.error is not None:
        return {"status": "error", **error(result.error.name, result.error.value, result.error.traceback)}
    return {"status": "ok", "data": data_of(result.result or {}), "metadata": {}}


def complete_reply(found: Completion) -> dict[str, Any]:
    kinds = [
        {"text": each.text, "type": each.type or "instance", "start": found.cursor_start, "end": found.cursor_end}
        for each in found.matches
    ]
    return {
        "status": "ok",
        "matches": [each.text for each in found.matches],
        "cursor_start": found.cursor_start,
        "cursor_end": found.cursor_end,
        "metadata": {JUPYTER_TYPES: kinds},
    }


def inspect_reply(told: Inspection) -> dict[str, Any]:
    data = {"text/plain": inspection_text(told)} if told.found else {}
    return {"status": "ok", "found": told.found, "data": data, "metadata": {}}


def inspection_text(told: Inspection) -> str:
    """Return a description as text, one fact after another."""
    parts = []
    if told.signature:
        parts.append(f"Signature: {told.name}{told.signature}")
    parts.append(f"Type: {told.type}")
    if told.preview:
        parts.append(f"Value: {told.preview}")
    if told.shape is not None:
        parts.append(f"Shape: {tuple(told.shape)}")
    elif told.length is not None:
        parts.append(f"Length: {told.length}")
    if told.source:
        parts.append(f"Source:\n{told.source}")
    elif told.doc:
        parts.append(f"Docstring:\n{told.doc}")
    return "\n".join(parts)


def is_complete_reply(told: Completeness) -> dict[str, Any]:
    return {"status": told.status, **({"indent": told.indent} if told.status == "incomplete" else {})}


class HistoryRequest(Struct):
    """Which cells of a history are wanted."""

    hist_access_type: str = "tail"
    """`tail`, `range` or `search`."""
    output: bool = False
    n: Natural | None = None
    start: int | None = None
    stop: int | None = None
    pattern: str | None = None
    unique: bool = False

    @property
    def _most(self) -> int:
        return min(MAX_HISTORY if self.n is None else self.n, MAX_HISTORY)

    def cells(self, count: int) -> tuple[int, int]:
        """Return the first cell to read and how many, out of so many cells."""
        first, last = max(count - self._most + 1, 1), count
        if self.hist_access_type == "range":
            first, last = max(self.start or 1, 1), min((self.stop or count + 1) - 1, count)
        elif self.hist_access_type == "search":
            first = max(count - MAX_HISTORY + 1, 1)
        return first, min(max(last - first + 1, 0), MAX_HISTORY)

    def lines(self, cells: list[CellInfo]) -> list[Any]:
        """Return the code of these cells as lines of a history."""
        if self.hist_access_type == "search":
            pattern = (self.pattern or "*")[:MAX_PATTERN_CHARS]
            cells = [each for each in cells if fnmatch.fnmatchcase(each.code, pattern)]
            if self.unique:
                cells = list({each.code: each for each in cells}.values())
            cells = cells[max(len(cells) - self._most, 0) :]
        return [(0, each.cell, (each.code, None) if self.output else each.code) for each in cells]


def refusal(error: Exception) -> dict[str, Any]:
    """Return the content of a reply to a request that cannot be carried out."""
    return {"status": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": []}
