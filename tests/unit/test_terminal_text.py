"""Text as a terminal shows it in the end, compared with a terminal of a few lines."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingle.render.terminal_text import MAX_BLANKS, MAX_COLUMNS_PAST_END, Row, clean, clean_line, folded, rows

pytestmark = pytest.mark.req("out.clean")


# --- examples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        # Colour and all that is not to be seen.
        ("\x1b[31mred\x1b[0m and \x1b[1;38;5;196mbold\x1b[m", "red and bold"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP1$r0m\x1b\\after", "after"),
        ("\x1b(B\x1b)0\x1b=\x1b>\x1b7\x1b8text", "text"),
        ("\x1b[?25lhidden cursor\x1b[?25h", "hidden cursor"),
        ("\x9b31mred\x9b0m \x9d0;title\x9cdone", "red done"),
        ("a\x1b\x1b[0m[Ab", "a[Ab"),
        # Broken off.
        ("text\x1b", "text"),
        ("text\x1b[", "text"),
        ("text\x1b[38;5", "text"),
        ("text\x1b]0;tit", "text"),
        ("text\x1b(", "text"),
        ("one\x1b[3\ntwo", "one\ntwo"),
        ("one\x1b]0;never ended\ntwo", "one\ntwo"),
        # Text that was decoded wrongly is no escape sequence.
        ("it\u00e2\x80\x9ds fine", "it\u00e2\ufffd\ufffds fine"),
        # Rewriting.
        ("  0%\r 50%\r100%\n", "100%"),
        ("a long line\rshort", "shortg line"),
        ("a long line\r\x1b[Kshort", "short"),
        ("a long line\x1b[2K\rshort", "short"),
        ("a long line\x1b[1Gshort", "shortg line"),
        ("one\r\ntwo\r\n", "one\ntwo"),
        ("one\r\r\ntwo", "one\ntwo"),
        ("ab\bc", "ac"),
        ("_\bx_\by", "xy"),
        ("a\b\b\bb", "b"),
        ("ab\x1b[2Dxy", "xy"),
        ("a\x1b[3Cb", "a   b"),
        # Going back up.
        ("bar 1\nbar 2\x1b[A\rBAR 1\n", "BAR 1\nbar 2"),
        ("a\nb\n\x1b[2A\x1b[2Kx\n\x1b[2Ky\n", "x\ny"),
        ("a\nb\nc\x1b[2F\x1b[Jd", "d"),
        ("a\x1b[9Ab", "ab"),
        ("a\nb\x1b[A\x1b[9Bc", "a\nbc"),
        ("a\nb\x1b[A\x1b[Ec", "a\nc"),
        # Clearing the screen loses nothing.
        ("one\x1b[2J\x1b[Htwo\x1b[H\x1b[2Jthree", "one\ntwo\nthree"),
        # Made visible.
        ("a\0b\x01c\x7fd\x0ce\x07f", "a␀b␁c␡d␌ef"),
        # Blanks.
        ("a  \nb\t\n\n\n", "a\nb"),
        ("\n\na", "\n\na"),
        ("\tindented\n    too", "\tindented\n    too"),
        ("", ""),
        ("\n", ""),
    ],
)
def test_text_reads_as_on_a_terminal(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_a_block_of_progress_bars_is_its_last_drawing() -> None:
    """As rich draws it: up over the block, each line erased, all of it anew."""
    text = "starting\n\x1b[?25l"
    for step in range(101):
        text += "\r\x1b[2K\x1b[1A\x1b[2K" * bool(step) + f"\x1b[32mload\x1b[0m {step}%\ntrain {step // 2}%"
    text += "\n\x1b[?25hdone\n"
    assert clean(text) == "starting\nload 100%\ntrain 50%\ndone"


def test_a_line_keeps_the_number_of_the_raw_line_where_it_began() -> None:
    text = "one\n10%\r20%\ntwo\nthree\x1b[A\x1b[A\rTWENTY\n\n\nfour"
    assert rows(text, 7) == [
        ("one", 7),
        ("TWENTY", 8),
        ("two", 9),
        ("three", 10),
        ("four", 13),
    ]


def test_one_line_by_itself_stays_one_line() -> None:
    assert clean_line("10%\r\x1b[32m20%\x1b[0m\x1b[A") == "20%"
    assert clean_line("a\x1b[2Jb") == "a b"


# --- folding -----------------------------------------------------------------------------------------------


def numbered(*texts: str) -> list[Row]:
    return [(text, number) for number, text in enumerate(texts, 1)]


def test_equal_lines_in_a_row_are_counted() -> None:
    lines = numbered("first", *["the same thing again"] * 812, "last")
    assert folded(lines) == [
        ("first", 1),
        ("the same thing again", 2),
        ("… 811 more of the same line …", 3),
        ("last", 814),
    ]


@pytest.mark.parametrize("lines", [["a warning, " * 9] * 2, ["a"] * 5, [""] * 20, ["a", "b"] * 50])
def test_what_would_not_get_shorter_is_left_alone(lines: list[str]) -> None:
    assert folded(numbered(*lines)) == numbered(*lines)


# --- any text ----------------------------------------------------------------------------------------------

TOKENS = st.sampled_from(
    (  # noqa: SIM905
        "a|b|xyz| |\t|é|🔥|\n|\r|\r\n|\b|\0|\a|\x7f|\x85|\x9d|\x9c"
        "|\x1b[A|\x1b[2A|\x1b[B|\x1b[C|\x1b[3C|\x1b[D|\x1b[E|\x1b[F|\x1b[G|\x1b[5G|\x1b[K|\x1b[0K|\x1b[1K|\x1b[2K"
        "|\x1b[J|\x1b[1J|\x1b[2J|\x1b[H|\x1b[3;4H|\x1b[1;1f"
        "|\x1b[31m|\x1b[0m|\x1b]0;t\a|\x1b]8;;u\x1b\\|\x1b(B|\x1b7|\x9b1m|\x1b|\x1b[|\x1b[9"
    ).split("|")
)
TEXTS = st.lists(TOKENS, max_size=60).map("".join)


class Terminal:
    """The plainest terminal: a cell at a time, one character after another."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], str] = {}
        self.bottom = 0
        self.row = 0
        self.column = 0

    def length(self, row: int) -> int:
        return max((column + 1 for at, column in self.cells if at == row), default=0)

    def feed(self, text: str) -> None:
        while text:
            sequence = re.match(r"\x1b\[([0-9;]*)([A-HJKf])", text)
            hidden = re.match(
                r"\x1b\[[0-?]*[ -/]*[@-~]?|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?"
                r"|\x9b[0-?]*[ -/]*[@-~]|[\x90\x98\x9d-\x9f][^\x07\x1b\x90\x98\x9c-\x9f\n]*(\x07|\x1b\\|\x9c)",
                text,
            )
            if sequence:
                self.move(int(sequence[1].split(";")[0] or "0"), sequence[2])
                text = text[sequence.end() :]
            elif hidden:
                text = text[hidden.end() :]
            else:
                self.character(text[0])
                text = text[1:]

    def character(self, char: str) -> None:
        if char == "\n":
            self.row, self.column = self.row + 1, 0
            self.bottom = max(self.bottom, self.row)
        elif char == "\r":
            self.column = 0
        elif char == "\b":
            self.column = max(0, self.column - 1)
        elif char != "\x07":
            visible = {"\0": "␀", "\x7f": "␡"}.get(char, "\ufffd" if "\x80" <= char < "\xa0" else char)
            self.column = min(self.column, self.length(self.row) + MAX_COLUMNS_PAST_END)
            for column in range(self.length(self.row), self.column):
                self.cells[self.row, column] = " "
            self.cells[self.row, self.column] = visible
            self.column += 1

    def move(self, number: int, final: str) -> None:
        steps = max(1, number)
        far = self.length(self.row) + MAX_COLUMNS_PAST_END
        if final == "A" or final == "F":
            self.row = max(0, self.row - steps)
        elif final == "B" or final == "E":
            self.row = min(self.bottom, self.row + steps)
        elif final == "C":
            self.column = min(self.column + steps, far)
        elif final == "D":
            self.column = max(0, self.column - steps)
        elif final == "G":
            self.column = min(steps - 1, far)
        elif final == "K" and number in (0, 2):
            self.erase(0 if number == 2 else self.column)
        elif final == "J" and number == 0:
            self.erase(self.column)
            self.bottom = self.row
            self.cells = {(row, column): char for (row, column), char in self.cells.items() if row <= self.row}
        elif final in "Hf" or (final == "J" and number > 1):
            self.row = self.bottom + bool(self.length(self.bottom))
            self.bottom, self.column = self.row, 0
        if final in "EF":
            self.column = 0

    def erase(self, start: int) -> None:
        self.cells = {at: char for at, char in self.cells.items() if at[0] != self.row or at[1] < start}

    def text(self) -> str:
        lines = [
            "".join(self.cells[row, column] for column in range(self.length(row))).rstrip()
            for row in range(self.bottom + 1)
        ]
        while lines and not lines[-1]:
            lines.pop()
        return "\n".join(lines)


@settings(max_examples=400, deadline=None)
@given(TEXTS)
@example("a\r\n\x1b[Ab")
def test_it_shows_what_the_plainest_terminal_shows(text: str) -> None:
    terminal = Terminal()
    terminal.feed(text)
    assert clean(text) == terminal.text()


@settings(max_examples=250, deadline=None)
@given(TEXTS | st.text(max_size=200))
def test_cleaning_again_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@settings(max_examples=250, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]) | st.sampled_from("\n\t"), max_size=200))
def test_plain_text_keeps_all_but_its_trailing_blanks(text: str) -> None:
    kept = [line.rstrip() for line in text.split("\n")]
    while kept and not kept[-1]:
        kept.pop()
    assert clean(text) == "\n".join(kept)


@settings(max_examples=200, deadline=None)
@given(TEXTS)
def test_what_is_cleaned_has_no_control_characters(text: str) -> None:
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", clean(text)) is None


@pytest.mark.parametrize(
    "piece",
    [
        "\x1b[A\x1b[2K\n",
        "a\b",
        "\x1b[999999999999Cx\n",
        "\x1b[999999999999Cx",
        "x\x1b[A\n",
        "x\x1b[1K",
        "x\x1b[2K",
        "x\x1b[K\x1b[D",
        "\x1b[J\n",
        "\x1b[",
        "\x1b]",
        "\x9d",
        "\x1b[1;",
        "\x1b[H",
    ],
)
def test_no_text_takes_long_or_grows(piece: str) -> None:
    """A megabyte of it: work that grows with the square of the length would take more than the test's time."""
    text = "x" * 50_000 + "\n" + "y" * 50_000 + piece * (1_000_000 // len(piece))
    assert len(clean(text)) <= len(text) + MAX_BLANKS


def test_a_cursor_that_comes_down_from_a_long_line_fills_no_rows_with_blanks() -> None:
    text = "\n" * 5_000 + "\x1b[5000A" + "x" * 100_000 + "\x1b[By" * 5_000
    assert len(clean(text)) <= len(text) + MAX_BLANKS
