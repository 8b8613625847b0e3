"""Agents as a gateway follows them: whatever a link answers, and when there is none."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from ingle import errors
from ingle.cluster.agents import Agents
from ingle.cluster.directory import StaticDirectory
from ingle.cluster.parts.everywhere import ClusterSnapshots
from ingle.cluster.token import ClusterToken
from ingle.cluster.wire.link import Link
from ingle.store.leases import Renewal


class Judge:
    """Judge that finds an agent ended when it is asked for the second time."""

    def __init__(self) -> None:
        self.asked = 0

    def tell(self, incarnation: str, renewal: Renewal) -> None: ...

    async def remaining(self, incarnation: str) -> float | None:
        self.asked += 1
        asked = self.asked
        await asyncio.sleep(0)
        return 0.0 if asked > 1 else 3.0


async def never(*given: object) -> Any:
    return False


def agents(*addresses: tuple[str, int]) -> Agents:
    return Agents(StaticDirectory([*addresses]), ClusterToken("the token of these tests"), Judge())


async def test_an_answer_that_cannot_be_read_ends_no_following(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = asyncio.Event()
    first = True

    async def open_link(host: str, port: int, token: ClusterToken) -> Link:
        nonlocal first
        if first:
            first = False
            raise msgspec.ValidationError("an agent of another version")
        opened.set()
        raise errors.Unreachable("nothing is there")

    monkeypatch.setattr(Link, "open", open_link)
    following = agents(("127.0.0.1", 1))
    await following.start()
    async with asyncio.timeout(20):
        await opened.wait()
    await following.stop()


async def test_many_calls_for_a_lost_agent_share_one_judgement() -> None:
    judge = Judge()
    found = Agents(StaticDirectory([]), ClusterToken("the token of these tests"), judge)
    assert await asyncio.gather(*(found.remaining("lost") for _ in range(100))) == [3.0] * 100
    assert judge.asked == 1
    async with asyncio.timeout(20):
        while await found.remaining("lost"):
            await asyncio.sleep(0.01)
    assert judge.asked == 2
    await found.stop()


async def test_a_snapshot_without_an_agent_is_refused_as_unavailable() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b""

    with pytest.raises(errors.Unavailable, match="no agent of the cluster"):
        await ClusterSnapshots(agents(), never).write("", "s", chunks(), 1)
