"""Reading more of a cell's output: by line number, by pattern, over memory and disk alike, a piece at a time."""

import re

from msgspec import Struct

from ingle.errors import InvalidRequest
from ingle.events import Stderr, Stdout
from ingle.outputs.timeline import Timeline

MAX_LINES = 10_000
MAX_LINE = 20_000
"""Characters of one line that are shown; a longer one is cut, and says so."""


class Line(Struct, frozen=True):
    number: int
    text: str


class OutputPage(Struct):
    """Some lines of a cell's output, counted from 1, and where to go on (null when there is no more)."""

    session_id: str
    cell: int
    stream: str
    lines: list[Line]
    next_line: int | None


class _Lines:
    """Cuts text that comes in pieces into numbered lines, never holding more than one shown line of it."""

    def __init__(self) -> None:
        self.number = 1
        self._kept: list[str] = []
        self._size = 0
        self._left_out = 0

    def feed(self, text: str) -> list[Line]:
        *whole, rest = text.split("\n")
        lines = []
        for part in whole:
            self._keep(part)
            lines.append(self._finish())
        self._keep(rest)
        return lines

    def end(self) -> list[Line]:
        return [self._finish()] if self._kept else []

    def _keep(self, part: str) -> None:
        room = MAX_LINE - self._size
        if part and room:
            self._kept.append(part[:room])
            self._size += min(len(part), room)
        self._left_out += max(0, len(part) - room)

    def _finish(self) -> Line:
        text = "".join(self._kept)
        if self._left_out:
            text += f" … {self._left_out} more characters on this line"
        line = Line(self.number, text)
        self.number += 1
        self._kept, self._size, self._left_out = [], 0, 0
        return line


async def read_lines(
    timeline: Timeline,
    first: int,
    last: int,
    *,
    stream: str,
    from_line: int,
    count: int,
    grep: str | None,
) -> tuple[list[Line], int | None]:
    """Up to `count` lines from `from_line` on that match `grep`, and the line to go on from."""
    kinds = {"stdout": (Stdout,), "stderr": (Stderr,), "both": (Stdout, Stderr)}.get(stream)
    if kinds is None:
        raise InvalidRequest(f"stream is {stream[:40]!r}; it must be stdout, stderr or both")
    try:
        pattern = re.compile(grep) if grep else None
    except re.error as error:
        raise InvalidRequest(f"grep is not a regular expression: {error}") from None
    for name, number in (("from_line", from_line), ("lines", count)):
        if number < 1:
            raise InvalidRequest(f"{name} is {number}; it must be 1 or more")
    count = min(count, MAX_LINES)
    found: list[Line] = []
    cutter = _Lines()

    def take(lines: list[Line]) -> int | None:
        for line in lines:
            if line.number < from_line or (pattern is not None and not pattern.search(line.text)):
                continue
            if len(found) == count:
                return line.number
            found.append(line)
        return None

    seq = first
    while seq <= last:
        events = await timeline.read(seq, last)
        if not events:
            break
        for event in events:
            if isinstance(event, (Stdout, Stderr)) and isinstance(event, kinds) and not event.background:
                following = take(cutter.feed(event.text))
                if following is not None:
                    return found, following
        seq = events[-1].seq + 1
    return found, take(cutter.end())
