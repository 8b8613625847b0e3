"""Cells of a session, read back from its timeline: results, lines of output, the list of cells.

Only the numbers of each cell's first and last event are kept here. All else is in the timeline, in memory or on disk.
Reading changes nothing and can be repeated.
"""

import time
from array import array
from collections.abc import AsyncIterator
from itertools import islice

import msgspec

from ingle import errors, events
from ingle.events import AnyEvent, CellInfo, Result, Truncated
from ingle.output.kept_timeline import Found
from ingle.output.line_index import LineIndex
from ingle.output.pages import PRINTED, OutputPage, Reading, read_lines, whole
from ingle.output.timeline import Timeline
from ingle.render.mime import shown_texts
from ingle.render.phrases import left_out_notices
from ingle.sessions.cells.cell import NO_TEXT, RunningCell
from ingle_worker.wire import states


class History:
    def __init__(self, session_id: str, timeline: Timeline, limit: int) -> None:
        self._session_id = session_id
        self._timeline = timeline
        self._landmarks = LineIndex(timeline)
        self._limit = limit
        self._first_events = array("Q")
        self._done_events = array("Q")
        self.forgotten = 0
        """The code of cells up to this one is not shown any more."""
        self._origin = ""
        self._inherited = 0
        """Cells up to this one are not in this timeline: they ran in the original of a fork, or their events are lost.
        """

    @property
    def count(self) -> int:
        return len(self._first_events)

    def inherit(self, origin: str, count: int) -> None:
        """Count on from a fork's original, or without an origin from this session before a restart."""
        self._origin, self._inherited = origin, count
        self._first_events.extend([0] * count)
        self._done_events.extend([0] * count)

    def resume(self, found: Found, count: int) -> None:
        """Go on after `count` cells under earlier servers, whose timeline was found again as far as it was kept."""
        count = max(count, len(found.first_events))
        missing = [0] * (count - len(found.first_events))
        self._first_events = found.first_events + array("Q", missing)
        self._done_events = found.done_events + array("Q", missing)
        self._inherited = next((cell for cell, first in enumerate(self._first_events) if first), count)
        self.forgotten = found.forgotten

    async def end_lost(self, message: str) -> None:
        """End the cells that ran when their server was killed."""
        for place, first in enumerate(self._first_events):
            if first and not self._done_events[place]:
                cell, seq = place + 1, self._timeline.next_seq
                following = next(filter(None, islice(self._first_events, cell, None)), seq)
                characters, lines = await self._count_text(first, following - 1)
                result = Result(self._session_id, cell, states.EXIT, exit=events.Exit(message=message))
                self._done_events[place] = seq
                self._timeline.append(events.Done(seq, time.time(), self._session_id, cell, result, characters, lines))

    @property
    def kept(self) -> Found | None:
        """What the next server has to know of the cells; None if not all events are on disk."""
        found = self._timeline.on_disk
        if found is not None:
            found.first_events, found.done_events = self._first_events, self._done_events
        return found

    def knows(self, cell: int) -> bool:
        """Return whether the events of a cell are here."""
        return self._inherited < cell <= self.count and bool(self._first_events[cell - 1])

    @property
    def own_cells(self) -> list[int]:
        """Return the numbers of the cells whose events are here."""
        return [cell for cell in range(self._inherited + 1, self.count + 1) if self.knows(cell)]

    def begin(self) -> None:
        """Note that the next event is the first of a new cell."""
        self._first_events.append(self._timeline.next_seq)
        self._done_events.append(0)

    def end(self, cell: int) -> None:
        """Note that the next event is the cell's `done`."""
        self._done_events[cell - 1] = self._timeline.next_seq

    def forget(self) -> None:
        """Forget the code of all cells so far. Their output and results stay."""
        self.forgotten = self.count

    def follow(self, first: int) -> AsyncIterator[AnyEvent]:
        """Yield events from `first` on, and those to come.

        A client that watched the session under an earlier server, whose timeline is lost, asks for numbers far ahead.
        It gets all events.
        """
        if self._inherited and not self._origin and first > self._timeline.next_seq:
            first = 1
        return self._without_code(first) if self.forgotten else self._timeline.follow(first)

    async def _without_code(self, first: int) -> AsyncIterator[AnyEvent]:
        async for event in self._timeline.follow(first):
            if isinstance(event, events.StateChanged) and event.cell is not None and event.cell <= self.forgotten:
                yield msgspec.structs.replace(event, code=None)
            else:
                yield event

    def check(self, cell: int) -> None:
        if not 1 <= cell <= self.count:
            raise errors.CellNotFound(self._session_id, cell, self.count)
        if not self.knows(cell):
            if not self._origin:
                raise errors.CellForgotten(cell)
            raise errors.CellElsewhere(self._session_id, cell, self._origin)

    def _span(self, cell: int) -> tuple[int, int]:
        """Return the numbers of a cell's first and last event so far."""
        self.check(cell)
        done = self._done_events[cell - 1]
        return self._first_events[cell - 1], done or self._timeline.next_seq - 1

    async def events_of(self, cell: int) -> AsyncIterator[AnyEvent]:
        """Yield the events of a cell that has ended, from its first to its `done`."""
        first, last = self._span(cell)
        while first <= last:
            some = await self._timeline.read(first, last)
            if not some:
                return
            for event in some:
                yield event
            first = some[-1].seq + 1

    async def _done(self, seq: int) -> events.Done:
        held = self._timeline.in_memory(seq, seq) or await self._timeline.read(seq, seq)
        assert isinstance(held[0], events.Done)
        return held[0]

    async def result(self, cell: int, running: RunningCell | None, from_event: int) -> Result:
        """Return a cell's result as it is now; with `from_event`, only the output from that event on."""
        first, last = self._span(cell)
        if running is not None and running.number == cell:
            result = running.result(self._session_id)
            characters, lines = running.counted()
            shown, value_event = running.displays.events, running.value_event
        else:
            done = await self._done(last)
            result = msgspec.structs.replace(done.result)
            characters, lines, shown, value_event = done.characters, done.lines, done.shown, done.value_event
        result.next_event = last + 1
        before = NO_TEXT
        if from_event > first:
            recent = [place for place, seq in enumerate(shown) if seq >= from_event]
            result.displays = [result.displays[place] for place in recent]
            result.displays_metadata = [result.displays_metadata[place] for place in recent]
            if value_event < from_event:
                result.result, result.result_metadata = None, {}
            all_lines = lines
            first, (characters, lines) = from_event, await self._count_text(from_event, last)
            before = Truncated(all_lines.stdout - lines.stdout, all_lines.stderr - lines.stderr)
        if characters == before == NO_TEXT:
            return result
        result.stdout, out = await self._excerpt(
            events.Stdout, first, last, characters.stdout, lines.stdout, before.stdout
        )
        result.stderr, err = await self._excerpt(
            events.Stderr, first, last, characters.stderr, lines.stderr, before.stderr
        )
        result.excerpts = {
            stream: part for stream, part in (("stdout", out), ("stderr", err)) if part != events.Excerpt()
        }
        if out.left_out or err.left_out:
            result.truncated = Truncated(out.left_out, err.left_out)
            result.notices = [*result.notices, *left_out_notices(result)]
        return result

    async def _excerpt(
        self,
        stream: type[events.Stdout] | type[events.Stderr],
        first: int,
        last: int,
        total: int,
        lines: int,
        before: int,
    ) -> tuple[str, events.Excerpt]:
        """Return the text of one stream, and which part of the stream it is."""
        head, tail = await self._timeline.text(stream, first, last, total, self._limit)
        if tail is None:
            return head, events.Excerpt(before + 1)
        text = head + tail
        return text, events.Excerpt(before + 1, len(head), total - len(text), lines - text.count("\n"))

    async def _count_text(self, first: int, last: int) -> tuple[Truncated, Truncated]:
        """Return the characters and the line ends of each stream."""
        counts, lines = {"stdout": 0, "stderr": 0}, {"stdout": 0, "stderr": 0}
        while first <= last:
            some = await self._timeline.read(first, last)
            if not some:
                break
            for event in some:
                if isinstance(event, (events.Stdout, events.Stderr)) and not event.background:
                    stream = "stdout" if isinstance(event, events.Stdout) else "stderr"
                    counts[stream] += len(event.text)
                    lines[stream] += event.text.count("\n")
            first = some[-1].seq + 1
        return Truncated(**counts), Truncated(**lines)

    async def output(self, cell: int, running: RunningCell | None, reading: Reading) -> OutputPage:
        """Return lines of a cell: what it printed, what threads printed after it, or what it showed."""
        first, last = self._span(cell)
        reading.check()
        if reading.stream == "background":
            # Up to the next cell, or to now.
            later = filter(None, islice(self._first_events, cell, None))
            last = next(later, self._timeline.next_seq) - 1
        if reading.stream in PRINTED:
            return await self._landmarks.read(first, last, reading, self._session_id, cell)
        if running is not None and running.number == cell:
            result = running.result(self._session_id)
        else:
            result = (await self._done(last)).result
        texts = whole(shown_texts(result, reading.stream))
        return await read_lines(texts, reading, self._session_id, cell)

    async def cells(self, first: int, count: int, running: RunningCell | None) -> AsyncIterator[CellInfo]:
        """Yield cells with their code. Only one of them is in memory at a time."""
        first = max(self._inherited + 1, first)
        for cell in range(first, min(self.count, first + count - 1) + 1):
            if not self.knows(cell):
                continue
            start, last = self._span(cell)
            begin = (await self._timeline.read(start, start))[0]
            code, author = (begin.code, begin.author) if isinstance(begin, events.StateChanged) else (None, None)
            if running is not None and running.number == cell:
                status, took = running.status, None
            else:
                done = await self._done(last)
                status, took = done.result.status, done.result.execution_time
                del done  # it holds the displays of the cell
            if cell <= self.forgotten:
                code = None
            yield CellInfo(cell, code or "", status, begin.time, took, author)
