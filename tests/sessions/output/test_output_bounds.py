"""Bounds of output: memory stays small, answers stay short, and all the rest can still be read."""

import asyncio
import os
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Done, Excerpt, Stdout
from ingle.output.pages import Line
from ingle.service import Service
from ingle.settings import Settings
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("out.bounded")]

LIMIT = 10_000
HEAD, TAIL = 3_500, 6_500


@pytest.fixture
def settings() -> Settings:
    return make_settings(preload=[], pool=1, timeline_memory=100_000, result_chars=LIMIT)


def shortened(text: str) -> tuple[str, int]:
    """Head and tail of a text as an answer carries them, and how much is left out."""
    return text[:HEAD] + text[-TAIL:], len(text) - LIMIT


def timeline_files(home: Path) -> list[Path]:
    return list((home / "sessions").glob("*/timeline.ndjson"))


# --- the answer ---


async def test_an_answer_carries_head_and_tail_what_was_left_out_and_how_to_read_it(
    service: Service, run, home: Path
) -> None:
    whole = "".join(f"line {i} é\n" for i in range(60_000))
    result = await run("for i in range(60_000): print(f'line {i} é\\n', end='')")
    text, left_out = shortened(whole)
    assert (result.status, result.stdout, result.truncated.stdout) == ("ok", text, left_out)
    assert (result.stderr, result.truncated.stderr) == ("", 0)
    # Where the gap is, in characters and in lines.
    lines_left_out = whole[HEAD : HEAD + left_out].count("\n")
    assert result.excerpts == {"stdout": Excerpt(1, HEAD, left_out, lines_left_out)}
    assert result.notices == [
        f"{left_out} characters of stdout were left out after the first {HEAD}; "
        "read them by line number or by grep in the output of cell 1"
    ]
    # Read again, it is the same; and what memory does not hold is in the session's folder.
    again = await service.wait("s", 1)
    assert (again.stdout, again.truncated, again.notices) == (result.stdout, result.truncated, result.notices)
    (file,) = timeline_files(home)
    assert file.stat().st_size > len(whole) - 2 * service.settings.timeline_memory
    # The next cell is its own.
    result = await run("print('short')")
    assert (result.stdout, result.truncated.stdout, result.notices) == ("short\n", 0, [])


async def test_each_stream_is_shortened_by_itself(run) -> None:
    result = await run("import sys\nprint('o' * 20_000)\nprint('few', file=sys.stderr)")
    assert (result.stdout, result.truncated.stdout) == shortened("o" * 20_000 + "\n")
    assert (result.stderr, result.truncated.stderr) == ("few\n", 0)
    result = await run("print('few')\nprint('e' * 20_000, file=sys.stderr)")
    assert (result.stdout, result.truncated.stdout) == ("few\n", 0)
    assert (result.stderr, result.truncated.stderr) == shortened("e" * 20_000 + "\n")


@pytest.mark.parametrize(("size", "left_out"), [(LIMIT - 1, 0), (LIMIT, 0), (LIMIT + 1, 1)])
async def test_an_answer_is_shortened_only_above_the_limit(run, size: int, left_out: int) -> None:
    result = await run(f"print(('0123456789' * 1001)[:{size}], end='')")
    whole = ("0123456789" * 1001)[:size]
    assert (result.stdout, result.truncated.stdout) == (shortened(whole) if left_out else (whole, 0))
    assert result.truncated.stdout == left_out


async def test_head_and_tail_are_right_where_the_tail_is_partly_on_disk(service: Service, run) -> None:
    # Turning from stream to stream makes many small events: a few hundred fit in memory, the tail needs thousands.
    code = "import sys\nfor i in range(4000):\n    sys.stdout.write(f'o{i:06};'); sys.stderr.write(f'e{i:06};')"
    for _ in range(3):
        result = await run(code)
        assert (result.stdout, result.truncated.stdout) == shortened("".join(f"o{i:06};" for i in range(4000)))
        assert (result.stderr, result.truncated.stderr) == shortened("".join(f"e{i:06};" for i in range(4000)))


async def test_a_running_cell_is_shown_in_bounds_too(service: Service, run, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nprint('x' * 500_000)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.002)"
    cell = await service.begin("s", code)
    seen = 0
    async for event in service.events("s"):
        seen += len(getattr(event, "text", ""))
        if seen == 500_001:
            break
    result = await service.wait("s", cell, wait=0)
    assert (result.status, (result.stdout, result.truncated.stdout)) == ("running", shortened("x" * 500_000 + "\n"))
    go.touch()
    assert (await service.wait("s", cell)).status == "ok"


async def test_text_since_an_event_is_read_from_disk_as_well(service: Service, run) -> None:
    await run("for i in range(3000): print(f'{i:09}\\n', end='')")
    some = [event async for event in _first_events(service, 12)]
    start = some[-1].seq
    before = sum(len(event.text) for event in some[:-1] if hasattr(event, "text"))
    whole = "".join(f"{i:09}\n" for i in range(3000))[before:]
    result = await service.wait("s", 1, from_event=start)
    assert (result.stdout, result.truncated.stdout) == (shortened(whole) if len(whole) > LIMIT else (whole, 0))
    before_lines = 3000 - whole.count("\n")
    part = result.excerpts["stdout"]
    assert (part.first_line, part.left_out) == (before_lines + 1, max(0, len(whole) - LIMIT))
    assert part.left_out_lines == (whole[HEAD : HEAD + part.left_out].count("\n") if part.left_out else 0)


async def _first_events(service: Service, count: int):
    async for event in service.events("s"):
        yield event
        if event.seq == count or type(event).__name__ == "Done":
            return


# --- reading the rest ---


async def test_left_out_lines_are_read_by_number(service: Service, run) -> None:
    await run("import sys\nfor i in range(1, 40_001): print(f'row {i}\\n', end='')\nprint('err', file=sys.stderr)")
    page = await service.read_output("s", 1, from_line=20_000, lines=3)
    assert (page.session_id, page.cell, page.stream, page.next_line) == ("s", 1, "stdout", 20_003)
    assert page.lines == [Line(number, f"row {number}") for number in (20_000, 20_001, 20_002)]
    page = await service.read_output("s", 1, from_line=39_999)
    assert (page.lines, page.next_line) == ([Line(39_999, "row 39999"), Line(40_000, "row 40000")], None)
    page = await service.read_output("s", 1, from_line=50_000)
    assert (page.lines, page.next_line) == ([], None)
    page = await service.read_output("s", 1, stream="stderr")
    assert (page.lines, page.next_line) == ([Line(1, "err")], None)
    # Page after page, everything is there.
    numbers, line = [], 1
    while line is not None:
        page = await service.read_output("s", 1, from_line=line, lines=9_000)
        numbers += [each.number for each in page.lines]
        line = page.next_line
    assert numbers == list(range(1, 40_001))


async def test_left_out_lines_are_found_by_grep(service: Service, run) -> None:
    await run("for i in range(1, 40_001): print(f'row {i} {\"odd\" if i % 2 else \"even\"}\\n', end='')")
    page = await service.read_output("s", 1, grep=r"^row \d+777 odd$", lines=3)
    assert page.lines == [Line(n, f"row {n} odd") for n in (1777, 2777, 3777)]
    assert page.next_line == 4777
    page = await service.read_output("s", 1, grep=r"^row \d+777 odd$", from_line=page.next_line, lines=100)
    assert [line.number for line in page.lines] == list(range(4777, 40_000, 1000))
    assert page.next_line is None
    assert (await service.read_output("s", 1, grep="not there")).lines == []


async def test_reading_goes_on_while_the_cell_runs(service: Service, run, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nprint('a\\nb')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.002)\nprint('c')"
    await service.begin("s", code)
    async for event in service.events("s"):
        if "b\n" in getattr(event, "text", "") or getattr(event, "text", "") == "\n":
            break
    page = await service.read_output("s", 1)
    assert (page.lines, page.next_line) == ([Line(1, "a"), Line(2, "b")], None)
    go.touch()
    await service.wait("s", 1)
    assert (await service.read_output("s", 1, from_line=3)).lines == [Line(3, "c")]


async def test_a_line_of_a_megabyte_is_cut_and_says_so(service: Service, run) -> None:
    await run("print('y' * 1_000_000)\nprint('next')")
    page = await service.read_output("s", 1)
    assert page.lines == [Line(1, "y" * 20_000, left=980_000, next_offset=20_000), Line(2, "next")]


@pytest.mark.parametrize(
    "options", [{"grep": "("}, {"stream": "stdin"}, {"lines": 0}, {"lines": -1}, {"from_line": 0}, {"from_line": -5}]
)
async def test_a_wrong_question_is_refused_with_a_reason(service: Service, run, options: dict[str, object]) -> None:
    await run("print('a')")
    with pytest.raises(errors.InvalidRequest, match=next(iter(options))):
        await service.read_output("s", 1, **options)
    with pytest.raises(errors.CellNotFound):
        await service.read_output("s", 2)


# --- the disk's share ---


class TestDiskShare:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, timeline_memory=50_000, timeline_disk=300_000, result_chars=LIMIT)

    async def test_past_its_share_of_the_disk_text_is_dropped_counted_and_said(
        self, service: Service, run, home: Path
    ) -> None:
        total = 3_000_000
        result = await run("import os\nfor i in range(3000): os.write(1, b'%0999d\\n' % i)")
        kept = LIMIT + result.truncated.stdout
        assert (result.status, result.stdout[:HEAD]) == ("ok", "".join(f"{i:0999}\n" for i in range(4))[:HEAD])
        assert 200_000 < kept < 600_000
        why = "this session's share of the disk for output is used up"
        assert result.notices[0] == f"{total - kept} characters of output were not kept: {why}"
        (file,) = timeline_files(home)
        assert file.stat().st_size < 600_000
        # The session itself is as good as before.
        result = await run("x = 20 + 22\nx")
        assert (result.status, result.result) == ("ok", {"text/plain": "42"})
        result = await run("print('still heard')")
        assert (result.stdout, result.notices) == ("still heard\n", [])

    async def test_one_sessions_share_is_not_anothers(self, service: Service, run) -> None:
        await run("print('x' * 3_000_000)")
        await service.create_session("other")
        result = await service.execute("other", "print('heard')")
        assert (result.stdout, result.notices) == ("heard\n", [])


# --- a flood ---


def resident() -> int:
    """Bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class TestFlood:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1)

    async def test_a_flood_of_output_neither_kills_nor_stalls_nor_fills_the_memory(self, service: Service) -> None:
        limit = service.settings.result_chars
        await service.create_session("s")
        await service.create_session("neighbour")
        # A line has its number and 1013 more characters: four times what may stay in memory, in pieces of 1 MiB.
        code = """
import os
pad = b"." * 1013 + b"\\n"
for piece in range(300):
    data = b"".join(b"%010d" % (piece * 1024 + i) + pad for i in range(1024))
    while data: data = data[os.write(1, data):]
"""
        lines = 300 * 1024
        before = resident()
        cell = await service.begin("s", code)
        most, answers = before, 0
        while (result := await service.wait("s", cell, wait=0)).status == "running":
            # Between two looks at the flood the neighbour has run a cell: they interleave.
            other = await service.execute("neighbour", "n = globals().get('n', 0) + 1\nn", wait=30)
            assert (other.status, other.result) == ("ok", {"text/plain": str(answers + 1)})
            assert len(result.stdout) <= limit
            answers += 1
            most = max(most, resident())
            await asyncio.sleep(0.01)
        assert answers > 3
        assert most - before < 75 * 1024 * 1024, f"{(most - before) / 2**20:.0f} MiB"
        whole = lines * 1024
        assert (result.status, result.truncated.stdout) == ("ok", whole - limit)
        head = "".join(f"{i:010}{'.' * 1013}\n" for i in range(limit // 1024))
        tail = "".join(f"{i:010}{'.' * 1013}\n" for i in range(lines - limit // 1024, lines))
        head_size = int(limit * 0.35)
        assert result.stdout == head[:head_size] + tail[-(limit - head_size) :]
        page = await service.read_output("s", cell, from_line=100_000, lines=1)
        assert [(line.number, line.text[:11]) for line in page.lines] == [(100_000, "0000099999.")]
        page = await service.read_output("s", cell, grep="^0000200000", lines=1, from_line=200_000)
        assert [line.number for line in page.lines] == [200_001]
        assert resident() - before < 75 * 1024 * 1024
        # The session is ready for more.
        assert (await service.execute("s", "print('on')")).stdout == "on\n"

    async def test_what_a_thread_pours_out_in_the_background_is_bounded_and_kept_too(self, service: Service) -> None:
        await service.create_session("s")
        code = """
import threading
def pour():
    for piece in range(100):
        print(f"{piece:03}" + "." * (2**20 - 4))
thread = threading.Thread(target=pour)
thread.start()
"""
        before = most = resident()
        assert (await service.execute("s", code)).status == "ok"
        cell = await service.begin("s", "thread.join()")
        texts: list[str] = []
        async for event in service.events("s"):
            if isinstance(event, Stdout):
                texts.append(event.text.replace("." * 1000, ""))
            elif isinstance(event, Done) and event.cell == cell:
                break
            most = max(most, resident())
        assert [line[:3] for line in "".join(texts).splitlines()] == [f"{piece:03}" for piece in range(100)]
        assert most - before < 80 * 1024 * 1024, f"{(most - before) / 2**20:.0f} MiB"
        assert (await service.wait("s", cell)).stdout == ""


async def test_a_pattern_that_never_ends_is_refused_and_stalls_nobody(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingle.output.safe_regex.BATCH_TIMEOUT_SECONDS", 0.3)
    await service.create_session("s")
    await service.create_session("other")
    await service.execute("s", "print('a' * 40 + 'b')")
    searching = asyncio.ensure_future(service.read_output("s", 1, grep="(a+)+$"))
    answers = 0
    while not searching.done():
        assert (await service.execute("other", "1 + 1")).result == {"text/plain": "2"}
        answers += 1
    with pytest.raises(errors.InvalidRequest, match="simpler pattern"):
        await searching
    assert answers > 1
