"""One-time codes: each signs one browser in as the caller that asked for it, within a few minutes."""

import hashlib
import secrets
import time
from collections.abc import Callable

from ingle.http.auth.principals import Principal

LIFETIME_SECONDS = 600
"""Time after which a code is worthless."""

MAX_CODES = 1000
"""Codes that are remembered; the oldest are forgotten first."""

BYTES = 24


class Codes:
    """Callers by one-time code. Codes are stored as digests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_digest: dict[bytes, tuple[Principal, float]] = {}

    def make(self, principal: Principal) -> str:
        """Return a new code for this caller."""
        while len(self._by_digest) >= MAX_CODES:
            del self._by_digest[next(iter(self._by_digest))]
        code = secrets.token_urlsafe(BYTES)
        self._by_digest[_digest(code)] = (principal, self._clock() + LIFETIME_SECONDS)
        return code

    def take(self, code: str) -> Principal | None:
        """Return the caller of a code, which is then used up; None for one that is not valid."""
        principal, until = self._by_digest.pop(_digest(code), (None, 0.0))
        if principal is None or principal.caller.revoked or self._clock() >= until:
            return None
        return principal


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogateescape")).digest()
