"""Text within a budget: its head, its tail, and a mark that says where the omitted part can be read.

Short lines are shown whole, a long one is cut inside. The mark counts in the raw text: its line numbers, or the
characters of the one line that was cut.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ingle.render.terminal_text import Row, folded, is_plain, rows, trimmed

HEAD_SHARE = 0.35
LONG_LINE_CHARS = 200
"""Longer lines may be cut inside."""

MARK_CHARS = 160
"""Characters reserved for the mark."""


@dataclass(frozen=True)
class Omitted:
    """Omitted `lines` from `from_line` on, or if there are none, omitted characters of that line."""

    from_line: int
    lines: int
    characters: int = 0
    offset: int | None = None
    """Characters of the line that are shown before the cut, if known."""


@dataclass(frozen=True)
class Passage:
    """Rows to show. With a gap they are two texts, before and after it."""

    head: list[Row]
    tail: list[Row] | None = None
    left_out: int = 0
    exact: bool = True
    """Whether columns are those of the raw text."""

    @property
    def length(self) -> int:
        """Characters, with the mark of the gap."""
        return _length(self.head) if self.tail is None else _length(self.head) + MARK_CHARS + _length(self.tail)


def _length(some: list[Row]) -> int:
    return sum([len(text) for text, _ in some]) + len(some)


def passage(text: str, first_line: int = 1, gap: tuple[int, int, int] | None = None, *, fold: bool = True) -> Passage:
    """Return the cleaned text. `gap` is its position, and the characters and line ends that are missing there."""
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
    """Return lines of the passage in about `limit` characters."""
    everything = whole.head + (whole.tail or [])
    gap = len(whole.head) if whole.tail is not None else None
    if whole.length <= limit:
        if gap is None:
            return [text for text, _ in everything]
        first, shown, last, hidden = gap - 1, len(whole.head[-1][0]), gap, 0
    else:
        first, shown, used = _take_head(everything[:gap], int(limit * HEAD_SHARE))
        last, hidden = _take_tail(everything, gap or 0, limit - used - MARK_CHARS)
    (from_text, from_line), (to_text, to_line) = everything[first], everything[last]
    if first == last:
        omitted = Omitted(from_line, 0, hidden - shown, shown if whole.exact else None)
    elif gap is not None and from_line == to_line:
        missing = len(from_text) - shown + whole.left_out + hidden
        omitted = Omitted(from_line, 0, missing, shown if whole.exact else None)
    else:
        # After a gap, the first row is the rest of a line.
        half = hidden > 0 or last == gap
        omitted = Omitted(from_line, max(1, to_line - from_line + half))
    head = [text for text, _ in everything[:first]] + ([from_text[:shown]] if shown else [])
    tail = [to_text[hidden:]] + [text for text, _ in everything[last + 1 :]]
    return [*head, say(omitted), *tail]


def _take_head(some: list[Row], budget: int) -> tuple[int, int, int]:
    """Return the first row that is not whole, its shown characters, and all characters used."""
    used = 0
    for index, (text, _) in enumerate(some):
        left = budget - used - 1
        if len(text) > left:
            shown = left if len(text) > LONG_LINE_CHARS and left > 0 else 0
            return index, shown, used + shown + 1
        used += len(text) + 1
    return len(some) - 1, len(some[-1][0]), used


def _take_tail(some: list[Row], start: int, budget: int) -> tuple[int, int]:
    """Return the first row of the tail, not before `start`, and its hidden characters."""
    for index in range(len(some) - 1, start - 1, -1):
        text = some[index][0]
        if len(text) >= budget:
            # Some of the last row is always shown.
            if index == len(some) - 1 or (len(text) > LONG_LINE_CHARS and budget > 1):
                return index, len(text) - max(1, budget - 1)
            return index + 1, 0
        budget -= len(text) + 1
    return start, 0


def shares(wants: list[int], available: int) -> list[int]:
    """Divide fairly: small wishes are granted in full, and the others share the rest evenly."""
    result = [0] * len(wants)
    left = available
    order = sorted(range(len(wants)), key=wants.__getitem__)
    for place, index in enumerate(order):
        result[index] = min(wants[index], left // (len(order) - place))
        left -= result[index]
    return result
