"""Agents that Ray places: one on each node, known to a gateway through its link, whatever is killed."""

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from ingle.cluster.ray.directory import RayDirectory
from ingle.errors import Unavailable
from support.processes import command_line
from support.ray_cluster import RayCluster
from support.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

LINK = "ingle.cluster.ray.raylink"

PATIENCE = 60.0


def places(directory: RayDirectory) -> list[str]:
    """Nodes of the agents that were heard a moment ago."""
    heard = {
        incarnation: silence
        for incarnation in directory.agents()
        if (silence := directory.silence(incarnation)) is not None and silence < 2
    }
    return sorted(info.node for incarnation, info in directory.agents().items() if incarnation in heard)


ALL = ["node-1", "node-2", "node-3"]


async def test_each_node_has_one_agent(directory: RayDirectory) -> None:
    assert await until(lambda: places(directory) == ALL, PATIENCE)


async def test_an_agent_has_nothing_of_ray(ray_cluster: RayCluster, directory: RayDirectory) -> None:
    agent = ray_cluster.agent_of("node-1")
    variables = Path(f"/proc/{agent}/environ").read_bytes().split(b"\0")
    assert [each for each in variables if each.upper().startswith(b"RAY_")] == []
    # What Ray changes in its workers: breakpoint() would be its own, and numpy would have one thread.
    given = {name: value for name, _, value in (os.fsdecode(each).partition("=") for each in variables)}
    for name in ("PYTHONBREAKPOINT", "OMP_NUM_THREADS"):
        assert given.get(name) == os.environ.get(name)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{agent}/status").read_text().splitlines())
    blocked = int(status["SigBlk"], 16)
    assert not blocked & (1 << (signal.SIGINT - 1))
    assert os.getpriority(os.PRIO_PROCESS, agent) == 0
    assert "_raylet" not in Path(f"/proc/{agent}/maps").read_text()


async def test_a_killed_agent_is_started_again(ray_cluster: RayCluster, directory: RayDirectory) -> None:
    assert await until(lambda: places(directory) == ALL, PATIENCE)
    before = set(directory.agents())
    os.kill(ray_cluster.agent_of("node-2"), signal.SIGKILL)
    assert await until(lambda: len(set(directory.agents()) - before) == 1, PATIENCE)
    assert await until(lambda: places(directory) == ALL, PATIENCE)


async def test_a_killed_node_falls_silent_and_comes_back(ray_cluster: RayCluster, directory: RayDirectory) -> None:
    assert await until(lambda: places(directory) == ALL, PATIENCE)
    killed = json.loads(ray_cluster.ingle("cluster", "kill", "node-3", "--json"))
    assert killed == {"node": "node-3", "state": "ended"}
    assert await until(lambda: places(directory) == ALL[:2], PATIENCE)
    states = {
        row["node"]: row["state"] for row in json.loads(ray_cluster.ingle("cluster", "status", "--json"))["nodes"]
    }
    assert states["node-3"] == "ended"
    ray_cluster.repair()
    assert await until(lambda: places(directory) == ALL, PATIENCE)


async def test_scaling_ends_lost_nodes_first_and_fills_gaps(ray_cluster: RayCluster, directory: RayDirectory) -> None:
    assert await until(lambda: places(directory) == ALL, PATIENCE)
    ray_cluster.ingle("cluster", "kill", "node-2")
    assert json.loads(ray_cluster.ingle("cluster", "scale", "2", "--json")) == {"node": "node-2", "state": "ended"}
    assert await until(lambda: places(directory) == ["node-1", "node-3"], PATIENCE)
    ray_cluster.ingle("cluster", "kill", "node-1")
    started = ray_cluster.ingle("cluster", "scale", "3", "--json").splitlines()
    assert [json.loads(each)["node"] for each in started] == ["node-1", "node-2"]
    assert [node.name for node in ray_cluster.local.state.nodes] == ALL
    assert await until(lambda: places(directory) == ALL, PATIENCE)


async def test_a_killed_link_is_started_again_and_agents_stay_known(directory: RayDirectory) -> None:
    assert await until(lambda: places(directory) == ALL, PATIENCE)
    before = directory.agents()
    (link,) = own_links()
    os.kill(link, signal.SIGKILL)
    assert await until(lambda: own_links() - {link} != set(), PATIENCE)
    assert directory.agents() == before
    assert await until(lambda: places(directory) == ALL, PATIENCE)
    # An order is answered by a report of the new link.
    await drained(directory, "node-2")
    assert directory.agents() == before


async def drained(directory: RayDirectory, node: str) -> None:
    """Drain a node and take that back, each followed by the report that tells it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                await directory.drain(node)
                break
            except Unavailable:
                await asyncio.sleep(0.05)  # the link has not been started yet
    assert await until(lambda: directory.draining() == {node}, PATIENCE)
    await directory.undrain(node)
    assert await until(lambda: directory.draining() == set(), PATIENCE)


def own_links() -> set[int]:
    return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_own_link(pid)}


def is_own_link(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if LINK in command_line(pid).split():
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    return False


async def test_a_node_that_is_drained_is_told_to_every_gateway(
    ray_cluster: RayCluster, directory: RayDirectory
) -> None:
    other = RayDirectory(ray_cluster.local.address, ray_cluster.local.ray_variables())
    await other.start(lambda: None)
    try:
        await directory.drain("node-2")
        assert await until(lambda: other.draining() == {"node-2"}, PATIENCE)
        await other.undrain("node-2")
        assert await until(lambda: directory.draining() == set(), PATIENCE)
    finally:
        await other.stop()


async def test_an_agent_that_is_killed_while_it_starts_is_started_again(
    ray_cluster: RayCluster, directory: RayDirectory
) -> None:
    assert await until(lambda: places(directory) == ALL, PATIENCE)
    running = ray_cluster.agents_of("node-2")
    # Ray gave an actor up whose agent had ended before it was ready. The second start shows that it did not.
    first = await killed_after(ray_cluster, running)
    await killed_after(ray_cluster, running | first)
    assert await until(lambda: places(directory) == ALL, PATIENCE)


async def killed_after(ray_cluster: RayCluster, known: set[int]) -> set[int]:
    """Kill the agents of node-2, and those that start in their place."""
    for pid in known:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert await until(lambda: ray_cluster.agents_of("node-2") - known != set(), PATIENCE)
    starting = ray_cluster.agents_of("node-2") - known
    for pid in starting:
        os.kill(pid, signal.SIGKILL)
    return starting
