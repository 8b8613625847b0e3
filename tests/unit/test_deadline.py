"""Deadlines: SIGINT when the time is over, sent again until it is received, and then SIGKILL."""

import asyncio
from typing import Any

import pytest

from ingle.sessions.cells import deadline as deadline_module
from ingle.sessions.cells.deadline import Deadline
from support.waiting import until

GRACE = 0.05


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "RESEND_SIGINT_SECONDS", 0.001)


class FakeWorker:
    """Notes what is done to it. `undelivered` says how often SIGINT does not reach it."""

    def __init__(self, undelivered: float = 0) -> None:
        self.undelivered = undelivered
        self.interrupts: list[tuple[int, bool]] = []
        self.killed: list[str | None] = []

    def interrupt(self, number: int, *, again: bool = False) -> "asyncio.Future[bool]":
        self.interrupts.append((number, again))
        sent: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        sent.set_result(len(self.interrupts) <= self.undelivered)
        return sent

    def kill(self, reason: str | None = None) -> None:
        self.killed.append(reason)


def make(worker: FakeWorker, **options: Any) -> Deadline:
    return Deadline(worker, 3, GRACE, "was too slow", **options)  # type: ignore[arg-type]


async def test_code_that_does_not_stop_is_interrupted_and_then_killed() -> None:
    worker = FakeWorker()
    deadline = make(worker)
    deadline.set(0.0)
    assert await until(lambda: worker.killed)
    assert (worker.interrupts, worker.killed, deadline.expired) == ([(3, False)], ["was too slow"], True)


async def test_sigint_is_sent_again_until_it_is_received() -> None:
    worker = FakeWorker(undelivered=2)
    make(worker).interrupt()
    assert await until(lambda: len(worker.interrupts) == 3)
    await asyncio.sleep(2 * GRACE)
    assert (worker.interrupts, worker.killed) == ([(3, False), (3, True), (3, True)], [])


async def test_code_that_ends_in_time_is_left_alone() -> None:
    worker = FakeWorker(undelivered=1)
    deadline = make(worker)
    deadline.expire()
    deadline.cancel()
    await asyncio.sleep(2 * GRACE)
    assert (len(worker.interrupts), worker.killed) == (1, [])


async def test_each_step_may_have_an_interrupt_of_its_own() -> None:
    worker = FakeWorker()
    make(worker, interrupts=3).set(0.0)
    assert await until(lambda: worker.killed)
    assert worker.interrupts == [(3, False)] * 3


async def test_what_never_receives_sigint_is_abandoned_and_not_killed_where_so_wanted() -> None:
    worker = FakeWorker(undelivered=float("inf"))
    deadline = make(worker, kill_undelivered=False)
    assert deadline.abandoned is not None
    deadline.set(0.0)
    await deadline.abandoned
    assert worker.killed == []


async def test_what_received_sigint_and_goes_on_is_killed_there_too() -> None:
    worker = FakeWorker(undelivered=1)
    make(worker, kill_undelivered=False).set(0.0)
    assert await until(lambda: worker.killed)


async def test_a_process_that_takes_too_long_to_exit_is_killed_without_a_reason_of_its_own() -> None:
    worker = FakeWorker()
    deadline = make(worker)
    deadline.set_exit(0.0)
    assert await until(lambda: worker.killed)
    assert (worker.killed, deadline.killed_at_exit, deadline.expired) == ([None], True, False)
