"""Reads a cell's output by line number or pattern, from memory and disk, one piece at a time.

Lines and offsets are counted in the raw text. Shown lines are cleaned one by one, unless raw text is requested. Of a
very long line one piece is shown, and the next is read by offset. Patterns are matched in overlapping pieces.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import repeat

from msgspec import structs

from ingle.errors import InvalidRequest
from ingle.events import Line as Line
from ingle.events import OutputPage as OutputPage
from ingle.events import Stderr, Stdout
from ingle.output.safe_regex import Matcher, matcher
from ingle.output.timeline import READ_AT_ONCE, Timeline
from ingle.render.terminal_text import clean_line, is_plain

MAX_LINES = 10_000
MAX_LINE_CHARS = 20_000
"""Characters of one line that are shown at once."""

OVERLAP_CHARS = 1000
"""Overlap of two pieces of a long line. Matches up to this length are always found."""

PAGE_CHARS = 1_000_000
"""Approximate characters of a page: it ends with the line that reaches this."""

MAX_CONTEXT = 50

AT_ONCE = 16
"""Events read at once if they are full: a million characters from disk."""

PRINTED = {"stdout": (Stdout,), "stderr": (Stderr,), "both": (Stdout, Stderr), "background": (Stdout, Stderr)}
STREAMS = (*PRINTED, "displays", "result", "error")


@dataclass(frozen=True)
class Reading:
    """A request to read a cell's output."""

    stream: str = "stdout"
    from_line: int = 1
    lines: int = 200
    grep: str | None = None
    context: int = 0
    """Lines before and after each match."""
    offset: int = 0
    """Characters to skip on the first line."""
    raw: bool = False

    def check(self) -> None:
        if self.stream not in STREAMS:
            raise InvalidRequest(f"stream is {self.stream[:40]!r}; it must be one of {', '.join(STREAMS)}")
        for name, number, least in (
            ("from_line", self.from_line, 1),
            ("lines", self.lines, 1),
            ("context", self.context, 0),
            ("offset", self.offset, 0),
        ):
            if number < least:
                raise InvalidRequest(f"{name} is {number}; it must be {least} or more")


Piece = tuple[int, int, str, int | None]
"""Line number, offset in the line, text, and the length of the whole line if this piece ends it."""


class _Cutter:
    """Cuts chunks of text into pieces of lines, holding at most one piece."""

    def __init__(self, from_line: int, offset: int) -> None:
        self.number = 1
        self._from_line = from_line
        self._offset = offset
        self._held = ""
        self._at = 0
        """Offset of the held text."""

    def feed(self, text: str, matcher: Matcher | None = None) -> list[Piece]:
        """Return the pieces that this text completes. Lines that `matcher` excludes as a block are skipped."""
        ends = text.count("\n")
        if self.number + ends < self._from_line:
            self.number += ends
            return []
        if matcher is not None and ends > 1 and self.number > self._from_line:
            start, end = text.index("\n") + 1, text.rindex("\n")
            if matcher.absent(text, start, end):
                pieces = [*self._extend(text[: start - 1]), self._finish()]
                self.number += ends - 1
                return pieces + self._extend(text[end + 1 :])
        first, *rest = text.split("\n")
        pieces = self._extend(first)
        if not rest:
            return pieces
        last = rest.pop()
        pieces.append(self._finish())
        if self.number < self._from_line:
            skip = min(self._from_line - self.number, len(rest))
            self.number += skip
            rest = rest[skip:]
        if rest and self._offset and self.number == self._from_line:
            pieces += self._extend(rest.pop(0))
            pieces.append(self._finish())
        if any(len(line) > MAX_LINE_CHARS for line in rest) if len(text) > MAX_LINE_CHARS else False:
            for line in rest:
                pieces += self._extend(line)
                pieces.append(self._finish())
        else:
            pieces += zip(range(self.number, self.number + len(rest)), repeat(0), rest, map(len, rest), strict=False)
            self.number += len(rest)
        return pieces + self._extend(last)

    def end(self) -> list[Piece]:
        return [self._finish()] if self._held or self._at else []

    def _extend(self, part: str) -> list[Piece]:
        """Add to the current line, and return its full pieces."""
        if self.number < self._from_line:
            return []
        if self._offset and self.number == self._from_line:
            passed = min(len(part), self._offset - self._at) if self._at < self._offset else 0
            self._at += passed
            part = part[passed:]
        self._held += part
        pieces: list[Piece] = []
        if len(self._held) > MAX_LINE_CHARS:
            start = 0
            while len(self._held) - start > MAX_LINE_CHARS:
                pieces.append((self.number, self._at + start, self._held[start : start + MAX_LINE_CHARS], None))
                start += MAX_LINE_CHARS - OVERLAP_CHARS
            self._held = self._held[start:]
            self._at += start
        return pieces

    def _finish(self) -> Piece:
        piece = (self.number, self._at, self._held, self._at + len(self._held))
        self.number += 1
        self._held, self._at = "", 0
        return piece


def _cleaned(pieces: list[Piece]) -> list[Piece]:
    return [(number, offset, clean_line(text), end) for number, offset, text, end in pieces]


class _Page:
    """Collects wanted pieces in order until the page is full."""

    def __init__(self, reading: Reading, match: Matcher | None) -> None:
        self.lines: list[Line] = []
        self.matches = 0
        self.next_line: int | None = None
        self._reading = reading
        self._count = min(reading.lines, MAX_LINES)
        self._context = min(reading.context, MAX_CONTEXT) if match is not None else 0
        self._match = match
        # One more than needed: the last may be an earlier piece of the line that matches.
        self._before: deque[Line] = deque(maxlen=self._context + 1)
        self._after = 0
        self._open: Line | None = None
        """The last collected line, while its end has not come."""
        self._size = 0

    async def take(self, pieces: list[Piece], *, plain: bool) -> bool:
        """Add the wanted pieces, and return whether the page is full."""
        from_line = self._reading.from_line
        if pieces and pieces[0][0] < from_line:
            pieces = [piece for piece in pieces if piece[0] >= from_line]
        if not self._reading.raw and not plain:
            # Cleaning can take long for hostile text, so it runs in a thread.
            pieces = await asyncio.to_thread(_cleaned, pieces)
        if self._match is None:
            return any(self._add(piece, True) for piece in pieces)
        matches = await self._match.match([piece[2] for piece in pieces])
        if not (self._context or self._open or any(matches)):
            return False
        return any(self._add(piece, matched) for piece, matched in zip(pieces, matches, strict=True))

    def _add(self, piece: Piece, matched: bool) -> bool:
        number, offset, text, end = piece
        if self._open is not None and self._open.number == number:
            return self._go_on(piece, matched)
        line = Line(number, text, offset, next_offset=0 if end is not None else offset + MAX_LINE_CHARS)
        if self._before and self._before[-1].number == number:
            # An earlier piece of the same line stays unless a later one matches.
            earlier = self._before.pop()
            if not matched:
                self._before.append(
                    earlier if end is None else structs.replace(earlier, left=end - earlier.next_offset)
                )
                return False
        if matched or self._after:
            full = self._keep(line, matched)
        else:
            full = False
            if self._context:
                self._before.append(structs.replace(line, context=True))
        if end is not None and not matched and self._after:
            self._after -= 1
        return full

    def _go_on(self, piece: Piece, matched: bool) -> bool:
        """Take another piece of the last line, and prefer it if only this piece matches."""
        number, offset, text, end = piece
        kept = self._open
        assert kept is not None
        if matched and kept.context:
            kept = Line(number, text, offset, next_offset=0 if end is not None else offset + MAX_LINE_CHARS)
            self.matches += 1
            self._after = self._context
        if end is not None and kept.next_offset:
            kept = structs.replace(kept, left=end - kept.next_offset)
        self.lines[-1] = kept
        self._open = None if end is not None else kept
        if end is not None and kept.context:
            self._after -= 1
        return False

    def _keep(self, line: Line, matched: bool) -> bool:
        group = [*list(self._before)[-self._context :], line] if matched else [structs.replace(line, context=True)]
        if self.lines and (len(self.lines) + len(group) > self._count or self._size > PAGE_CHARS):
            self.next_line = group[0].number
            return True
        self._before.clear()
        self.lines += group
        self._size += sum(len(each.text) for each in group)
        self._open = self.lines[-1] if line.next_offset else None
        if matched:
            self.matches += 1
            self._after = self._context
        return False


async def read_lines(texts: AsyncIterator[str], reading: Reading, session_id: str, cell: int) -> OutputPage:
    """Return the requested page of a text that comes in chunks."""
    if not reading.grep:
        return await _read(texts, reading, None, session_id, cell)
    async with matcher(reading.grep) as match:
        return await _read(texts, reading, match, session_id, cell)


async def _read(
    texts: AsyncIterator[str], reading: Reading, match: Matcher | None, session_id: str, cell: int
) -> OutputPage:
    cutter = _Cutter(reading.from_line, reading.offset)
    page = _Page(reading, match)
    dirty = False
    enough = False
    async for text in texts:
        plain = reading.raw or is_plain(text)
        # Lines without a match can be skipped, unless they are context or must be cleaned first.
        pieces = cutter.feed(text, match if plain and not reading.context else None)
        enough = await page.take(pieces, plain=plain and not dirty)
        # The held part of an unfinished line belongs to later pieces.
        dirty = not plain or (dirty and "\n" not in text)
        if enough:
            break
    follow = cutter.number
    if not enough:
        await page.take(cutter.end(), plain=not dirty)
    return OutputPage(
        session_id,
        cell,
        reading.stream,
        page.lines,
        page.next_line,
        page.next_line or max(follow, reading.from_line),
        page.matches if match is not None else None,
    )


async def printed(timeline: Timeline, first: int, last: int, stream: str) -> AsyncIterator[str]:
    """Yield the texts of a stream between two events, and let the event loop run in between."""
    kinds, background = PRINTED[stream], stream == "background"
    step = AT_ONCE
    while first <= last:
        some = await timeline.read(first, min(last, first + step - 1))
        if not some:
            return
        size = 0
        for event in some:
            if not isinstance(event, (Stdout, Stderr)):
                continue
            size += len(event.text)
            if isinstance(event, kinds) and event.background == background:
                yield event.text
                await asyncio.sleep(0)
        # Small events are read in larger batches.
        step = AT_ONCE if size > AT_ONCE * 4096 else READ_AT_ONCE
        first = some[-1].seq + 1


async def whole(texts: Iterable[str]) -> AsyncIterator[str]:
    """Yield texts from memory, each starting on a new line."""
    for index, text in enumerate(texts):
        yield text if index == 0 else "\n" + text
