"""Timelines of durable sessions: the next server has all their events, and goes on counting."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import AnyEvent, Done, Stdout
from ingle.output import kept_timeline
from ingle.requests import Author
from ingle.service import Service
from ingle.settings import Settings
from support.server import Server
from support.service import make_settings
from support.waiting import wait_until

pytestmark = pytest.mark.req("state.restart")

SETTINGS = make_settings(preload=[], pool=1, exit_grace=20.0)

SHOW = """
from IPython.display import display, HTML
display(HTML("<b>shown</b>"))
print("printed")
6 * 7
"""


@pytest.fixture
def kept(apart: Path, mark: str) -> Path:
    """A data folder in which sessions stay."""
    return apart / "kept"


@asynccontextmanager
async def serving(home: Path, settings: Settings = SETTINGS) -> AsyncIterator[Service]:
    async with Service.local(settings, home, "serve") as service:
        yield service


async def events_until(service: Service, cell: int, first: int = 1) -> list[AnyEvent]:
    found = []
    async for event in service.events("s", first):
        found.append(event)
        if isinstance(event, Done) and event.cell == cell:
            break
    return found


async def test_cells_and_events_are_the_same_after_a_restart_and_numbers_go_on(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.sent_by("mcp", "agent").execute("s", SHOW)
        await first.execute("s", "1 / 0")
        before = await events_until(first, 2)
        results = [await first.wait("s", cell) for cell in (1, 2)]
        cells = await first.cells("s")
    async with serving(kept) as second:
        # Reading starts no process: the session is still hibernated.
        assert [await second.wait("s", cell) for cell in (1, 2)] == results
        assert await second.cells("s") == cells
        assert cells[0].author == Author("owner", "mcp", "agent")
        page = await second.read_output("s", 1, stream="stdout")
        assert [line.text for line in page.lines] == ["printed"]
        assert (await second.get_session("s")).state == "hibernated"
        await second.execute("s", "print('now')")
        after = await events_until(second, 3)
    numbers = [event.seq for event in after]
    assert after[: len(before)] == before
    assert numbers == list(range(1, len(numbers) + 1))
    async with serving(kept) as third:
        assert await events_until(third, 3) == after
        await third.end_session("s")
    assert not list(kept.glob("sessions/*/timeline*"))


async def test_forgotten_code_stays_forgotten(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "secret = 1")
        await first.clear_session("s")
        await first.execute("s", "2")
    async with serving(kept) as second:
        assert [cell.code for cell in await second.cells("s")] == ["", "2"]
        assert not [event for event in await events_until(second, 2) if "secret" in str(getattr(event, "code", ""))]


async def test_of_a_timeline_that_fills_its_share_of_the_disk_the_newest_part_stays(kept: Path) -> None:
    small = make_settings(preload=[], pool=1, exit_grace=20.0, timeline_disk=200_000)
    async with serving(kept, small) as first:
        await first.create_session("s", durable=True)
        for cell in range(1, 13):
            await first.execute("s", f"print('{cell} ' * 6_000)")
    async with serving(kept, small) as second:
        with pytest.raises(errors.CellForgotten):
            await second.wait("s", 1)
        assert (await second.wait("s", 12)).stdout == "12 " * 6_000 + "\n"
        assert [cell.cell for cell in await second.cells("s")][-2:] == [11, 12]
        assert (await second.execute("s", "print('d' * 60_000)")).stdout == "d" * 60_000 + "\n"


async def test_a_session_that_gets_another_name_has_it_in_its_old_events(kept: Path) -> None:
    for text in ("older", "newer"):
        async with Service.local(SETTINGS, kept, "serve") as server:
            if text == "newer":
                # Another server of the place has a session of the same name.
                await server.end_session("s")
            await server.create_session("s", durable=True)
            await server.execute("s", f"print({text!r})")
    (folder,) = kept.glob("sessions/durable.*")
    lines = [json.loads(line) for line in (folder / "timeline.ndjson").read_bytes().splitlines()]
    text = b"".join(json.dumps({**line, "session_id": "x"}, separators=(",", ":")).encode() + b"\n" for line in lines)
    (folder / "timeline.ndjson").write_bytes(text)
    async with serving(kept) as server:
        assert {event.session_id for event in await events_until(server, 1)} == {"s"}
        assert (await server.wait("s", 1)).session_id == "s"


def test_a_killed_server_loses_no_written_event_and_no_number_comes_twice(kept: Path) -> None:
    first = Server(kept)
    try:
        first.make_session(durable=True)
        first.execute("print('before')")
        seen = first.cell(1)["next_event"]
        first.client.post("/v1/sessions/main/execute", json={"code": "print('begun'); input()", "wait": 1})
        assert wait_until(lambda: any(b"begun" in each.read_bytes() for each in kept.rglob("timeline.ndjson")))
    finally:
        first.process.send_signal(signal.SIGKILL)
        first.stop()
    second = Server(kept)
    try:
        assert second.cell(1)["stdout"] == "before\n"
        killed = second.cell(2)
        assert (killed["status"], killed["stdout"]) == ("exit", "begun\n")
        assert killed["exit"]["message"] == "the server was killed while the cell ran"
        assert killed["next_event"] > seen + 1000
        third = second.execute("print('after')")
        assert (third["cell"], third["stdout"]) == (3, "after\n")
        assert second.cell(3, **{"from": killed["next_event"]})["stdout"] == "after\n"
        second.client.delete("/v1/sessions/main")
    finally:
        second.stop()


@pytest.mark.parametrize("damage", [b'{"type":"stdout","seq":3,"ti', b"\x00" * 100, b'{"seq":1}\n'])
def test_a_file_is_read_up_to_its_last_whole_line(tmp_path: Path, damage: bytes) -> None:
    path = str(tmp_path / "timeline.ndjson")
    lines = [
        b'{"type":"state","seq":1,"time":0.0,"session_id":"s","cell":1,"state":"running","code":"1"}\n',
        b'{"type":"stdout","seq":2,"time":0.0,"session_id":"s","cell":1,"text":"x"}\n',
    ]
    Path(path).write_bytes(b"".join(lines) + damage)
    found = kept_timeline.find(path, 1_000_000)
    assert (found.last, found.size, found.complete) == (2, sum(map(len, lines)), False)
    assert (found.first_events.tolist(), found.done_events.tolist()) == ([1], [0])
    assert Path(path).read_bytes() == b"".join(lines)
    kept_timeline.write_index(path, found)
    again = kept_timeline.find(path, 1_000_000)
    assert (again.last, again.size, again.complete) == (found.last, found.size, True)
    assert (again.firsts, again.starts, again.first_events) == (found.firsts, found.starts, found.first_events)


def test_an_index_of_another_file_is_not_believed(tmp_path: Path) -> None:
    path = str(tmp_path / "timeline.ndjson")
    Path(path).write_bytes(b'{"type":"notice","seq":7,"time":0.0,"session_id":"s","cell":null,"text":"x"}\n')
    kept_timeline.write_index(path, kept_timeline.Found(last=9, size=9, complete=True))
    assert kept_timeline.find(path, 1_000_000).last == 7


async def test_events_of_a_timeline_with_a_gap_are_followed_over_it(kept: Path) -> None:
    async with serving(kept) as first:
        await first.create_session("s", durable=True)
        await first.execute("s", "print('one')")
    (index,) = kept.glob("sessions/*/timeline.ndjson.index")
    index.unlink()
    async with serving(kept) as second:
        await second.execute("s", "print('two')")
        found = await events_until(second, 2)
        gap = next(event.seq for event in found if event.cell is None and event.seq > 1000)
        assert [event.text for event in found if isinstance(event, Stdout)] == ["one\n", "two\n"]
        assert await events_until(second, 2, gap - 500) == [event for event in found if event.seq >= gap]
    async with serving(kept) as third:
        assert await events_until(third, 2) == found
