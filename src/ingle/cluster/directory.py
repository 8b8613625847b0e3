"""The directory: which agents there are, and where. A gateway asks it and never starts agents itself."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from ingle.errors import InvalidRequest


class AgentInfo(Struct, frozen=True):
    """One run of an agent. A restarted agent has another incarnation."""

    incarnation: str
    node: str
    """Name of its machine, as people see it."""
    host: str
    port: int
    labels: dict[str, str] = field(default_factory=dict)
    gpus: int = 0
    memory: int = 0
    """Bytes of the machine."""


class Directory(Protocol):
    """What is known of the agents of a cluster."""

    async def start(self, on_change: Callable[[], None]) -> None:
        """Begin to follow the agents. `on_change` is called after each change of `agents`."""
        ...

    def agents(self) -> dict[str, AgentInfo]:
        """Return the agents that should be reachable, by incarnation or by address where it is not known yet."""
        ...

    def silence(self, incarnation: str) -> float | None:
        """Return the seconds without a sign of life of an agent, or None while nobody can tell."""
        ...

    async def scale(self, count: int) -> None:
        """Ask for so many agents."""
        ...

    async def drain(self, node: str) -> None:
        """Place no more sessions on a node."""
        ...

    async def stop(self) -> None: ...


class StaticDirectory:
    """Fixed list of addresses, for tests and for agents that a service manager starts.

    The incarnations are not known here: each agent tells its own when a gateway connects.
    """

    def __init__(self, addresses: list[tuple[str, int]]) -> None:
        self._agents = {f"{host}:{port}": AgentInfo("", "", host, port) for host, port in addresses}

    @classmethod
    def read(cls, text: str) -> "StaticDirectory":
        """Return the directory of a text such as `10.0.0.1:8400,10.0.0.2:8400`."""
        addresses = []
        for each in filter(None, map(str.strip, text.split(","))):
            host, _, port = each.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise InvalidRequest(f"{each[:80]!r} is not the address of an agent; write host:port")
            addresses.append((host.strip("[]"), int(port)))
        if not addresses:
            raise InvalidRequest("the cluster has no agent; write static:host:port,host:port")
        return cls(addresses)

    async def start(self, on_change: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(on_change)

    def agents(self) -> dict[str, AgentInfo]:
        return dict(self._agents)

    def silence(self, incarnation: str) -> float | None:
        """Return infinity: there is no head here, so that the lease at the store alone counts."""
        return float("inf")

    async def scale(self, count: int) -> None:
        raise InvalidRequest("a static cluster has the agents that its setting names; change the setting instead")

    async def drain(self, node: str) -> None:
        """Do nothing: the agent itself tells the gateways that it takes no more sessions."""

    async def stop(self) -> None: ...
