"""Upkeep of the store: one of all servers does what is due."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ingle.errors import StoreFailed
from ingle.store import upkeep
from ingle.store.leases import Leases
from ingle.store.store import Store
from support.waiting import until


@contextlib.asynccontextmanager
async def server(store: Store, work: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Do the upkeep of one server, with work of its own."""
    task = asyncio.ensure_future(upkeep.repeat(store, Leases(store), "task", work))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_one_of_two_servers_does_the_work_until_it_is_due_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def first() -> None:
        done.append("first")

    async def second() -> None:
        done.append("second")

    monkeypatch.setattr(upkeep, "SPREAD", (0.0, 0.0))
    async with server(store, first):
        assert await until(lambda: done)
        async with server(store, second):
            assert not await until(lambda: len(done) > 1, 1.0)
            monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
            assert await until(lambda: {*done} == {"first", "second"})


async def test_work_that_fails_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.0)
    tried: list[int] = []

    async def work() -> None:
        tried.append(len(tried))
        if len(tried) == 1:
            raise StoreFailed("the store is away")

    async with server(store, work):
        assert await until(lambda: len(tried) > 1)
