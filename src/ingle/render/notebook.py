"""Notebooks of nbformat 4: the cells to run, and the outputs that their events become."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ingle.events import AnyEvent, DisplayShown, ErrorRaised, Metadata, MimeBundle, ResultShown, Stderr, Stdout

MAX_STREAM_CHARS = 10_000_000
"""Characters of one run of stdout or stderr in an executed notebook. The terminal shows the rest too."""

MAY_FAIL = "raises-exception"
"""Tag of a cell that may raise without ending the run; other tools use the same."""


class InvalidNotebook(ValueError):
    """The text is not a notebook that can be run. The message says why."""


@dataclass(frozen=True)
class CodeCell:
    place: int
    """Index among all cells of the notebook."""
    source: str
    may_fail: bool


@dataclass(frozen=True)
class NoteCell:
    """Text between code cells: Markdown, or raw text."""

    text: str
    raw: bool


class Notebook:
    """A notebook whose code cells run one after another. Everything but their outputs stays as it is."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._cells: list[dict[str, Any]] = document["cells"]

    @classmethod
    def parse(cls, text: str) -> "Notebook":
        """Read a notebook, and drop the outputs of an earlier run."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InvalidNotebook(f"it is not JSON: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("nbformat"), int):
            raise InvalidNotebook("it has no `nbformat`")
        if document["nbformat"] != 4:
            raise InvalidNotebook(f"its nbformat is {document['nbformat']}; convert it to version 4 with Jupyter")
        cells = document.get("cells")
        if not isinstance(cells, list) or not all(isinstance(each, dict) for each in cells):
            raise InvalidNotebook("it has no list of `cells`")
        for cell in cells:
            _check_cell(cell)
            if cell.get("cell_type") == "code":
                cell["outputs"], cell["execution_count"] = [], None
        return cls(document)

    @property
    def code_cells(self) -> list[CodeCell]:
        """The cells to run, without empty ones."""
        found = []
        for place, cell in enumerate(self._cells):
            source = _joined(cell.get("source", ""))
            if cell.get("cell_type") == "code" and source.strip():
                tags = cell.get("metadata", {}).get("tags", [])
                found.append(CodeCell(place, source, MAY_FAIL in tags))
        return found

    def notes(self, first: int, end: int | None = None) -> list[NoteCell]:
        """Return the texts among the cells from `first` on, before `end`."""
        kinds = {"markdown": False, "raw": True}
        return [
            NoteCell(_joined(cell.get("source", "")), kinds[cell["cell_type"]])
            for cell in self._cells[first:end]
            if cell.get("cell_type") in kinds
        ]

    def record(self, place: int, number: int, outputs: list[dict[str, Any]]) -> None:
        """Put number and outputs into the cell at this place. Outputs may change until the notebook is written."""
        self._cells[place]["execution_count"] = number
        self._cells[place]["outputs"] = outputs

    def text(self) -> str:
        """Return the notebook as the text of a file."""
        return json.dumps(self._document, indent=1, ensure_ascii=False) + "\n"


class Outputs:
    """Outputs of cells, made from their events. An updated display changes wherever it was shown."""

    def __init__(self) -> None:
        self._current: list[dict[str, Any]] = []
        self._with_id: dict[str, list[dict[str, Any]]] = {}

    def begin_cell(self) -> list[dict[str, Any]]:
        """Return the list that the outputs of the next cell go to."""
        self._current = []
        return self._current

    def take(self, event: AnyEvent) -> None:
        match event:
            case Stdout() | Stderr():
                self._stream("stdout" if isinstance(event, Stdout) else "stderr", event.text)
            case ResultShown():
                output = {"data": data_of(event.data), "execution_count": event.cell}
                self._current.append(
                    {**output, "metadata": metadata_of(event.metadata), "output_type": "execute_result"}
                )
            case DisplayShown():
                self._display(event)
            case ErrorRaised():
                lines = event.traceback.rstrip("\n").split("\n")
                self._current.append(
                    {"ename": event.name, "evalue": event.value, "output_type": "error", "traceback": lines}
                )

    def _stream(self, name: str, text: str) -> None:
        last = self._current[-1] if self._current else {}
        if last.get("output_type") != "stream" or last["name"] != name:
            last = {"name": name, "output_type": "stream", "text": ""}
            self._current.append(last)
        left = MAX_STREAM_CHARS - len(last["text"])
        if left > 0:
            last["text"] += text if len(text) <= left else f"{text[:left]}\n… more output was left out …\n"

    def _display(self, event: DisplayShown) -> None:
        shown = {"data": data_of(event.data), "metadata": metadata_of(event.metadata), "output_type": "display_data"}
        known = self._with_id.setdefault(event.display_id, []) if event.display_id is not None else []
        if event.update:
            for each in known:
                each.update(shown)
        else:
            known.append(shown)
            self._current.append(shown)


def data_of(bundle: MimeBundle) -> dict[str, Any]:
    """Return a mime bundle as a notebook stores it: JSON as values."""
    return {mime: _value(mime, text) for mime, text in bundle.items()}


def _value(mime: str, text: str) -> Any:
    if mime == "application/json" or mime.endswith("+json"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def metadata_of(metadata: Metadata) -> dict[str, Any]:
    """Return the metadata without `full`, which names a file of the server."""
    return {
        mime: {name: value for name, value in each.items() if name != "full"} if isinstance(each, dict) else each
        for mime, each in metadata.items()
    }


def _check_cell(cell: dict[str, Any]) -> None:
    source, metadata = cell.get("source", ""), cell.get("metadata", {})
    lines = source if isinstance(source, list) else [source]
    if not isinstance(cell.get("cell_type"), str) or not all(isinstance(each, str) for each in lines):
        raise InvalidNotebook("a cell has no `cell_type`, or a `source` that is no text")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("tags", []), list):
        raise InvalidNotebook("a cell has `metadata` that is no object, or `tags` that are no list")


def _joined(source: str | Iterable[str]) -> str:
    return source if isinstance(source, str) else "".join(source)
