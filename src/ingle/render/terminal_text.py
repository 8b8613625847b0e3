"""Text as a reader wants it: what a terminal would show in the end, without colour, and repetition counted.

A line that is written over shows its last state, a block of progress bars that is drawn again and again its last
drawing. The terminal meant here has no width and no height, and its cursor never leaves the text: it may go up into
earlier lines and be sent to a column. Whatever clears or jumps about the screen begins a new line instead, because a
reader would rather see too much than lose a page. Text without control characters keeps all but its trailing blanks.

Time and memory grow with the length of the text, whatever is in it, and no text gets longer (but for blanks that fill
the way of a cursor that was sent to the right). It can be done in a thread: nothing in it holds others up for long.
"""

import re
from itertools import groupby, islice
from operator import eq

FOLD_FROM = 3
"""So many equal lines in a row are folded, if that makes the text shorter."""

FAR_RIGHT = 200
"""Nothing is written further right than this past the end of its row: the gap is filled with blanks."""

BLANKS = 100_000
"""And with so many of them in one text."""

# Kept for the second step: moves and erasures, in the only form that programs use.
_MOVE = r"(\x1b\[[0-9;]*[A-HJKf])"
_ESCAPE = re.compile(
    _MOVE
    # Any other control sequence, be it broken off by the end or by a character that cannot stand in it.
    + r"|\x1b\[[0-?]*[ -/]*[@-~]?"
    # Titles, links, pictures: up to their end, else to the end of the line.
    + r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    # Character sets, and all the short ones; a lone escape too.
    + r"|\x1b[ -/]*[0-~]?"
    # The same in 8 bits, only where it is whole: these characters also come from text that was decoded wrongly. None
    # of them may stand inside, or each would be a reason to look for the end anew.
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
"""A line as shown, and the number of the line of the raw text where it began."""


def is_plain(text: str) -> bool:
    """Cleaning would leave such a text as it is, but for trailing blanks."""
    return _SPECIAL.search(text) is None


def rows(text: str, line: int = 1) -> list[Row]:
    """The lines that a terminal shows after this text, whose first line has the number `line`."""
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
    """But for moves. Piece by piece: a substitution over the whole of a long text would let no other thread run."""
    pieces: list[str] = []
    at = 0
    for found in _ESCAPE.finditer(text):
        pieces += (text[at : found.start()], found[1] or "")
        at = found.end()
    return "".join(pieces) + text[at:]


def clean(text: str) -> str:
    """The same as one text, without blank lines at its end. Cleaning it again changes nothing."""
    return "\n".join(shown for shown, _ in trimmed(rows(text)))


def clean_line(text: str) -> str:
    """One line by itself."""
    return text if is_plain(text) else " ".join(shown for shown, _ in rows(text))


def trimmed(some: list[Row]) -> list[Row]:
    """Without blank rows at the end."""
    end = len(some)
    while end and not some[end - 1][0]:
        end -= 1
    return some[:end]


def folded(some: list[Row]) -> list[Row]:
    """Equal lines in a row as the first of them and a count of the others."""
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
    """Rows and a cursor. A row that was only ever written once stays a string; one that is edited becomes cells."""

    def __init__(self) -> None:
        self.rows: list[str | list[str]] = []
        self.numbers: list[int] = []
        self._row = -1
        self._column = 0
        self._blanks = BLANKS

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
            # It may have come from a longer row, or this one was erased.
            self._go_to(self._column)
            cells = self._cells()
            if self._column > len(cells):
                self._blanks -= self._column - len(cells)
                cells += " " * (self._column - len(cells))
            cells[self._column : self._column + len(text)] = text
        self._column += len(text)

    def _move(self, parameters: str, final: str) -> None:
        first = parameters.partition(";")[0]
        # More digits than these are further than any text goes.
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
        self._column = min(column, len(self.rows[self._row]) + min(FAR_RIGHT, self._blanks))

    def _erase(self, column: int) -> None:
        if self.rows[self._row]:
            del self._cells()[column:]

    def _jump(self) -> None:
        """Somewhere else on the screen: on from here in a row of its own."""
        self._row = len(self.rows) - 1
        if self.rows[self._row]:
            self._append()
            self._row += 1
        self._column = 0
