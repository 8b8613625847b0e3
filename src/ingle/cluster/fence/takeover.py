"""When a gateway may restore the sessions of a lost agent elsewhere.

The watchdog kills the sessions `watchdog.END_SECONDS` after the begin of the last renewal that succeeded, at the head
or at the store. So a gateway needs a proof that no renewal has begun for `TAKEOVER_SECONDS` and succeeded, at both.
The two silences are counted at the same time, and from the last sign of life on, not from the loss of the link:

- The link to Ray reads the head all the time. Its watch of an agent begins when it sees a renewal, so after its begin.
- The agent tells each renewal at the store over the link, after its begin. If the store still has the renewal that was
  told last, the watch of the store began with the telling. Otherwise it begins with the first look at the store, or
  earlier by the store's own clock.

Both watches begin after the begin of the last renewal that succeeded. So both are shorter than the watchdog's.
"""

from collections.abc import Callable

from ingle.errors import IngleError
from ingle.store.leases import Leases, Renewal

TAKEOVER_SECONDS = 4.0
"""Silence after which an agent's sessions have ended: `watchdog.END_SECONDS` and some time to kill them."""


class Takeover:
    """Judge of lost agents. `head` returns an agent's silence at the head, or None while the head cannot be read."""

    def __init__(self, leases: Leases, head: Callable[[str], float | None] | None = None) -> None:
        self._leases = leases
        self._head = head

    def tell(self, incarnation: str, renewal: Renewal) -> None:
        """Note a renewal that an agent has told."""
        self._leases.tell(incarnation, renewal)

    async def remaining(self, incarnation: str) -> float | None:
        """Return for how many seconds the agent must stay silent at the head and at the store until it has ended.

        0.0 is the proof that it has ended. A head or store that cannot be read proves nothing: None.
        """
        try:
            # Also while the head knows the agent: the watch of the store must not wait for the head's.
            at_store = await self._leases.last_seen(incarnation)
        except IngleError:
            return None
        # An agent without a lease has released it, after its sessions had ended.
        shortest = TAKEOVER_SECONDS if at_store is None else at_store
        if self._head is not None:
            at_head = self._head(incarnation)
            if at_head is None:
                return None
            shortest = min(shortest, at_head)
        return max(0.0, TAKEOVER_SECONDS - shortest)
