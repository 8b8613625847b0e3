"""The caller of a request: its tenant, its scopes and its limits.

An API makes one caller for each token. The service checks every operation against it.
The owner of the server is the caller of the default tenant with all scopes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from ingle.requests import Bounds

READ, EXECUTE, APPROVE, ADMIN = "read", "execute", "approve", "admin"

IMPLIED: dict[str, frozenset[str]] = {
    READ: frozenset({READ}),
    EXECUTE: frozenset({READ, EXECUTE}),
    APPROVE: frozenset({READ, APPROVE}),
    ADMIN: frozenset({READ, EXECUTE, APPROVE, ADMIN}),
}
"""Scopes that a scope includes. `read` looks at sessions, cells, outputs and files. `execute` creates, uses and ends
sessions. `approve` answers calls of tools that wait for a person. `admin` sees the server itself."""

DEFAULT_TENANT = ""

SERVICE = "ingle.service"
"""Key in the scope of a request at which the guard stores the service for its caller."""

SECONDS_PER_MINUTE = 60.0


class Limits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of a caller; null is no limit of its own."""

    sessions: int | None = None
    """Live sessions and persistent shells of its tenant from which on it may create no more."""
    running: int | None = None
    """Running and queued cells and shell tasks of its tenant from which on it may start no more."""
    bytes_per_minute: int | None = None
    """Bytes of requests and answers; streams are slowed down to this rate."""


class Meter:
    """Token bucket that limits bytes to a rate. It holds one minute's worth."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_minute / SECONDS_PER_MINUTE
        self._most = self._left = float(per_minute)
        self._clock = clock
        self._at = clock()

    def take(self, count: int) -> None:
        """Record sent or received bytes. The balance may become negative; callers then wait."""
        self._fill()
        self._left -= count

    def delay(self) -> float:
        """Return the seconds until bytes are available, or 0."""
        self._fill()
        return 0.0 if self._left > 0 else -self._left / self._per_second + 1 / self._per_second

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now


@dataclass(eq=False)
class Caller:
    """Holder of a token, or the owner of the server."""

    name: str
    tenant: str = DEFAULT_TENANT
    scopes: frozenset[str] = IMPLIED[ADMIN]
    limits: Limits = field(default_factory=Limits)
    bounds: Bounds = field(default_factory=Bounds)
    """Upper bounds of its sessions."""
    revoked: bool = False
    """Its token was revoked; requests that are still open are refused."""


OWNER = Caller("owner")
