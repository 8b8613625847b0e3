"""Who asks: a tenant, what it may do, and how much.

A caller is made by a door, once for each token, and handed to the service, which checks every verb against it. The
owner of the server is a caller too, the one of the default tenant who may do everything.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from ingle.requests import Bounds

READ, EXECUTE, ADMIN = "read", "execute", "admin"

IMPLIED: dict[str, frozenset[str]] = {
    READ: frozenset({READ}),
    EXECUTE: frozenset({READ, EXECUTE}),
    ADMIN: frozenset({READ, EXECUTE, ADMIN}),
}
"""What a scope holds. `read` looks at sessions, cells, outputs and files; `execute` makes, uses and ends sessions;
`admin` sees the server itself."""

DEFAULT_TENANT = ""

SERVICE = "ingle.service"
"""Where the guard leaves, in the scope of a request, the service that acts for its caller."""

MINUTE = 60.0


class Limits(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How much; null is no limit of the caller's own."""

    sessions: int | None = None
    """Live sessions of its tenant above which it may make no more."""
    running: int | None = None
    """Cells of its tenant that run or wait for their turn, above which it may begin no more."""
    bytes_per_minute: int | None = None
    """Bytes of requests and answers; streams are slowed down to it."""


class Meter:
    """Bytes against a rate: a bucket of one minute's worth that fills up again steadily."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_minute / MINUTE
        self._most = self._left = float(per_minute)
        self._clock = clock
        self._at = clock()

    def take(self, count: int) -> None:
        """What was sent or received. It may go below nothing: then others wait."""
        self._fill()
        self._left -= count

    def delay(self) -> float:
        """Seconds until there is something left; 0 when there is."""
        self._fill()
        return 0.0 if self._left > 0 else -self._left / self._per_second + 1 / self._per_second

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second)
        self._at = now


@dataclass(eq=False)
class Caller:
    name: str
    tenant: str = DEFAULT_TENANT
    scopes: frozenset[str] = IMPLIED[ADMIN]
    limits: Limits = field(default_factory=Limits)
    bounds: Bounds = field(default_factory=Bounds)
    """How its sessions are made at most."""
    revoked: bool = False
    """Its token is no longer good; what it still has open is refused."""


OWNER = Caller("owner")
