"""Idempotency keys of a cluster: one gateway carries a request out, and old keys are removed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ingle.cluster.parts import keys
from ingle.cluster.parts.keys import WINDOW_SECONDS, ClusterKeys
from ingle.store.store import Store, open_store
from ingle.support.idempotency import StoredKey


class Gateways:
    """Keys of two gateways of one cluster, each with a clock of its own."""

    def __init__(self, store: Store) -> None:
        self.times = [100.5 * WINDOW_SECONDS] * 2
        self.first = ClusterKeys(store, "team", lambda: self.times[0])
        self.second = ClusterKeys(store, "team", lambda: self.times[1])

    def pass_time(self, windows: float) -> None:
        self.times = [each + windows * WINDOW_SECONDS for each in self.times]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = open_store(str(tmp_path / "store"))
    yield opened
    opened.close()


@pytest.fixture
def gateways(store: Store) -> Gateways:
    return Gateways(store)


async def test_a_key_counts_for_a_day_and_is_removed_later(store: Store, gateways: Gateways) -> None:
    assert await gateways.first.begin("k", "digest") is None
    gateways.first.end("k", "task-1")
    known = StoredKey("k", "digest", "task-1")
    assert await gateways.second.begin("k", "digest") == known
    gateways.pass_time(1)
    assert await gateways.second.begin("k", "digest") == known
    assert [each.result for each in [await gateways.first.begin("k", "other")] if each] == ["task-1"]
    gateways.pass_time(1)
    assert await gateways.second.begin("k", "digest") is None
    async with asyncio.timeout(10):
        while len(await store.list("keys/")) != 1:
            await asyncio.sleep(0.01)


async def test_gateways_whose_clocks_are_in_two_days_carry_a_request_out_once(gateways: Gateways) -> None:
    gateways.times[1] += WINDOW_SECONDS
    both = (gateways.first, gateways.second)
    for number in range(20):
        begun: list[ClusterKeys] = []

        async def request(own: ClusterKeys, key: str, begun: list[ClusterKeys]) -> StoredKey | None:
            found = await own.begin(key, "digest")
            if found is None:
                begun.append(own)
                own.end(key, "task")
            return found

        found = await asyncio.gather(*(request(each, f"k{number}", begun) for each in both))
        assert len(begun) == 1
        assert [each for each in found if each is not None] == [StoredKey(f"k{number}", "digest", "task")]


async def test_a_result_that_the_store_did_not_take_is_written_later(
    store: Store, gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "RESEND_SECONDS", 0.01)
    assert await gateways.first.begin("k", "digest") is None
    write, failures = store.objects.write, [0]

    def fail_at_first(path: str, data: bytes) -> None:
        failures[0] += 1
        if failures[0] < 3:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(store.objects, "write", fail_at_first)
    gateways.first.end("k", "task-1")
    assert await gateways.second.begin("k", "digest") == StoredKey("k", "digest", "task-1")
    assert failures[0] == 3
