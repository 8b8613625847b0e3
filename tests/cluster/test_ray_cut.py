"""A node whose network is cut off: its sessions end before another node may take them over. Needs root."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import boto3
import pytest

from support.object_store import credentials, environment, s3_server
from support.ray_cluster import SETTINGS, RayCluster
from support.server import Server
from support.waiting import wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]

BEAT = """
import os, time
while True:
    open({path!r}, 'a').write('.')
    time.sleep(0.05)
"""
"""Cell that shows to the outside that its session lives."""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """A bridge with the head and one node on it, and a namespace with the other node behind a cable."""

    def __init__(self) -> None:
        tag = uuid4().hex[:6]
        self.prefix = f"10.{77 + int(tag[:2], 16) % 100}.{int(tag[2:4], 16) % 250}"
        self.space, self._bridge, self._cable = f"ingle-{tag}", f"ib{tag}", f"iv{tag}"

    def make(self) -> None:
        ip("link", "add", self._bridge, "type", "bridge")
        for number in (1, 3):
            ip("addr", "add", f"{self.prefix}.{number}/24", "dev", self._bridge)
        ip("link", "set", self._bridge, "up")
        ip("netns", "add", self.space)
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("link", "set", self._cable, "master", self._bridge, "up")
        ip("-n", self.space, "addr", "add", f"{self.prefix}.2/24", "dev", "eth0")
        ip("-n", self.space, "link", "set", "eth0", "up")
        ip("-n", self.space, "link", "set", "lo", "up")

    def cut(self) -> None:
        ip("link", "set", self._cable, "down")

    def remove(self) -> None:
        for words in (("netns", "del", self.space), ("link", "del", self._bridge)):
            subprocess.run(["ip", *words], check=False, capture_output=True)


@contextmanager
def cut_cluster(network: Network) -> Iterator[tuple[RayCluster, Server]]:
    """A head and two nodes, the first of them in a namespace, with a store that it reaches by the network only."""
    with ExitStack() as stack:
        stack.callback(network.remove)
        network.make()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ingle-home-")))
        url = stack.enter_context(s3_server(f"{network.prefix}.1"))
        stack.enter_context(credentials(url))
        boto3.client("s3").create_bucket(Bucket="cut")
        cluster = RayCluster(folder / "home", 2)
        variables = {**SETTINGS, **environment(url), "INGLE_STORE": "s3://cut/ingle"}
        cluster.local.prepare(network.prefix)
        stack.callback(cluster.local.down)
        cluster.local.start_head()
        cluster.local.start_node(prefix=("ip", "netns", "exec", network.space), **variables)
        cluster.local.start_node(**variables)
        gateway = cluster.gateway("--store", "s3://cut/ingle")
        stack.callback(gateway.stop)
        yield cluster, gateway


def connected(gateway: Server) -> list[str]:
    told = gateway.client.get("/v1/nodes").raise_for_status().json()["nodes"]
    return [node["node"] for node in told if node["connected"]]


@pytest.mark.req("node.once")
def test_the_sessions_of_a_node_that_is_cut_off_end(tmp_path: Path) -> None:
    network = Network()
    with cut_cluster(network) as (_, gateway):
        assert wait_until(lambda: connected(gateway) == ["node-1", "node-2"], 90)
        names = (f"s{number}" for number in range(100))
        name = next(each for each in names if gateway.make_session(each)["node"] == "node-1")
        beats = tmp_path / "beats"
        with ThreadPoolExecutor(1) as threads:
            body = {"code": BEAT.format(path=str(beats))}
            waiting = threads.submit(gateway.make_client().post, f"/v1/sessions/{name}/execute", json=body)
            assert wait_until(beats.exists, 20)
            network.cut()
            assert waiting.result(60).json()["code"] == "node_lost"

        def answer() -> str:
            return str(gateway.client.post(f"/v1/sessions/{name}/execute", json={"code": "1"}).json()["code"])

        # Until the silence is long enough nobody knows, and then the session runs nowhere any more.
        assert wait_until(lambda: answer() == "session_lost", 60)
        before = beats.stat().st_size
        assert not wait_until(lambda: beats.stat().st_size != before, 0.5)
        assert gateway.make_session("after")["node"] == "node-2"
