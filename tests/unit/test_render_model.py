"""What a model sees of a cell: whole texts, exactly."""

import base64
import re
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.events import CellError, Excerpt, Exit, Line, OutputPage, Result
from ingle.render import model
from ingle.render.image_info import picture
from ingle.render.mime import lines_of
from ingle.render.model import ERROR_CHARS, MAX_PROCESSED_CHARS, TEXT_LIMIT, Hints, Image, Part, Text, text, view
from ingle.render.page import page_text
from ingle.render.phrases import duration, left_out_notices, size
from ingle.render.terminal_text import Row, rows
from ingle.render.truncate import MARK_CHARS, Omitted, Passage, cut, passage, shares

pytestmark = pytest.mark.req("out.clean")


def result(status: str = "ok", **fields: Any) -> Result:
    return Result("main", 12, status, success=status == "ok", **fields)


def png(width: int = 2, height: int = 1, more: int = 0) -> str:
    """A picture; its last chunk makes it larger."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + header + chunk(b"teXt", b"." * more) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


MAIN = Hints(default_session="main")


# --- one text ----------------------------------------------------------------------------------------------

TRACEBACK = 'Traceback (most recent call last):\n  File "<cell 12>", line 1, in <module>\nZeroDivisionError: no\n'


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        # Nothing to say but what there is.
        (result(result={"text/plain": "2"}), "2"),
        (result(stdout="6\n", result={"text/plain": "42"}), "6\n42"),
        (result(stdout="out\n", stderr="err\n"), "out\n[stderr]\nerr"),
        (result(stderr="\x1b[33mwarning\x1b[0m\n"), "[stderr]\nwarning"),
        (result(stdout="same\n" * 100), "same\n… 99 more of the same line …"),
        # Nothing at all still is an answer.
        (result(), "[cell 12 · ok]"),
        (result(stdout="\n \n"), "[cell 12 · ok]"),
        # Worth saying: that it took long, went wrong, or is not over.
        (result(stdout="a\n", execution_time=1.25), "a\n[cell 12 · ok · 1.2 s]"),
        (
            result("error", error=CellError("ZeroDivisionError", "no", TRACEBACK)),
            TRACEBACK + "[cell 12 · error]",
        ),
        (
            result("running", stdout="so far\n", execution_time=45.0),
            "so far\n[cell 12 · running · 45.0 s · wait(cell=12) waits for it, interrupt() stops it]",
        ),
        (
            result("waiting_for_input", stdout="Hello\nName? ", prompt="Name? "),
            "Hello\n[cell 12 · waiting for input: 'Name?' · answer with send_input(text=…)]",
        ),
        (
            result("waiting_for_input", stdout="Password: ", prompt="Password: ", prompt_secret=True),
            "[cell 12 · waiting for input (secret): 'Password:' · answer with send_input(text=…)]",
        ),
        (
            result("waiting_for_input", stdout="a\n", prompt=""),
            "a\n[cell 12 · waiting for input · answer with send_input(text=…)]",
        ),
        (result("interrupted", timed_out=True, execution_time=5.0), "[cell 12 · interrupted at its timeout · 5.0 s]"),
        (result("exit", exit=Exit(3, None, "exit(3)")), "[cell 12 · exit: code 3]"),
        (result("exit", stderr="bye\n", exit=Exit(1, None, "bye")), "[stderr]\nbye\n[cell 12 · exit: code 1]"),
        (result("exit", exit=Exit(1, None, "unheard")), "[cell 12 · exit: code 1: unheard]"),
        (
            result("exit", exit=Exit(None, "SIGSEGV", "was killed"), notices=["the worker was killed; all is lost"]),
            "[note: the worker was killed; all is lost]\n[cell 12 · exit: SIGSEGV]",
        ),
        (result(result={"text/plain": "1"}, notices=["a thread\x1b[0m lives on"]), "1\n[note: a thread lives on]"),
    ],
)
def test_a_result_reads_as_short_as_it_can(given: Result, shown: str) -> None:
    assert view(given, MAIN) == [Text(shown)]


def test_another_session_than_the_usual_is_named_also_in_the_calls() -> None:
    other = Hints(default_session="other")
    assert view(result(stdout="a"), other) == [Text("a\n[cell 12 · ok · session main]")]
    running = view(result("running"), other)
    assert running == [
        Text(
            "[cell 12 · running · session main"
            ' · wait(session_id="main", cell=12) waits for it, interrupt(session_id="main") stops it]'
        )
    ]
    # Where no session is the usual one, none is named.
    assert view(result(stdout="a")) == [Text("a")]


def test_another_door_says_it_in_its_own_words() -> None:
    class Http(Hints):
        def read_output(self, result: Result | OutputPage, stream: str, omitted: Omitted) -> str:
            return f"GET /cells/{result.cell}/output?from_line={omitted.from_line}"

        def wait(self, result: Result) -> str:
            return f"GET /cells/{result.cell}"

    shown = text(view(result("running", stdout="row\n" + "".join(f"{n}\n" for n in range(9000))), Http()))
    assert "lines omitted: GET /cells/12/output?from_line=" in shown
    assert shown.endswith("[cell 12 · running · GET /cells/12 waits for it, interrupt() stops it]")


def test_notes_are_bounded_too() -> None:
    shown = text(view(result(notices=["n" * 1000] * 30)))
    assert shown == "\n".join([f"[note: {'n' * 500}…]"] * 10 + ["[20 more notes]"])


# --- bundles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bundle", "shown"),
    [
        ({"text/plain": "x**2", "text/latex": "$x^2$"}, "x**2"),
        ({"text/plain": "shape: (3, 2)\n…", "text/html": "<table>…</table>"}, "shape: (3, 2)\n…"),
        ({"text/plain": "<IPython.core.display.Markdown object>", "text/markdown": "# Hi"}, "# Hi"),
        ({"text/plain": "<a.B object at 0x7f00>", "text/latex": "$x$"}, "$x$"),
        ({"text/plain": "<a.B object>", "application/json": '{"a":1}'}, '{"a":1}'),
        ({"text/plain": "<a.B object>", "text/html": "<b>bold</b>"}, "[text/html, 11 bytes: shown to people]"),
        ({"text/plain": "<a.B object>"}, "<a.B object>"),
        ({"text/html": "<b/>"}, "[text/html, 4 bytes: shown to people]"),
        ({"text/plain": "graph", "image/svg+xml": "<svg/>"}, "graph\n[image/svg+xml, 6 bytes: shown to people]"),
        ({}, ""),
        ({"text/plain": "Figure", "image/png": png(640, 480)}, "[image/png 640 by 480, 57 bytes]"),
        ({"text/plain": "Figure", "image/png": "no base64!"}, "Figure"),
    ],
)
def test_a_bundle_in_words(bundle: dict[str, str], shown: str) -> None:
    assert lines_of(bundle) == shown


def test_displays_come_after_the_text_in_order_and_the_status_last() -> None:
    bundles = [
        {"text/plain": "first"},
        {"text/plain": "<Figure>", "image/png": png(3, 4)},
        {"text/plain": "second"},
    ]
    given = result(stdout="out\n", displays=bundles, result={"text/plain": "7"})
    assert view(given, MAIN) == [
        Text("out\nfirst"),
        Image("image/png", png(3, 4), 3, 4),
        Text("second\n7\n[cell 12 · ok · 1 figure]"),
    ]


def test_few_pictures_are_sent_none_too_large_and_the_others_are_named() -> None:
    displays = [
        {"text/plain": "wide", "image/png": png(1569, 10)},
        *({"text/plain": "f", "image/png": png(10, number)} for number in range(1, 6)),
    ]
    note = "[figure {} of cell 12: image/png {} by {}, 57 bytes, not shown here]"
    assert view(result(displays=displays), MAIN) == [
        Text(note.format(1, 1569, 10)),
        *(Image("image/png", png(10, number), 10, number) for number in range(1, 5)),
        Text(f"{note.format(6, 10, 5)}\n[cell 12 · ok · 6 figures]"),
    ]


def test_all_pictures_together_leave_room_in_a_megabyte() -> None:
    large = png(100, 100, more=300_000)
    size = len(base64.b64decode(large)) // 1000
    assert view(result(displays=[{"image/png": large}, {"image/png": png()}, {"image/png": large}]), MAIN) == [
        Image("image/png", large, 100, 100),
        Image("image/png", png(), 2, 1),
        Text(f"[figure 3 of cell 12: image/png 100 by 100, {size} kB, not shown here]\n[cell 12 · ok · 3 figures]"),
    ]


def test_a_picture_is_what_its_bytes_say() -> None:
    jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x00\x07\x00\x09" + b"\0" * 20
    webp = b"RIFF\0\0\0\0WEBPVP8X\0\0\0\0\0\0\0\0" + b"\x08\0\0" + b"\x06\0\0"
    cases = {
        "image/png": (base64.b64decode(png(9, 7)), (9, 7)),
        "image/jpeg": (jpeg, (9, 7)),
        "image/gif": (b"GIF89a\x09\x00\x07\x00" + b"\0" * 9, (9, 7)),
        "image/webp": (webp, (9, 7)),
    }
    for mime, (raw, (width, height)) in cases.items():
        found = picture(base64.encodebytes(raw).decode())
        assert found == (mime, base64.b64encode(raw).decode(), width, height)
        # Under another label it is still what it is.
        assert view(result(result={"image/png": base64.b64encode(raw).decode()}), MAIN)[0] == Image(mime, *found[1:])
    assert [picture(data) for data in ("", "AAAA", "é", png()[:-3], png(0, 5))] == [None] * 5


@settings(max_examples=150)
@given(st.binary(max_size=60), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF", b"GIF89a"]))
def test_any_bytes_are_a_picture_or_none(data: bytes, start: bytes) -> None:
    found = picture(base64.b64encode(start + data).decode())
    assert found is None or (found.width > 0 and found.height > 0)


# --- the budget --------------------------------------------------------------------------------------------


def test_head_and_tail_are_shown_with_the_call_that_reads_the_rest() -> None:
    lines = [f"line {number:05}" for number in range(1, 5001)]
    shown = text(view(result(stdout="\n".join(lines) + "\n"), MAIN)).split("\n")
    (at,) = [index for index, line in enumerate(shown) if line.startswith("…")]
    mark = re.fullmatch(r"… ([\d,]+) lines omitted: read_output\(cell=12, from_line=(\d+), grep=…\) …", shown[at])
    assert mark is not None
    omitted, first = int(mark[1].replace(",", "")), int(mark[2])
    assert shown[:at] + lines[first - 1 : first - 1 + omitted] + shown[at + 1 :] == lines
    head, tail = len("\n".join(shown[:at])), len("\n".join(shown[at + 1 :]))
    assert 3_400 < head <= 3_500
    assert 6_000 < tail <= 6_500
    assert len("\n".join(shown)) <= TEXT_LIMIT


def test_a_gap_in_the_result_is_part_of_what_is_omitted() -> None:
    """As the service gives it: head and tail joined, and where they belong."""
    lines = [f"line {number:05}" for number in range(1, 50_001)]
    raw = "\n".join(lines) + "\n"
    head, tail = raw[:3_005], raw[-4_007:]
    left = len(raw) - len(head) - len(tail)
    part = Excerpt(1, len(head), left, raw.count("\n") - head.count("\n") - tail.count("\n"))
    given = result(stdout=head + tail, excerpts={"stdout": part})
    given.notices = left_out_notices(given)
    assert len(given.notices) == 1
    shown = text(view(given, MAIN)).split("\n")
    # 273 lines and 2 characters of the next; and at the end 364 lines and 2 characters of the one before.
    mark = "… 49,363 lines omitted: read_output(cell=12, from_line=274, grep=…) …"
    assert shown == [*lines[:273], "li", mark, "36", *lines[-364:]]
    assert (lines[274 - 1], lines[274 - 1 + 49_363 - 1]) == ("line 00274", "line 49636")


def test_a_long_line_is_cut_inside_and_its_characters_are_counted() -> None:
    raw = "".join(str(number % 10) for number in range(100_000))
    head, mark, tail = text(view(result(stdout=raw + "\n"), MAIN)).split("\n")
    found = re.fullmatch(
        r"… ([\d,]+) characters of line 1 omitted: read_output\(cell=12, from_line=1, offset=(\d+)\) …", mark
    )
    assert found is not None
    count, offset = int(found[1].replace(",", "")), int(found[2])
    assert offset == len(head)
    assert head + raw[offset : offset + count] + tail == raw
    # The same with most of it not even in the result.
    part = Excerpt(1, 70_000, 99_800_000, 0)
    shown = text(view(result(stdout="x" * 200_000, excerpts={"stdout": part}), MAIN))
    head, mark, tail = shown.split("\n")
    assert mark == (
        f"… {100_000_000 - len(head) - len(tail):,} characters of line 1 omitted: "
        f"read_output(cell=12, from_line=1, offset={len(head)}) …"
    )


def test_text_since_an_event_keeps_the_numbers_of_its_lines() -> None:
    lines = "".join(f"line {number}\n" for number in range(501, 3001))
    shown = text(view(result("running", stdout=lines, excerpts={"stdout": Excerpt(501)}), MAIN))
    head = shown.partition("\n…")[0].split("\n")
    assert f"from_line={501 + len(head)}, grep=…" in shown


def test_an_error_is_never_lost_to_a_flood() -> None:
    traceback = "Traceback (most recent call last):\n" + "  frame\n" * 300 + "ValueError: the reason\n"
    flood = "".join(f"out {number}\n" for number in range(20_000))
    given = result("error", stdout=flood, stderr=flood, error=CellError("ValueError", "the reason", traceback))
    shown = text(view(given, MAIN))
    assert shown.endswith(f"{traceback}[cell 12 · error]")
    assert len(shown) <= TEXT_LIMIT
    # One that is longer than its share has its two ends, and the call for the middle.
    long = "Traceback (most recent call last):\n" + "".join(f"  frame {n}\n" for n in range(3000)) + "ValueError: why\n"
    given.error = CellError("ValueError", "why", long)
    shown = text(view(given, MAIN))
    assert "\nTraceback (most recent call last):\n  frame 0\n" in shown
    assert re.search(r'lines omitted: read_output\(cell=12, from_line=\d+, grep=…, stream="error"\) …', shown)
    assert shown.endswith("  frame 2999\nValueError: why\n[cell 12 · error]")
    assert len(shown) <= TEXT_LIMIT
    assert ERROR_CHARS * 0.9 < len(shown[shown.index("Traceback") :]) < ERROR_CHARS * 1.1


def test_of_what_is_very_long_only_the_ends_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = 0

    def counting(raw: str, line: int = 1) -> list[Row]:
        nonlocal looked_at
        looked_at += len(raw)
        return rows(raw, line)

    monkeypatch.setattr(model, "rows", counting)
    hostile = "\x1b[C\bx\n" * 100_000
    bundles = [{"text/plain": f"first of {n}\n{hostile}\nlast of {n}"} for n in range(10)]
    shown = text(view(result(displays=bundles), MAIN))
    assert looked_at <= MAX_PROCESSED_CHARS
    assert shown.startswith("first of 0\n")
    assert shown.endswith("\nlast of 9")
    long = {"text/plain": "begin\n" + "step\r" * 100_000 + "\nend"}
    assert text(view(result(displays=[long]), MAIN)) == (
        'begin\nstep\n… 400,010 characters omitted: read_output(cell=12, from_line=2, stream="displays") …\nstep\nend'
    )
    looked_at = 0
    given = result("error", error=CellError("E", "why", f"Traceback\n{hostile}E: why\n"))
    assert "E: why\n[cell 12 · error]" in text(view(given, MAIN))
    assert looked_at <= MAX_PROCESSED_CHARS
    # Lines keep their numbers behind what was passed over.
    numbered = "".join(f"{n}\n" for n in range(1, 60_001))
    shown = text(view(result(displays=[{"text/plain": numbered}]), MAIN))
    head = shown.partition("\n…")[0].split("\n")
    assert f"from_line={1 + len(head)}, grep=…" in shown
    assert f"… {60_000 - shown.count(chr(10))} lines omitted" in shown.replace(",", "")


def test_each_stream_has_its_share_and_names_itself() -> None:
    flood = "".join(f"row {number}\n" for number in range(20_000))
    value = {"text/plain": "\n".join(f"value {number}" for number in range(20_000))}
    shown = text(view(result(stdout="few\n", stderr=flood, result=value), MAIN))
    assert shown.startswith("few\n[stderr]\nrow 0\n")
    assert re.findall(r'grep=…(, stream="\w+")?', shown) == [', stream="stderr"', ', stream="result"']
    assert shown.endswith("value 19999")
    assert 9_000 < len(shown) <= TEXT_LIMIT


TEXTS = st.lists(st.text("ab \r\b", max_size=400) | st.just("x" * 3000) | st.just("same"), max_size=80).map("\n".join)


@settings(max_examples=150, deadline=None)
@given(
    stdout=TEXTS,
    stderr=TEXTS,
    value=TEXTS,
    error=st.none() | TEXTS,
    notices=st.lists(TEXTS, max_size=15),
    limit=st.sampled_from([6_000, 10_000]),
)
def test_no_result_is_longer_than_the_budget(
    stdout: str, stderr: str, value: str, error: str | None, notices: list[str], limit: int
) -> None:
    raised = None if error is None else CellError("E", "v", error)
    given = result("error", stdout=stdout, stderr=stderr, result={"text/plain": value}, error=raised, notices=notices)
    parts: list[Part] = view(given, MAIN, limit)
    assert len(text(parts)) <= max(limit, 10_000)
    assert all(isinstance(part, Text) and part.text for part in parts)


@settings(max_examples=250, deadline=None)
@given(
    lines=st.lists(st.text("ab", max_size=30) | st.text("cd", min_size=201, max_size=900), min_size=1, max_size=60),
    limit=st.integers(400, 3000),
    gap=st.none() | st.tuples(st.integers(0, 10_000), st.integers(1, 10_000)),
)
def test_what_is_shown_and_what_is_omitted_make_up_the_whole(
    lines: list[str], limit: int, gap: tuple[int, int] | None
) -> None:
    raw = "\n".join(lines)
    said: list[Omitted] = []
    if gap is None:
        given = passage(raw, fold=False)
    else:
        start = min(gap[0], len(raw))
        missing = raw[start : start + gap[1]]
        if not missing:
            return
        rest = raw[start + len(missing) :]
        given = passage(raw[:start] + rest, 1, (start, len(missing), missing.count("\n")), fold=False)

    mark = "…" * (MARK_CHARS - 1)

    def say(omitted: Omitted) -> str:
        said.append(omitted)
        return mark

    shown = cut(given, limit, say)
    assert sum(len(line) + 1 for line in shown) <= limit
    if not said:
        assert "\n".join(shown).rstrip("\n") == raw.rstrip("\n")
        return
    (omitted,) = said
    at = shown.index(mark)
    head, tail = shown[:at], shown[at + 1 :]
    first = omitted.from_line
    if omitted.lines:
        # Lines before and after are whole; of the first and the last one omitted some may be shown.
        last = first + omitted.lines - 1
        assert head[: first - 1] == lines[: first - 1]
        assert lines[first - 1].startswith("".join(head[first - 1 :]))
        after = lines[last:]
        while after and not after[-1]:
            after.pop()
        whole = tail[len(tail) - len(after) :] if after else []
        assert whole == after
        assert lines[last - 1].endswith("".join(tail[: len(tail) - len(after)]))
    else:
        line = lines[first - 1]
        assert omitted.offset is not None
        assert head == [*lines[: first - 1], *([line[: omitted.offset]] if omitted.offset else [])]
        assert tail[0] == line[omitted.offset + omitted.characters :]


def test_shares_are_fair() -> None:
    assert shares([10, 5000, 9000], 10_000) == [10, 4995, 4995]
    assert shares([10, 20], 100) == [10, 20]
    assert shares([100, 100, 100], 30) == [10, 10, 10]
    assert shares([], 100) == []


def test_an_empty_passage_is_nothing() -> None:
    assert cut(Passage([]), 100, str) == []
    assert cut(Passage([("a", 1)]), 100, str) == ["a"]


# --- words -------------------------------------------------------------------------------------------------


def test_times_and_sizes_in_words() -> None:
    seconds = [0.0, 0.123, 0.994, 0.996, 1.26, 59.94, 59.96, 125, 3600, 7325]
    words = [
        "0.00 s",
        "0.12 s",
        "0.99 s",
        "1.0 s",
        "1.3 s",
        "59.9 s",
        "1 min 0 s",
        "2 min 5 s",
        "1 h 0 min",
        "2 h 2 min",
    ]
    assert [duration(each) for each in seconds] == words
    sizes = [0, 999, 1000, 23_400, 999_499, 999_500, 2_345_678]
    assert [size(each) for each in sizes] == ["0 bytes", "999 bytes", "1 kB", "23 kB", "999 kB", "1.0 MB", "2.3 MB"]


# --- pages -------------------------------------------------------------------------------------------------


def page(lines: list[Line], next_line: int | None = None, matches: int | None = None) -> OutputPage:
    return OutputPage("main", 12, "stdout", lines, next_line, 99, matches)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (page([Line(3, "a"), Line(4, "b")]), "a\nb\n[cell 12 · stdout · lines 3 to 4 · the end]"),
        (page([Line(3, "a")], 4), "a\n[cell 12 · stdout · line 3 · more: read_output(cell=12, from_line=4)]"),
        (
            page([Line(2, "x", context=True), Line(3, "hit")], 77, 1),
            "2- x\n3: hit\n[cell 12 · stdout · lines 2 to 3 · more: read_output(cell=12, from_line=77, grep=…)]",
        ),
        (page([], None, 0), "[cell 12 · stdout · no match]"),
        (page([]), "[cell 12 · stdout · no more lines]"),
        (OutputPage("main", 12, "stdout", [], None, 1), "[cell 12 · stdout · no lines]"),
        (
            page([Line(1, "abc", 20, 5, 23)]),
            "abc\n… 5 more characters on line 1: read_output(cell=12, from_line=1, offset=23) …\n"
            "[cell 12 · stdout · line 1 · the end]",
        ),
    ],
)
def test_a_page_reads_well(given: OutputPage, shown: str) -> None:
    assert page_text(given, MAIN) == shown


def test_a_page_is_cut_to_the_budget_and_says_where_to_go_on() -> None:
    lines = [Line(number, "x" * 99) for number in range(1, 201)]
    shown = page_text(page(lines), MAIN).split("\n")
    assert shown == ["x" * 99] * 97 + ["[cell 12 · stdout · lines 1 to 97 · more: read_output(cell=12, from_line=98)]"]
    long = page_text(page([Line(1, "y" * 20_000, 100, 50, 20_100), Line(2, "z")]), MAIN).split("\n")
    assert long == [
        "y" * 9_700,
        "… 10,350 more characters on line 1: read_output(cell=12, from_line=1, offset=9800) …",
        "[cell 12 · stdout · line 1 · more: read_output(cell=12, from_line=2)]",
    ]
    assert len("\n".join(long)) <= TEXT_LIMIT
    # The number before a match is no part of the line.
    hit = page_text(page([Line(1, "y" * 20_000)], matches=1), MAIN).split("\n")
    assert hit == [
        "1: " + "y" * 9_697,
        "… 10,303 more characters on line 1: read_output(cell=12, from_line=1, offset=9697) …",
        "[cell 12 · stdout · line 1 · the end]",
    ]


# --- values beside a picture ---


PIXEL = {"text/plain": "<Figure size 1x1 with 0 Axes>", "image/png": png()}


@pytest.mark.parametrize(
    ("value", "dropped"),
    [
        ("[<matplotlib.lines.Line2D object at 0x7f00>]", True),
        ("<Axes: title={'center': 'T'}, xlabel='x'>", True),
        ("array([<Axes: >, <Axes: >], dtype=object)", True),
        ('Text(0.5, 1.0, "it\'s")', True),
        ("(<Figure size 640x480 with 1 Axes>, <Axes3D: >)", True),
        ("<BarContainer object of 3 artists>", True),
        ("(array([2., 1.]), <BarContainer object of 2 artists>)", False),
        ("[<matplotlib.lines.Line2D object at 0x7f00>, 5]", False),
        ("<Order 7: 3 items>", False),
        ("'<Axes: >'", False),
        ("Text(0.5, 1.0, 'a') + 1", False),
        ("[" + "<a object at 0x1>, " * 200 + "]", False),
    ],
)
def test_a_value_that_only_names_parts_of_the_picture_is_not_repeated(value: str, dropped: bool) -> None:
    shown = text(view(result(displays=[PIXEL], result={"text/plain": value}), MAIN))
    status = "[cell 12 · ok · 1 figure]"
    assert shown == (status if dropped else f"{value}\n{status}")
    # Without a picture it is all there is.
    assert text(view(result(result={"text/plain": value}), MAIN)) == value
