"""Verbs for the transcript of a session: run a notebook, export, read one cell, and add notes."""

import asyncio
import contextlib
import sys

import msgspec

from ingle import errors
from ingle.callers import EXECUTE
from ingle.events import AnyEvent, Done, Note, StateChanged, Stderr, Stdout, Streamed
from ingle.nodes import SessionHandle
from ingle.output.timeline import EVENT_COST, cost
from ingle.render import export
from ingle.render.notebook import InvalidNotebook, Notebook, Outputs
from ingle.render.transcript import Transcript
from ingle.requests import NewCell
from ingle.service.validation import check_cell
from ingle.service.verbs import Verbs

MAX_NOTE_CHARS = 1_000_000


class Transcripts(Verbs):
    async def export(self, session_id: str, form: str = "ipynb") -> bytes:
        """Return all cells so far with their outputs: `ipynb`, `py`, `md`, or `html` that runs no script."""
        if form not in export.FORMATS:
            raise errors.InvalidRequest(f"format is {form[:80]!r}; it must be one of {', '.join(export.FORMATS)}")
        session = self.access.session(session_id)
        last = (await session.info()).next_event - 1
        transcript = Transcript()
        if last:
            async for event in session.events(1):
                if event.seq <= last:
                    transcript.take(event)
                if event.seq >= last:
                    break
        return await asyncio.to_thread(export.export, transcript.parts(), session_id, form)

    async def run_notebook(
        self, session_id: str, text: str, *, timeout: float | None = None, keep_going: bool = False
    ) -> str:
        """Run the code cells of a notebook one after another, and return it with their outputs.

        The first exception ends the run, except in a cell with the tag `raises-exception` and with `keep_going`.
        Markdown of the notebook becomes notes of the transcript. `timeout` is that of each cell. A caller that leaves
        ends the run after the cell that runs.
        """
        session, outputs, first = self.access.session(session_id, EXECUTE), Outputs(), 0
        try:
            notebook = await asyncio.to_thread(Notebook.parse, text)
        except InvalidNotebook as error:
            raise errors.InvalidRequest(f"the notebook cannot be run: {error}") from None
        found = notebook.code_cells
        steps = [(cell, NewCell(cell.source, timeout, queue=place > 0)) for place, cell in enumerate(found)]
        for _, new in steps:
            check_cell(new)
        for cell, new in steps:
            for note in notebook.notes(first, cell.place):
                await session.note(note.text, self.access.author, raw=note.raw)
            first = cell.place + 1
            shown = outputs.begin_cell()
            done = await self._run(session, new, outputs)
            notebook.record(cell.place, done.result.cell, shown)
            if not (done.result.success or cell.may_fail or keep_going):
                return notebook.text()
        for note in notebook.notes(first):
            await session.note(note.text, self.access.author, raw=note.raw)
        return notebook.text()

    async def _run(self, session: SessionHandle, new: NewCell, outputs: Outputs) -> Done:
        """Run one cell to its end, with its outputs."""
        following = (await session.info()).next_event
        number = await self.access.begin(session, new)
        async for event in session.events(following):
            if event.cell == number:
                if isinstance(event, Done):
                    return event
                outputs.take(event)
        raise errors.SessionNotFound((await session.info()).session_id)

    async def told(self, session_id: str, cell: int, size: int) -> tuple[list[AnyEvent], bool]:
        """Return what a cell, and what followed it up to the next one, told so far, and whether there is more.

        Texts of one stream in a row are one event. All events together have at most about `size` characters. Notes
        before the first cell come with it.
        """
        session = self.access.session(session_id)
        last = (await session.info()).next_event - 1
        # The result from the highest event on holds no text. It raises an error if the cell is not known.
        await session.wait(cell, 0.0, sys.maxsize)
        first, begun = 1, False
        if cell > 1:
            with contextlib.suppress(errors.CellForgotten, errors.CellElsewhere):
                first = (await session.wait(cell - 1, 0.0, sys.maxsize)).next_event
        found = Joined()
        async for event in session.events(first):
            if event.seq > last or (event.cell is not None and event.cell > cell):
                break
            begun = begun or (isinstance(event, StateChanged) and event.cell == cell)
            if begun or (first == 1 and isinstance(event, Note)):
                size -= cost(event) - EVENT_COST
                if size < 0:
                    return found.all(), True
                found.add(event)
            if event.seq == last:
                break
        return found.all(), False

    async def note(self, session_id: str, text: str, *, raw: bool = False) -> None:
        """Add a note to the transcript: Markdown between cells, or with `raw` text that nothing renders."""
        if len(text) > MAX_NOTE_CHARS:
            raise errors.InvalidRequest(f"the note has {len(text)} characters, above the limit of {MAX_NOTE_CHARS}")
        await self.access.session(session_id, EXECUTE).note(text, self.access.author, raw=raw)


class Joined:
    """Events in order. Texts of one stream in a row become one event."""

    def __init__(self) -> None:
        self._events: list[AnyEvent] = []
        self._texts: list[str] = []

    def add(self, event: AnyEvent) -> None:
        last = self._events[-1] if self._events else None
        if not isinstance(event, (Stdout, Stderr)):
            self._end_text()
            self._events.append(event)
        elif self._texts and type(last) is type(event) and isinstance(last, (Stdout, Stderr)) and _alike(last, event):
            self._texts.append(event.text)
            self._events[-1] = event
        else:
            self._end_text()
            self._events.append(event)
            self._texts = [event.text]

    def all(self) -> list[AnyEvent]:
        self._end_text()
        return self._events

    def _end_text(self) -> None:
        if self._texts:
            self._events[-1] = msgspec.structs.replace(self._events[-1], text="".join(self._texts))
            self._texts = []


def _alike(one: Streamed, other: Streamed) -> bool:
    return (one.cell, one.background) == (other.cell, other.background)
