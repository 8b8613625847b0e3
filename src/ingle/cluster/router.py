"""Where a session is: found by its signed name or by the newest claim on it, and asked there.

A call that an agent has begun is never sent again. A call is sent elsewhere only if it was not sent at all, or if the
agent answers that it does not have the session.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from ingle import errors
from ingle.cluster.agents import Agents, ConnectedAgent
from ingle.cluster.names import agent_of
from ingle.cluster.placement import by_load, fitting
from ingle.cluster.token import ClusterToken
from ingle.cluster.wire.link import Link, Target
from ingle.cluster.wire.surface import Verb
from ingle.errors import SessionNotFound
from ingle.snapshots.registry import Row
from ingle.store.claims import Claim, Claims
from ingle.store.saves import FoundSave, SessionSaves
from ingle.store.store import Store

FIND_SECONDS = 10.0
"""Time to wait for an agent that is out of reach and may come back."""

LOOK_SECONDS = 0.25
"""Time between two looks at such an agent at most. The last one is when it may have ended."""

PATIENCE_SECONDS = 1.0
"""Time for the store to say where a session is. Then the agents are asked."""

MOVE_STEP_SECONDS = 0.05
"""Time between two looks at a session that moves."""

MAX_SENT_SAVE_BYTES = 1024 * 1024
"""Size up to which a save that was read here is sent to the agent that takes the session over."""

MAX_KNOWN = 100_000
"""Sessions whose places a gateway remembers."""


class Router:
    """Finds sessions, and carries out verbs on them. Implements `Caller` for targets below a session."""

    def __init__(self, agents: Agents, store: Store, token: ClusterToken) -> None:
        self._agents = agents
        self._store = store
        self._claims = Claims(store)
        self._token = token
        self._known: dict[str, str] = {}
        """Incarnations of the agents that have sessions with chosen names, as far as they were asked for."""

    # --- verbs ---

    async def call(self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        key = key_in(target)
        agent, deadline = await self.find(key), _deadline()
        while True:
            try:
                return await agent.link.call(target, verb, args, kwargs)
            except SessionNotFound as error:
                agent = await self._elsewhere(key, agent, error, deadline)

    async def stream(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncIterator[Any]:
        key = key_in(target)
        agent, deadline = await self.find(key), _deadline()
        begun = False
        while True:
            try:
                async with aclosing(agent.link.stream(target, verb, args, kwargs)) as items:
                    async for item in items:
                        begun = True
                        yield item
                return
            except SessionNotFound as error:
                if begun:
                    raise
                agent = await self._elsewhere(key, agent, error, deadline)

    async def open_on(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Link, int, msgspec.Struct]:
        key = key_in(target)
        agent, deadline = await self.find(key), _deadline()
        while True:
            try:
                return agent.link, *await agent.link.open_handle(target, verb, args, kwargs)
            except SessionNotFound as error:
                agent = await self._elsewhere(key, agent, error, deadline)

    async def _elsewhere(
        self, key: str, asked: ConnectedAgent, error: SessionNotFound, deadline: float
    ) -> ConnectedAgent:
        """Return the agent to ask next for a session that an agent does not have. Raise its answer if there is none."""
        self._known.pop(key, None)
        claim = await self._claims.newest(key)
        if claim is not None and (claim.released or claim.agent != asked.info.incarnation):
            return await self._of(claim, error)
        if not await asked.agent.has(key):
            # It has ended, or the store failed after the agent had taken the claim.
            if claim is None or not await asked.agent.adopt(claim, None):
                raise error
            return asked
        # It may be about to come to this agent, or to leave it.
        if asyncio.get_running_loop().time() >= deadline:
            raise error
        await asyncio.sleep(MOVE_STEP_SECONDS)
        return asked

    # --- finding ---

    def learn(self, key: str, incarnation: str) -> None:
        """Remember where a session was made."""
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = incarnation

    def forget(self, key: str) -> None:
        """Forget where a session was."""
        self._known.pop(key, None)

    async def find(self, key: str) -> ConnectedAgent:
        """Return the agent of a session."""
        made_by = self._known.get(key) or agent_of(self._token, key)
        if made_by is not None and (agent := self._agents.up.get(made_by)) is not None:
            return agent
        self._known.pop(key, None)
        looking = asyncio.ensure_future(self._claims.newest(key))
        if (agent := await self._found_without(looking, key)) is not None:
            return agent
        claim = await looking
        if claim is not None:
            return await self._of(claim, SessionNotFound(_name(key)))
        if made_by is None:
            raise SessionNotFound(_name(key))
        # A signed name needs no claim. Its agent is out of reach.
        return await self._at(Claim(key, 0, made_by, self._agents.node_of(made_by), 0.0))

    async def _found_without(self, looking: "asyncio.Future[Claim | None]", key: str) -> ConnectedAgent | None:
        """Return the agent that says it has a session, if the store fails or is slow to say. None: ask the store.

        A connected agent has what it says: without its lease it would have been ended before another one has it.
        """
        try:
            await asyncio.wait({looking}, timeout=PATIENCE_SECONDS)
            if looking.done() and looking.exception() is None:
                return None
            agents = list(self._agents.up.values())
            answers = await asyncio.gather(*(each.agent.has(key) for each in agents), return_exceptions=True)
            for agent, answer in zip(agents, answers, strict=True):
                if answer is True:
                    looking.cancel()
                    return agent
        except asyncio.CancelledError:
            looking.cancel()
            raise
        return None

    async def _of(self, claim: Claim, missing: SessionNotFound) -> ConnectedAgent:
        """Return the agent of a claim. One that was released has left a save, or the session has ended."""
        if not claim.released:
            return await self._at(claim)
        if not await SessionSaves(self._store, claim.key).exist():
            raise missing
        return await self._restored(claim)

    async def _at(self, claim: Claim) -> ConnectedAgent:
        """Return the agent that has a claim. Wait for a while if it is out of reach."""
        deadline = _deadline()
        save: FoundSave | None = None
        looked = False
        while True:
            if (agent := self._agents.up.get(claim.agent)) is not None:
                self.learn(claim.key, claim.agent)
                return agent
            remaining = await self._agents.remaining(claim.agent)
            if remaining == 0.0:
                return await self._restored(claim, save)
            if not looked:
                # There is time for it now. The agent that takes the session over reads a newer save only.
                looked = True
                with contextlib.suppress(errors.IngleError):
                    save = await SessionSaves(self._store, claim.key).newest(claim.epoch + 1)
            if asyncio.get_running_loop().time() >= deadline:
                raise errors.Unavailable(
                    f"the machine {claim.node!r} of session {_name(claim.key)!r} is out of reach; try again"
                )
            await self._agents.wait_changed(min(LOOK_SECONDS, remaining or LOOK_SECONDS))

    async def _restored(self, claim: Claim, save: FoundSave | None = None) -> ConnectedAgent:
        """Have the session of an agent that has ended or given it up restored on another one, and return that one.

        Of several gateways that do this at once, one agent gets the next epoch, and all of them find it there. Each
        agent is asked once. One that may not have the session releases its claim again. `save` is one that was read
        before.
        """
        name = _name(claim.key)
        save = save or await SessionSaves(self._store, claim.key).newest(claim.epoch + 1)
        if save is None:
            # Another agent may have taken the session over since this claim was read, and removed its saves.
            newest = await self._claims.newest(claim.key)
            if newest is None or newest.epoch <= claim.epoch:
                raise errors.SessionLost(name, claim.node)
            return await self._of(newest, SessionNotFound(name))
        # The request that made the session is the same in all its saves.
        wanted = msgspec.json.decode(save.save.row, type=Row).made
        sent = save if save.size <= MAX_SENT_SAVE_BYTES else None
        others = [each for each in self._agents.up.values() if each.info.incarnation != claim.agent]
        failure: errors.IngleError | None = None
        for place in by_load(fitting(others, wanted)):
            agent = self._agents.up.get(place.info.incarnation)
            if agent is None:
                continue
            try:
                if await agent.agent.adopt(claim, sent):
                    self.learn(claim.key, agent.info.incarnation)
                    return agent
            except errors.IngleError as error:
                failure = error
            newest = await self._claims.newest(claim.key)
            if newest is not None and newest.epoch > claim.epoch:
                if not newest.released:
                    return await self._at(newest)
                if not await SessionSaves(self._store, claim.key).exist():
                    raise SessionNotFound(name)  # it was too old, and is removed
                claim = newest
            elif failure is None:
                raise errors.SessionLost(name, claim.node)
        raise failure or errors.Unavailable(f"no agent can restore session {name!r} now; start one, or try again")

    async def claim(self, key: str) -> Claim | None:
        """Return the newest claim on a session."""
        return await self._claims.newest(key)

    async def last_epoch(self, key: str) -> int:
        """Return the epoch of the last claim on a name; 0 if there is none."""
        return await self._claims.epoch(key)

    async def last_epoch_if_free(self, key: str) -> int:
        """Return the epoch of the last claim on a free name. Raise SessionExists if a session has the name."""
        claim = await self._claims.newest(key)
        if claim is None:
            return 0
        try:
            agent = await self._of(claim, SessionNotFound(_name(key)))
        except (errors.SessionHeldBack, errors.StartFailed):
            raise errors.SessionExists(_name(key)) from None
        except (errors.SessionLost, SessionNotFound):
            return claim.epoch
        if await agent.agent.has(key):
            raise errors.SessionExists(_name(key))
        return claim.epoch


def key_in(target: Target) -> str:
    """Return the key of the session that a target is about: `[["node"], ["session", key], …]`."""
    assert isinstance(target, list)
    return target[1][1]


def _deadline() -> float:
    return asyncio.get_running_loop().time() + FIND_SECONDS


def _name(key: str) -> str:
    return key.rpartition("/")[2]
