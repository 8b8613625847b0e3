"""Index of line numbers, so that reading a later page does not count lines from the start again.

Lines are counted in the text, but text is found by event. For streams that were read, each index entry has an event
and the number of lines that end before it.
"""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import replace

from msgspec import structs

from ingle.events import OutputPage, Stderr, Stdout
from ingle.output.pages import AT_ONCE, PRINTED, Reading, printed, read_lines
from ingle.output.timeline import READ_AT_ONCE, Timeline

ENTRY_CHARS = 1_000_000
"""Approximate number of characters between two index entries."""

MAX_STREAMS = 16
"""Maximum number of indexed streams; the least recently read is dropped."""


class LineIndex:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._known: OrderedDict[tuple[int, str], tuple[list[int], list[int]]] = OrderedDict()
        """By first event and stream: event numbers, and for each the number of lines that end before it."""

    async def read(self, first: int, last: int, reading: Reading, owner: str, cell: int) -> OutputPage:
        """Return the requested page of the text printed between two events."""
        start, passed = await self._before(first, last, reading.stream, reading.from_line)
        texts = printed(self._timeline, start, last, reading.stream)
        page = await read_lines(texts, replace(reading, from_line=reading.from_line - passed), owner, cell)
        if passed:
            page.lines = [structs.replace(line, number=line.number + passed) for line in page.lines]
            page.next_line = None if page.next_line is None else page.next_line + passed
            page.follow_line += passed
        return page

    async def _before(self, first: int, last: int, stream: str, line: int) -> tuple[int, int]:
        """Return an event at or before the start of this line, and the number of lines that end before it."""
        if line <= 2:
            return first, 0
        events, passed = self._remembered(first, stream)
        # An event's text may start within a line, so the line before the wanted one is looked up.
        place = max(0, bisect_left(passed, line - 1) - 1)
        at, count = events[place], passed[place]
        if place < len(events) - 1:
            return at, count
        size, step = 0, AT_ONCE
        while at <= last:
            some = await self._timeline.read(at, min(last, at + step - 1))
            if not some:
                break
            texts = [
                event.text
                for event in some
                if isinstance(event, PRINTED[stream])
                and isinstance(event, (Stdout, Stderr))
                and event.background == (stream == "background")
            ]
            ends = sum(text.count("\n") for text in texts)
            if count + ends + 1 >= line:
                break
            here = sum(map(len, texts))
            at, count, size = some[-1].seq + 1, count + ends, size + here
            if size >= ENTRY_CHARS and at > events[-1]:
                events.append(at)
                passed.append(count)
                size = 0
            step = AT_ONCE if here > AT_ONCE * 4096 else READ_AT_ONCE
            await asyncio.sleep(0)
        return at, count

    def _remembered(self, first: int, stream: str) -> tuple[list[int], list[int]]:
        known = self._known.setdefault((first, stream), ([first], [0]))
        self._known.move_to_end((first, stream))
        if len(self._known) > MAX_STREAMS:
            self._known.popitem(last=False)
        return known
