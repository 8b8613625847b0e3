"""Pages far into a long output are the same as when they are counted from its start."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingle.events import AnyEvent, Stderr, Stdout
from ingle.output import line_index as room
from ingle.output.line_index import LineIndex
from ingle.output.pages import Reading, printed, read_lines
from ingle.output.timeline import Timeline
from sessions.output.test_timeline import Kept

Printed = tuple[type[Stdout] | type[Stderr], str, bool]

PRINTS = st.tuples(st.sampled_from([Stdout, Stdout, Stderr]), st.text("ab\n\n\r", max_size=12), st.booleans())
READINGS = st.builds(
    Reading,
    stream=st.sampled_from(["stdout", "stderr", "both", "background"]),
    from_line=st.integers(1, 60),
    lines=st.integers(1, 9),
    grep=st.sampled_from([None, None, "a", "^$"]),
    context=st.integers(0, 2),
    offset=st.sampled_from([0, 0, 3]),
)


@settings(max_examples=150, deadline=None)
@given(prints=st.lists(PRINTS, max_size=60), readings=st.lists(READINGS, min_size=1, max_size=6), more=st.lists(PRINTS))
def test_a_page_is_the_same_from_wherever_its_lines_are_counted(
    prints: list[Printed], readings: list[Reading], more: list[Printed]
) -> None:
    async def compare() -> None:
        with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(room, "ENTRY_CHARS", 8)
            patch.setattr(room, "AT_ONCE", 3)
            patch.setattr(room, "READ_AT_ONCE", 3)
            patch.setattr(room, "MAX_STREAMS", 2)
            timeline = Kept(Path(folder) / "t", memory=4000)
            landmarks = LineIndex(timeline)
            for some in (prints, more):
                # What comes later changes nothing about what was there.
                for kind, text, background in some:
                    timeline.out(text, kind, background)
                await timeline.settle()
                last = timeline.next_seq - 1
                for reading in readings:
                    texts = printed(timeline, 1, last, reading.stream)
                    assert await landmarks.read(1, last, reading, "s", 1) == await read_lines(texts, reading, "s", 1)
            await timeline.close()

    asyncio.run(compare())


class Counted(Timeline):
    """A timeline that tells how much of it was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1 << 16, 1 << 40, lambda: None)
        self.seen = 0

    async def read(self, first: int, last: int) -> list[AnyEvent]:
        events = await super().read(first, last)
        self.seen += len(events)
        return events


async def test_the_way_to_a_line_far_down_is_counted_once(tmp_path: Path) -> None:
    timeline = Counted(tmp_path / "t")
    line = "x" * 99 + "\n"
    for number in range(2000):
        timeline.append(Stdout(seq=number + 1, time=0.5, session_id="s", cell=1, text=line * 100))
        await asyncio.sleep(0)
    landmarks = LineIndex(timeline)
    seen = []
    for from_line in (199_990, 199_980, 100_000, 150_000, 1):
        timeline.seen = 0
        page = await landmarks.read(1, 2000, Reading(from_line=from_line, lines=5), "s", 1)
        assert [each.number for each in page.lines] == list(range(from_line, from_line + 5))
        seen.append(timeline.seen)
    await timeline.close()
    # The first goes all the way; of the rest, each begins at a landmark near by.
    assert seen[0] >= 2000
    assert max(seen[1:]) < 400, seen
