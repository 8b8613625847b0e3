"""When a gateway may restore the sessions of a lost agent elsewhere."""

import asyncio
from collections.abc import Callable

from ingle.errors import IngleError
from ingle.store.leases import Leases

TAKEOVER_SECONDS = 4.0
"""Silence after which an agent's sessions have ended: `watchdog.END_SECONDS` and some time to kill them."""

LOOK_SECONDS = 0.25
"""Interval at which the leases of a lost agent are read."""


class Takeover:
    """Judge of lost agents. `head` returns an agent's silence at the head, or None while the head cannot be read."""

    def __init__(self, leases: Leases, head: Callable[[str], float | None] | None = None) -> None:
        self._leases = leases
        self._head = head

    async def allowed(self, incarnation: str) -> bool:
        """Return whether the agent was silent for long enough at the head and at the store.

        A head or store that cannot be read proves nothing, so that the answer is no.
        """
        if self._head is not None:
            at_head = self._head(incarnation)
            if at_head is None or at_head < TAKEOVER_SECONDS:
                return False
        try:
            at_store = await self._leases.last_seen(incarnation)
        except IngleError:
            return False
        # An agent without a lease has released it, after its sessions had ended.
        return at_store is None or at_store >= TAKEOVER_SECONDS

    async def wait(self, incarnation: str, seconds: float) -> bool:
        """Wait until a takeover is allowed. Return False if it is not within `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not await self.allowed(incarnation):
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True
