"""Output of two pipes is put back into the order in which Python wrote it, whatever the timing of writes and reads.

The pipes, the guest, foreign writers (children, C code) and the reading host are simulated, one atomic step at a
time, in an order and with a clock that hypothesis chooses: looks and reads overlap, clocks stand still, marks come
late. Only the merging is real.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ingle import events
from ingle.service import Service
from ingle.workers.io.output_order import HISTORY, MAX_HELD_BYTES, STDERR, STDOUT, Merger, Note, Piece
from ingle_worker.wire.messages import Look, Mark

OWN, FOREIGN = "own", "foreign"


@dataclass
class Pipe:
    content: bytearray = field(default_factory=bytearray)
    labels: list[tuple[str, int]] = field(default_factory=list)
    read: int = 0
    own: int = 0

    @property
    def unread(self) -> int:
        return len(self.content) - self.read


class World:
    """Two pipes, a wire, a clock, and the merger that has to make sense of it."""

    def __init__(self, ticks: list[int]) -> None:
        self.pipes = (Pipe(), Pipe())
        self.wire: list[Mark | int] = []
        self.merger = Merger()
        self.taken: list[Piece | Note] = []
        self.overlaps = 0
        self._marking = self._reading = self._noted = False
        self._turn: int | None = None
        self._now = self._asked = 0
        self._ticks = ticks
        self._written = 0

    def clock(self) -> int:
        """Goes on by the given ticks, in turn: it may stand still for a while, as a coarse clock does."""
        self._asked += 1
        self._now += self._ticks[self._asked % len(self._ticks)]
        return self._now

    def write(self, stream: int, size: int, kind: str) -> None:
        pipe = self.pipes[stream]
        for _ in range(size):
            pipe.content.append(self._written % 251)
            pipe.labels.append((kind, self._written))
            self._written += 1
        pipe.own += size if kind == OWN else 0

    # --- who acts: each step ends with a yield ---

    def guest(self, writes: list[tuple[int, int]]) -> Iterator[None]:
        """Python's own writes, as the guest's streams make them: look and tell before a turn, then write.

        A size of 0 is no write but a message without a mark, which says how much has been written before it.
        """
        for stream, size in writes:
            if size == 0:
                self.wire.append(self._written)
                yield
                continue
            if self._turn not in (None, stream):
                self._marking = True
                self.overlaps += self._reading
                before = self.clock()
                yield
                stdout = Look(self.pipes[STDOUT].unread, self.pipes[STDOUT].own)
                yield
                stderr = Look(self.pipes[STDERR].unread, self.pipes[STDERR].own)
                yield
                mark = Mark(before, self.clock(), stdout, stderr)
                self._marking = False
                yield
                self.wire.append(mark)
                yield
            self._turn = stream
            self.write(stream, size, OWN)
            yield

    def foreign(self, writes: list[tuple[int, int]]) -> Iterator[None]:
        for stream, size in writes:
            self.write(stream, size, FOREIGN)
            yield

    def host(self, reads: list[list[tuple[int, int]]]) -> Iterator[None]:
        """Rounds of reading: some of the pipes first, then the marks there are, then what is certain."""
        for parts in reads:
            for stream, size in parts:
                yield from self._read(stream, size)
            yield from self._receive()
            yield from self._take()

    def _read(self, stream: int, size: int) -> Iterator[None]:
        self._reading = True
        self.overlaps += self._marking
        began = self.clock()
        yield
        pipe = self.pipes[stream]
        data = bytes(pipe.content[pipe.read : pipe.read + size])
        pipe.read += len(data)
        yield
        ended = self.clock()
        self._reading = False
        if data:
            self.merger.feed(stream, data, began, ended)

    def _receive(self) -> Iterator[None]:
        came, self.wire = self.wire, []
        yield
        for each in came:
            if isinstance(each, Mark):
                self.merger.cut(each)
            else:
                self.merger.note(each)
                self._noted = True

    def _take(self) -> Iterator[None]:
        """Before a message is handed on, all that was written before it is read, and the marks of that."""
        while self._noted:
            self._noted = False
            for stream in (STDOUT, STDERR):
                yield from self._read(stream, self.pipes[stream].unread)
            yield from self._receive()
        self.taken += self.merger.take()
        assert not self.merger.holds_notes
        yield

    def drain(self) -> None:
        """All writers have ended: read what is left."""
        for stream in (STDOUT, STDERR):
            for _ in self._read(stream, self.pipes[stream].unread):
                pass
        for _ in (*self._receive(), *self._take()):
            pass
        if self.merger.waiting:
            self.merger.give_up_cuts()
            self.taken += self.merger.take()

    def run(self, actors: list[Iterator[None]], schedule: list[int]) -> None:
        for choice in schedule:
            next(actors[choice % len(actors)], None)
        for actor in actors[:-1]:
            for _ in actor:
                pass
        for _ in actors[-1]:
            pass
        self.drain()

    # --- what came out ---

    def check_streams(self) -> None:
        """Each stream is exact: nothing lost, nothing doubled, nothing out of its place."""
        pieces = [each for each in self.taken if isinstance(each, Piece)]
        for stream in (STDOUT, STDERR):
            got = b"".join(piece.data for piece in pieces if piece.stream == stream)
            assert got == bytes(self.pipes[stream].content)
        assert all(piece.data for piece in pieces)
        assert not self.merger.waiting

    def check_messages(self, sent: list[tuple[int, int]]) -> None:
        """Each message once and in order."""
        assert len(self.notes) == sum(size == 0 for _, size in sent)
        assert self.notes == sorted(self.notes)

    def check_order(self) -> None:
        """Python's own bytes in order, and before each message all that Python had written before it."""
        assert self.order(OWN) == sorted(self.order(OWN))
        seen: set[int] = set()
        for each, numbers in self._out():
            if isinstance(each, Note):
                own = {number for pipe in self.pipes for kind, number in pipe.labels if kind == OWN}
                assert {number for number in own if number < each.content} <= seen
            seen.update(number for _, number in numbers)

    @property
    def notes(self) -> list[int]:
        return [each.content for each in self.taken if isinstance(each, Note)]

    def _out(self) -> Iterator[tuple[Piece | Note, list[tuple[str, int]]]]:
        """What came out, each piece with the labels of its bytes."""
        places = [0, 0]
        for each in self.taken:
            if isinstance(each, Note):
                yield each, []
                continue
            start = places[each.stream]
            places[each.stream] += len(each.data)
            yield each, self.pipes[each.stream].labels[start : places[each.stream]]

    def order(self, kind: str) -> list[int]:
        """When each byte of this kind was written, in the order in which it came out."""
        return [number for _, labels in self._out() for label, number in labels if label == kind]


STREAM = st.sampled_from((STDOUT, STDERR))
WRITES = st.lists(st.tuples(STREAM, st.integers(0, 5)), min_size=3, max_size=25)
FOREIGN_WRITES = st.lists(st.tuples(STREAM, st.integers(1, 5)), min_size=3, max_size=25)
READS = st.lists(st.lists(st.tuples(STREAM, st.integers(1, 12)), min_size=1, max_size=5), min_size=3, max_size=20)
TICKS = st.lists(st.integers(0, 2), min_size=1, max_size=7)
SCHEDULE = st.lists(st.integers(0, 5), min_size=60, max_size=250)


@settings(max_examples=150, deadline=None)
@given(own=WRITES, reads=READS, ticks=TICKS, schedule=SCHEDULE)
def test_pythons_own_writes_keep_their_order_whenever_looks_and_reads_happen(
    own: list[tuple[int, int]], reads: list[list[tuple[int, int]]], ticks: list[int], schedule: list[int]
) -> None:
    world = World(ticks)
    world.run([world.guest(own), world.host(reads)], schedule)
    event(f"overlapping: {world.overlaps > 0}")
    world.check_streams()
    world.check_messages(own)
    world.check_order()


@settings(max_examples=150, deadline=None)
@given(own=WRITES, foreign=FOREIGN_WRITES, reads=READS, schedule=SCHEDULE)
def test_foreign_writes_do_not_disturb_the_order_of_pythons_own(
    own: list[tuple[int, int]],
    foreign: list[tuple[int, int]],
    reads: list[list[tuple[int, int]]],
    schedule: list[int],
) -> None:
    world = World([1])
    guest, host = world.guest(own), world.host(reads)

    def whole(actor: Iterator[None], busy: str) -> Iterator[None]:
        """Steps of one actor, in which what must not be overlapped is done at once; foreign writes go between."""
        while True:
            if next(actor, StopIteration) is StopIteration:
                return
            while getattr(world, busy):
                next(others, None)
                next(actor, None)
            yield

    others = world.foreign(foreign)
    world.run([whole(guest, "_marking"), others, whole(host, "_reading")], schedule)
    assert world.overlaps == 0
    world.check_streams()
    world.check_messages(own)
    world.check_order()


@settings(max_examples=150, deadline=None)
@given(own=WRITES, foreign=FOREIGN_WRITES, reads=READS, schedule=SCHEDULE)
def test_nothing_is_lost_or_doubled_when_all_of_it_happens_at_once(
    own: list[tuple[int, int]],
    foreign: list[tuple[int, int]],
    reads: list[list[tuple[int, int]]],
    schedule: list[int],
) -> None:
    world = World([1])
    world.run([world.guest(own), world.foreign(foreign), world.host(reads)], schedule)
    world.check_streams()
    world.check_messages(own)
    event(f"overlapping: {world.overlaps > 0}, in order: {world.order(OWN) == sorted(world.order(OWN))}")
    if not world.overlaps:
        world.check_order()


# --- single cases ------------------------------------------------------------------------------------------


def test_a_child_wrote_first_and_the_read_just_before_the_look_seems_to_overlap_it() -> None:
    """Less than Python has written cannot have been in the pipe, so the overlapping read came before the look."""
    merger = Merger()
    merger.feed(STDOUT, b"child.....python", began=10, ended=12)
    merger.feed(STDERR, b"later", began=14, ended=15)
    merger.cut(Mark(11, 13, Look(0, 6), Look(0, 0)))
    assert merger.take() == [Piece(STDOUT, b"child.....python"), Piece(STDERR, b"later")]


def test_bytes_behind_a_mark_wait_for_those_before_it() -> None:
    merger = Merger()
    merger.feed(STDERR, b"second", began=20, ended=21)
    merger.cut(Mark(10, 11, Look(5, 5), Look(0, 0)))
    assert (merger.take(), merger.waiting) == ([], True)
    merger.feed(STDOUT, b"fi", began=22, ended=23)
    assert (merger.take(), merger.waiting) == ([Piece(STDOUT, b"fi")], True)
    merger.feed(STDOUT, b"rstthird", began=24, ended=25)
    assert merger.take() == [Piece(STDOUT, b"rst"), Piece(STDOUT, b"third"), Piece(STDERR, b"second")]
    assert not merger.waiting


def test_a_mark_that_comes_after_very_many_reads_still_finds_its_place() -> None:
    merger = Merger()
    for number in range(3 * HISTORY):
        merger.feed(STDOUT, b"o", began=10 * number, ended=10 * number + 1)
    merger.feed(STDERR, b"e" * 50, began=9_000, ended=9_001)
    # When Python looked, 40 bytes had been read of its stdout, and 10 were waiting.
    merger.cut(Mark(395, 396, Look(10, 50), Look(0, 0)))
    # And 20 of stderr lay there when it turned back.
    merger.cut(Mark(397, 398, Look(10, 50), Look(20, 20)))
    assert merger.take() == [
        Piece(STDOUT, b"o" * 50),
        Piece(STDERR, b"e" * 20),
        Piece(STDOUT, b"o" * (3 * HISTORY - 50)),
        Piece(STDERR, b"e" * 30),
    ]


def test_writes_that_python_made_elsewhere_for_a_while_do_not_spoil_the_order_afterwards() -> None:
    """Descriptor 1 was pointed at a file and back: Python has counted more bytes than the pipe has seen."""
    merger = Merger()
    merger.feed(STDOUT, b"ac", began=30, ended=31)
    merger.feed(STDERR, b"b", began=32, ended=33)
    merger.cut(Mark(10, 11, Look(1, 1 + 100), Look(0, 0)))
    merger.cut(Mark(20, 21, Look(1, 1 + 100), Look(1, 1)))
    assert merger.take() == [Piece(STDOUT, b"a"), Piece(STDERR, b"b"), Piece(STDOUT, b"c")]
    assert not merger.waiting


def test_what_comes_with_a_mark_is_handed_out_exactly_there() -> None:
    merger = Merger()
    merger.feed(STDOUT, b"beforeafter", began=20, ended=21)
    merger.feed(STDERR, b"12", began=22, ended=23)
    merger.cut(Mark(10, 11, Look(6, 6), Look(1, 1)), "here")
    assert merger.take() == [
        Piece(STDOUT, b"before"),
        Piece(STDERR, b"1"),
        Note("here"),
        Piece(STDOUT, b"after"),
        Piece(STDERR, b"2"),
    ]


def test_a_message_does_not_wait_for_what_was_written_after_it() -> None:
    merger = Merger()
    merger.feed(STDOUT, b"out", began=1, ended=2)
    merger.note("message")
    merger.cut(Mark(5, 6, Look(3, 6), Look(0, 0)))
    assert merger.take() == [Piece(STDOUT, b"out"), Note("message")]
    merger.feed(STDERR, b"err", began=7, ended=8)
    assert merger.take() == []
    merger.feed(STDOUT, b"put", began=9, ended=10)
    assert merger.take() == [Piece(STDOUT, b"put"), Piece(STDERR, b"err")]


def test_a_mark_that_lies_cannot_hold_output_back_for_good() -> None:
    merger = Merger()
    merger.feed(STDOUT, b"out", began=1, ended=2)
    merger.feed(STDERR, b"err", began=3, ended=4)
    merger.cut(Mark(5, 6, Look(1_000_000, 0), Look(0, 0)))
    assert (merger.take(), merger.waiting) == ([Piece(STDOUT, b"out"), Piece(STDERR, b"err")], True)
    merger.feed(STDERR, b"more", began=7, ended=8)
    merger.note("done")
    assert (merger.take(), merger.holds_notes) == ([], True)
    merger.give_up_cuts()
    assert (merger.take(), merger.waiting) == ([Piece(STDERR, b"more"), Note("done")], False)


@pytest.mark.parametrize("look", [Look(-5, -5), Look(2**62, 2**62), Look(0, 2**62)])
def test_marks_with_nonsense_in_them_lose_nothing(look: Look) -> None:
    merger = Merger()
    merger.feed(STDOUT, b"one", began=1, ended=2)
    merger.cut(Mark(3, 4, look, look))
    pieces = merger.take()
    merger.feed(STDOUT, b"two", began=5, ended=6)
    merger.cut(Mark(7, 8, Look(0, 6), Look(0, 0)))
    pieces += merger.take()
    merger.give_up_cuts()
    pieces += merger.take()
    assert b"".join(piece.data for piece in pieces if isinstance(piece, Piece)) == b"onetwo"


# --- real pipes --------------------------------------------------------------------------------------------


NEVER = Mark(0, 1 << 62, Look(1 << 60, 0), Look(0, 0))
"""Behind bytes that do not come."""


def test_what_waits_for_bytes_that_do_not_come_is_bounded() -> None:
    merger = Merger()
    merger.cut(NEVER, "first", 1000)
    merger.feed(STDERR, b"e" * MAX_HELD_BYTES, 1, 2)
    assert merger.take() == []
    assert merger.overfull
    merger.give_up_cuts()
    assert merger.take() == [Piece(STDERR, b"e" * MAX_HELD_BYTES), Note("first")]
    assert not merger.overfull
    merger.cut(NEVER, "heavy", MAX_HELD_BYTES)
    assert merger.overfull
    merger.give_up_cuts()
    assert merger.take() == [Note("heavy")]
    assert merger.idle
    for number in range(MAX_HELD_BYTES // 300 + 1):
        merger.cut(NEVER, number)
    assert merger.overfull


def test_many_messages_beside_output_take_no_longer_each_than_few() -> None:
    """Each looked through all that came after it: a hundred thousand of them kept the host busy for minutes."""
    merger = Merger()
    merger.feed(STDOUT, b"o", 1, 2)
    for number in range(300_000):
        merger.note(number)
    assert merger.take() == [Piece(STDOUT, b"o"), *map(Note, range(300_000))]


async def text_of(service: Service, cell: int) -> str:
    """All text of a cell, both streams, in the order of the timeline."""
    texts = []
    async for each in service.events("main"):
        if each.cell == cell and isinstance(each, events.Stdout | events.Stderr) and not each.background:
            texts.append(each.text)
        if isinstance(each, events.Done) and each.cell == cell:
            break
    return "".join(texts)


ALTERNATE = """
import sys
for i in range({count}):
    print(i, file=(sys.stdout, sys.stderr)[i % 2])
"""


def numbers(count: int) -> str:
    return "".join(f"{number}\n" for number in range(count))


async def test_lines_that_alternate_between_the_streams_stay_in_order(service: Service) -> None:
    await service.create_session("main")
    for _ in range(20):
        result = await service.execute("main", ALTERNATE.format(count=2000))
        assert await text_of(service, result.cell) == numbers(2000)


async def test_lines_behind_a_shown_value_stay_in_order(service: Service) -> None:
    await service.create_session("main")
    for _ in range(20):
        result = await service.execute("main", "import sys; sys.displayhook(5)\n" + ALTERNATE.format(count=50))
        assert await text_of(service, result.cell) == numbers(50)


async def test_lines_behind_an_answer_stay_in_order(service: Service) -> None:
    await service.create_session("main")
    for _ in range(20):
        waiting = await service.execute("main", "answer = input()\n" + ALTERNATE.format(count=50))
        assert waiting.status == "waiting_for_input"
        result = await service.input("main", "yes")
        assert await text_of(service, result.cell) == numbers(50)


async def test_order_survives_a_descriptor_that_is_pointed_elsewhere_and_back(service: Service) -> None:
    await service.create_session("main")
    for number in (1, 2):
        redirect = f"""
import os, sys
streams = (sys.stdout, sys.stderr) if {number} == 1 else (sys.stderr, sys.stdout)
print(0, file=streams[0])
kept, file = os.dup({number}), open("elsewhere", "w")
os.dup2(file.fileno(), {number})
print("hidden" * 50, file=streams[0])
print(1, file=streams[1])
os.dup2(kept, {number})
for i in range(2, 50):
    print(i, file=streams[i % 2])
"""
        for code in (redirect, ALTERNATE.format(count=50)):
            result = await service.execute("main", code)
            assert await text_of(service, result.cell) == numbers(50)


async def test_text_of_a_cell_that_begins_among_threads_is_its_own(service: Service) -> None:
    await service.create_session("main")
    await service.execute(
        "main", "import threading; stop = threading.Event(); threading.Thread(target=stop.wait).start()"
    )
    for number in range(100):
        assert (await service.execute("main", f"print({number})")).stdout == f"{number}\n"
    assert (await service.execute("main", "stop.set()")).status == "ok"
