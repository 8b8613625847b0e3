"""Reading more: any line of any output, by number, by pattern, by offset, whatever came and wherever it is kept."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_output_bounds import resident

from ingle import errors
from ingle.events import Line, OutputPage
from ingle.output import pages as room
from ingle.output.pages import MAX_LINE_CHARS, MAX_LINES, Reading, _Cutter, read_lines, whole
from ingle.render.terminal_text import clean_line
from ingle.service import Service
from ingle.settings import Settings
from support.service import make_settings

pytestmark = pytest.mark.req("out.bounded")


async def chunks(texts: list[str]) -> AsyncIterator[str]:
    for text in texts:
        yield text


# --- against a model ---------------------------------------------------------------------------------------


def pieces_of(line: str, offset: int, size: int, overlap: int) -> list[tuple[int, str, bool]]:
    found = []
    while len(line) - offset > size:
        found.append((offset, line[offset : offset + size], False))
        offset += size - overlap
    return [*found, (offset, line[offset:], True)]


def model(text: str, wanted: Reading, size: int, overlap: int) -> tuple[list[Line], int | None, int | None]:
    """What a page holds, made from the whole text in the plainest way."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    show = str if wanted.raw else clean_line
    shown: list[tuple[bool, Line]] = []
    for number, line in enumerate(lines, 1):
        if number < wanted.from_line:
            continue
        start = min(wanted.offset, len(line)) if number == wanted.from_line else 0
        pieces = pieces_of(line, start, size, overlap)
        hits = [piece for piece in pieces if wanted.grep is None or re.search(wanted.grep, show(piece[1]))]
        offset, part, last = (hits or pieces)[0]
        following = 0 if last else offset + size
        shown.append(
            (bool(hits), Line(number, show(part), offset, len(line) - following if following else 0, following))
        )
    context = wanted.context if wanted.grep is not None else 0
    near = {place + away for place, (hit, _) in enumerate(shown) if hit for away in range(-context, context + 1)}
    entries = [
        (place, hit, line if hit else Line(line.number, line.text, line.offset, line.left, line.next_offset, True))
        for place, (hit, line) in enumerate(shown)
        if place in near
    ]
    page: list[Line] = []
    waiting: list[Line] = []
    last_hit, matches = None, 0
    for place, hit, line in entries:
        waiting.append(line)
        if hit or (last_hit is not None and place - last_hit <= context):
            if page and len(page) + len(waiting) > wanted.lines:
                return page, waiting[0].number, matches if wanted.grep else None
            page += waiting
            waiting = []
            last_hit = place if hit else last_hit
            matches += hit
    return page, None, matches if wanted.grep else None


@settings(max_examples=250, deadline=None)
@given(
    texts=st.lists(st.text("ab\n\n\r", max_size=25), max_size=25),
    from_line=st.integers(1, 12),
    lines=st.integers(1, 12),
    grep=st.sampled_from([None, "a", "^b", "b$", "aba", "x", "^$", "a+b", "b(?!a)", r"^a\Z", "[^a]b"]),
    context=st.integers(0, 3),
    offset=st.integers(0, 12) | st.just(0),
    raw=st.booleans(),
)
def test_a_page_is_exactly_what_was_asked_for(texts: list[str], **wanted: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "MAX_LINE_CHARS", 8)
        patch.setattr(room, "OVERLAP_CHARS", 3)
        asked = Reading(**wanted)
        page = asyncio.run(read_lines(chunks(texts), asked, "s", 1))
    text = "".join(texts)
    assert (page.lines, page.next_line, page.matches) == model(text, asked, 8, 3)
    ends = text.count("\n") + 1
    assert page.follow_line == (page.next_line or max(ends, asked.from_line))


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(st.text("ab\n", max_size=60), max_size=10), lines=st.integers(1, 4))
def test_pages_and_pieces_put_together_are_the_whole(texts: list[str], lines: int) -> None:
    async def read_all() -> str:
        found = ""
        line: int | None = 1
        while line is not None:
            page = await read_lines(chunks(texts), Reading(from_line=line, lines=lines), "s", 1)
            for each in page.lines:
                found += each.text
                while each.next_offset:
                    rest = Reading(from_line=each.number, lines=1, offset=each.next_offset)
                    (each,) = (await read_lines(chunks(texts), rest, "s", 1)).lines
                    found += each.text
                found += "\n"
            line = page.next_line
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "MAX_LINE_CHARS", 8)
        patch.setattr(room, "OVERLAP_CHARS", 3)
        text = "".join(texts)
        assert asyncio.run(read_all()) == (text if text.endswith("\n") or not text else text + "\n")


async def test_a_long_line_is_never_held_whole() -> None:
    cutter = _Cutter(1, 0)
    for _ in range(1000):
        cutter.feed("x" * 65536)
        assert len(cutter._held) <= MAX_LINE_CHARS


async def test_a_page_is_bounded_in_lines_and_in_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    page = await read_lines(chunks(["\n" * 1000] * 12), Reading(lines=1_000_000), "s", 1)
    assert page.lines == [Line(number, "") for number in range(1, MAX_LINES + 1)]
    assert page.next_line == MAX_LINES + 1
    monkeypatch.setattr(room, "PAGE_CHARS", 25)
    page = await read_lines(chunks(["0123456789\n" * 9]), Reading(), "s", 1)
    assert (page.lines, page.next_line) == ([Line(number, "0123456789") for number in (1, 2, 3)], 4)


async def test_texts_in_memory_stand_on_lines_of_their_own() -> None:
    assert (await read_lines(whole(["a\nb", "", "c"]), Reading(), "s", 1)).lines == [
        Line(1, "a"),
        Line(2, "b"),
        Line(3, ""),
        Line(4, "c"),
    ]


# --- through the service -----------------------------------------------------------------------------------


class TestThroughTheService:
    @pytest.fixture
    def settings(self) -> Settings:
        """Almost nothing stays in memory."""
        return make_settings(preload=[], pool=1, timeline_memory=20_000)

    async def test_matches_come_with_their_neighbours_and_are_counted(self, service: Service, run) -> None:
        await run("for i in range(1, 40_001): print(f'row {i}\\n', end='')")
        page = await service.read_output("s", 1, grep="^row 20000$|^row 20002$|^row 39999$", context=1)
        assert page == OutputPage(
            "s",
            1,
            "stdout",
            [
                Line(19_999, "row 19999", context=True),
                Line(20_000, "row 20000"),
                Line(20_001, "row 20001", context=True),
                Line(20_002, "row 20002"),
                Line(20_003, "row 20003", context=True),
                Line(39_998, "row 39998", context=True),
                Line(39_999, "row 39999"),
                Line(40_000, "row 40000", context=True),
            ],
            None,
            40_001,
            3,
        )

    async def test_a_line_of_100_megabytes_is_read_by_offset_and_by_pattern(self, service: Service, run) -> None:
        code = """
import os
def put(data):
    while data: data = data[os.write(1, data):]
for _ in range(100): put(b"x" * 1_000_000)
put(b"needle")
put(b"y" * 1_000_000 + b"\\nend\\n")
"""
        before = resident()
        assert (await run(code)).status == "ok"
        length = 101_000_006
        page = await service.read_output("s", 1)
        first = Line(1, "x" * MAX_LINE_CHARS, 0, length - MAX_LINE_CHARS, MAX_LINE_CHARS)
        assert (page.lines, page.next_line) == ([first, Line(2, "end")], None)
        page = await service.read_output("s", 1, lines=1, offset=100_000_000)
        text = ("needle" + "y" * MAX_LINE_CHARS)[:MAX_LINE_CHARS]
        assert page.lines == [
            Line(1, text, 100_000_000, length - 100_000_000 - MAX_LINE_CHARS, 100_000_000 + MAX_LINE_CHARS)
        ]
        page = await service.read_output("s", 1, grep="needle")
        (line,) = page.lines
        at = 100_000_000 - line.offset
        assert (line.number, line.text[at : at + 7], page.matches) == (1, "needley", 1)
        page = await service.read_output("s", 1, offset=length - 3, lines=1)
        assert (page.lines, page.next_line) == ([Line(1, "yyy", length - 3)], 2)
        assert resident() - before < 100 * 2**20

    @pytest.mark.req("out.clean")
    async def test_lines_are_clean_and_the_raw_text_is_there_on_request(self, service: Service, run) -> None:
        raw = "\x1b[31mred\x1b[0m\n 10%\r 50%\r100%\nab\bc\r\nplain \n"
        await run(f"print({raw!r}, end='')")
        page = await service.read_output("s", 1)
        assert page.lines == [Line(1, "red"), Line(2, "100%"), Line(3, "ac"), Line(4, "plain ")]
        page = await service.read_output("s", 1, raw=True)
        assert page.lines == [Line(number, text) for number, text in enumerate(raw.split("\n")[:-1], 1)]
        # A pattern is looked for in what is shown.
        assert (await service.read_output("s", 1, grep="50")).lines == []
        assert (await service.read_output("s", 1, grep="50", raw=True)).lines == [Line(2, " 10%\r 50%\r100%")]
        assert (await service.read_output("s", 1, grep="^red$")).lines == [Line(1, "red")]

    async def test_a_value_and_an_error_are_read_by_line_too(self, service: Service, run) -> None:
        await run("class Long:\n    def __repr__(self): return 'one\\ntwo\\nthree'\nLong()")
        page = await service.read_output("s", 1, stream="result", from_line=2)
        assert (page.lines, page.next_line) == ([Line(2, "two"), Line(3, "three")], None)
        assert (await service.read_output("s", 1, stream="error")).lines == []
        assert (await service.read_output("s", 1, stream="displays")).lines == []
        result = await run("1/0")
        page = await service.read_output("s", 2, stream="error")
        assert [line.text for line in page.lines] == result.error.traceback.rstrip("\n").split("\n")

    @pytest.mark.req("out.attributed")
    async def test_what_threads_print_after_their_cell_is_read_apart(
        self, service: Service, run, tmp_path: Path
    ) -> None:
        go = tmp_path / "go"
        await run(
            "import threading, os, time\n"
            "def late():\n"
            f"    while not os.path.exists({str(go)!r}): time.sleep(0.002)\n"
            "    print('late')\n"
            "thread = threading.Thread(target=late)\nthread.start()\nprint('own')"
        )
        go.touch()
        await run("thread.join()\nprint('next')")
        await run("1")
        pages = [await service.read_output("s", cell, stream="background") for cell in (1, 2, 3)]
        assert sorted(line.text for page in pages for line in page.lines) == ["late"]
        own = [(await service.read_output("s", cell)).lines for cell in (1, 2)]
        assert own == [[Line(1, "own")], [Line(1, "next")]]

    async def test_an_unfinished_line_is_read_again_when_more_has_come(
        self, service: Service, run, tmp_path: Path
    ) -> None:
        go = tmp_path / "go"
        code = f"import os, time\nprint('a\\nb', end='')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.002)"
        await service.begin("s", code + "\nprint('c\\nd')")
        async for event in service.events("s"):
            if getattr(event, "text", "").endswith("b"):
                break
        page = await service.read_output("s", 1)
        assert (page.lines, page.next_line, page.follow_line) == ([Line(1, "a"), Line(2, "b")], None, 2)
        go.touch()
        await service.wait("s", 1)
        page = await service.read_output("s", 1, from_line=page.follow_line)
        assert (page.lines, page.next_line, page.follow_line) == ([Line(2, "bc"), Line(3, "d")], None, 4)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"stream": "stdin"}, "stream is 'stdin'; it must be one of stdout, stderr, both, background, displays"),
            ({"grep": "("}, "grep is not a regular expression"),
            ({"lines": 0}, "lines is 0; it must be 1 or more"),
            ({"lines": -1}, "lines is -1; it must be 1 or more"),
            ({"from_line": 0}, "from_line is 0; it must be 1 or more"),
            ({"offset": -1}, "offset is -1; it must be 0 or more"),
            ({"context": -1}, "context is -1; it must be 0 or more"),
        ],
    )
    async def test_requests_that_make_no_sense_are_refused(
        self, service: Service, run, options: dict[str, Any], says: str
    ) -> None:
        await run("print('text')")
        with pytest.raises(errors.InvalidRequest, match=re.escape(says)):
            await service.read_output("s", 1, **options)
