"""Descriptors of idle sessions: their inits keep them, and return them when the session is used or writes."""

import os
import signal

import pytest

from ingle import errors
from ingle.service import Service
from ingle.sessions import capacity
from ingle.sessions import descriptors as descriptors_module
from ingle.settings import Settings
from ingle.workers import worker as worker_module
from ingle.workers.worker import Worker
from support.cells import run, value
from support.internals import session_of, worker_of
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.fresh_service]

IDLE_DESCRIPTORS = 1
"""Descriptors of the server for an idle session: the socket to its init."""


@pytest.fixture
def settings() -> Settings:
    return make_settings(pool=0, preload=[])


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "LEND_PAUSE_SECONDS", 0.0)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def lend(service: Service, session_id: str) -> Worker:
    worker = worker_of(service, session_id)
    worker.lend_ends()
    assert worker.lent
    return worker


@pytest.mark.req("scale.idle")
async def test_an_idle_session_takes_one_descriptor(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors_module, "LEND_AFTER_SECONDS", 0.0)
    await service.create_session("first")
    assert await until(lambda: worker_of(service, "first").lent)
    before = descriptors()
    for number in range(10):
        await service.create_session(f"s{number}")
        await run(service, f"s{number}", "x = 1")
    await service.checkpoint("s0", "here")
    workers = [worker_of(service, f"s{number}") for number in range(10)]
    assert await until(lambda: all(worker.lent for worker in workers))
    # A sandbox has a proxy to the network, which listens on a socket of its own.
    proxies = len(workers) if (await service.get_session("s0")).isolation == "sandbox" else 0
    copies = len(workers) + 1
    assert await until(lambda: descriptors() - before <= copies * IDLE_DESCRIPTORS + proxies)
    for number in range(10):
        assert await value(service, f"s{number}", "x") == "1"
    await service.rollback("s0", "here")
    assert await value(service, "s0", "x") == "1"


@pytest.fixture
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "_file_limit", lambda: 1000)


@pytest.mark.req("scale.bounds")
async def test_the_capacity_counts_the_descriptors_of_an_idle_session(few_files: None, service: Service) -> None:
    await service.create_session("first")
    each = IDLE_DESCRIPTORS + ((await service.get_session("first")).isolation == "sandbox")
    held = await service.capacity()
    assert (held.sessions, held.bound) == (
        250 // each,
        f"this process may open 1000 files, and an idle session takes {each}",
    )


@pytest.mark.req("scale.idle")
async def test_a_session_works_as_before_with_returned_descriptors(service: Service) -> None:
    await service.create_session("a")
    await run(service, "a", "import sys\nx = 1")
    await lend(service, "a")
    result = await service.execute("a", "print('out')\nprint('err', file=sys.stderr)\nx")
    assert (result.stdout, result.stderr, result.result) == ("out\n", "err\n", {"text/plain": "1"})
    worker = await lend(service, "a")
    asked = await service.execute("a", "input('name? ')", wait=20)
    assert asked.status == "waiting_for_input"
    assert not worker.lent
    answered = await service.input("a", "me", wait=20)
    assert answered.result == {"text/plain": "'me'"}
    # What is asked between cells goes over the wire too.
    await lend(service, "a")
    assert "x" in [each.name for each in (await service.variables("a")).variables]
    await lend(service, "a")
    await service.fork_session("a", "b")
    assert await value(service, "b", "x") == "1"
    assert await value(service, "a", "x") == "1"


async def test_without_free_descriptors_a_cell_is_refused_and_the_session_kept(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.create_session("a")
    await run(service, "a", "x = 1")
    await lend(service, "a")
    with monkeypatch.context() as short:
        short.setattr(capacity, "_open_descriptors", lambda: 1 << 40)
        with pytest.raises(errors.TooManySessions, match="file descriptors"):
            await service.execute("a", "x")
    assert await value(service, "a", "x") == "1"


async def test_idle_sessions_make_room_when_descriptors_are_scarce(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        await service.create_session(name)
    await run(service, "b", "x = 1")
    await lend(service, "a")
    monkeypatch.setattr(descriptors_module, "SCARCE_SHARE", 0.0)
    assert await value(service, "a", "1 + 1") == "2"
    assert [worker_of(service, name).lent for name in ("a", "b", "c")] == [False, True, True]
    assert await value(service, "b", "x") == "1"


async def test_an_interrupt_reaches_a_cell_that_began_while_they_were_lent(service: Service) -> None:
    await service.create_session("a")
    await lend(service, "a")
    await service.execute("a", "import time\ntime.sleep(60)", wait=0)
    interrupted = await service.interrupt("a", wait=20)
    assert interrupted is not None
    assert interrupted.error is not None
    assert interrupted.error.name == "KeyboardInterrupt"


@pytest.mark.req("scale.idle")
async def test_output_between_cells_brings_them_back(service: Service) -> None:
    await service.create_session("a")
    # A signal handler wakes the thread up, so it prints while no cell runs.
    await run(
        service,
        "a",
        "import os, signal, threading\nr, w = os.pipe()\n"
        "threading.Thread(target=lambda: (os.read(r, 1), print('late'))).start()\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(w, b'x'))",
    )
    worker = await lend(service, "a")
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGUSR1)
    await until(lambda: not worker.lent)
    result = await service.execute("a", "None")
    assert any("'late'" in notice for notice in result.notices)


@pytest.mark.req("scale.idle")
async def test_the_last_words_of_a_worker_are_not_lost(service: Service) -> None:
    await service.create_session("a")
    await run(
        service, "a", "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b'bye'), os._exit(3)))"
    )
    worker = await lend(service, "a")
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGUSR1)
    exit = await worker.gone
    assert exit.code == 3
    page = await service.read_output("a", 1, stream="background")
    assert "bye" in str(page)


async def test_a_killed_init_costs_its_own_session_only(service: Service) -> None:
    await service.create_session("a")
    await service.create_session("b")
    worker = await lend(service, "a")
    assert worker.init_pid is not None
    os.kill(worker.init_pid, signal.SIGKILL)
    await worker.gone
    assert await value(service, "a", "1 + 1") == "2"
    assert await value(service, "b", "1 + 1") == "2"


async def test_other_descriptors_than_those_lent_end_the_session(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.create_session("a")
    worker = await lend(service, "a")
    before = descriptors()
    monkeypatch.setattr(worker, "_lent", [(0, 0, 0)] * len(worker._lent))
    await service.execute("a", "1", wait=0)
    exit = await worker.gone
    assert "broke the protocol" in (exit.message or "")
    await until(lambda: descriptors() <= before + 6)


async def test_a_worker_that_is_being_copied_lends_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upkeep may come while a checkpoint waits for the descriptors of its copy."""
    await service.create_session("main")
    await run(service, "main", "x = 1")
    await service.checkpoint("main", "base")
    parked = session_of(service, "main").checkpoints.find("base").worker
    give, lent = parked.init.give, []

    async def lend_first(order: object, fd: int) -> None:
        parked.lend_ends(at_once=True)
        lent.append(parked.lent)
        await give(order, fd)

    monkeypatch.setattr(parked.init, "give", lend_first)
    assert (await service.rollback("main", "base")).session.variables == ["x"]
    assert lent == [False]
