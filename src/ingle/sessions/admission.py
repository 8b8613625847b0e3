"""Admission of new sessions: how many may live, how many may start at once, and whose turn it is.

A session past the capacity of the machine is refused before anything of it is made. Starts that are under way are
bounded, and the others wait in a fair queue of tenants.
"""

import math
from contextlib import AbstractAsyncContextManager

from ingle import errors
from ingle.capacity import Capacity
from ingle.sessions import capacity
from ingle.sessions.process.grants import Grants
from ingle.settings import NETWORKS, Settings
from ingle.support.fair_queue import FairQueue
from ingle.support.processes import usable_cores

STARTS_PER_CORE = 8
"""Starts under way at once. More would only wait for each other, and each has a deadline."""

MIN_STARTS = 16

TENANT_STARTS = 0.75
"""Share of the starts under way that one tenant may have: an interpreter that starts slowly blocks nobody else."""

MAX_WAITING = 10_000
"""Starts that wait for their turn."""

WAIT_SECONDS = 300.0
"""Time that a start waits for its turn."""

TENANT_SESSIONS = 0.9
"""Share of all sessions that one tenant may have. The owner of the server may have all of them."""

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 1.0, 60.0


class Admission:
    """Bounds on the sessions of one node."""

    def __init__(self, settings: Settings, grants: Grants) -> None:
        self._grants = grants
        self._capacities = {network: capacity.measure(settings, network) for network in NETWORKS}
        slots = max(MIN_STARTS, STARTS_PER_CORE * usable_cores())
        self._starts = FairQueue(slots, int(slots * TENANT_STARTS), MAX_WAITING, _overloaded)

    @property
    def capacity(self) -> Capacity:
        """Return the capacity with the network of sessions, which is known once the level in force is."""
        return self._capacities[self._grants.policy.network]

    @property
    def limit(self) -> int:
        """How many sessions may have a process."""
        return self.capacity.sessions

    @property
    def waiting(self) -> int:
        """Number of starts that wait for their turn."""
        return self._starts.length

    def refusal(self) -> errors.TooManySessions:
        """Return the error for one session too many."""
        return errors.TooManySessions(self.limit, self.capacity.bound, self.capacity.remedy)

    @property
    def share(self) -> int:
        """How many sessions one tenant may have, other than the owner of the server."""
        return max(1, math.floor(self.limit * TENANT_SESSIONS))

    def check_share(self, sessions: int) -> None:
        """Raise TooManySessions if so many are too many for one tenant."""
        if sessions > self.share:
            bound = f"one tenant may have that many of the {self.limit} sessions of this server"
            raise errors.TooManySessions(self.share, bound, self.capacity.remedy)

    def start(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Hold the right to start a session, once it is this tenant's turn."""
        return self._starts.slot(tenant, WAIT_SECONDS)

    def close(self) -> None:
        """Refuse the starts that wait, because the server stops."""
        self._starts.close(errors.Unavailable("the server is stopping; start it again"))


def _overloaded(seconds: float) -> errors.Overloaded:
    return errors.Overloaded(min(max(seconds, MIN_RETRY_SECONDS), MAX_RETRY_SECONDS))
