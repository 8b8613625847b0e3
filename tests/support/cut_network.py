"""A cluster of which one node is behind a network cable that can be cut. It needs root."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import boto3

from support.object_store import credentials, environment, s3_server
from support.ray_cluster import SETTINGS, RayCluster
from support.server import Server


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
