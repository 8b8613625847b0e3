"""The cells of a session, read back from its timeline: results, lines, the list of what ran.

Of each cell only the numbers of its first and last event are kept; all else is in the timeline, in memory or on
disk. Reading changes nothing, so it can be done as often as one likes.
"""

import copy
from array import array

from ingle import errors, events
from ingle.events import CellInfo, Result, Truncated
from ingle.outputs.reading import OutputPage, read_lines
from ingle.outputs.timeline import HEAD_SHARE, Timeline
from ingle.sessions.cell import RunningCell


class History:
    def __init__(self, session_id: str, timeline: Timeline, limit: int) -> None:
        self._id = session_id
        self._timeline = timeline
        self._limit = limit
        self._first_events = array("Q")
        self._done_events = array("Q")

    @property
    def count(self) -> int:
        return len(self._first_events)

    def begin(self) -> None:
        """The next event is the first of a new cell."""
        self._first_events.append(self._timeline.next_seq)
        self._done_events.append(0)

    def end(self, cell: int) -> None:
        """The next event is the cell's `done`."""
        self._done_events[cell - 1] = self._timeline.next_seq

    def check(self, cell: int) -> None:
        if not 1 <= cell <= self.count:
            raise errors.CellNotFound(self._id, cell, self.count)

    def _span(self, cell: int) -> tuple[int, int]:
        """First and last event of a cell so far."""
        self.check(cell)
        done = self._done_events[cell - 1]
        return self._first_events[cell - 1], done or self._timeline.next_seq - 1

    async def _done(self, seq: int) -> events.Done:
        held = self._timeline.in_memory(seq, seq) or await self._timeline.read(seq, seq)
        assert isinstance(held[0], events.Done)
        return held[0]

    async def result(self, cell: int, running: RunningCell | None, from_event: int) -> Result:
        """A cell's result as it is now; with `from_event`, only what was printed and shown from that event on."""
        first, last = self._span(cell)
        if running is not None and running.number == cell:
            result, counted, shown = running.result(self._id), running.counted(), running.displays.events
        else:
            done = await self._done(last)
            result, counted, shown = copy.copy(done.result), done.characters, done.shown
        result.next_event = last + 1
        if from_event > first:
            recent = [place for place, seq in enumerate(shown) if seq >= from_event]
            result.displays = [result.displays[place] for place in recent]
            result.displays_metadata = [result.displays_metadata[place] for place in recent]
            first, counted = from_event, await self._count_text(from_event, last)
        limit = self._limit
        result.stdout, out_left = await self._timeline.text(events.Stdout, first, last, counted.stdout, limit)
        result.stderr, err_left = await self._timeline.text(events.Stderr, first, last, counted.stderr, limit)
        if out_left or err_left:
            result.truncated = Truncated(out_left, err_left)
            result.notices = [
                *result.notices,
                *(
                    f"{left} characters of {stream} were left out after the first {int(limit * HEAD_SHARE)}; "
                    f"read them by line number or by grep in the output of cell {cell}"
                    for stream, left in (("stdout", out_left), ("stderr", err_left))
                    if left
                ),
            ]
        return result

    async def _count_text(self, first: int, last: int) -> Truncated:
        counts = {"stdout": 0, "stderr": 0}
        while first <= last:
            some = await self._timeline.read(first, last)
            if not some:
                break
            for event in some:
                if isinstance(event, (events.Stdout, events.Stderr)) and not event.background:
                    counts["stdout" if isinstance(event, events.Stdout) else "stderr"] += len(event.text)
            first = some[-1].seq + 1
        return Truncated(**counts)

    async def output(self, cell: int, stream: str, from_line: int, lines: int, grep: str | None) -> OutputPage:
        first, last = self._span(cell)
        found, following = await read_lines(
            self._timeline, first, last, stream=stream, from_line=from_line, count=lines, grep=grep
        )
        return OutputPage(self._id, cell, stream, found, following)

    async def cells(self, first: int, count: int, running: RunningCell | None) -> list[CellInfo]:
        infos = []
        for cell in range(max(1, first), min(self.count, first + count - 1) + 1):
            start, last = self._span(cell)
            begin = (await self._timeline.read(start, start))[0]
            code = begin.code if isinstance(begin, events.StateChanged) else None
            if running is not None and running.number == cell:
                status, took = running.status, None
            else:
                result = (await self._done(last)).result
                status, took = result.status, result.execution_time
            infos.append(CellInfo(cell, code or "", status, begin.time, took))
        return infos
