"""Terminal output as plain text: the final state of the screen, without colour, with repeated lines counted.

An overwritten line shows its last state, and a redrawn block of progress bars its last drawing. The terminal has no
size, and its cursor moves within the text only. Clearing the screen or jumping starts a new line instead, because too
much text is better than a lost page. Text without control characters loses only trailing blanks.

Time and memory grow linearly with the text. Apart from padding before a cursor, no text gets longer.
"""

import re
from itertools import groupby, islice
from operator import eq

FOLD_FROM = 3
"""Number of equal lines in a row that are folded, if that makes the text shorter."""

MAX_COLUMNS_PAST_END = 200
"""Columns that the cursor can move past the end of a row; the gap is filled with blanks."""

MAX_BLANKS = 100_000
"""Maximum number of such blanks in one text."""

# Left for the second step: cursor moves and erasures, in the only form that programs use.
_MOVE = r"(\x1b\[[0-9;]*[A-HJKf])"
_ESCAPE = re.compile(
    _MOVE
    # Any other control sequence, also one that is broken off.
    + r"|\x1b\[[0-?]*[ -/]*[@-~]?"
    # Titles, links, images: up to their terminator, or else to the end of the line.
    + r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    # Character sets and other short sequences, or a lone escape.
    + r"|\x1b[ -/]*[0-~]?"
    # 8-bit forms, only if complete, because wrongly decoded text has these characters too. They cannot be nested,
    # or each would start another search for the end.
    + r"|\x9b[0-?]*[ -/]*[@-~]|[\x90\x98\x9d-\x9f][^\x07\x1b\x9c\n\x90\x98\x9d-\x9f]*(?:\x07|\x1b\\|\x9c)"
)
_MOVES = re.compile(r"[\r\x08\x1b]")
_TOKEN = re.compile(r"[^\r\x08\x1b]+|\r|\x08|\x1b\[([0-9;]*)([A-HJKf])")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_SPECIAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PICTURES: dict[int, str | None] = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\b\t\n\r\x1b"},
    0x07: None,  # a bell is a sound
    0x7F: "␡",
    **dict.fromkeys(range(128, 160), "�"),
}


Row = tuple[str, int]
"""A shown line, and the number of the raw line where it started."""


def is_plain(text: str) -> bool:
    """Return whether cleaning would only remove trailing blanks."""
    return _SPECIAL.search(text) is None


def rows(text: str, line: int = 1) -> list[Row]:
    """Return the lines that a terminal shows after this text, whose first line has the number `line`."""
    if is_plain(text):
        return [(part.rstrip(), number) for number, part in enumerate(text.split("\n"), line)]
    text = text.replace("\r\n", "\n")
    if "\x1b" in text or _CONTROL.search(text):
        text = _without_escapes(text)
        if _CONTROL.search(text):
            text = text.translate(_PICTURES)
    screen = _Screen()
    for number, part in enumerate(text.split("\n"), line):
        screen.newline(number)
        screen.write(part)
    return [
        ((cells if isinstance(cells, str) else "".join(cells)).rstrip(), number)
        for cells, number in zip(screen.rows, screen.numbers, strict=True)
    ]


def _without_escapes(text: str) -> str:
    """Remove escape sequences except moves, in pieces: one substitution would block all other threads."""
    pieces: list[str] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        pieces += (text[at : found.start()], found[1] or "")
        at = found.end()
    return "".join(pieces) + text[at:]


def clean(text: str) -> str:
    """Return the cleaned text without blank lines at its end. Cleaning it again changes nothing."""
    return "\n".join(shown for shown, _ in trimmed(rows(text)))


def clean_line(text: str) -> str:
    """Return one cleaned line."""
    return text if is_plain(text) else " ".join(shown for shown, _ in rows(text))


def trimmed(some: list[Row]) -> list[Row]:
    """Return the rows without blank ones at the end."""
    end = len(some)
    while end and not some[end - 1][0]:
        end -= 1
    return some[:end]


def folded(some: list[Row]) -> list[Row]:
    """Replace equal consecutive lines by the first of them and a count."""
    texts = [text for text, _ in some]
    if not any(map(eq, texts, islice(texts, 1, None))):
        return some
    result: list[Row] = []
    at = 0
    for text, group in groupby(texts):
        more = sum(1 for _ in group) - 1
        mark = f"… {more} more of the same line …" if more >= FOLD_FROM - 1 else ""
        if mark and more * (len(text) + 1) > len(mark) + 1:
            result += [some[at], (mark, some[at + 1][1])]
        else:
            result += some[at : at + more + 1]
        at += more + 1
    return result


class _Screen:
    """Rows and a cursor. A row that was written once stays a string; an edited one becomes a list of cells."""

    def __init__(self) -> None:
        self.rows: list[str | list[str]] = []
        self.numbers: list[int] = []
        self._row = -1
        self._column = 0
        self._blanks = MAX_BLANKS

    def newline(self, number: int) -> None:
        self._number = number
        self._row += 1
        self._column = 0
        if self._row == len(self.rows):
            self._append()

    def write(self, part: str) -> None:
        if not _MOVES.search(part):
            if part:
                self._put(part)
            return
        for token in _TOKEN.finditer(part):
            text = token[0]
            if text == "\r":
                self._column = 0
            elif text == "\b":
                self._column = max(0, self._column - 1)
            elif token[2]:
                self._move(token[1], token[2])
            else:
                self._put(text)

    def _append(self) -> None:
        self.rows.append("")
        self.numbers.append(self._number)

    def _cells(self) -> list[str]:
        cells = self.rows[self._row]
        if isinstance(cells, str):
            cells = self.rows[self._row] = list(cells)
        return cells

    def _put(self, text: str) -> None:
        if self._column == 0 and not self.rows[self._row]:
            self.rows[self._row] = text
        else:
            # The cursor may have come from a longer row, or this row was erased.
            self._go_to(self._column)
            cells = self._cells()
            if self._column > len(cells):
                self._blanks -= self._column - len(cells)
                cells += " " * (self._column - len(cells))
            cells[self._column : self._column + len(text)] = text
        self._column += len(text)

    def _move(self, parameters: str, final: str) -> None:
        first = parameters.partition(";")[0]
        # No text is longer than six digits allow.
        number = int(first[:6]) if first else 0
        steps = max(1, number)
        if final in "AF":
            self._row = max(0, self._row - steps)
        elif final in "BE":
            self._row = min(len(self.rows) - 1, self._row + steps)
        elif final == "C":
            self._go_to(self._column + steps)
        elif final == "D":
            self._column = max(0, self._column - steps)
        elif final == "G":
            self._go_to(steps - 1)
        elif final == "K" and number != 1:
            self._erase(0 if number == 2 else self._column)
        elif final == "J" and number == 0:
            self._erase(self._column)
            del self.rows[self._row + 1 :], self.numbers[self._row + 1 :]
        elif final in "Hf" or (final == "J" and number != 1):
            self._jump()
        if final in "EF":
            self._column = 0

    def _go_to(self, column: int) -> None:
        self._column = min(column, len(self.rows[self._row]) + min(MAX_COLUMNS_PAST_END, self._blanks))

    def _erase(self, column: int) -> None:
        if self.rows[self._row]:
            del self._cells()[column:]

    def _jump(self) -> None:
        """Handle a jump on the screen by starting a new row at the end."""
        self._row = len(self.rows) - 1
        if self.rows[self._row]:
            self._append()
            self._row += 1
        self._column = 0
