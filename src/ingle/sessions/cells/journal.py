"""Journal of a session: everything that happened in it, in order.

Every event goes to the timeline first, and requests are answered from there. Memory is bounded; older events go to
disk. While the disk is behind, `behind` is true, and the worker must not be read.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from ingle import errors, events
from ingle.events import AnyEvent
from ingle.output import kept_timeline
from ingle.output.image_store import ImageStore
from ingle.output.timeline import Timeline
from ingle.requests import Author
from ingle.sessions.cells.cell import RunningCell
from ingle.sessions.cells.history import History
from ingle.sessions.cells.notices import BackgroundOutput, Notices
from ingle.sessions.cells.output import OutputDecoder
from ingle.settings import Settings
from ingle_worker.wire import messages, states


class Journal:
    def __init__(self, session_id: str, folder: Path, settings: Settings, *, lasting: bool = False) -> None:
        """A lasting journal goes on under the next server."""
        self._session_id = session_id
        self._lasting = lasting
        self.folder = folder
        """Folder of the session's events and images, for the host alone."""
        self._path = f"{folder}/timeline.ndjson"
        self._disk_limit = settings.timeline_disk
        self._drained = asyncio.Event()
        self.timeline = Timeline(
            self._path, settings.timeline_memory, settings.timeline_disk, self._drained.set, lasting=lasting
        )
        self.history = History(session_id, self.timeline, settings.result_chars)
        self.notices = Notices()
        self._images = ImageStore(f"{folder}/figures", settings.figures_disk)
        self._output = OutputDecoder(session_id, self.timeline, self._images)
        self._background = BackgroundOutput()
        self._cell: RunningCell | None = None
        self._state: str = states.STARTING

    # --- events ---

    def append(self, kind: Callable[..., AnyEvent], *content: Any) -> None:
        """Append an event of the running cell, or of none."""
        cell, timeline = self._cell, self.timeline
        number = cell.number if cell is not None else None
        timeline.append(kind(timeline.next_seq, time.time(), self._session_id, number, *content))

    def publish(self, state: str, code: str | None = None, author: Author | None = None) -> None:
        """Append a change of the session's state, if it is one. `code` and `author` are those of its cell."""
        if state == self._state:
            return
        self._state = states.move(self._state, state)
        cell, timeline = self._cell, self.timeline
        number = cell.number if cell is not None else None
        timeline.append(
            events.StateChanged(timeline.next_seq, time.time(), self._session_id, number, state, code, author),
            len(code) if code else 0,
        )

    def begin_hibernated(self) -> None:
        """Begin in the state of a session of an earlier server, without an event."""
        self._state = states.HIBERNATED

    async def resume(self, cells: int) -> None:
        """Go on with the journal of earlier servers, under which so many cells ran."""
        found = await asyncio.to_thread(kept_timeline.find, self._path, self._disk_limit)
        self.timeline.resume(found, self._session_id)
        self.history.resume(found, cells)
        await self._images.resume()
        if found.last:
            await self.history.end_lost("the server was killed while the cell ran")
            self.append(events.StateChanged, self._state)

    async def forget_code(self) -> None:
        """Show the code of the cells so far no more. Their output and results stay."""
        self.history.forget()
        if self._lasting:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(kept_timeline.write_forgotten, self._path, self.history.forgotten)

    def notify(self, notice: str) -> None:
        """Add a notice for the next cell's result, and an event for clients that watch."""
        if self.notices.add(notice):
            self.append(events.Notice, notice)

    def tell(self, notices: list[str]) -> None:
        """Add notices for the next cell's result."""
        for notice in notices:
            self.notices.add(notice)

    def note(self, notice: str) -> None:
        """Add a notice for the next cell's result, and for listings as long as the session lives."""
        self.notices.add_lasting(notice)
        self.notices.add(notice)

    # --- cells ---

    def begin_cell(self, cell: RunningCell) -> None:
        """Begin a cell. Its first event is the change of state that follows."""
        cell.notices += self._background.take(self.history.count)
        self.history.begin()
        self._cell = cell

    def background_notice(self) -> list[str]:
        """Return a notice of what was printed since the last cell, if something was."""
        return self._background.notice(self.history.count) if self._cell is None else []

    def flush_background(self) -> None:
        """Show what is left of characters that threads wrote before the cell began."""
        if self._output.undecided[True]:
            self._output.flush(self._cell, background=True)

    def take_done(self, cell: RunningCell, done: messages.Done) -> None:
        """Take over what the worker reports of the cell's end."""
        cell.take_done(done, self.timeline.next_seq)
        if done.value is not None:
            self.append(events.ResultShown, done.value)

    def end_cell(self, cell: RunningCell, status: str, exit: events.Exit | None) -> None:
        """End a cell. Its `done` is its last event."""
        if self._output.undecided[False]:
            self._output.flush(cell, background=False)
        cell.notices += self._background.take(cell.number, during=True)
        cell.end(status, exit, self.timeline.broken or "this session's share of the disk for output is used up")
        if cell.error is not None:
            self.append(events.ErrorRaised, cell.error.name, cell.error.value, cell.error.traceback)
        timeline = self.timeline
        self.history.end(cell.number)
        cell.final = result = cell.result(self._session_id)
        result.next_event = timeline.next_seq + 1
        characters, lines = cell.counted()
        timeline.append(
            events.Done(
                timeline.next_seq,
                time.time(),
                self._session_id,
                cell.number,
                result,
                characters,
                lines,
                cell.displays.events,
                cell.value_event,
                cell.interrupted_by,
            ),
            0 if cell.left_nothing else None,
        )
        self._cell = None

    async def absorb(self, other: "Journal", cell: int) -> None:
        """Take over a cell that ran in a copy of the session, as the next one here."""
        self.history.begin()
        timeline, number = self.timeline, self.history.count
        moved: dict[int, int] = {}
        async for event in other.history.events_of(cell):
            seq = timeline.next_seq
            if isinstance(event, events.DisplayShown | events.ResultShown):
                moved[event.seq] = seq
                await self._take_image(other, event)
            changes = {"cell": None if event.cell is None else number, "session_id": self._session_id}
            event = msgspec.structs.replace(event, seq=seq, **changes)
            if isinstance(event, events.Done):
                self.history.end(number)
                result = msgspec.structs.replace(event.result, **changes, next_event=seq + 1)
                shown = [moved.get(each, 0) for each in event.shown]
                value = moved.get(event.value_event, 0)
                event = msgspec.structs.replace(event, result=result, shown=shown, value_event=value)
            timeline.append(event)

    async def _take_image(self, other: "Journal", event: events.DisplayShown | events.ResultShown) -> None:
        """Store an image of full size that a display of another journal refers to."""
        for about in event.metadata.values():
            full = about.get("full") if isinstance(about, dict) else None
            name = full.get("file") if isinstance(full, dict) else None
            data = await other._images.read(name) if isinstance(name, str) else None
            if data is not None:
                await self._images.store(data)

    # --- output ---

    def output(self, stream: int, data: bytes, background: bool) -> None:
        background = background or self._cell is None
        if background:
            self._background.add(data)
        self._output.output(self._cell, stream, data, background)

    def shown(self, shown: messages.Result | messages.Display) -> None:
        """Add a display, or a value that the running cell showed before its end."""
        if isinstance(shown, messages.Display):
            self._output.display(self._cell, shown)
        elif self._cell is not None:
            self._output.result(self._cell, shown)

    def store_image(self, data: bytes) -> Coroutine[Any, Any, None]:
        """Return a coroutine that stores an image of full size. Its bytes count as not on disk from now on."""
        return self._store_image(self._images.store(data))

    async def _store_image(self, storing: Coroutine[Any, Any, None]) -> None:
        await storing
        self._drained.set()

    async def image(self, image_id: str) -> bytes:
        """Return an image of full size, by the id in a display's metadata."""
        data = await self._images.read(image_id)
        if data is None:
            raise errors.FigureNotFound(self._session_id, image_id)
        return data

    @property
    def behind(self) -> bool:
        """Return whether more has come than the disk has taken."""
        return self._output.behind

    async def wait_until_drained(self) -> None:
        """Wait until the disk has caught up."""
        while self.behind:
            self._drained.clear()
            await self._drained.wait()

    async def close_images(self) -> None:
        await self._images.close()

    async def close(self, *, keep: bool = False) -> None:
        """End the journal. With `keep` the next server can go on with it."""
        await self.timeline.close(keep=keep)
        kept = self.history.kept if keep else None
        if kept is not None and kept.last:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(kept_timeline.write_index, self._path, kept)
