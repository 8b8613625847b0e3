"""Drain of one machine: its sessions are saved, and go on elsewhere. A session whose cell goes on too long stays."""

import asyncio
from collections.abc import Awaitable, Callable

from ingle import errors
from ingle.capacity import Drained
from ingle.cluster.agents import Agents, ConnectedAgent
from ingle.cluster.router import Router
from ingle.events import SessionInfo
from ingle.requests import NewSession
from ingle.sessions.spec import tenant_of

AT_ONCE = 8
"""Sessions that move at a time."""


Arrive = Callable[[NewSession, str, str], Awaitable[object]]


class Drain:
    """Moves the sessions of one agent."""

    def __init__(self, agents: Agents, router: Router, arrive: Arrive) -> None:
        """`arrive` loads the snapshot of a session that has left an agent on another one."""
        self._agents = agents
        self._router = router
        self._arrive = arrive

    async def run(self, node: str, seconds: float) -> Drained:
        """Move all sessions of a machine. A running cell has `seconds` to end."""
        found = [each for each in self._agents.up.values() if each.info.node == node]
        if not found:
            known = ", ".join(sorted(each.info.node for each in self._agents.up.values()))
            raise errors.NotFound(f"there is no machine {node[:80]!r} in reach; there are: {known}")
        if len(self._agents.up) == len(found):
            raise errors.Unavailable(f"there is no other machine than {node!r}; start one first")
        drained = Drained(node)
        limit = asyncio.Semaphore(AT_ONCE)

        async def move(agent: ConnectedAgent, key: str) -> None:
            async with limit:
                try:
                    await self._move(agent, key, seconds)
                except errors.SessionNotFound:
                    pass  # it has ended meanwhile
                except errors.IngleError as error:
                    drained.stayed[key] = error.message
                else:
                    drained.moved.append(key)

        for agent in found:
            await asyncio.gather(*(move(agent, key) for key in await agent.agent.drain()))
        return drained

    async def _move(self, agent: ConnectedAgent, key: str, seconds: float) -> None:
        info = await agent.agent.node.session(key).info()
        snapshot = await agent.agent.leave(key, seconds)
        self._router.forget(key)
        if snapshot is None:
            await self._router.find(key)
            return
        await self._arrive(_again(info, tenant_of(key)), agent.info.incarnation, snapshot)
        await self._agents.up[agent.info.incarnation].agent.node.snapshots.delete(tenant_of(key), snapshot)


def _again(info: SessionInfo, tenant: str) -> NewSession:
    """Return the request for a session like this one. It gets a folder of its own on its new machine."""
    return NewSession(
        session_id=info.session_id,
        tenant=tenant,
        environment=info.environment,
        idle_timeout=info.idle_timeout,
        isolation=info.isolation,
        network=info.network,
        own_folder=True,
        limits=info.limits,
    )
