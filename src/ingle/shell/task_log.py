"""The output of a task as numbered events: decoded, bounded, and readable from any line."""

import codecs
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from ingle import events
from ingle.errors import InvalidRequest
from ingle.events import AnyEvent, TaskOutput, Truncated
from ingle.output.line_index import LineIndex
from ingle.output.pages import Reading
from ingle.output.timeline import Timeline
from ingle.settings import Settings
from ingle.workers.io.output_order import STDERR, STDOUT

MAX_EVENT_CHARS = 65536

MIN_KEPT_CHARS = 10_000
"""Characters that are kept even when the task's share of the disk is used up."""

TASK_STREAMS = ("stdout", "stderr", "both")

EVENTS_PER_MARK = 16
"""Events between two entries of the line index."""


class Text(NamedTuple):
    """Output from some place on, and where to read on."""

    stdout: str
    stderr: str
    truncated: Truncated
    next_event: int
    next_line: int


class TaskLog:
    """Log of one task."""

    def __init__(self, task_id: str, path: Path, settings: Settings, on_capacity: Callable[[], None]) -> None:
        """`on_capacity` is called when the log may not be full any more."""
        self._id = task_id
        self._path = path
        self._limit = settings.result_chars
        self._timeline = Timeline(path, settings.task_memory, settings.timeline_disk, on_capacity)
        self._landmarks = LineIndex(self._timeline)
        self._decoders = [codecs.getincrementaldecoder("utf-8")("backslashreplace") for _ in (STDOUT, STDERR)]
        self._characters = [0, 0]
        self._texts = 0
        self._newlines = 0
        self._marks: list[tuple[int, int]] = []
        self.dropped = 0

    @property
    def full(self) -> bool:
        """Whether the disk is behind, so that output should not be read for now."""
        return self._timeline.full

    @property
    def lost(self) -> str:
        """Return why text was dropped."""
        return self._timeline.broken or "this task's share of the disk for output is used up"

    def add(self, stream: int, data: bytes, *, final: bool = False) -> None:
        """Append output of a stream."""
        text = self._decoders[stream].decode(data, final).replace("\0", "␀")
        for start in range(0, len(text), MAX_EVENT_CHARS):
            piece = text[start : start + MAX_EVENT_CHARS]
            if self._timeline.exhausted and sum(self._characters) > MIN_KEPT_CHARS:
                self.dropped += len(piece)
                continue
            if self._texts % EVENTS_PER_MARK == 0:
                self._marks.append((self._newlines, self._timeline.next_seq))
            self._texts += 1
            self._newlines += piece.count("\n")
            self._characters[stream] += len(piece)
            kind = events.Stdout if stream == STDOUT else events.Stderr
            self._timeline.append(kind(**self._stamp(), text=piece))

    def state(self, state: str, command: str | None = None) -> None:
        """Append a change of the task's state."""
        self._timeline.append(events.StateChanged(**self._stamp(), state=state, code=command))

    def notice(self, text: str) -> None:
        """Append a notice."""
        self._timeline.append(events.Notice(**self._stamp(), text=text))

    def _stamp(self) -> dict[str, Any]:
        return {"seq": self._timeline.next_seq, "time": time.time(), "session_id": self._id, "cell": None}

    async def command(self) -> str:
        """Return the command of the task, which is in its first event."""
        first = await self._timeline.read(1, 1)
        return first[0].code or "" if first and isinstance(first[0], events.StateChanged) else ""

    def finish(self) -> None:
        """End the output. Bytes of an incomplete character are shown as escapes."""
        for stream in (STDOUT, STDERR):
            self.add(stream, b"", final=True)

    async def close(self) -> None:
        """Close the log for new events, so that followers come to the end."""
        await self._timeline.close(keep=True)
        await self._timeline.rest()

    def delete(self) -> None:
        """Remove the file. Blocking, for a thread."""
        self._path.unlink(missing_ok=True)

    # --- reading ---

    def follow(self, first: int = 1) -> AsyncIterator[AnyEvent]:
        """Yield events from a number on, until the log is closed."""
        return self._timeline.follow(first)

    async def text(self, from_event: int = 0, from_line: int = 0) -> Text:
        """Return the output so far, from an event or a line on. Lines are counted over both streams."""
        last, newlines = self._timeline.next_seq - 1, self._newlines
        counted, first, skip = list(self._characters), max(1, from_event), [0, 0]
        if from_line > 1:
            line_first, line_skip, stream = await self._find_line(from_line, last)
            if line_first >= first:
                first, skip[stream] = line_first, line_skip
        if first > 1:
            counted = await self._count(first, last)
        texts, left = [], []
        for stream, kind in ((STDOUT, events.Stdout), (STDERR, events.Stderr)):
            head, tail = await self._timeline.text(kind, first, last, counted[stream], self._limit)
            text = head + (tail or "")
            texts.append(text[skip[stream] :])
            left.append(counted[stream] - len(text))
        return Text(texts[0], texts[1], Truncated(left[0], left[1]), last + 1, newlines + 1)

    async def _find_line(self, line: int, last: int) -> tuple[int, int, int]:
        """Return the event in which a line begins, the number of characters before it there, and the stream."""
        wanted = line - 1
        at = max(0, bisect_left(self._marks, (wanted, 0)) - 1)
        seen, seq = self._marks[at] if self._marks else (0, 1)
        while seq <= last:
            some = await self._timeline.read(seq, last)
            if not some:
                break
            for event in some:
                if isinstance(event, (events.Stdout, events.Stderr)):
                    here = event.text.count("\n")
                    if seen + here >= wanted:
                        place = -1
                        for _ in range(wanted - seen):
                            place = event.text.index("\n", place + 1)
                        return event.seq, place + 1, STDOUT if isinstance(event, events.Stdout) else STDERR
                    seen += here
            seq = some[-1].seq + 1
        return last + 1, 0, STDOUT

    async def _count(self, first: int, last: int) -> list[int]:
        """Return the number of characters of each stream in a range of events."""
        counted = [0, 0]
        while first <= last:
            some = await self._timeline.read(first, last)
            if not some:
                break
            for event in some:
                if isinstance(event, (events.Stdout, events.Stderr)):
                    counted[STDOUT if isinstance(event, events.Stdout) else STDERR] += len(event.text)
            first = some[-1].seq + 1
        return counted

    async def lines(self, stream: str, from_line: int, count: int, grep: str | None) -> TaskOutput:
        """Return lines by number or pattern."""
        reading = Reading(stream, from_line, count, grep)
        reading.check()
        if stream not in TASK_STREAMS:
            raise InvalidRequest(f"a task has no stream {stream[:40]!r}; it must be one of {', '.join(TASK_STREAMS)}")
        page = await self._landmarks.read(1, self._timeline.next_seq - 1, reading, self._id, 0)
        return TaskOutput(self._id, stream, page.lines, page.next_line)
