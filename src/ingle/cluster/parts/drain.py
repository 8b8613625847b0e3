"""Drain of one machine: its sessions are saved, and go on elsewhere. A session whose cell goes on too long stays."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from ingle import errors
from ingle.capacity import Drained
from ingle.cluster.agents import Agents, ConnectedAgent
from ingle.cluster.offer import LeftSession
from ingle.cluster.parts.everywhere import ClusterSnapshots
from ingle.cluster.router import Router
from ingle.sessions.spec import tenant_of

AT_ONCE = 8
"""Sessions that move at a time."""


Arrive = Callable[[LeftSession, str], Awaitable[object]]


class Drain:
    """Moves the sessions of one agent."""

    def __init__(self, agents: Agents, router: Router, snapshots: ClusterSnapshots, arrive: Arrive) -> None:
        """`arrive` loads a session that has left an agent on another one."""
        self._agents = agents
        self._router = router
        self._snapshots = snapshots
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
        left = await agent.agent.leave(key, seconds)
        self._router.forget(key)
        if left is None:
            await self._adopted(agent, key)
            return
        failure: errors.IngleError | None = None
        try:
            await self._arrive(left, agent.info.incarnation)
        except errors.IngleError as error:
            failure = error
            await self._return(agent, key, left)
        with contextlib.suppress(errors.IngleError):
            await self._snapshots.delete(tenant_of(key), left.snapshot)
        if failure is not None:
            raise failure

    async def _adopted(self, agent: ConnectedAgent, key: str) -> None:
        """Have another agent adopt a durable session; the one that it left, if no other does."""
        try:
            await self._router.find(key)
        except errors.IngleError:
            claim = await self._router.claim(key)
            if claim is not None and claim.released:
                await self._now(agent).agent.adopt(claim, None)
            raise

    async def _return(self, agent: ConnectedAgent, key: str, left: LeftSession) -> None:
        """Load a session that no other agent takes where it was."""
        try:
            after = await self._router.last_epoch(key)
            await self._now(agent).agent.load(left.made, after, left.snapshot, None, trust=False, rerun=False)
        except errors.IngleError as error:
            why = f"it has ended and its snapshot {left.snapshot!r} stays, since no agent takes it"
            raise errors.Unavailable(f"{why}: {error.message}") from error

    def _now(self, agent: ConnectedAgent) -> ConnectedAgent:
        """Return an agent by the link that is open now."""
        return self._agents.up.get(agent.info.incarnation, agent)
