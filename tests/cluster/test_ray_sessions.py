"""Sessions on a Ray cluster, through any gateway, while parts of the cluster are killed."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from support.cluster_rounds import connected, race_to_restore
from support.crash_rounds import is_saved
from support.ray_cluster import RayCluster
from support.server import NDJSON, Server, problem
from support.waiting import wait_until

RACES = 10
"""Rounds of races between two gateways. `make soak-cluster` runs a hundred."""

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def both_gateways(whole_ray_cluster: RayCluster) -> Iterator[tuple[Server, Server]]:
    """Two gateways of one cluster, which share nothing but its store and token."""
    made = [whole_ray_cluster.gateway(home=whole_ray_cluster.home.parent / name) for name in ("first", "second")]
    yield made[0], made[1]
    for gateway in made:
        gateway.stop()


@pytest.fixture
def gateways(ray_cluster: RayCluster, both_gateways: tuple[Server, Server]) -> tuple[Server, Server]:
    """Both gateways, connected to all agents: the test before may have ended some."""
    for gateway in both_gateways:
        wait_for_nodes(gateway, 3)
    return both_gateways


@pytest.fixture
def name() -> str:
    return f"s-{uuid4().hex[:8]}"


def wait_for_nodes(gateway: Server, count: int) -> None:
    """Wait until a gateway is connected to so many agents."""
    assert wait_until(lambda: connected(gateway) == count, 60)


def sessions_on_one_node(gateway: Server, name: str) -> tuple[str, str]:
    """Make a session and a durable one on the same node; the node and the name of the durable one.

    An emptier node is preferred, so that the others are filled until the first is no fuller than they are.
    """
    node = gateway.make_session(name)["node"]
    others = []
    try:
        for _ in range(20):
            durable = f"d-{uuid4().hex[:8]}"
            if gateway.make_session(durable, durable=True)["node"] == node:
                return node, durable
            others.append(durable)
        raise AssertionError(node)
    finally:
        for each in others:
            gateway.client.delete(f"/v1/sessions/{each}").raise_for_status()


def begin(gateway: Server, name: str, code: str) -> dict[str, Any]:
    """Begin a cell and do not wait for it."""
    return gateway.execute(code, name, wait=0)


def test_any_gateway_serves_any_session(gateways: tuple[Server, Server], name: str) -> None:
    first, second = gateways
    made = first.make_session(name)
    assert first.execute("x = 1", name)["status"] == "ok"
    assert second.execute("x + 1", name)["result"]["text/plain"] == "2"
    begin(second, name, "import time; time.sleep(60)")
    first.client.post(f"/v1/sessions/{name}/interrupt", json={}).raise_for_status()
    assert wait_until(lambda: second.cell(3, name)["status"] == "interrupted", 20)
    places = {each["session_id"]: each["node"] for each in second.client.get("/v1/sessions").json()["sessions"]}
    assert places[name] == made["node"]
    second.client.delete(f"/v1/sessions/{name}").raise_for_status()
    problem(first.client.post(f"/v1/sessions/{name}/execute", json={"code": "1"}), 404, "session_not_found")


def test_a_gateway_has_nothing_of_ray(gateways: tuple[Server, Server]) -> None:
    for gateway in gateways:
        assert "_raylet" not in Path(f"/proc/{gateway.process.pid}/maps").read_text()


def test_two_gateways_that_race_for_a_name_never_both_get_it(gateways: tuple[Server, Server]) -> None:
    with ThreadPoolExecutor(2) as threads:
        for _ in range(RACES):
            body = {"session_id": f"r-{uuid4().hex[:8]}"}
            asked = [threads.submit(each.client.post, "/v1/sessions", json=body) for each in gateways]
            assert sorted(each.result().status_code for each in asked) == [201, 409]
            gateways[0].client.delete(f"/v1/sessions/{body['session_id']}").raise_for_status()


@pytest.mark.req("node.once")
def test_two_gateways_that_race_to_restore_a_session_get_the_same_one(
    ray_cluster: RayCluster, gateways: tuple[Server, Server], name: str
) -> None:
    race_to_restore(ray_cluster, gateways, name, RACES)


def test_a_drain_moves_sessions_to_other_nodes(
    ray_cluster: RayCluster, gateways: tuple[Server, Server], name: str
) -> None:
    first, second = gateways
    node = first.make_session(name)["node"]
    assert first.execute("x = list(range(1000))", name)["status"] == "ok"
    told = first.client.post(f"/v1/nodes/{node}/drain", json={}).raise_for_status().json()
    assert (name in told["moved"], told["stayed"]) == (True, {})
    assert second.execute("sum(x)", name)["result"]["text/plain"] == "499500"
    assert second.client.get(f"/v1/sessions/{name}").json()["node"] != node
    # A drained node is as new once its agent has been restarted.
    os.kill(ray_cluster.agent_of(node), signal.SIGKILL)
    assert wait_until(lambda: not any(each["draining"] for each in machines(first)), 60)


def machines(gateway: Server) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = gateway.client.get("/v1/nodes").raise_for_status().json()["nodes"]
    return told


def test_a_gateway_killed_in_mid_stream_ends_nothing(
    ray_cluster: RayCluster, gateways: tuple[Server, Server], name: str, tmp_path: Path
) -> None:
    _, other = gateways
    doomed = ray_cluster.gateway(home=tmp_path / "home")
    doomed.make_session(name)
    seen = events_until_killed(doomed, name, "import time\nfor i in range(30):\n    print(i)\n    time.sleep(0.1)")
    assert wait_until(lambda: other.cell(1, name)["status"] == "ok", 30)
    assert other.cell(1, name)["stdout"].split() == [str(number) for number in range(30)]
    # What the killed one had not sent any more is there, once.
    rest = other.cell(1, name, **{"from": seen[-1]["seq"] + 1})["stdout"].split()
    told = "".join(event["text"] for event in seen if event["type"] == "stdout").split()
    assert told + rest == [str(number) for number in range(30)]
    other.client.delete(f"/v1/sessions/{name}").raise_for_status()


def events_until_killed(gateway: Server, name: str, code: str) -> list[dict[str, Any]]:
    """Run a cell, kill the gateway after some events; those events."""
    seen: list[dict[str, Any]] = []
    request = {"url": f"/v1/sessions/{name}/execute", "json": {"code": code}, "headers": NDJSON}
    with contextlib.suppress(httpx.HTTPError), gateway.client.stream("POST", **request) as stream:
        for line in stream.iter_lines():
            seen.append(json.loads(line))
            if len(seen) == 5:
                gateway.process.kill()
                gateway.process.wait()
                break
    gateway.stop()
    return seen


def test_without_its_head_the_cluster_serves_sessions(
    ray_cluster: RayCluster, gateways: tuple[Server, Server], name: str
) -> None:
    first, second = gateways
    first.make_session(name)
    ray_cluster.local.kill_head()
    try:
        # Longer than a lease lasts: it is renewed at the store alone.
        stop = threading.Event()
        threading.Timer(5.0, stop.set).start()
        count = 0
        while not stop.is_set():
            count += 1
            assert first.execute(f"x = {count}", name)["status"] == "ok"
            assert second.execute("x", name)["result"]["text/plain"] == str(count)
        second.make_session(f"{name}-new")
    finally:
        ray_cluster.repair()
    assert first.execute("x", name)["result"]["text/plain"] == str(count)
    # The head that came back knows its actors, and restarts them.
    agent = ray_cluster.agent_of("node-1")
    os.kill(agent, signal.SIGKILL)
    assert wait_until(lambda: ray_cluster.agent_of("node-1") != agent, 60)
    for each in (name, f"{name}-new"):
        first.client.delete(f"/v1/sessions/{each}")


def test_a_killed_node_is_told_to_those_who_wait(
    ray_cluster: RayCluster, gateways: tuple[Server, Server], name: str
) -> None:
    first, second = gateways
    node, durable = sessions_on_one_node(first, name)
    assert first.execute("x = 41", durable)["status"] == "ok"
    assert wait_until(lambda: is_saved(first, durable), 20)
    with ThreadPoolExecutor(1) as threads:
        body = {"code": "import time; print('begun', flush=True); time.sleep(60)"}
        waiting = threads.submit(first.make_client().post, f"/v1/sessions/{name}/execute", json=body)
        # Until the cell has started there is none to read.
        path = f"/v1/sessions/{name}/cells/1"
        assert wait_until(lambda: "begun" in second.client.get(path).json().get("stdout", ""), 20)
        ray_cluster.local.kill_node(node)
        problem(waiting.result(30), 503, "node_lost")

    def answer() -> httpx.Response:
        return second.client.post(f"/v1/sessions/{name}/execute", json={"code": "1"})

    # The call with which a gateway finds the node gone may have run there, for all it knows.
    assert wait_until(lambda: answer().json()["code"] != "node_lost")
    problem(answer(), 410, "session_lost")
    assert second.execute("x", durable)["result"]["text/plain"] == "41"
    assert first.client.get(f"/v1/sessions/{durable}").json()["node"] != node


def test_an_agent_whose_node_is_gone_is_restarted_on_a_spare_node(
    ray_cluster: RayCluster, gateways: tuple[Server, Server], name: str
) -> None:
    first, second = gateways
    first.client.put("/v1/nodes", json={"count": 1}).raise_for_status()
    try:
        wait_for_nodes(first, 1)
        wait_for_nodes(second, 1)
        node = first.make_session(name, durable=True)["node"]
        assert first.execute("x = 41", name)["status"] == "ok"
        assert wait_until(lambda: is_saved(first, name), 20)
        ray_cluster.local.kill_node(node)

        def answer() -> Any:
            # Until Ray has started the agent elsewhere, there is none.
            return second.client.post(f"/v1/sessions/{name}/execute", json={"code": "x"}).json().get("result")

        assert wait_until(lambda: answer() == {"text/plain": "41"}, 90)
        assert first.client.get(f"/v1/sessions/{name}").json()["node"] in {"node-1", "node-2", "node-3"} - {node}
        second.client.delete(f"/v1/sessions/{name}").raise_for_status()
    finally:
        first.client.put("/v1/nodes", json={"count": 3}).raise_for_status()
