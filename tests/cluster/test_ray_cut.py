"""A node whose network is cut off: its sessions end before another node may take them over. Needs root."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.cut_network import Network, cut_cluster
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
