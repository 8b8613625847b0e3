"""The machines of a cluster, as a gateway sees them."""

from ingle.capacity import Drained, MachineInfo
from ingle.cluster.agents import Agents
from ingle.cluster.directory import Directory
from ingle.cluster.parts.drain import Drain


class ClusterMachines:
    """Machines of all agents that the directory has."""

    def __init__(self, directory: Directory, agents: Agents, drain: Drain) -> None:
        self._directory = directory
        self._agents = agents
        self._drain = drain

    async def list(self) -> list[MachineInfo]:
        """Return the machines that are connected, and those that should be."""
        connected = {each.info.node: each.status for each in self._agents.up.values()}
        known = {info.node for info in self._directory.agents().values() if info.node}
        found = []
        for node in sorted(known | connected.keys()):
            status = connected.get(node)
            if status is None:
                found.append(MachineInfo(node, 0, 0, connected=False))
            else:
                found.append(MachineInfo(node, status.sessions, status.capacity, draining=status.draining))
        return found

    async def scale(self, count: int) -> None:
        await self._directory.scale(count)

    async def drain(self, node: str, seconds: float) -> Drained:
        drained = await self._drain.run(node, seconds)
        await self._directory.drain(node)
        return drained
