"""Where lines are: found out while output is read, so that the next page need not count them from the start again.

Lines are counted in the text, and only an event tells where its text is. Of a stream that was once read far into, an
event is known every so often with the number of lines that end before it.
"""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import replace

from msgspec import structs

from ingle.events import OutputPage, Stderr, Stdout
from ingle.output.pages import AT_ONCE, PRINTED, Reading, printed, read_lines
from ingle.output.timeline import READ_AT_ONCE, Timeline

EVERY = 1_000_000
"""Characters from one landmark to the next, about."""

STREAMS_KEPT = 16
"""Streams of cells whose landmarks are remembered, those that were read last."""


class Landmarks:
    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._known: OrderedDict[tuple[int, str], tuple[list[int], list[int]]] = OrderedDict()
        """By first event and stream: numbers of events, and for each the lines that end before it."""

    async def read(self, first: int, last: int, reading: Reading, owner: str, cell: int) -> OutputPage:
        """The page that was asked for, of what was printed between two events."""
        start, passed = await self._before(first, last, reading.stream, reading.from_line)
        texts = printed(self._timeline, start, last, reading.stream)
        page = await read_lines(texts, replace(reading, from_line=reading.from_line - passed), owner, cell)
        if passed:
            page.lines = [structs.replace(line, number=line.number + passed) for line in page.lines]
            page.next_line = None if page.next_line is None else page.next_line + passed
            page.follow_line += passed
        return page

    async def _before(self, first: int, last: int, stream: str, line: int) -> tuple[int, int]:
        """An event before which this line does not begin, and how many lines end before that event."""
        if line <= 2:
            return first, 0
        events, passed = self._remembered(first, stream)
        # The text of an event may begin within a line; so that one must not be the line that is looked for.
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
            if size >= EVERY and at > events[-1]:
                events.append(at)
                passed.append(count)
                size = 0
            step = AT_ONCE if here > AT_ONCE * 4096 else READ_AT_ONCE
            await asyncio.sleep(0)
        return at, count

    def _remembered(self, first: int, stream: str) -> tuple[list[int], list[int]]:
        known = self._known.setdefault((first, stream), ([first], [0]))
        self._known.move_to_end((first, stream))
        if len(self._known) > STREAMS_KEPT:
            self._known.popitem(last=False)
        return known
