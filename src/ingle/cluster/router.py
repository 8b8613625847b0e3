"""Where a session is: found by its signed name or by the newest claim on it, and asked there.

A call that an agent has begun is never sent again. A call is sent elsewhere only if it was not sent at all, or if the
agent answers that it does not have the session.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ingle import errors
from ingle.cluster.agents import Agents, ConnectedAgent
from ingle.cluster.names import agent_of
from ingle.cluster.token import ClusterToken
from ingle.cluster.wire.link import Link, Target
from ingle.cluster.wire.surface import Verb
from ingle.errors import SessionEnded, SessionNotFound
from ingle.store.claims import Claim, Claims

FIND_SECONDS = 10.0
"""Time to wait for an agent that is out of reach and may come back."""

LOOK_SECONDS = 0.25
"""Time between two looks at such an agent."""

MAX_KNOWN = 100_000
"""Sessions whose places a gateway remembers."""


class Router:
    """Finds sessions, and carries out verbs on them. Implements `Caller` for targets below a session."""

    def __init__(self, agents: Agents, claims: Claims, token: ClusterToken) -> None:
        self._agents = agents
        self._claims = claims
        self._token = token
        self._known: dict[str, str] = {}
        """Incarnations of the agents that have sessions with chosen names, as far as they were asked for."""

    # --- verbs ---

    async def call(self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = key_in(target)
        agent = await self.find(key)
        try:
            return await agent.link.call(target, verb, args, kwargs)
        except SessionNotFound as error:
            other = await self._elsewhere(key, agent, error)
            return await other.link.call(target, verb, args, kwargs)

    async def stream(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncIterator[Any]:
        key = key_in(target)
        agent = await self.find(key)
        begun = False
        try:
            async for item in agent.link.stream(target, verb, args, kwargs):
                begun = True
                yield item
            return
        except SessionNotFound as error:
            if begun:
                raise
            agent = await self._elsewhere(key, agent, error)
        async for item in agent.link.stream(target, verb, args, kwargs):
            yield item

    async def open_on(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Link, int, msgspec.Struct]:
        key = key_in(target)
        agent = await self.find(key)
        try:
            return agent.link, *await agent.link.open_handle(target, verb, args, kwargs)
        except SessionNotFound as error:
            other = await self._elsewhere(key, agent, error)
            return other.link, *await other.link.open_handle(target, verb, args, kwargs)

    async def _elsewhere(self, key: str, asked: ConnectedAgent, error: SessionNotFound) -> ConnectedAgent:
        """Return the agent that a session has moved to. Raise the agent's own answer if it has not moved."""
        self._known.pop(key, None)
        claim = await self._claims.newest(key)
        if claim is None or claim.released or claim.agent == asked.info.incarnation:
            raise error
        return await self._at(claim)

    # --- finding ---

    def learn(self, key: str, incarnation: str) -> None:
        """Remember where a session was made."""
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = incarnation

    async def find(self, key: str) -> ConnectedAgent:
        """Return the agent of a session."""
        made_by = self._known.get(key) or agent_of(self._token, key)
        if made_by is not None and (agent := self._agents.up.get(made_by)) is not None:
            return agent
        self._known.pop(key, None)
        claim = await self._claims.newest(key)
        if claim is not None and not claim.released:
            return await self._at(claim)
        if made_by is None or claim is not None:
            raise SessionNotFound(_name(key))
        # A signed name needs no claim. Its agent is out of reach.
        return await self._at(Claim(key, 0, made_by, self._agents.node_of(made_by), 0.0))

    async def _at(self, claim: Claim) -> ConnectedAgent:
        """Return the agent that has a claim. Wait for a while if it is out of reach."""
        deadline = asyncio.get_running_loop().time() + FIND_SECONDS
        while True:
            if (agent := self._agents.up.get(claim.agent)) is not None:
                self.learn(claim.key, claim.agent)
                return agent
            if await self._agents.is_over(claim.agent):
                return await self._restored(claim)
            if asyncio.get_running_loop().time() >= deadline:
                raise errors.Unavailable(
                    f"the machine {claim.node!r} of session {_name(claim.key)!r} is out of reach; try again"
                )
            await self._agents.wait_changed(LOOK_SECONDS)

    async def _restored(self, claim: Claim) -> ConnectedAgent:
        """Return the agent on which the session of a lost one was restored."""
        raise errors.SessionLost(_name(claim.key), claim.node)

    async def free_epoch(self, key: str) -> int:
        """Return the epoch to claim a name with. Raise SessionExists if a session has the name."""
        claim = await self._claims.newest(key)
        if claim is None:
            return 1
        if not claim.released:
            try:
                if await (await self._at(claim)).agent.has(key):
                    raise errors.SessionExists(_name(key))
            except (errors.SessionLost, SessionEnded):
                pass
        return claim.epoch + 1


def key_in(target: Target) -> str:
    """Return the key of the session that a target is about: `[["node"], ["session", key], …]`."""
    assert isinstance(target, list)
    return target[1][1]


def _name(key: str) -> str:
    return key.rpartition("/")[2]
