"""Text within a budget: its head and its tail, and between them what was omitted and where that can be read.

Whole lines are shown where lines are short; a long one is cut inside. What is said of the omitted part is in terms of
the raw text: its line numbers, and for a cut inside of one line the characters of that line.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ingle.render.terminal_text import Row, folded, is_plain, rows, trimmed

HEAD_SHARE = 0.35
LONG_LINE = 200
"""A line longer than this may be cut inside."""

MARK_ROOM = 160
"""Characters kept for what is said of the omitted part."""


@dataclass(frozen=True)
class Omitted:
    """`lines` whole or half shown lines from `from_line` on; or, with no lines, so many characters of that line."""

    from_line: int
    lines: int
    characters: int = 0
    offset: int | None = None
    """Characters of the line that are shown before the cut, where that is known."""


@dataclass(frozen=True)
class Passage:
    """Rows to be shown. With a gap, they are two texts: before and after what is not there."""

    head: list[Row]
    tail: list[Row] | None = None
    left_out: int = 0
    exact: bool = True
    """Columns of the rows are those of the raw text."""

    @property
    def length(self) -> int:
        """Characters, the mark of the gap included."""
        return _length(self.head) if self.tail is None else _length(self.head) + MARK_ROOM + _length(self.tail)


def _length(some: list[Row]) -> int:
    return sum([len(text) for text, _ in some]) + len(some)


def passage(text: str, first_line: int = 1, gap: tuple[int, int, int] | None = None, *, fold: bool = True) -> Passage:
    """A text cleaned. `gap` says after how many characters of it how many characters and ends of lines are missing."""
    fold_rows = folded if fold else list
    if gap is None:
        return Passage(fold_rows(trimmed(rows(text, first_line))), exact=is_plain(text) and first_line == 1)
    at, left_out, lines = gap
    head, tail = text[:at], text[at:]
    after = first_line + head.count("\n") + lines
    return Passage(
        fold_rows(rows(head, first_line)),
        fold_rows(trimmed(rows(tail, after))) or [("", after)],
        left_out,
        exact=is_plain(text) and first_line == 1,
    )


def cut(whole: Passage, limit: int, say: Callable[[Omitted], str]) -> list[str]:
    """Lines of the passage, in `limit` characters or about."""
    everything = whole.head + (whole.tail or [])
    gap = len(whole.head) if whole.tail is not None else None
    if whole.length <= limit:
        if gap is None:
            return [text for text, _ in everything]
        first, shown, last, hidden = gap - 1, len(whole.head[-1][0]), gap, 0
    else:
        first, shown, used = _take_head(everything[:gap], int(limit * HEAD_SHARE))
        last, hidden = _take_tail(everything, gap or 0, limit - used - MARK_ROOM)
    (from_text, from_line), (to_text, to_line) = everything[first], everything[last]
    if first == last:
        omitted = Omitted(from_line, 0, hidden - shown, shown if whole.exact else None)
    elif gap is not None and from_line == to_line:
        missing = len(from_text) - shown + whole.left_out + hidden
        omitted = Omitted(from_line, 0, missing, shown if whole.exact else None)
    else:
        # After a gap the first row is what is left of its line.
        half = hidden > 0 or last == gap
        omitted = Omitted(from_line, max(1, to_line - from_line + half))
    head = [text for text, _ in everything[:first]] + ([from_text[:shown]] if shown else [])
    tail = [to_text[hidden:]] + [text for text, _ in everything[last + 1 :]]
    return [*head, say(omitted), *tail]


def _take_head(some: list[Row], room: int) -> tuple[int, int, int]:
    """The first row that is not shown whole, how much of it is shown, and the characters used."""
    used = 0
    for index, (text, _) in enumerate(some):
        left = room - used - 1
        if len(text) > left:
            shown = left if len(text) > LONG_LINE and left > 0 else 0
            return index, shown, used + shown + 1
        used += len(text) + 1
    return len(some) - 1, len(some[-1][0]), used


def _take_tail(some: list[Row], start: int, room: int) -> tuple[int, int]:
    """The row with which the tail begins, not before `start`, and how much of it is hidden."""
    for index in range(len(some) - 1, start - 1, -1):
        text = some[index][0]
        if len(text) >= room:
            # Of the last row there is always something to be seen.
            if index == len(some) - 1 or (len(text) > LONG_LINE and room > 1):
                return index, len(text) - max(1, room - 1)
            return index + 1, 0
        room -= len(text) + 1
    return start, 0


def shares(wants: list[int], available: int) -> list[int]:
    """A fair share for each: who wants little gets it, and the others divide the rest evenly."""
    result = [0] * len(wants)
    left = available
    order = sorted(range(len(wants)), key=wants.__getitem__)
    for place, index in enumerate(order):
        result[index] = min(wants[index], left // (len(order) - place))
        left -= result[index]
    return result
