"""A cluster on this machine: calls, failures, scaling, drains. `python bench/cluster.py` as root, on a quiet machine.

All nodes are on one host, so that no figure contains a real network. Each part runs on a cluster of its own and prints
its figures with their targets; `--only` picks parts, `--quick` makes them smaller.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import httpx

from bench import cluster_calls
from ingle.cluster.fence.watchdog import descendants
from support.cut_network import Network, cut_cluster
from support.ray_cluster import RayCluster
from support.server import Server
from support.waiting import wait_until

OUT = Path(__file__).resolve().parent.parent / "docs" / "bench" / "cluster.json"

SESSIONS = 20
"""Sessions on the node that is killed or cut off."""

PATIENCE = 30.0
CAP = 0.2
"""Part of a core that each node may use while scaling is measured."""

PERIOD_MICROSECONDS = 20_000

TURN_SECONDS = 2.0

CPU_CELL = "for _ in range(300_000): pass"
"""Cell of some milliseconds: what gateway and client spend on it is small beside it, and they share the cores."""


@dataclass(frozen=True)
class Row:
    name: str
    value: float
    unit: str
    target: str


@contextlib.contextmanager
def cluster_of(nodes: int) -> Iterator[tuple[RayCluster, Server]]:
    with tempfile.TemporaryDirectory(prefix="ingle-bench-") as folder:
        cluster = RayCluster(Path(folder) / "home", nodes)
        try:
            cluster.repair()
            gateway = cluster.gateway()
            try:
                wait_for_agents(gateway, nodes)
                yield cluster, gateway
            finally:
                gateway.stop()
        finally:
            cluster.ingle("cluster", "down")


def sessions_on(gateway: Server, count: int) -> tuple[str, list[str]]:
    """Make durable sessions until one node has `count` of them; that node, and their names."""
    places: dict[str, list[str]] = {}
    for number in range(10_000):
        made = gateway.make_session(f"s{number}", durable=True)
        here = places.setdefault(made["node"], [])
        here.append(f"s{number}")
        if len(here) == count:
            return made["node"], here
    raise AssertionError(places)


async def told(client: httpx.AsyncClient, name: str) -> tuple[float, str]:
    """When a client that waits for a cell is told its end, and how it ended."""
    answer = await client.post(f"/v1/sessions/{name}/execute", json={"code": "import time; time.sleep(60)"})
    return time.monotonic(), answer.text


async def answering(client: httpx.AsyncClient, name: str, expected: str) -> float:
    """When a session answers again, with its state."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = await client.post(f"/v1/sessions/{name}/execute", json={"code": "print(x)"})
        if answer.status_code == 200 and answer.json()["status"] == "ok":
            assert expected in answer.json()["stdout"], answer.text
            return time.monotonic()
        assert time.monotonic() < deadline, answer.text
        await asyncio.sleep(0.02)


async def lose(gateway: Server, names: list[str], strike: Callable[[], None]) -> tuple[float, float]:
    """Seconds until clients of running cells are told, and until all sessions answer elsewhere."""
    limits = httpx.Limits(max_connections=100)
    headers = {"Authorization": f"Bearer {gateway.token}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=90, limits=limits) as client:
        for name in names:
            answer = await client.post(f"/v1/sessions/{name}/execute", json={"code": f"x = {name!r}"})
            answer.raise_for_status()
            while (await client.get(f"/v1/sessions/{name}")).json()["saved_cell"] != 1:
                await asyncio.sleep(0.05)
        waiting = [asyncio.create_task(told(client, name)) for name in names[:3]]
        await asyncio.sleep(1)
        began = time.monotonic()
        await asyncio.to_thread(strike)
        ends = await asyncio.gather(*waiting)
        for _, text in ends:
            assert "node_lost" in text, text
        back = await asyncio.gather(*(answering(client, name, name) for name in names))
    return max(at for at, _ in ends) - began, max(back) - began


def calls(quick: bool) -> list[Row]:
    """What a gateway and an agent add to a call, beside a service on this machine in the same run."""
    return [Row(**row) for row in asyncio.run(cluster_calls.measure(quick))]


def killed_node(quick: bool) -> list[Row]:
    with cluster_of(3) as (cluster, gateway):
        node, names = sessions_on(gateway, 5 if quick else SESSIONS)
        informed, answered = asyncio.run(lose(gateway, names, lambda: cluster.local.kill_node(node)))
        return [
            Row("killed node: running clients told", informed, "s", "at most 0.1 s"),
            Row(f"killed node: {len(names)} sessions answer elsewhere", answered, "s", "at most 1 s"),
        ]


def cut_node(quick: bool) -> list[Row]:
    network = Network()
    with cut_cluster(network) as (_, gateway):
        wait_for_agents(gateway, 2)
        names = sessions_of("node-1", gateway, 3 if quick else SESSIONS)
        informed, answered = asyncio.run(lose(gateway, names, network.cut))
        return [
            Row("cut node: running clients told", informed, "s", "at most 5 s"),
            Row(f"cut node: {len(names)} sessions answer elsewhere", answered, "s", "at most 5 s"),
        ]


def sessions_of(node: str, gateway: Server, count: int) -> list[str]:
    """Make durable sessions until this node has `count` of them; their names."""
    names = (f"s{number}" for number in range(10_000))
    found = (name for name in names if gateway.make_session(name, durable=True)["node"] == node)
    return list(itertools.islice(found, count))


def wait_for_agents(gateway: Server, count: int) -> None:
    def connected() -> bool:
        told = gateway.client.get("/v1/nodes").raise_for_status().json()["nodes"]
        return sum(each["connected"] for each in told) == count

    assert wait_until(connected, 3 * PATIENCE)


def head_away(quick: bool) -> list[Row]:
    seconds = 4 if quick else 10
    with cluster_of(2) as (cluster, gateway):
        gateway.make_session("main")
        failed, count, worst = 0, 0, 0.0
        cluster.local.kill_head()
        deadline = time.monotonic() + seconds
        restarted = False
        while time.monotonic() < deadline:
            began = time.monotonic()
            answer = gateway.client.post("/v1/sessions/main/execute", json={"code": "1"})
            worst = max(worst, time.monotonic() - began)
            failed += answer.status_code != 200 or answer.json()["status"] != "ok"
            count += 1
        if not restarted:
            cluster.local.start_head()
        return [
            Row(f"head away for {seconds} s: failed executes of {count}", failed, "", "0"),
            Row("head away: slowest execute", worst * 1000, "ms", ""),
        ]


def scaling(quick: bool) -> list[Row]:
    """CPU cells on one node, and on four, each capped at a fifth of a core.

    They are measured in turns: a machine that others use is not equally fast in all seconds.
    """
    turns = 2 if quick else 6
    rates = dict.fromkeys((1, 4), 0.0)
    with cluster_of(4) as (cluster, gateway), capped(cluster):
        places: dict[str, list[str]] = {}
        for number in range(200):
            made = gateway.make_session(f"s{number}")
            places.setdefault(made["node"], []).append(f"s{number}")
            if len(places) == 4 and min(map(len, places.values())) >= 2:
                break
        for nodes in [*rates] * turns:
            names = [name for place in list(places.values())[:nodes] for name in place[:2]]
            rates[nodes] += asyncio.run(rate(gateway, names, TURN_SECONDS))
    return [Row("CPU cells on 4 nodes against 1, each at 0.2 core", rates[4] / rates[1], "times", "at least 3.8")]


async def rate(gateway: Server, names: list[str], seconds: float) -> float:
    """Cells per second over all sessions."""
    headers = {"Authorization": f"Bearer {gateway.token}"}
    count = 0
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=60) as client:
        deadline = time.monotonic() + seconds

        async def work(name: str) -> None:
            nonlocal count
            while time.monotonic() < deadline:
                (await client.post(f"/v1/sessions/{name}/execute", json={"code": CPU_CELL})).raise_for_status()
                count += 1

        await asyncio.gather(*(work(name) for name in names))
    return count / seconds


@contextlib.contextmanager
def capped(cluster: RayCluster) -> Iterator[None]:
    """Put each agent with all that is below it into a control group of `CAP` cores."""
    agents = [cluster.agent_of(node.name) for node in cluster.local.state.nodes]
    version_1 = Path("/sys/fs/cgroup/cpu")
    groups = []
    try:
        for agent in agents:
            group = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / f"ingle-bench-{agent}"
            group.mkdir()
            groups.append(group)
            quota = int(CAP * PERIOD_MICROSECONDS)
            if version_1.is_dir():
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
            move(agent, group)
        yield
    finally:
        for group in groups:
            parent = group.parent / "cgroup.procs"
            for pid in (group / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    parent.write_text(pid)
            with contextlib.suppress(OSError):
                group.rmdir()


def move(agent: int, group: Path) -> None:
    """Put an agent and all that is below it into a control group. It may start processes at this moment."""
    inside: set[int] = set()
    while outside := {agent, *(pid for pid, _ in descendants(agent))} - inside:
        for pid in outside:
            with contextlib.suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))
        inside |= outside


def drained(quick: bool) -> list[Row]:
    count = 10 if quick else 50
    with cluster_of(3) as (cluster, gateway):
        node, names = sessions_on(gateway, count)
        for name in names:
            gateway.execute(f"data = bytes(range(256)) * 40_000; x = {name!r}", name)
        began = time.monotonic()
        cluster.ingle("cluster", "drain", node)
        took = time.monotonic() - began
        lost = sum(name not in gateway.execute("print(x, len(data))", name)["stdout"] for name in names)
        return [
            Row(f"drain of {count} idle sessions of 10 MB", took, "s", "at most 10 s"),
            Row("drain: lost sessions", lost, "", "0"),
        ]


ROWS: dict[str, Callable[[bool], list[Row]]] = {
    "calls": calls,
    "killed": killed_node,
    "cut": cut_node,
    "head": head_away,
    "scaling": scaling,
    "drain": drained,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=ROWS, default=list(ROWS))
    options = parser.parse_args()
    os.environ.setdefault("INGLE_ISOLATION", "none")
    found = []
    for name in options.only:
        for row in ROWS[name](options.quick):
            print(f"{row.name}: {row.value:.3g} {row.unit}   ({row.target})", flush=True)
            found.append(row.__dict__)
    if not options.quick and options.only == list(ROWS):
        OUT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
