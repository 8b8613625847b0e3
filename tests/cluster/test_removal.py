"""What ended sessions leave in the store of a cluster, and when it is removed."""

import asyncio
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from ingle import errors
from ingle.service import Service
from ingle.store import claims, upkeep
from ingle.store.objects import unquoted
from ingle.store.store import Store, open_store
from support.cluster import Cluster, cluster_node_of

pytestmark = pytest.mark.req("store.remote")


@pytest.fixture
async def store(own_cluster: Cluster) -> AsyncIterator[Store]:
    opened = open_store(own_cluster.store)
    yield opened
    opened.close()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways of this test look all the time, and forget names at once."""
    monkeypatch.setattr(upkeep, "INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(claims, "FORGOTTEN_SECONDS", 0.0)


async def names_in(store: Store, folder: str) -> set[str]:
    """Return the names of sessions that have objects in a folder of the store."""
    return {unquoted(each.path.split("/")[-2]) for each in await store.list(f"{folder}/")}


async def wait_for_names(store: Store, folder: str, names: set[str]) -> None:
    async with asyncio.timeout(30):
        while await names_in(store, folder) != names:
            await asyncio.sleep(0.05)


async def saved(gateway: Service, name: str) -> None:
    async with asyncio.timeout(20):
        while (await gateway.get_session(name)).saved_cell != 1:
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("soon")
async def test_names_of_ended_and_lost_sessions_are_forgotten(own_cluster: Cluster, store: Store) -> None:
    await own_cluster.grow(2)
    gateway = await own_cluster.gateway()
    made = [await gateway.create_session(f"s{number}") for number in range(8)]
    await gateway.end_session("s0")
    own_cluster.agents[0].kill()
    left = {each.session_id for each in made[1:] if each.node == "n2"}
    await wait_for_names(store, "claims", left)
    for name in left:
        assert (await gateway.execute(name, "1")).success
    for name in {each.session_id for each in made} - left:
        with pytest.raises((errors.SessionLost, errors.SessionNotFound)):
            await gateway.execute(name, "1")
        await gateway.create_session(name)


@pytest.mark.usefixtures("soon")
async def test_a_durable_session_of_a_lost_machine_stays_until_it_is_too_old(
    own_cluster: Cluster, store: Store
) -> None:
    await own_cluster.grow(1)
    first = await own_cluster.gateway()
    await first.create_session("s", durable=True)
    await first.execute("s", "x = 41")
    await saved(first, "s")
    own_cluster.agents[0].kill()
    await own_cluster.agents[0].process.wait()
    await own_cluster.grow(1)
    second = await own_cluster.gateway()
    # Several rounds of upkeep.
    begun = {each.version for each in await store.list(upkeep.FOLDER)}
    async with asyncio.timeout(20):
        while len(begun) < 4:
            begun |= {each.version for each in await store.list(upkeep.FOLDER)}
            await asyncio.sleep(0.01)
    assert await second.list_sessions() == []
    assert (await second.execute("s", "x + 1")).result == {"text/plain": "42"}
    own_cluster.agents[1].kill()
    await own_cluster.agents[1].process.wait()
    own_cluster.settings = replace(own_cluster.settings, durable_age=0.0)
    await own_cluster.grow(1)
    await own_cluster.gateway()
    await wait_for_names(store, "saves", set())
    await wait_for_names(store, "claims", set())


@pytest.mark.req("node.once")
async def test_a_session_of_an_agent_that_was_silent_for_a_moment_keeps_its_name(
    own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_cluster.grow(2)
    gateway = await own_cluster.gateway()
    made = await gateway.create_session("s")
    node = cluster_node_of(gateway)
    (agent,) = (each for each in own_cluster.agents if each.info.node == made.node)

    async def everything(self: claims.Claims, moment: float) -> list[str]:
        return ["s"]

    # As if the session were days old.
    monkeypatch.setattr(claims.Claims, "unchanged_since", everything)
    agent.process.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(60):
            while await node.agents.remaining(agent.info.incarnation) != 0.0:
                await asyncio.sleep(0.05)
        await node._removal.run()
    finally:
        agent.process.send_signal(signal.SIGCONT)
    other = await own_cluster.gateway()
    assert (await other.execute("s", "1 + 1")).result == {"text/plain": "2"}
