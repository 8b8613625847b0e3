"""Sessions of a cluster through gateways: found by any of them, told when their machine is lost."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ingle import errors
from ingle.callers import Caller, Limits
from ingle.requests import NewSession
from ingle.service import Service
from support.cluster import Cluster


async def test_sessions_live_on_all_agents(gateway: Service) -> None:
    made = [await gateway.create_session(f"spread-{number}") for number in range(24)]
    assert {each.node for each in made} == {"n1", "n2", "n3"}
    listed = {each.session_id: each.node for each in await gateway.list_sessions()}
    assert {each.session_id: each.node for each in made}.items() <= listed.items()
    results = await asyncio.gather(*(gateway.execute(each.session_id, "6 * 7") for each in made))
    assert [each.result for each in results] == [{"text/plain": "42"}] * 24
    await asyncio.gather(*(gateway.end_session(each.session_id) for each in made))
    with pytest.raises(errors.SessionNotFound):
        await gateway.get_session("spread-0")


@pytest.mark.req("node.same")
async def test_any_gateway_serves_any_session(three: Cluster, gateway: Service) -> None:
    other = await three.gateway()
    await gateway.create_session("both")
    generated = (await gateway.create_session()).session_id
    assert (await other.execute("both", "x = 1")).success
    assert (await gateway.execute("both", "x + 1")).result == {"text/plain": "2"}
    assert (await other.execute(generated, "1")).success
    with pytest.raises(errors.SessionExists):
        await other.create_session("both")
    task = await other.shell("echo $((40 + 2)); sleep 0.1; echo end", session_id="both", wait=0.0)
    assert (await gateway.shell_status(task.task_id, wait=10.0)).stdout == "42\nend\n"
    first = await gateway.execute("both", "print('a'); input()", wait=5.0)
    assert first.status == "waiting_for_input"
    assert (await other.input("both", "b", wait=5.0)).result == {"text/plain": "'b'"}
    events = [type(each).__name__ async for each in other.cell_events("both", first.cell)]
    assert events[-1] == "Done"
    begun = await gateway.begin("both", "import time\nwhile True: time.sleep(0.01)")
    interrupted = await other.interrupt("both", wait=10.0)
    assert interrupted is not None
    assert interrupted.cell == begun
    assert interrupted.error is not None
    for name in ("both", generated):
        await other.end_session(name)
    # The name is free again, for any gateway.
    assert (await gateway.create_session("both")).execution_count == 0
    await gateway.end_session("both")


async def test_of_many_gateways_that_create_one_name_exactly_one_does(three: Cluster) -> None:
    gateways = [await three.gateway() for _ in range(3)]
    for number in range(10):
        made = await asyncio.gather(
            *(each.create_session(f"race-{number}") for each in gateways), return_exceptions=True
        )
        assert [type(each) for each in made if isinstance(each, Exception)] == [errors.SessionExists] * 2
    assert len({each.session_id for each in await gateways[0].list_sessions()}) == 10
    for number in range(10):
        await gateways[1].end_session(f"race-{number}")


async def test_a_generated_name_of_another_tenant_is_not_found(gateway: Service) -> None:
    one, two = gateway.acting_for(Caller("a", "one")), gateway.acting_for(Caller("b", "two"))
    name = (await one.create_session()).session_id
    with pytest.raises(errors.SessionNotFound):
        await two.execute(name, "1")
    with pytest.raises(errors.SessionNotFound):
        await one.get_session(name[:-1] + ("0" if name[-1] != "0" else "1"))
    await one.end_session(name)


async def test_a_quota_holds_over_all_agents_and_gateways(three: Cluster) -> None:
    gateways = [await three.gateway() for _ in range(2)]
    callers = [each.acting_for(Caller("q", "quota", limits=Limits(sessions=4))) for each in gateways]
    made = await asyncio.gather(*(callers[number % 2].create_session() for number in range(12)), return_exceptions=True)
    refused = [each for each in made if isinstance(each, errors.QuotaExceeded)]
    live = await callers[0].list_sessions()
    assert len(live) <= 4
    assert len(refused) == 12 - len(live)
    while len(await callers[0].list_sessions()) < 4:
        await callers[1].create_session()
    with pytest.raises(errors.QuotaExceeded):
        await callers[1].create_session()
    for each in await callers[0].list_sessions():
        await callers[1].end_session(each.session_id)


@pytest.mark.req("node.same")
async def test_files_values_and_copies_cross_the_cluster(gateway: Service) -> None:
    await gateway.create_session("work")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 65536

    written, _ = await gateway.write_file("work", "data/large.bin", chunks())
    assert written.size == 40 * 65536
    opened = await gateway.open_file("work", "data/large.bin")
    assert sum([len(chunk) async for chunk in opened.chunks(0, opened.size)]) == written.size
    opened.close()
    await gateway.execute("work", "table = {'a': [1, 2]}")
    value = await gateway.value("work", "table")
    data = b"".join([chunk async for chunk in value.chunks(0, value.size)])
    value.close()
    (fork,) = await gateway.fork_session("work", "copy")
    assert fork.node == (await gateway.get_session("work")).node

    async def again() -> AsyncIterator[bytes]:
        yield data

    await gateway.set_value("copy", "other", value.kind, again())
    assert (await gateway.execute("copy", "other == table")).result == {"text/plain": "True"}
    await gateway.checkpoint("work", "before")
    await gateway.execute("work", "del table")
    assert (await gateway.rollback("work", "before")).session.session_id == "work"
    assert (await gateway.execute("work", "table")).success
    await gateway.save_session("work", "kept")
    loaded = await gateway.load_session("kept", session_id="loaded")
    assert (await gateway.execute("loaded", "table")).success, loaded
    assert [each.name for each in await gateway.list_snapshots()] == ["kept"]
    await gateway.delete_snapshot("kept")
    for name in ("work", "copy", "loaded"):
        await gateway.end_session(name)


async def test_a_snapshot_that_is_loaded_without_a_name_has_its_own(gateway: Service) -> None:
    await gateway.create_session("named")
    await gateway.execute("named", "x = 7")
    await gateway.save_session("named", "of-named")
    with pytest.raises(errors.SessionExists):
        await gateway.load_session("of-named")
    await gateway.end_session("named")
    assert (await gateway.load_session("of-named")).session.session_id == "named"
    assert (await gateway.execute("named", "x")).result == {"text/plain": "7"}
    await gateway.delete_snapshot("of-named")
    with pytest.raises(errors.SnapshotNotFound):
        await gateway.load_session("of-named")
    await gateway.end_session("named")


async def test_placement_asks_for_labels_and_gpus(own_cluster: Cluster) -> None:
    await own_cluster.grow(1)
    await own_cluster.grow(1, "zone=b")
    gateway = await own_cluster.gateway()
    made = [await gateway.create(NewSession(labels={"zone": "b"})) for _ in range(6)]
    assert {each.node for each in made} == {"n2"}
    with pytest.raises(errors.StartFailed, match="zone=c"):
        await gateway.create(NewSession(labels={"zone": "c"}))
    with pytest.raises(errors.StartFailed, match="GPU"):
        await gateway.create(NewSession(gpus="7"))


@pytest.mark.req("node.lost")
async def test_a_lost_node_is_told_at_once_and_its_names_are_free(own_cluster: Cluster) -> None:
    await own_cluster.grow(2)
    gateway = await own_cluster.gateway()
    made = [await gateway.create_session(f"s{number}") for number in range(8)]
    lost, kept = (next(each for each in made if each.node == node) for node in ("n1", "n2"))
    running = asyncio.ensure_future(gateway.execute(lost.session_id, "import time; time.sleep(60)", wait=60.0))
    async with asyncio.timeout(10):
        while (await gateway.get_session(lost.session_id)).state != "running":
            await asyncio.sleep(0.01)
    own_cluster.agents[0].kill()
    with pytest.raises(errors.NodeLost, match="n1") as told:
        await running
    assert told.value.code == "node_lost"
    assert (await gateway.execute(kept.session_id, "1")).success
    with pytest.raises(errors.SessionLost, match="n1"):
        await gateway.execute(lost.session_id, "1")
    other = await own_cluster.gateway()
    with pytest.raises(errors.SessionLost):
        await other.execute(lost.session_id, "1")
    assert (await other.create_session(lost.session_id)).node == "n2"
    assert (await gateway.execute(lost.session_id, "1")).success


@pytest.mark.req("node.lost")
async def test_a_session_that_ended_with_a_stopped_agent_is_told_as_lost(own_cluster: Cluster) -> None:
    await own_cluster.grow(2)
    gateway = await own_cluster.gateway()
    made = [await gateway.create_session(f"s{number}") for number in range(8)]
    lost = next(each.session_id for each in made if each.node == "n1")
    await own_cluster.agents[0].stop()
    with pytest.raises(errors.SessionLost, match="n1"):
        await gateway.execute(lost, "1")
    assert (await gateway.create_session(lost)).node == "n2"
    assert (await gateway.execute(lost, "1")).success


async def test_a_gateway_that_ends_ends_nothing(three: Cluster, gateway: Service) -> None:
    await gateway.create_session("lasting")
    cell = await gateway.begin("lasting", "import time\nfor n in range(20): print(n); time.sleep(0.05)")
    await gateway.stop()
    other = await three.gateway()
    events = [each async for each in other.cell_events("lasting", cell)]
    assert events[-1].cell == cell
    result = await other.wait("lasting", cell, wait=10.0)
    assert result.stdout == "".join(f"{n}\n" for n in range(20))
    await other.end_session("lasting")


async def test_an_agent_that_comes_back_is_used_again(own_cluster: Cluster) -> None:
    await own_cluster.grow(1)
    gateway = await own_cluster.gateway()
    await gateway.create_session("before")
    first = own_cluster.agents[0]
    first.kill()
    await first.process.wait()
    with pytest.raises((errors.NodeLost, errors.SessionLost, errors.Unavailable)):
        await gateway.execute("before", "1")
    again = await type(first).start(
        own_cluster.folder / "n1", "n1", own_cluster.store, own_cluster.settings, port=first.info.port
    )
    own_cluster.agents.append(again)

    async def can_create() -> bool:
        try:
            await gateway.create_session("after")
        except errors.Unavailable:
            return False
        return True

    async with asyncio.timeout(20):
        while not await can_create():
            await asyncio.sleep(0.05)
    assert (await gateway.execute("after", "1")).success


@pytest.mark.req("node.lost")
async def test_durable_sessions_of_a_lost_node_answer_elsewhere(own_cluster: Cluster) -> None:
    await own_cluster.grow(3)
    gateway, other = await own_cluster.gateway(), await own_cluster.gateway()
    made = [await gateway.create_session(f"d{number}", durable=True) for number in range(9)]
    lost = [each.session_id for each in made if each.node == "n1"]
    assert lost
    for name in lost:
        await gateway.execute(name, f"x = {name!r}")
        await gateway.execute(name, "1 + 1")
        async with asyncio.timeout(20):
            while (await gateway.get_session(name)).saved_cell != 2:
                await asyncio.sleep(0.02)
    running = asyncio.ensure_future(gateway.execute(lost[0], "import time; time.sleep(60)", wait=60.0))
    async with asyncio.timeout(10):
        while (await gateway.get_session(lost[0])).state != "running":
            await asyncio.sleep(0.01)
    own_cluster.agents[0].kill()
    with pytest.raises(errors.NodeLost):
        await running
    # Two gateways restore each session at once: one agent gets it, and both find it there.
    for name in lost:
        first, second = await asyncio.gather(gateway.get_session(name), other.get_session(name))
        assert first.node == second.node != "n1"
        result = await gateway.execute(name, "x")
        assert result.result == {"text/plain": repr(name)}
        assert any("cell 2" in each or "after cell" in each for each in result.notices), result.notices
        assert (await other.execute(name, "x")).success


@pytest.mark.req("node.drain")
async def test_a_drain_moves_all_sessions_without_loss(own_cluster: Cluster) -> None:
    await own_cluster.grow(2)
    gateway, other = await own_cluster.gateway(), await own_cluster.gateway()
    names = [(await gateway.create_session(f"m{number}", durable=number % 2 == 0)).session_id for number in range(8)]
    names.append((await gateway.create_session()).session_id)
    for name in names:
        await gateway.execute(name, f"x = {name!r}")
    nodes = {each.session_id: each.node for each in await gateway.list_sessions()}
    busy = next(name for name in names if nodes[name] == "n1")
    cell = await gateway.begin(busy, "import time; time.sleep(1); y = 1")
    drained = await gateway.drain_machine("n1", seconds=20.0)
    assert drained.stayed == {}
    assert sorted(drained.moved) == sorted(name for name in names if nodes[name] == "n1")
    assert cell
    for name in names:
        assert (await other.get_session(name)).node == "n2"
        assert (await other.execute(name, "x")).result == {"text/plain": repr(name)}
    assert (await other.execute(busy, "y")).success
    assert {(await other.create_session()).node for _ in range(4)} == {"n2"}


async def test_a_key_counts_at_all_gateways(three: Cluster, gateway: Service) -> None:
    other = await three.gateway()
    await gateway.create_session("keyed")
    command = "echo x >> count"
    first, second = await asyncio.gather(
        *(each.shell(command, session_id="keyed", request_key="k1") for each in (gateway, other))
    )
    assert first.task_id == second.task_id
    assert (await other.shell("cat count", session_id="keyed")).stdout == "x\n"
    with pytest.raises(errors.KeyReused):
        await other.shell("echo other", session_id="keyed", request_key="k1")
    results = await asyncio.gather(*(each.execute("keyed", "n = 1", key="c1") for each in (gateway, other)))
    assert {each.cell for each in results} == {1}
    ended = await gateway.end_session("keyed", request_key="e1")
    await gateway.create_session("keyed")
    again = await other.end_session("keyed", request_key="e1")
    assert again.created_at == ended.created_at
    assert (await gateway.get_session("keyed")).session_id == "keyed"
    # A request that failed leaves its key free.
    for each in (gateway, other):
        with pytest.raises(errors.SessionNotFound):
            await each.end_session("nothing", request_key="e2")
    await gateway.end_session("keyed")
