"""The lease of an agent: what it tells gateways, what it writes, and what it reports to the watchdog."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingle import errors
from ingle.cluster.fence.lease import StoreLease
from ingle.cluster.fence.takeover import Takeover
from ingle.cluster.ray.raylink import Heard, missing, surplus, use_of
from ingle.store.leases import Leases
from ingle.store.objects import Entry
from ingle.store.store import Store, open_store
from support.waiting import until


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    made = open_store(str(tmp_path / "store"))
    yield made
    made.close()


async def test_each_renewal_is_told_and_then_written(store: Store, tmp_path: Path) -> None:
    lease = StoreLease(open_store(str(tmp_path / "store")), "one", None)
    await lease.start()
    marks = set()
    async with asyncio.timeout(20):
        async for renewal in lease.renewals():
            # Until the next one is told, the one before is there.
            written = await store.read("leases/one.0")
            assert written is not None
            assert written.decode() in marks | {renewal.mark}
            marks.add(renewal.mark)
            if len(marks) == 3:
                break
    await lease.stop()
    assert await store.list("leases/") == []


class Held(Store):
    """Store whose writes wait until they are let through. It keeps nothing."""

    def __init__(self) -> None:
        self.name = "held"
        self.through = asyncio.Event()
        self.through.set()
        self.written = 0

    async def write(self, path: str, data: bytes, *, attempts: int = 1) -> None:
        await self.through.wait()
        self.written += 1

    async def list(self, prefix: str) -> list[Entry]:
        return []

    def close(self) -> None: ...


async def test_a_lease_stops_in_the_moment_in_which_a_renewal_succeeds() -> None:
    store = Held()
    lease = StoreLease(store, "one", None)
    await lease.start()
    store.through.clear()
    marks = aiter(lease.renewals())
    await anext(marks)
    await anext(marks)  # the second renewal is under way
    store.through.set()
    while store.written < 2:
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await lease.stop()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Held:
    """A store that answers no renewal in time, until it is let through."""
    monkeypatch.setattr("ingle.cluster.fence.lease.RENEWAL_SECONDS", 0.1)
    store = Held()
    store.through.clear()
    return store


async def test_an_agent_starts_although_its_store_is_slow_at_first(slow: Held) -> None:
    lease = StoreLease(slow, "one", None)
    starting = asyncio.create_task(lease.start())
    marks = aiter(lease.renewals())
    await anext(marks)
    while (await anext(marks)).generation == 0:
        pass
    slow.through.set()
    await starting
    await lease.stop()


async def test_an_agent_whose_store_does_not_answer_says_so(slow: Held) -> None:
    with pytest.raises(errors.StoreFailed, match=r"the store held did not answer within 0\.1 s; check the network"):
        await StoreLease(slow, "one", None).start()


@pytest.mark.req("node.once")
async def test_a_renewal_without_an_answer_is_not_counted_and_opens_a_generation(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    own = open_store(str(tmp_path / "store"))
    lease = StoreLease(own, "one", writing)
    await lease.start()
    assert os.read(reading, 100).count(b"\n") == 1
    write = own.objects.write
    refused = []

    def refuse_once(path: str, data: bytes) -> None:
        if not refused:
            refused.append(path)
            raise OSError("the connection broke")
        write(path, data)

    monkeypatch.setattr(own.objects, "write", refuse_once)
    assert await until(lambda: refused)
    with pytest.raises(BlockingIOError):
        os.read(reading, 100)

    async def renewed() -> list[str]:
        return [each.path for each in await store.list("leases/")]

    async with asyncio.timeout(20):
        # Once a later one is there, the earlier generation is removed.
        while await renewed() != ["leases/one.1"]:
            await asyncio.sleep(0.01)
    assert os.read(reading, 100).count(b"\n") >= 1
    await lease.stop()
    os.close(reading)
    os.close(writing)
    assert await Leases(store).last_seen("one") is None


@pytest.mark.req("node.once")
@pytest.mark.parametrize(
    ("at_store", "at_head", "expected"),
    [
        (5.0, 5.0, 0.0),
        (4.0, 4.0, 0.0),
        (5.0, 1.5, 2.5),
        (3.0, 9.0, 1.0),
        (None, 4.0, 0.0),
        (None, 1.0, 3.0),
        (9.0, None, None),
        (errors.StoreFailed("the store fails"), 9.0, None),
    ],
)
async def test_a_takeover_waits_until_head_and_store_were_silent_for_long_enough(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    at_store: float | errors.StoreFailed | None,
    at_head: float | None,
    expected: float | None,
) -> None:
    async def last_seen(agent: str) -> float | None:
        if isinstance(at_store, errors.StoreFailed):
            raise at_store
        return at_store

    leases = Leases(store)
    monkeypatch.setattr(leases, "last_seen", last_seen)
    assert await Takeover(leases, lambda incarnation: at_head).remaining("one") == expected


@pytest.mark.req("node.once")
def test_a_slow_reading_of_the_head_counts_for_no_silence() -> None:
    heard = Heard()
    # A renewal that came during a reading of five seconds may have come at its end.
    assert heard.silence("one", 1, 10.0, 15.0) == 0.0
    assert heard.silence("one", 1, 15.5, 20.0) == 0.5
    assert heard.silence("one", 2, 20.0, 25.0) == 0.0


def test_agents_that_serve_are_the_last_to_end_when_there_are_too_many() -> None:
    slots = ["agent-0", "agent-1", "agent-2", "agent-3", "agent-10"]
    uses = {"agent-0": use_of(3.0, False), "agent-1": use_of(0.5, True)}
    uses |= dict.fromkeys(("agent-2", "agent-3"), use_of(0.5, False))
    # The last one has no node yet, the first is silent, the second drained.
    order = ["agent-10", "agent-0", "agent-1", "agent-3", "agent-2"]
    assert [surplus(slots, uses, 5 - count) for count in range(6)] == [order[:count] for count in range(6)]
    assert surplus(slots, uses, 9) == []
    # What is left is as many as were asked for, whichever they are.
    assert missing(["agent-1", "agent-2"], 2) == []
    assert missing(["agent-1", "agent-3"], 4) == ["agent-0", "agent-2"]
