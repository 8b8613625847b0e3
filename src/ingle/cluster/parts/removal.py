"""Removal of what ended sessions have left in the store of a cluster.

- A name keeps its last claim when its session ends, so that epochs go on. It is removed after a day.
- A durable session of a lost machine is removed after the setting `durable_age` without use.

Only a gateway can tell whether the agent of a claim has ended, so this is work of gateways.
"""

import asyncio
import logging
import platform
import secrets
import time

import msgspec

from ingle.cluster.agents import Agents
from ingle.cluster.router import Router
from ingle.errors import IngleError
from ingle.snapshots.registry import Row
from ingle.store import claims
from ingle.store.claims import Claim, Claims
from ingle.store.leases import Leases
from ingle.store.saves import SessionSaves
from ingle.store.store import Store

AT_ONCE = 16

logger = logging.getLogger(__name__)


class Removal:
    """Looks at all names now and then, and removes what is too old."""

    def __init__(self, store: Store, leases: Leases, agents: Agents, router: Router, durable_age: float) -> None:
        self._store = store
        self._claims = Claims(store)
        self._leases = leases
        self._agents = agents
        self._router = router
        self._durable_age = durable_age
        self._own = secrets.token_hex(4)
        """In whose name claims are taken."""

    async def run(self) -> None:
        """Look at all names whose claim has not changed for a day."""
        old = await self._leases.time() - claims.FORGOTTEN_SECONDS
        silences = await self._leases.silences()
        alive = {agent for agent, silence in silences.items() if silence < claims.FORGOTTEN_SECONDS}
        keys = await self._claims.unchanged_since(old)
        for first in range(0, len(keys), AT_ONCE):
            await asyncio.gather(*(self._try_to_settle(key, alive) for key in keys[first : first + AT_ONCE]))

    async def _try_to_settle(self, key: str, alive: set[str]) -> None:
        try:
            claim = await self._claims.newest(key)
            if claim is not None and (claim.released or await self._has_ended(claim, alive)):
                await self._settle(claim)
        except (IngleError, msgspec.MsgspecError) as error:
            logger.info("what session %s has left was not removed: %s", key, error)

    async def _has_ended(self, claim: Claim, alive: set[str]) -> bool:
        """Return whether the agent of a claim has ended, and not just now: without a watchdog it may come back."""
        return claim.agent not in alive and await self._agents.remaining(claim.agent) == 0.0

    async def _settle(self, claim: Claim) -> None:
        save = await SessionSaves(self._store, claim.key).newest(claim.epoch + 1)
        if save is not None:
            if time.time() - msgspec.json.decode(save.save.row, type=Row).last_used > self._durable_age:
                # The agent that takes it over removes it.
                await self._router.find(claim.key)
        elif claim.released:
            await self._claims.forget(claim, self._own, platform.node())
        else:
            await self._claims.end(claim, self._own, platform.node())
