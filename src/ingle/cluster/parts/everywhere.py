"""Parts of a cluster's node that all agents have in common: asked of one agent, or changed on all of them.

Grants, libraries and environments belong to the machines. A change reaches the agents that are connected.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import msgspec

from ingle import errors
from ingle.cluster.agents import Agents
from ingle.cluster.offer import Agent
from ingle.cluster.placement import home_of
from ingle.environments.shapes import EnvironmentInfo, NewEnvironment
from ingle.events import Restored, SnapshotInfo, Stdlib, StdlibChange
from ingle.grants import GrantChange, GrantInfo, NewGrant
from ingle.nodes import Node, OpenFile
from ingle.requests import Bounds, NewSession

NO_AGENT = "no agent of the cluster is in reach; start one, or try again"

T = TypeVar("T")

Load = Callable[[NewSession, str, str | None, bool, bool], Awaitable[Restored]]


async def on_all(agents: Agents, work: Callable[[Node], Awaitable[T]]) -> list[T]:
    """Return the answers of all agents. Raise the first error once all have answered."""
    nodes = [each.agent.node for each in agents.up.values()]
    if not nodes:
        raise errors.Unavailable(NO_AGENT)
    answers = await asyncio.gather(*(work(each) for each in nodes), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


class ClusterLibrary:
    """Each tenant's library, on all agents."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def add(self, tenant: str, addition: str, bounds: Bounds) -> StdlibChange:
        return (await on_all(self._agents, lambda node: node.library.add(tenant, addition, bounds)))[0]

    async def list(self, tenant: str) -> Stdlib:
        return (await on_all(self._agents, lambda node: node.library.list(tenant)))[0]


class ClusterGrants:
    """Folders and hosts that sessions may use, on all agents."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def add(self, new: NewGrant) -> GrantChange:
        return _joined(await on_all(self._agents, lambda node: node.grants.add(new)))

    async def remove(self, grant_id: str) -> GrantChange:
        return _joined(await on_all(self._agents, lambda node: node.grants.remove(grant_id)))

    async def list(self) -> list[GrantInfo]:
        found = {each.id: each for one in await on_all(self._agents, lambda node: node.grants.list()) for each in one}
        return list(found.values())


def _joined(changes: list[GrantChange]) -> GrantChange:
    return GrantChange(changes[0].grant, [effect for each in changes for effect in each.sessions])


class ClusterEnvironments:
    """Named environments, built on all agents."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    async def build(self, name: str, new: NewEnvironment, seconds: float) -> EnvironmentInfo:
        built = await on_all(self._agents, lambda node: node.environments.build(name, new, seconds))
        return min(built, key=lambda each: each.state == "ready")

    async def list(self) -> list[EnvironmentInfo]:
        found: dict[str, EnvironmentInfo] = {}
        for one in await on_all(self._agents, lambda node: node.environments.list()):
            for each in one:
                if each.name not in found or each.state != "ready":
                    found[each.name] = each
        return [found[name] for name in sorted(found)]

    async def remove(self, name: str) -> None:
        await on_all(self._agents, lambda node: node.environments.remove(name))


class ClusterSnapshots:
    """Snapshots of all agents. With a shared store each agent has them all, and the first one answers."""

    def __init__(self, agents: Agents, place: Load) -> None:
        """`place` loads a snapshot on an agent of its choice."""
        self._agents = agents
        self._place = place

    async def load(
        self, new: NewSession, source: str, start: str | None, *, trust: bool = False, rerun: bool = False
    ) -> Restored:
        if new.session_id is None:
            new = msgspec.structs.replace(new, session_id=await self._session_of(new.tenant, source))
        return await self._place(new, source, start, trust, rerun)

    async def _session_of(self, tenant: str, name: str) -> str:
        """Return the name of the session that was saved as a snapshot. Its claim decides whether it is free."""
        return await self._first(name, lambda agent: agent.saved_session(tenant, name))

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a snapshot on all agents: each one that has loaded or listed it has a copy."""

        async def delete(node: Node) -> bool:
            with contextlib.suppress(errors.SnapshotNotFound):
                await node.snapshots.delete(tenant, name)
                return True
            return False

        if not any(await on_all(self._agents, delete)):
            raise errors.SnapshotNotFound(name)

    async def open(self, tenant: str, name: str) -> OpenFile:
        return await self._first(name, lambda agent: agent.node.snapshots.open(tenant, name))

    async def write(self, tenant: str, name: str, chunks: AsyncIterator[bytes], limit: int) -> SnapshotInfo:
        if not self._agents.up:
            raise errors.Unavailable(NO_AGENT)
        node = self._agents.up[home_of(self._agents.up, tenant)].agent.node
        return await node.snapshots.write(tenant, name, chunks, limit)

    async def list(self, tenant: str) -> AsyncIterator[SnapshotInfo]:
        seen: set[str] = set()
        for each in list(self._agents.up.values()):
            async for info in each.agent.node.snapshots.list(tenant):
                if info.name not in seen:
                    seen.add(info.name)
                    yield info

    async def _first(self, name: str, work: Callable[[Agent], Awaitable[T]]) -> T:
        """Return the answer of the first agent that has a snapshot."""
        if not self._agents.up:
            raise errors.Unavailable(NO_AGENT)
        for each in list(self._agents.up.values()):
            with contextlib.suppress(errors.SnapshotNotFound):
                return await work(each.agent)
        raise errors.SnapshotNotFound(name)
