"""A Ray cluster of which agents and gateways are killed, again and again, while sessions are saved and restored."""

import contextlib
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from support.crash_rounds import NAMED, PATIENCE, READ, WRITE, Writer, is_saved
from support.ray_cluster import SETTINGS, RayCluster
from support.server import Server
from support.waiting import wait_until

NODES = 3
RESTART_SECONDS = 180.0
"""Time limit for Ray to start killed agents again, on a machine that does more than this."""

SIZE = 20_000
"""Bytes that each cell writes."""

PASSING = ("node_lost", "unavailable", "overloaded")
"""Codes of answers after which a call is made again."""


@contextlib.contextmanager
def cluster_with(store: str | None = None, **variables: str) -> Iterator[RayCluster]:
    """Start a cluster with a store: a folder of its own, or a bucket by URL with the variables that it needs."""
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as folder:
        cluster = RayCluster(Path(folder) / "home", NODES)
        cluster.local.prepare()
        try:
            cluster.local.start_head()
            given = {} if store is None else {"INGLE_STORE": store}
            for _ in range(NODES):
                cluster.local.start_node(**SETTINGS, **variables, **given)
            yield cluster
        finally:
            cluster.local.down()


def connected(gateway: Server) -> int:
    told = gateway.client.get("/v1/nodes").raise_for_status().json()["nodes"]
    return sum(node["connected"] for node in told)


def race_to_restore(cluster: RayCluster, gateways: tuple[Server, Server], name: str, rounds: int) -> None:
    """Kill the agent of a session and have two gateways restore it at once. Exactly one session must come of it."""
    first = gateways[0]
    first.make_session(name, durable=True)
    assert first.execute("n = 0", name)["status"] == "ok"
    expected = 0
    with ThreadPoolExecutor(2) as threads:
        for _ in range(rounds):
            assert wait_until(lambda: is_saved(first, name), PATIENCE)
            node = first.client.get(f"/v1/sessions/{name}").json()["node"]
            os.kill(cluster.agent_of(node), signal.SIGKILL)
            body = {"code": "n += 1", "queue": True}
            asked = [threads.submit(each.client.post, f"/v1/sessions/{name}/execute", json=body) for each in gateways]
            ran = [answer.status_code == 200 for answer in [each.result(60) for each in asked]]
            # One of the two may have met the end of the agent. What ran is in the one session that there is.
            expected += sum(ran)
            assert first.execute("n", name)["result"]["text/plain"] == str(expected)
            assert wait_until(lambda: [connected(each) for each in gateways] == [NODES, NODES], RESTART_SECONDS)
            assert [places(each, name) for each in gateways] == [places(first, name)] * 2
    first.client.delete(f"/v1/sessions/{name}").raise_for_status()


def places(gateway: Server, name: str) -> str:
    """The node that has a session. No second one may have it."""
    (found,) = [each for each in gateway.client.get("/v1/sessions").json()["sessions"] if each["session_id"] == name]
    return str(found["node"])


class ClusterWriter(Writer):
    """Writer that ends when its gateway, or the agent of its cell, is gone."""

    def _write(self, http: httpx.Client) -> None:
        n = self.number + 1
        cell = told(http.get("/v1/sessions/main"))["execution_count"] + 1
        self.number = n
        self.wrote[cell] = n
        body = {"code": WRITE.format(n=n, size=self._size), "wait": PATIENCE}
        result = told(http.post("/v1/sessions/main/execute", json=body))
        assert result["status"] == "ok", result
        restored = named_in(result)
        for each in restored:
            assert each >= self.acknowledged, (each, self.acknowledged)
        if result["cell"] != cell:
            assert restored, (result, cell)
            self.wrote[result["cell"]] = self.wrote.pop(cell)
        self.acknowledged = max(self.acknowledged, told(http.get("/v1/sessions/main"))["saved_cell"] or 0)


def told(answer: httpx.Response) -> dict[str, Any]:
    """Return an answer. Raise an HTTPError if a gateway says that the agent is gone."""
    if answer.status_code == 503:
        answer.raise_for_status()
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def named_in(result: dict[str, Any]) -> list[int]:
    """The cells of saves that a session was restored from, as its notices name them."""
    return [int(found[1]) for notice in result["notices"] if (found := NAMED.search(notice))]


class ClusterRounds:
    """One durable session, and a kill in each round."""

    def __init__(self, cluster: RayCluster, chance: random.Random, *flags: str) -> None:
        self._cluster = cluster
        self._chance = chance
        self._flags = flags
        self._gateways = [self._begin("first"), self._begin("second")]
        self._mend()
        self._gateways[0].make_session(durable=True)
        first = self._gateways[0].execute("value = 0; pair = [0, {'again': 0}]; log = [0]; data = bytes(1)")
        assert wait_until(lambda: is_saved(self._gateways[0]), PATIENCE)
        self._number = 0
        self._values: dict[int, int] = {first["cell"]: 0}
        self.told: list[str] = []

    def _begin(self, name: str) -> Server:
        return self._cluster.gateway(*self._flags, home=self._cluster.home.parent / name)

    def _mend(self) -> None:
        """Start what was killed. One agent that Ray starts again may still be missing."""
        for number, gateway in enumerate(self._gateways):
            if gateway.process.poll() is not None:
                gateway.stop()
                self._gateways[number] = self._begin(gateway.home.name)
        ready = wait_until(lambda: min(map(connected, self._gateways)) >= NODES - 1, RESTART_SECONDS)
        assert ready, [each.client.get("/v1/nodes").text for each in self._gateways]

    def run(self) -> None:
        self._mend()
        writing, other = self._chance.sample(self._gateways, 2)
        what = self._chance.choice(["agent", "agent", "gateway"])
        writer = ClusterWriter(writing, self._number, SIZE)
        try:
            # Something of this round was told as saved.
            assert wait_until(lambda: writer.acknowledged >= min(writer.wrote, default=PATIENCE * 1000), PATIENCE)
            node = places(other, "main")
            time.sleep(self._chance.uniform(0.0, 0.25))
            if what == "gateway":
                writing.process.kill()
                writing.process.wait()
            else:
                os.kill(self._cluster.agent_of(node), signal.SIGKILL)
                if self._chance.random() < 0.5:
                    what = "two agents"
                    self._kill_another(node)
        finally:
            writer.stop()
        self._number = writer.number
        self._values.update(writer.wrote)
        self._check(what, other, writer)

    def _kill_another(self, lost: str) -> None:
        """Kill an agent that may claim and restore the session at this moment, for both gateways at once."""

        def ask(gateway: Server) -> None:
            with gateway.make_client() as client, contextlib.suppress(httpx.HTTPError):
                client.get("/v1/sessions/main/variables")

        asking = [threading.Thread(target=ask, args=(each,)) for each in self._gateways]
        for each in asking:
            each.start()
        time.sleep(self._chance.uniform(0.0, 0.6))
        others = [each.name for each in self._cluster.local.state.nodes if each.name != lost]
        os.kill(self._cluster.agent_of(self._chance.choice(others)), signal.SIGKILL)
        for each in asking:
            each.join()

    def _check(self, what: str, gateway: Server, writer: Writer) -> None:
        result = self._read(gateway)
        value, pair, last, unique, whole = eval(result["result"]["text/plain"])
        # Never torn: everything is of one cell.
        assert (pair, last, unique, whole) == ([value, {"again": value}], value, True, True), result
        named = named_in(result)
        for cell in named:
            assert cell >= writer.acknowledged, (what, cell, writer.acknowledged)
        after = named[-1] if named else result["cell"] - 1
        assert after >= writer.acknowledged, (what, after, writer.acknowledged)
        # The last cell up to there wrote the value that is there; a cell that only read left it as it was.
        assert max((at, n) for at, n in self._values.items() if at <= after)[1] == value, (what, after, self._values)
        assert wait_until(lambda: self._places() is not None, PATIENCE)
        self.told.append(f"{what}: as after cell {after}, value {value}, acknowledged {writer.acknowledged}, {named}")
        # The numbers of lost cells are given again, and so are their values.
        self._values = {cell: n for cell, n in self._values.items() if cell < result["cell"]} | {result["cell"]: value}
        self._number = max(self._number, value)

    def _places(self) -> str | None:
        """The one node that has the session, as all gateways that live say."""
        alive = [each for each in self._gateways if each.process.poll() is None]
        answers = [each.client.get("/v1/sessions") for each in alive]
        if any(each.status_code == 503 for each in answers):
            return None  # the link to an agent that was killed has just ended
        found = {places(each, "main") for each in alive}
        assert len(found) == 1, found
        return found.pop()

    def _read(self, gateway: Server) -> dict[str, Any]:
        deadline = time.monotonic() + 2 * PATIENCE
        while True:
            # The cell of a gateway that was killed may still run.
            body = {"code": READ, "wait": PATIENCE, "queue": True}
            answer = gateway.client.post("/v1/sessions/main/execute", json=body)
            if answer.status_code == 200:
                result: dict[str, Any] = answer.json()
                assert result["status"] == "ok", result
                return result
            assert answer.json()["code"] in PASSING, answer.text
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)

    def close(self) -> None:
        for each in self._gateways:
            if each.process.poll() is None:
                each.client.delete("/v1/sessions/main")
        for each in self._gateways:
            each.stop()
