"""Sessions that move between the agents of a cluster, or stay where they are."""

import asyncio
from dataclasses import replace

import pytest

from ingle import errors
from ingle.requests import NewSession
from ingle.service import Service
from ingle.store.claims import Claims
from ingle.store.store import open_store
from support.cluster import AgentProcess, Cluster, cluster_node_of
from support.waiting import until

SLOW_TO_SAVE = """
import time

class Slow:
    def __reduce__(self):
        time.sleep(2)
        return str, ("slow",)

x, slow = 2, Slow()
"""


async def saved(gateway: Service, name: str, cell: int = 1) -> None:
    """Wait until a cell of a session is saved."""
    async with asyncio.timeout(20):
        while (await gateway.get_session(name)).saved_cell != cell:
            await asyncio.sleep(0.02)


async def lose(gateway: Service, agent: AgentProcess) -> None:
    """Kill an agent, if that was not done before, and wait until a gateway has noticed."""
    if not agent.killed:
        agent.kill()
    up = cluster_node_of(gateway).agents.up
    assert await until(lambda: agent.info.incarnation not in up)


@pytest.mark.req("node.lost")
async def test_a_session_that_no_agent_may_have_says_why(own_cluster: Cluster) -> None:
    own_cluster.settings = replace(own_cluster.settings, isolation="none")
    await own_cluster.grow(1)
    first = await own_cluster.gateway()
    await first.create_session("s", durable=True, isolation="none")
    await first.execute("s", "x = 1")
    await saved(first, "s")
    store = open_store(str(own_cluster.store))
    made = await Claims(store).newest("s")
    assert made is not None
    own_cluster.settings = replace(own_cluster.settings, isolation="limits")
    await own_cluster.grow(2)
    gateway = await own_cluster.gateway()
    await lose(gateway, own_cluster.agents[0])
    for _ in range(2):
        with pytest.raises(errors.SessionHeldBack, match="isolation 'none' is weaker than 'limits'"):
            await gateway.execute("s", "x")
    with pytest.raises(errors.SessionExists):
        await gateway.create_session("s")
    claim = await Claims(store).newest("s")
    store.close()
    assert claim is not None
    assert claim.released
    # Each of two agents was asked twice, and once more for the name.
    assert claim.epoch <= made.epoch + 3 * 2


@pytest.mark.req("node.once")
async def test_a_session_answers_elsewhere_once_its_agent_has_saved_it(own_cluster: Cluster) -> None:
    await own_cluster.grow(1)
    await (await own_cluster.gateway()).create_session("s", durable=True)
    await own_cluster.grow(1)
    gateway = await own_cluster.gateway()
    await gateway.execute("s", "x = 1")
    await saved(gateway, "s")
    await gateway.execute("s", SLOW_TO_SAVE)
    stopping = asyncio.ensure_future(own_cluster.agents[0].stop())
    agents = cluster_node_of(gateway).agents
    assert await until(lambda: len(agents.up) == 1)
    assert (await gateway.execute("s", "x")).result == {"text/plain": "2"}
    assert (await gateway.get_session("s")).node == "n2"
    await stopping


@pytest.mark.req("node.lost")
async def test_a_restored_session_keeps_its_labels(own_cluster: Cluster) -> None:
    await own_cluster.grow(1, "zone=b")
    await own_cluster.grow(1)
    await own_cluster.grow(1, "zone=b")
    gateway = await own_cluster.gateway()
    info = await gateway.create(NewSession(session_id="s", durable=True, labels={"zone": "b"}))
    await gateway.execute("s", "x = 1")
    await saved(gateway, "s")
    first = next(each for each in own_cluster.agents if each.info.node == info.node)
    (second,) = (each for each in own_cluster.agents if each.info.labels and each is not first)
    await lose(gateway, first)
    assert (await gateway.execute("s", "x")).result == {"text/plain": "1"}
    assert (await gateway.get_session("s")).node == second.info.node
    await saved(gateway, "s", 2)
    await lose(gateway, second)
    with pytest.raises(errors.StartFailed, match="no agent has the labels zone=b"):
        await gateway.execute("s", "x")


@pytest.mark.req("node.lost")
async def test_a_session_without_use_for_long_is_removed_by_one_agent(own_cluster: Cluster) -> None:
    own_cluster.settings = replace(own_cluster.settings, durable_age=0.0)
    await own_cluster.grow(1)
    await (await own_cluster.gateway()).create_session("s", durable=True)
    await own_cluster.grow(2)
    gateway = await own_cluster.gateway()
    await gateway.execute("s", "x = 1")
    await saved(gateway, "s")
    store = open_store(str(own_cluster.store))
    before = await Claims(store).newest("s")
    await lose(gateway, own_cluster.agents[0])
    with pytest.raises(errors.SessionNotFound):
        await gateway.execute("s", "x")
    after = await Claims(store).newest("s")
    store.close()
    assert before is not None
    assert after is not None
    assert (after.epoch, after.released) == (before.epoch + 1, True)


@pytest.mark.req("node.lost")
async def test_a_late_gateway_finds_a_session_that_was_restored_and_saved_meanwhile(
    own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await own_cluster.grow(2)
    first, late = await own_cluster.gateway(), await own_cluster.gateway()
    await first.create_session("s", durable=True)
    await first.execute("s", "x = 1")
    await saved(first, "s")
    judged = asyncio.Event()

    async def remaining(incarnation: str) -> float:
        await judged.wait()
        return 0.0

    monkeypatch.setattr(cluster_node_of(late).agents, "remaining", remaining)
    node = (await first.get_session("s")).node
    (agent,) = (each for each in own_cluster.agents if each.info.node == node)
    await lose(first, agent)
    await lose(late, agent)
    asked = asyncio.ensure_future(late.execute("s", "x"))
    store = open_store(str(own_cluster.store))
    saves = [each.path for each in await store.list("saves/")]
    while not {each.path for each in await store.list("saves/")}.isdisjoint(saves):
        done = await first.execute("s", "x += 1")
        await saved(first, "s", done.cell)
    store.close()
    judged.set()
    assert (await asked).result == (await first.execute("s", "x")).result


@pytest.mark.req("node.drain")
async def test_a_drained_agent_takes_no_session(own_cluster: Cluster) -> None:
    await own_cluster.grow(2)
    gateway = await own_cluster.gateway()
    name = "original"
    while (await gateway.create_session(name)).node != "n1":
        await gateway.end_session(name)
    cell = await gateway.begin(name, "input()")
    drained = await gateway.drain_machine("n1", seconds=0.0)
    assert list(drained.stayed) == [name]
    agent = next(each for each in cluster_node_of(gateway).agents.up.values() if each.info.node == "n1")
    with pytest.raises(errors.Unavailable, match="drained"):
        await agent.agent.create(NewSession(session_id="late"), 1)
    with pytest.raises(errors.Unavailable, match="drained"):
        await gateway.create_session("sharing", shares=name)
    await gateway.input(name, "", wait=10.0)
    assert (await gateway.wait(name, cell)).success
    assert (await gateway.drain_machine("n1", seconds=20.0)).moved == [name]


@pytest.mark.req("node.drain")
@pytest.mark.parametrize("durable", [False, True])
async def test_a_session_that_no_other_agent_takes_stays(own_cluster: Cluster, durable: bool) -> None:
    await own_cluster.grow(1, "zone=b")
    await own_cluster.grow(1)
    gateway = await own_cluster.gateway()
    await gateway.create(NewSession(session_id="s", durable=durable, labels={"zone": "b"}))
    await gateway.execute("s", "x = 1")
    drained = await gateway.drain_machine("n1", seconds=20.0)
    assert drained.moved == []
    assert "no agent has the labels zone=b" in drained.stayed["s"]
    assert (await gateway.execute("s", "x")).result == {"text/plain": "1"}
    assert (await gateway.get_session("s")).node == "n1"
    assert await gateway.list_snapshots() == []


@pytest.mark.req("node.drain")
async def test_a_session_that_moves_is_made_as_it_was(own_cluster: Cluster) -> None:
    await own_cluster.grow(1)
    await (await own_cluster.gateway()).create_session("s", env={"A": "b"}, checkpoints="auto", keep_failures=2)
    await own_cluster.grow(1)
    gateway = await own_cluster.gateway()
    before = await gateway.get_session("s")
    await gateway.execute("s", "x = 1")
    assert (await gateway.drain_machine("n1", seconds=20.0)).moved == ["s"]
    after = await gateway.get_session("s")
    assert after.node == "n2"
    assert after.idle_timeout == before.idle_timeout
    result = await gateway.execute("s", "import os; x, os.environ['A']")
    assert result.result == {"text/plain": "(1, 'b')"}
    assert await gateway.checkpoints("s") != []
    assert await gateway.list_snapshots() == []
