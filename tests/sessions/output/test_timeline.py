"""The timeline keeps every event, in bounded memory, for any number of readers, and never raises at who appends."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.events import (
    AnyEvent,
    CellError,
    Done,
    ErrorRaised,
    Notice,
    Result,
    ResultShown,
    StateChanged,
    Stderr,
    Stdout,
    Truncated,
)
from ingle.output.disk_log import DiskLog
from ingle.output.timeline import READ_AT_ONCE, Timeline, cost
from ingle.service import Service
from ingle.settings import Settings
from support.service import make_settings
from support.waiting import until

SMALL = 20_000
"""Memory of a timeline that has to spill early."""

MUCH = 1 << 40


class Kept(Timeline):
    """A timeline in a folder of its own, with a count of how often it said that there is room."""

    def __init__(self, path: Path, memory: int = SMALL, disk: int = MUCH) -> None:
        self.rooms = 0
        super().__init__(path, memory, disk, self._count)

    def _count(self) -> None:
        self.rooms += 1

    def out(self, text: str, kind: type[Stdout] | type[Stderr] = Stdout, background: bool = False) -> AnyEvent:
        event = kind(seq=self.next_seq, time=0.5, session_id="s", cell=1, text=text, background=background)
        self.append(event)
        return event

    @property
    def memory(self) -> int:
        """What the events that are not on disk weigh."""
        return sum(map(cost, self._events))

    async def settle(self) -> None:
        """Until nothing is being written to disk."""
        assert await until(lambda: self._writing is None)


def with_timeline(use: Callable[[Kept], Awaitable[None]], memory: int = SMALL) -> None:
    """For hypothesis: a loop, a folder and a timeline for each example."""

    async def run() -> None:
        with TemporaryDirectory() as folder:
            timeline = Kept(Path(folder) / "sub" / "timeline.ndjson", memory)
            await use(timeline)
            await timeline.close()

    asyncio.run(run())


@pytest.fixture
def timeline(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "sub" / "timeline.ndjson")


async def read_all(timeline: Timeline, first: int = 1) -> list[AnyEvent]:
    """Everything from a number on, as a reader gets it: some at a time."""
    found: list[AnyEvent] = []
    while first < timeline.next_seq:
        some = await timeline.read(first, timeline.next_seq - 1)
        assert 0 < len(some) <= READ_AT_ONCE
        found += some
        first = some[-1].seq + 1
    return found


# --- memory ------------------------------------------------------------------------------------------------


async def test_memory_stays_bounded_when_the_appender_stops_while_it_is_full(timeline: Kept) -> None:
    most = 0
    for number in range(3000):
        timeline.out(f"{number} " * 30)
        most = max(most, timeline.memory)
        while timeline.full:
            await asyncio.sleep(0)
    await timeline.settle()
    assert most <= 2 * SMALL + 1000
    assert timeline.memory <= SMALL
    assert [event.seq for event in await read_all(timeline)] == list(range(1, 3001))
    assert timeline.rooms > 0
    assert timeline.broken is None
    await timeline.close()


def stamped(timeline: Kept, kind: Any, **values: Any) -> AnyEvent:
    event: AnyEvent = kind(seq=timeline.next_seq, time=0.5, session_id="s", cell=1, **values)
    return event


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (StateChanged, {"state": "running", "code": "x" * 5000}),
        (ResultShown, {"data": {"text/plain": "x" * 5000}}),
        (ErrorRaised, {"name": "E", "value": "x" * 2500, "traceback": "x" * 2500}),
        (Notice, {"text": "x" * 5000}),
        (
            Done,
            {
                "result": Result(
                    "s", 1, "error", result={"text/plain": "x" * 2500}, error=CellError("E", "", "x" * 2500)
                ),
                "characters": Truncated(),
            },
        ),
    ],
)
async def test_large_events_of_every_kind_count(timeline: Kept, kind: Any, values: Any) -> None:
    for _ in range(50):
        timeline.append(stamped(timeline, kind, **values))
    await timeline.settle()
    in_memory = sum(timeline.in_memory(seq, seq) is not None for seq in range(1, timeline.next_seq))
    assert in_memory * 5000 <= SMALL
    assert len(await read_all(timeline)) == 50
    await timeline.close()


async def test_few_events_never_touch_the_disk(timeline: Kept, tmp_path: Path) -> None:
    for _ in range(10):
        timeline.out("text\n")
    await timeline.settle()
    await timeline.close()
    assert list(tmp_path.iterdir()) == []


async def test_the_file_is_for_its_owner_only(timeline: Kept, tmp_path: Path) -> None:
    for _ in range(100):
        timeline.out("x" * 1000)
    await timeline.settle()
    (folder,) = tmp_path.iterdir()
    (file,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    await timeline.close()


async def test_a_used_up_share_of_the_disk_is_told(tmp_path: Path) -> None:
    timeline = Kept(tmp_path / "timeline.ndjson", SMALL, disk=50_000)
    while not timeline.exhausted:
        timeline.out("x" * 1000)
        while timeline.full:
            await asyncio.sleep(0)
        assert timeline.next_seq < 1000
    assert timeline.broken is None
    assert [event.seq for event in await read_all(timeline)] == list(range(1, timeline.next_seq))
    await timeline.close()


# --- reading -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=80),
    spans=st.lists(st.tuples(st.integers(-3, 90), st.integers(-3, 90)), max_size=20),
    settled=st.booleans(),
)
def test_any_span_can_be_read_on_either_side_of_the_border(
    sizes: list[int], spans: list[tuple[int, int]], settled: bool
) -> None:
    async def use(timeline: Kept) -> None:
        events = []
        for size in sizes:
            events.append(timeline.out("x" * size))
            if not settled:
                await asyncio.sleep(0)
        if settled:
            await timeline.settle()
        for first, last in spans:
            found = await timeline.read(first, last)
            expected = events[max(first, 1) - 1 : max(last, 0)][:READ_AT_ONCE]
            assert found == expected[: len(found)]
            assert bool(found) == bool(expected)
            if 1 <= first <= last:
                held = timeline.in_memory(first, last)
                assert held is None or held == events[first - 1 : last]
        assert await read_all(timeline) == events

    with_timeline(use)


async def test_readers_see_everything_while_it_is_being_spilled(timeline: Kept) -> None:
    events: list[AnyEvent] = []
    borders: set[bool] = set()
    ended = False

    async def reader(first: int) -> None:
        while not ended:
            known = len(events)
            found = await read_all(timeline, first)
            borders.add(timeline.in_memory(first, first) is None)
            assert found[: max(0, known - first + 1)] == events[first - 1 : known]
            await asyncio.sleep(0)

    readers = [asyncio.create_task(reader(first)) for first in (1, 7, 100, 300)]
    while len(events) < 600 or borders != {False, True}:
        events.append(timeline.out(f"{len(events)}" * 100))
        await asyncio.sleep(0)
        while timeline.full:
            await asyncio.sleep(0)
    ended = True
    await asyncio.gather(*readers)
    assert await read_all(timeline) == events
    await timeline.close()


# --- following ---------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.sampled_from(["write", "write", "write", "pause", "follow"]), min_size=5, max_size=120),
    starts=st.lists(st.integers(-1, 60), min_size=1, max_size=5),
    slow=st.booleans(),
)
def test_each_follower_gets_everything_once_and_in_order(steps: list[str], starts: list[int], slow: bool) -> None:
    async def use(timeline: Kept) -> None:
        events: list[AnyEvent] = []
        followers: list[tuple[int, asyncio.Task[list[AnyEvent]]]] = []

        async def follower(first: int) -> list[AnyEvent]:
            got = []
            async for event in timeline.follow(first):
                got.append(event)
                if slow:
                    await asyncio.sleep(0)
            return got

        def start() -> None:
            first = starts[len(followers) % len(starts)]
            followers.append((first, asyncio.create_task(follower(first))))

        for step in steps:
            if step == "write":
                events.append(timeline.out("x" * 700))
            elif step == "pause":
                await asyncio.sleep(0.001)
            else:
                start()
        start()
        await asyncio.sleep(0)
        await timeline.close()
        for first, task in followers:
            assert await task == events[max(first, 1) - 1 :]

    with_timeline(use, memory=3000)


async def test_a_follower_waits_for_what_is_to_come(timeline: Kept) -> None:
    follower = timeline.follow(3)
    for text in ("one", "two"):
        timeline.out(text)
    waiting = asyncio.ensure_future(anext(follower))
    await asyncio.sleep(0)
    assert not waiting.done()
    third = timeline.out("three")
    assert await waiting == third
    await timeline.close()
    with pytest.raises(StopAsyncIteration):
        await anext(follower)


async def test_a_follower_that_left_disturbs_nobody(timeline: Kept) -> None:
    leaving = asyncio.ensure_future(anext(timeline.follow(1)))
    staying = asyncio.ensure_future(anext(timeline.follow(1)))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.wait({leaving})
    event = timeline.out("text")
    assert await staying == event
    await timeline.close()


async def test_a_follower_far_behind_still_gets_all_of_a_closed_timeline(timeline: Kept, tmp_path: Path) -> None:
    events = [timeline.out("x" * 1000) for _ in range(300)]
    await timeline.settle()
    follower = timeline.follow(1)
    got = [await anext(follower)]
    await timeline.close()
    for file in tmp_path.glob("sub/*"):
        file.unlink()
    got += [event async for event in follower]
    assert got == events


# --- text --------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(
        st.tuples(st.sampled_from([Stdout, Stdout, Stderr]), st.text("ab\nä🔥", max_size=40), st.booleans()),
        min_size=1,
        max_size=150,
    ),
    limit=st.integers(0, 1500),
    first=st.integers(1, 40),
    left_off=st.integers(0, 40),
    settled=st.booleans(),
)
def test_text_is_whole_or_head_and_tail_exactly(
    texts: list[tuple[Any, str, bool]], limit: int, first: int, left_off: int, settled: bool
) -> None:
    async def use(timeline: Kept) -> None:
        for kind, text, background in texts:
            timeline.out(text, kind, background)
            await asyncio.sleep(0)
        if settled:
            await timeline.settle()
        last = len(texts) - left_off
        for stream in (Stdout, Stderr):
            span = texts[first - 1 : max(last, 0)]
            whole = "".join(text for kind, text, background in span if kind is stream and not background)
            head = int(limit * 0.35)
            shortened = (whole[:head], whole[len(whole) - (limit - head) :])
            answer = await timeline.text(stream, first, last, len(whole), limit)
            assert answer == ((whole, None) if len(whole) <= limit else shortened)

    with_timeline(use, memory=4000)


# --- a disk that fails -------------------------------------------------------------------------------------


async def test_a_disk_that_cannot_be_written_is_told_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    timeline = Kept(tmp_path / "file" / "timeline.ndjson")
    events = []
    for _ in range(200):
        events.append(timeline.out("x" * 1000))
        await asyncio.sleep(0)
    assert await until(lambda: timeline.broken is not None)
    assert timeline.broken == "older output could not be written to disk (File exists) and is lost"
    assert (timeline.exhausted, timeline.full) == (True, False)
    # What memory still holds can be read, and the end is as always.
    assert await read_all(timeline) == events
    follower = timeline.follow(199)
    assert await anext(follower) == events[198]
    await timeline.close()
    assert [event async for event in follower] == events[199:]


async def test_a_disk_that_becomes_full_keeps_what_it_has(timeline: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    for _ in range(100):
        events.append(timeline.out("x" * 1000))
        await asyncio.sleep(0)
    await timeline.settle()
    assert timeline.in_memory(1, 1) is None

    def full(fd: int, data: bytes, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ingle.output.disk_log.os.pwrite", full)
    for _ in range(100):
        events.append(timeline.out("x" * 1000))
        await asyncio.sleep(0)
    await timeline.settle()
    assert timeline.broken == "older output could not be written to disk (No space left on device) and is lost"
    assert await read_all(timeline) == events
    await timeline.close()


# --- through a session -------------------------------------------------------------------------------------


class TestThroughASession:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, timeline_memory=50_000)

    async def test_who_waits_is_answered_with_all_text_when_the_session_is_ended(self, service: Service) -> None:
        await service.create_session("main")
        code = "for i in range(3000): print('x' * 50)\nimport time; time.sleep(600)"
        running = await service.execute("main", code, wait=0)
        whole = "x" * 50 + "\n"

        async def written() -> int:
            return len((await service.wait("main", running.cell, wait=0)).stdout)

        while await written() < 3000 * 51:
            await asyncio.sleep(0.01)
        waiting: Coroutine[Any, Any, Result] = service.wait("main", running.cell)
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0)
        await service.end_session("main")
        result = await task
        assert (result.status, result.stdout) == ("exit", whole * 3000)


async def test_of_large_events_few_are_read_at_once(tmp_path: Path) -> None:
    """Sixteen pictures of the largest size were read to show one."""
    spill = DiskLog(tmp_path / "t")
    large = "x" * 3_000_000
    spill.append([Stdout(seq, 0.0, "s", 1, "small" if seq % 3 else large) for seq in range(1, 65)])
    read: list[int] = []
    while len(read) < 64:
        some = spill.read(len(read) + 1, 64)
        assert 1 <= sum(len(event.text) == len(large) for event in some if isinstance(event, Stdout)) <= 3 or read
        assert sum(len(event.text) for event in some if isinstance(event, Stdout)) < 3 * len(large)
        read += [event.seq for event in some]
    assert read == list(range(1, 65))
    assert [event.seq for event in spill.read(30, 30)] == [30]
