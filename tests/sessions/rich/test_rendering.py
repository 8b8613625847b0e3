"""Real cells as a model sees them: progress that folds, floods that stay short, and pointers that lead somewhere."""

import asyncio
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ingle.events import Line
from ingle.output.pages import MAX_LINES
from ingle.render.model import TEXT_LIMIT, Hints, text, view
from ingle.render.page import page_text
from ingle.service import Service
from sessions.output.test_output_bounds import resident
from support.service import make_settings

MAIN = Hints(default_session="s")


async def seen(service: Service, code: str) -> str:
    return text(view(await service.execute("s", code), MAIN))


@pytest.fixture
async def session(service: Service) -> str:
    await service.create_session("s")
    return "s"


# --- progress ----------------------------------------------------------------------------------------------


@pytest.mark.req("out.clean")
async def test_a_progress_bar_of_200_steps_is_one_short_line(service: Service, session: str) -> None:
    code = "from tqdm import tqdm\nfor i in tqdm(range(200), mininterval=0): pass"
    shown = await seen(service, code)
    assert re.fullmatch(r"\[stderr\]\n100%\|█+\| 200/200 \[00:00<00:00, +[\d.]+it/s\]", shown)
    assert len(shown) < 100
    # All of it is still there.
    page = await service.read_output("s", 1, stream="stderr", raw=True)
    assert len(page.lines) == 1
    assert page.lines[0].text.count("\r") >= 200


@pytest.mark.req("out.clean")
async def test_nested_progress_bars_fold_too(service: Service, session: str) -> None:
    code = """
from tqdm import tqdm
for i in tqdm(range(3), desc="outer", mininterval=0, ncols=30, bar_format="{desc} {n}/{total}"):
    for j in tqdm(range(50), desc="inner", leave=False, mininterval=0, ncols=30, bar_format="{desc} {n}/{total}"): pass
print("done")
"""
    assert await seen(service, code) == "done\n[stderr]\nouter 3/3"


@pytest.mark.req("out.clean")
async def test_colour_and_repetition_are_gone_and_readable_on_request(service: Service, session: str) -> None:
    code = r"for i in range(500): print('\x1b[33mwarning: again\x1b[0m')" + "\nprint('end')"
    assert await seen(service, code) == "warning: again\n… 499 more of the same line …\nend"
    page = await service.read_output("s", 1, from_line=500, raw=True)
    assert page.lines == [Line(500, "\x1b[33mwarning: again\x1b[0m"), Line(501, "end")]


@pytest.mark.req("out.clean")
async def test_what_is_shown_of_a_running_cell_goes_on_where_it_was(service: Service, session: str) -> None:
    """With `from_event` only the new text, its lines numbered on."""
    await service.execute("s", "for i in range(1, 3001): print('first', i)\nx = input()")
    before = await service.wait("s", 1, wait=0)
    after = await service.input("s", "go")
    assert after.status == "ok"
    await service.execute(
        "s", "for i in range(1, 11): print('first', i)\nx = input()\nfor i in range(11, 5001): print('row', i)"
    )
    waiting = await service.wait("s", 2, wait=0)
    await service.input("s", "go")
    rest = await service.wait("s", 2, from_event=waiting.next_event)
    shown = text(view(rest, MAIN)).split("\n")
    assert before.status == waiting.status == "waiting_for_input"
    (at,) = [index for index, line in enumerate(shown) if line.startswith("…")]
    first = int(re.search(r"from_line=(\d+)", shown[at])[1])
    assert shown[0] == "row 11"
    page = await service.read_output("s", 2, from_line=first, lines=1)
    assert page.lines == [Line(first, f"row {first}")]
    assert shown[at - 1] == f"row {first - 1}"


# --- a flood -----------------------------------------------------------------------------------------------


async def read_a_flood(service: Service, megabytes: int) -> None:
    """Output of so many MiB is shown short, and every pointer, number and pattern leads to the right lines."""
    # A line has its number and 117 more characters.
    lines, width = megabytes * 8192, 128
    code = f"""
import os
pad = b"." * {width - 11} + b"\\n"
for start in range(0, {lines}, 8192):
    data = b"".join(b"%010d" % i + pad for i in range(start + 1, start + 8193))
    while data: data = data[os.write(1, data):]
"""

    def line(number: int) -> str:
        return f"{number:010}" + "." * (width - 11)

    result = await service.execute("s", code, wait=600)
    assert result.status == "ok"
    shown = text(view(result, MAIN))
    assert len(shown) < TEXT_LIMIT
    head, mark, tail = re.split(r"\n(…[^\n]*…)\n", re.sub(r"\n\[cell 1 · ok · [^\n]*\]$", "", shown))
    found = re.fullmatch(r"… ([\d,]+) lines omitted: read_output\(cell=1, from_line=(\d+), grep=…\) …", mark)
    omitted, first = int(found[1].replace(",", "")), int(found[2])
    assert head == "\n".join(map(line, range(1, first)))
    assert tail == "\n".join(map(line, range(first + omitted, lines + 1)))

    # Reading on from there, by pattern, from the end; memory and the neighbours do not notice.
    await service.create_session("neighbour")
    before = most = resident()
    worst = 0.0
    stop = False

    async def watch() -> None:
        nonlocal most, worst
        while not stop:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            worst = max(worst, time.perf_counter() - began)
            most = max(most, resident())

    watching = asyncio.ensure_future(watch())
    page = await service.read_output("s", 1, from_line=first, lines=2)
    assert page.lines == [Line(first, line(first)), Line(first + 1, line(first + 1))]
    assert page_text(page, MAIN).endswith(f"more: read_output(cell=1, from_line={first + 2})]")
    page = await service.read_output("s", 1, from_line=first + omitted - 1, lines=2)
    assert page.lines == [Line(number, line(number)) for number in (first + omitted - 1, first + omitted)]
    seconds = {}
    middle = lines // 2000 * 1000
    for grep, wanted in (
        (f"{middle:010}", [middle]),
        (f"^{middle:010}", [middle]),
        (rf"^{middle // 100:08}\d7\.+$", [middle + 7 + 10 * tens for tens in range(10)]),
    ):
        began = time.perf_counter()
        answers = 0
        searching = asyncio.ensure_future(service.read_output("s", 1, grep=grep, lines=MAX_LINES))
        while not searching.done():
            assert (await service.execute("neighbour", "1 + 1")).result == {"text/plain": "2"}
            answers += 1
        page = await searching
        seconds[grep] = time.perf_counter() - began
        assert page.lines == [Line(number, line(number)) for number in wanted]
        assert (page.next_line, page.matches) == (None, len(wanted))
        assert answers > 5
    stop = True
    await watching
    print(f"grep: {seconds}; memory +{(most - before) / 2**20:.1f} MiB; loop held up for {worst * 1000:.0f} ms")
    assert most - before < 50 * 2**20, f"{(most - before) / 2**20:.0f} MiB"


async def flood_alone(home: str) -> None:
    async with Service.local(make_settings(preload=[], pool=1), Path(home)) as service:
        await service.create_session("s")
        await read_a_flood(service, 100)


@pytest.mark.req("out.clean", "out.bounded")
def test_a_flood_reads_in_ten_thousand_characters_with_pointers_that_work(mark: str, home: Path) -> None:
    """In a process of its own: one that ran other tests takes memory in larger blocks. Soak tests do it in full."""
    code = f"import asyncio\nfrom {__name__} import flood_alone\nasyncio.run(flood_alone({str(home)!r}))"
    path = os.pathsep.join(each for each in sys.path if each)
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
