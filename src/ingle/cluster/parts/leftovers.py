"""Names of sessions that ended long ago, and durable sessions of lost machines that nobody has used for long.

The claims of names stay when sessions end, so that epochs go on. They are removed after a day. Only a gateway can tell
whether the agent of a claim has ended, so this is work of gateways.
"""

import logging
import platform
import secrets
import time

import msgspec

from ingle.cluster.agents import Agents
from ingle.cluster.router import Router
from ingle.errors import IngleError
from ingle.snapshots.registry import Row
from ingle.store.claims import Claim, Claims
from ingle.store.saves import SessionSaves
from ingle.store.store import Store

logger = logging.getLogger(__name__)


class Leftovers:
    """What ended sessions have left in the store of a cluster."""

    def __init__(self, store: Store, agents: Agents, router: Router, durable_age: float) -> None:
        self._store = store
        self._claims = Claims(store)
        self._agents = agents
        self._router = router
        self._durable_age = durable_age
        self._own = secrets.token_hex(4)

    async def remove(self) -> None:
        for claim in await self._claims.old():
            try:
                await self._settle(claim)
            except (IngleError, msgspec.MsgspecError) as error:
                logger.info("what session %s has left was not removed: %s", claim.key, error)

    async def _settle(self, claim: Claim) -> None:
        if not claim.released and await self._agents.remaining(claim.agent) != 0.0:
            return
        save = await SessionSaves(self._store, claim.key).newest(claim.epoch + 1)
        if save is None:
            await self._claims.bury(claim, self._own, platform.node())
        elif time.time() - msgspec.json.decode(save.save.row, type=Row).last_used > self._durable_age:
            # The agent that takes it over removes it.
            await self._router.find(claim.key)
