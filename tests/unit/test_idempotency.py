"""Idempotency keys, without a service around them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from ingle.errors import Conflict, KeyReused
from ingle.support.idempotency import Idempotency, StoredKey

BOTH = pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])


class Work:
    """Something that begins when it is called and answers when it is let go, and counts."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.gate = asyncio.Event()
        self.running = asyncio.Event()
        self.over = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        self.running.set()
        await self.gate.wait()
        self.ended += 1
        self.over.set()
        return number


async def instantly() -> str:
    return "done"


@BOTH
async def test_equal_requests_with_one_key_begin_once_and_share_the_result(detached: bool) -> None:
    once, work = Idempotency(10, detached=detached), Work()
    callers = [asyncio.create_task(once("k", ("run", 1), work)) for _ in range(3)]
    await work.running.wait()
    assert not any(caller.done() for caller in callers)
    with pytest.raises(KeyReused):
        await once("k", ("run", 2), work)
    work.gate.set()
    assert await asyncio.gather(*callers) == [1, 1, 1]
    assert await once("k", ("run", 1), work) == 1
    assert await once("other", ("run", 1), work) == 2
    assert [await once(None, ("run", 1), work) for _ in range(2)] == [3, 4]


@BOTH
async def test_a_request_that_failed_frees_its_key_and_those_that_waited_try_for_themselves(detached: bool) -> None:
    once, running, gate, tried = Idempotency(10, detached=detached), asyncio.Event(), asyncio.Event(), []

    async def begin() -> str:
        tried.append(1)
        if len(tried) == 1:
            running.set()
            await gate.wait()
            raise Conflict("not now")
        return "second"

    first = asyncio.create_task(once("k", 1, begin))
    await running.wait()
    waiting = asyncio.create_task(once("k", 1, begin))
    gate.set()
    with pytest.raises(Conflict):
        await first
    assert await waiting == "second"
    assert len(tried) == 2


async def test_a_caller_that_leaves_takes_back_what_it_asked_for() -> None:
    once, work = Idempotency(10), Work()
    caller = asyncio.create_task(once("k", 1, work))
    await work.running.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    work.gate.set()
    assert await once("k", 1, work) == 2
    assert work.ended == 1


@pytest.mark.parametrize("key", ["k", None])
async def test_detached_work_goes_on_when_its_caller_leaves(key: str | None) -> None:
    once, work = Idempotency(10, detached=True), Work()
    caller = asyncio.create_task(once(key, 1, work))
    await work.running.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    work.gate.set()
    await work.over.wait()
    assert await once("k", 1, work) == (1 if key else 2)


async def test_the_oldest_keys_are_forgotten_but_none_that_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("ingle.support.idempotency.time", SimpleNamespace(monotonic=lambda: now))
    once, work = Idempotency(3, max_age=60.0), Work()
    running = asyncio.create_task(once("running", 1, work))
    await work.running.wait()
    for number in range(5):
        await once(f"k{number}", 1, instantly)
    assert list(once._known) == ["running", "k3", "k4"]
    now += 61.0
    await once("new", 1, instantly)
    assert list(once._known) == ["running", "new"]
    work.gate.set()
    assert await running == 1


class Disk:
    """A store that remembers in which order it was told."""

    def __init__(self, told: list[Any]) -> None:
        self._told = told

    async def begin(self, key: str, digest: str) -> None:
        self._told.append(("begin", key, len(digest)))

    def end(self, key: str, result: Any) -> None:
        self._told.append(("end", key, result))


async def test_a_store_is_told_before_anything_begins_and_what_became_of_it() -> None:
    told: list[Any] = []
    once = Idempotency(10, store=Disk(told))

    async def begin() -> int:
        told.append("begun")
        return 7

    async def fail() -> int:
        raise Conflict("no")

    assert await once("k", 1, begin) == 7
    with pytest.raises(Conflict):
        await once("f", 1, fail)
    assert told == [("begin", "k", 32), "begun", ("end", "k", 7), ("begin", "f", 32), ("end", "f", None)]


async def test_keys_of_an_earlier_server_are_known_with_what_became_of_them() -> None:
    first = Idempotency(10)
    await first("k", ("run", 1), instantly)
    digest = first._known["k"].digest
    once = Idempotency(10, stored=[StoredKey("k", digest, 5), StoredKey("lost", digest, Conflict("forgotten"))])
    assert await once("k", ("run", 1), instantly) == 5  # type: ignore[comparison-overlap]
    for _ in range(2):
        with pytest.raises(Conflict, match="forgotten"):
            await once("lost", ("run", 1), instantly)
    with pytest.raises(KeyReused):
        await once("lost", ("run", 2), instantly)
