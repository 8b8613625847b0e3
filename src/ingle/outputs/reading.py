"""Reading more of a cell's output: by line number, by pattern, over memory and disk alike, a piece at a time."""

from ingle.errors import InvalidRequest
from ingle.events import Line, Stderr, Stdout
from ingle.events import OutputPage as OutputPage
from ingle.outputs.searching import Match, matcher
from ingle.outputs.timeline import Timeline

MAX_LINES = 10_000
MAX_LINE = 20_000
"""Characters of one line that are shown; a longer one is cut, and says so."""


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
    for name, number in (("from_line", from_line), ("lines", count)):
        if number < 1:
            raise InvalidRequest(f"{name} is {number}; it must be 1 or more")
    count = min(count, MAX_LINES)
    if not grep:
        return await _collect(timeline, first, last, kinds, from_line, count, None)
    async with matcher(grep) as match:
        return await _collect(timeline, first, last, kinds, from_line, count, match)


async def _collect(
    timeline: Timeline,
    first: int,
    last: int,
    kinds: tuple[type, ...],
    from_line: int,
    count: int,
    match: Match | None,
) -> tuple[list[Line], int | None]:
    found: list[Line] = []
    cutter = _Lines()

    async def take(lines: list[Line]) -> int | None:
        wanted = [line for line in lines if line.number >= from_line]
        if match is not None and wanted:
            matches = await match([line.text for line in wanted])
            wanted = [line for line, matched in zip(wanted, matches, strict=True) if matched]
        for line in wanted:
            if len(found) == count:
                return line.number
            found.append(line)
        return None

    seq = first
    while seq <= last:
        events = await timeline.read(seq, last)
        if not events:
            break
        lines: list[Line] = []
        for event in events:
            if isinstance(event, (Stdout, Stderr)) and isinstance(event, kinds) and not event.background:
                lines += cutter.feed(event.text)
        following = await take(lines)
        if following is not None:
            return found, following
        seq = events[-1].seq + 1
    return found, await take(cutter.end())
