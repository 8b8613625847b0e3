"""Link to Ray: a child process of the gateway, and the only part of it that imports Ray.

Ray ends a process that has lost the head for too long; then this one ends and the gateway goes on with the agents it
knows. The link writes a line of JSON to standard output several times a second: agents, how long each has been silent
at the head, and the nodes. Each line on standard input is an order: `{"scale": 3}` or `{"drain": "node-2"}`.
"""

import itertools
import json
import os
import queue
import sys
import threading
import time
from typing import Any

from ingle.cluster.ray import AGENT_KEY, DRAINING_KEY, NAMESPACE, RESOURCE, TARGET_KEY

POLL_SECONDS = 0.1
"""Interval at which renewals are read at the head, in one call. A takeover may wait for twice this time."""

LOOK_SECONDS = 0.5
"""Interval at which new agents and drained nodes are looked for."""

ENSURE_SECONDS = 1.0
"""Interval at which missing agents are looked for."""

CALL_SECONDS = 5
"""Time limit of one call to the head."""

SILENT_SECONDS = 2.0
"""Silence after which an agent is taken for lost when some have to end. Four renewals fit into it."""

SLOT = "agent-{}"
"""Name of an actor. Two links that create the same one get the same actor."""


class Heard:
    """When the count of each agent changed last, by this machine's clock. Pure."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[int, float]] = {}

    def silence(self, incarnation: str, count: int, began: float, ended: float) -> float:
        """Return the seconds since the agent's count was seen to change, at a reading between these two times.

        A change may have come at the end of the reading that saw it, and another one since the begin of this one.
        """
        known = self._counts.get(incarnation)
        if known is None or known[0] != count:
            self._counts[incarnation] = (count, ended)
            return 0.0
        return began - known[1]


class Link:
    """Orders to Ray and news from it."""

    def __init__(self, address: str) -> None:
        import ray
        from ray.experimental import internal_kv

        from ingle.cluster.ray.actor import AgentActor

        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            **own_address(address),
        )
        self._ray: Any = ray
        self._kv: Any = internal_kv
        # Once per process: each call registers the class at the head anew.
        self._actor = ray.remote(AgentActor)
        self._heard = Heard()
        self._agent_keys: list[str] = []
        self._draining: list[str] = []
        self._wanted: int | None = None

    def look(self) -> None:
        """Read which agents and orders there are."""
        self._agent_keys = self._keys(AGENT_KEY)
        self._draining = [key.removeprefix(DRAINING_KEY) for key in self._keys(DRAINING_KEY)]
        self._wanted = self._target()

    def report(self) -> dict[str, Any]:
        """Read the renewals of the agents that were listed. Return what is known of the cluster."""
        agents = {each["info"]["incarnation"]: each for each in self._renewals(self._agent_keys).values()}
        return {"agents": agents, "draining": self._draining, "target": self._wanted}

    def _renewals(self, keys: list[str]) -> dict[str, dict[str, Any]]:
        """Return what is known of the agents with these keys, by key."""
        began = time.monotonic()
        values = self._values(keys)
        ended = time.monotonic()
        found = {}
        for key, value in values.items():
            told = json.loads(value)
            silent = self._heard.silence(told["info"]["incarnation"], told["count"], began, ended)
            found[key] = {"info": told["info"], "silent": silent}
        return found

    def ensure(self) -> None:
        """Create the agents that are missing: one for each node, or as many as were asked for."""
        for slot in missing(self._slots(), self._target() or self._nodes()):
            self._actor.options(
                name=slot,
                lifetime="detached",
                get_if_exists=True,
                max_restarts=-1,
                num_cpus=0,
                resources={RESOURCE: 1},
                max_concurrency=4,
            ).remote(slot)

    def obey(self, order: dict[str, Any]) -> None:
        match order:
            case {"scale": int(count)}:
                self._put(TARGET_KEY, str(count))
                self._end_surplus(count)
            case {"drain": str(node)}:
                self._put(DRAINING_KEY + node, "1")
            case {"undrain": str(node)}:
                self._delete(DRAINING_KEY + node)

    def _end_surplus(self, count: int) -> None:
        """End agents above the number."""
        draining = set(self._keys(DRAINING_KEY))
        uses = {
            key.removeprefix(AGENT_KEY): use_of(each["silent"], DRAINING_KEY + each["info"]["node"] in draining)
            for key, each in self._renewals(self._keys(AGENT_KEY)).items()
        }
        for slot in surplus(self._slots(), uses, count):
            self._ray.kill(self._ray.get_actor(slot, namespace=NAMESPACE), no_restart=True)
            self._delete(AGENT_KEY + slot)

    def _slots(self) -> list[str]:
        """Return the names of the actors that Ray runs, starts or has no node for."""
        names: list[str] = self._ray.util.list_named_actors()
        return [name for name in names if name.startswith(SLOT.format(""))]

    def _nodes(self) -> int:
        return sum(node["Alive"] and node["Resources"].get(RESOURCE, 0) >= 1 for node in self._ray.nodes())

    def _target(self) -> int | None:
        value = self._get(TARGET_KEY)
        return int(value) if value else None

    def _keys(self, prefix: str) -> list[str]:
        return [key.decode() for key in self._kv._internal_kv_list(prefix.encode(), namespace=NAMESPACE.encode())]

    def _values(self, keys: list[str]) -> dict[str, bytes]:
        """Return the values of those keys that exist, in one call."""
        if not keys:
            return {}
        client = self._kv.internal_kv_get_gcs_client()
        found = client.internal_kv_multi_get([key.encode() for key in keys], NAMESPACE.encode(), timeout=CALL_SECONDS)
        return {key.decode(): value for key, value in found.items()}

    def _get(self, key: str) -> bytes | None:
        value: bytes | None = self._kv._internal_kv_get(key.encode(), namespace=NAMESPACE.encode())
        return value

    def _put(self, key: str, value: str) -> None:
        self._kv._internal_kv_put(key.encode(), value.encode(), overwrite=True, namespace=NAMESPACE.encode())

    def _delete(self, key: str) -> None:
        self._kv._internal_kv_del(key.encode(), namespace=NAMESPACE.encode())


def use_of(silent: float, draining: bool) -> int:
    """Return how much would be lost with an agent."""
    if silent >= SILENT_SECONDS:
        return 1
    return 2 if draining else 3


def missing(slots: list[str], count: int) -> list[str]:
    """Return the first names that are free, for as many agents as are missing."""
    free = (slot for number in itertools.count() if (slot := SLOT.format(number)) not in slots)
    return list(itertools.islice(free, max(0, count - len(slots))))


def surplus(slots: list[str], uses: dict[str, int], count: int) -> list[str]:
    """Return the agents above a number: those of the least use, and of these the last ones.

    An agent without a use has no node yet.
    """
    last_first = sorted(slots, key=lambda slot: (len(slot), slot), reverse=True)
    order = sorted(last_first, key=lambda slot: uses.get(slot, 0))
    return order[: max(0, len(order) - count)]


def own_address(address: str) -> dict[str, str]:
    """Return the option that names the node of Ray which this process joins.

    On loopback addresses the head's own node is the only one it could be. Elsewhere Ray finds the node by itself.
    """
    host = address.rpartition(":")[0]
    return {"_node_ip_address": host} if host.startswith("127.") else {}


def read_orders(orders: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    # The gateway has ended.
    os._exit(0)


def main(address: str) -> None:
    # Ray prints to standard output, which is for reports alone.
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=read_orders, args=(orders,), daemon=True).start()
    link = Link(address)
    ensured = looked = 0.0
    while True:
        if time.monotonic() - ensured >= ENSURE_SECONDS:
            link.ensure()
            ensured = time.monotonic()
        if time.monotonic() - looked >= LOOK_SECONDS:
            link.look()
            looked = time.monotonic()
        print(json.dumps(link.report()), file=reports, flush=True)
        try:
            link.obey(orders.get(timeout=POLL_SECONDS))
            looked = 0.0
        except queue.Empty:
            pass


if __name__ == "__main__":
    main(sys.argv[1])
