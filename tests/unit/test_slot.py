"""The slot of a session's process: its states, and how workers come and go. No process is started."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ingle.errors import SessionNotFound, StartFailed
from ingle.events import Exit
from ingle.sessions.cells.journal import Journal
from ingle.sessions.metrics import Telemetry
from ingle.sessions.process import slot as slot_module
from ingle.sessions.process.calls import WorkerCalls
from ingle.sessions.process.slot import ProcessSlot
from ingle.sessions.process.slot_states import MOVES, SESSION_STATES, SlotState
from ingle.sessions.spec import SessionSpec
from ingle.settings import Settings
from ingle_worker.wire import messages, states


class FakeWorker:
    def __init__(self) -> None:
        self.gone: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.owner: Any = None
        self.group = None
        self.pid = 1
        self.birth = SimpleNamespace(pooled=False, user=0)
        self.killed: str | None = None

    @property
    def alive(self) -> bool:
        return not self.gone.done()

    def send(self, message: Any) -> None: ...

    def kill(self, reason: str | None = None) -> None:
        self.killed = reason
        self.end()

    def end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(Exit(message="ended"))
            if self.owner is not None:
                self.owner.on_gone(self.gone.result())


class FakeLauncher:
    """Hands out workers. `fate` decides what becomes of each."""

    def __init__(self, fate: Callable[[FakeWorker], None]) -> None:
        self.fate = fate
        self.taken: list[FakeWorker] = []

    def keep_init(self, *about: Any) -> None: ...

    async def take(self, begin: Callable[[Any], None], *about: Any) -> FakeWorker:
        worker = FakeWorker()
        self.taken.append(worker)
        begin(worker)
        self.fate(worker)
        return worker


class FakeWorkspace:
    def __init__(self) -> None:
        self.folders = SimpleNamespace(workspace="/workspace", user=0)
        self.home = ""
        self.tmp = ""

    def use(self, launcher: Any) -> None:
        pass

    def assign(self, *about: Any) -> None: ...

    async def limit(self, *about: Any) -> None: ...

    async def connect(self, *about: Any) -> None: ...


def confirm(worker: FakeWorker) -> None:
    worker.owner.on_message(messages.Started("/workspace", []))


def die(worker: FakeWorker) -> None:
    worker.end()


def make(tmp_path: Path, launcher: FakeLauncher) -> tuple[ProcessSlot, Journal]:
    spec = SessionSpec("s", tmp_path, "s")
    journal = Journal("s", tmp_path, Settings())
    calls = WorkerCalls("s", 1.0)
    slot = ProcessSlot(spec, launcher, FakeWorkspace(), calls, journal, Telemetry())  # type: ignore[arg-type]
    slot.listener = SimpleNamespace(on_message=slot.on_started, on_gone=slot.on_gone)  # type: ignore[assignment]
    return slot, journal


def published(journal: Journal) -> list[str]:
    return [event.state for event in journal.timeline.in_memory(1, journal.timeline.next_seq - 1) or []]  # type: ignore[union-attr]


def test_each_state_has_its_moves_and_a_legal_meaning_for_the_session() -> None:
    assert set(MOVES) == set(SlotState) == set(SESSION_STATES)
    for old, moves in MOVES.items():
        for new in moves:
            before, after = SESSION_STATES[old], SESSION_STATES[new]
            first = old is SlotState.ABSENT and new is SlotState.HIBERNATED
            assert first or before == after or after in states.MOVES[before]


async def test_a_start_that_succeeds_is_published_once(tmp_path: Path) -> None:
    slot, journal = make(tmp_path, FakeLauncher(confirm))
    await slot.start_first()
    await slot.ready()
    assert (slot.state, published(journal)) == (SlotState.UP, [states.IDLE])


async def test_a_worker_that_ends_while_it_starts_is_followed_by_another(tmp_path: Path) -> None:
    launcher = FakeLauncher(lambda worker: (die if len(launcher.taken) < 3 else confirm)(worker))
    slot, journal = make(tmp_path, launcher)
    await slot.start_first()
    assert slot.worker is launcher.taken[2]  # type: ignore[comparison-overlap]
    assert (slot.state, published(journal)) == (SlotState.UP, [states.IDLE])


async def test_a_start_that_fails_is_tried_anew_by_the_next_call(tmp_path: Path) -> None:
    launcher = FakeLauncher(die)
    slot, journal = make(tmp_path, launcher)
    with pytest.raises(StartFailed):
        await slot.start_first()
    assert (slot.state, len(launcher.taken)) == (SlotState.FAILED, slot_module.MAX_STARTS)
    launcher.fate = confirm
    await asyncio.gather(slot.ready(), slot.ready())
    assert (slot.state, len(launcher.taken)) == (SlotState.UP, slot_module.MAX_STARTS + 1)
    assert published(journal) == [states.DEAD, states.STARTING, states.IDLE]


async def test_a_hibernated_session_frees_a_process_and_starts_again(tmp_path: Path) -> None:
    launcher = FakeLauncher(confirm)
    slot, journal = make(tmp_path, launcher)
    freed: list[str] = []

    async def free_process() -> None:
        freed.append(slot.state)

    slot._free_process = free_process
    await slot.start_first()
    slot.hibernate()
    assert (slot.state, slot.worker, launcher.taken[0].killed) == (SlotState.HIBERNATED, None, "was freed")
    await slot.ready()
    assert (slot.state, freed, len(launcher.taken)) == (SlotState.UP, [SlotState.HIBERNATED], 2)
    assert published(journal) == [states.IDLE, states.HIBERNATED, states.STARTING, states.IDLE]


async def test_a_request_that_leaves_does_not_end_the_start(tmp_path: Path) -> None:
    launcher = FakeLauncher(lambda worker: None)
    slot, _ = make(tmp_path, launcher)
    slot.begin()
    first, second = (asyncio.create_task(slot.ready()) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    confirm(launcher.taken[0])
    await second
    assert (first.cancelled(), slot.state) == (True, SlotState.UP)


async def test_the_end_of_a_session_ends_its_start_and_refuses_those_who_wait(tmp_path: Path) -> None:
    launcher = FakeLauncher(lambda worker: None)
    slot, _ = make(tmp_path, launcher)
    slot.begin()
    waiting = asyncio.create_task(slot.ready())
    await asyncio.sleep(0.01)
    await slot.end(graceful=False, grace_seconds=0.0, folders=[])
    for late in (waiting, slot.ready()):
        with pytest.raises(SessionNotFound):
            await late
    assert launcher.taken[0].killed == "the session was ended"
    slot.move(SlotState.ENDED)
    with pytest.raises(states.IllegalMove):
        slot.move(SlotState.STARTING)
