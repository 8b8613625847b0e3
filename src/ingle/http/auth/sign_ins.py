"""Browsers that are signed in: a cookie for each, and the rule for which requests it counts.

A cookie is a random name for a caller that the server remembers until it ends. A token is never put into a cookie.
A caller that proves its identity by other means (a one-time code, a link) gets a cookie with `SignIns.add` too.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable

from starlette.types import Scope

from ingle.http.auth.principals import Principal

LIFETIME_SECONDS = 7 * 86400
"""Time after which a browser has to sign in again."""

MAX_SIGN_INS = 1000
"""Sign-ins that are remembered; the oldest are forgotten first."""

BYTES = 32


class SignIns:
    """Callers by cookie. Values are stored as digests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_digest: dict[bytes, tuple[Principal, float]] = {}

    def add(self, principal: Principal) -> str:
        """Sign a caller in. Return the value of its cookie."""
        while len(self._by_digest) >= MAX_SIGN_INS:
            del self._by_digest[next(iter(self._by_digest))]
        value = secrets.token_urlsafe(BYTES)
        self._by_digest[_digest(value)] = (principal, self._clock() + LIFETIME_SECONDS)
        return value

    def find(self, values: Iterable[str]) -> Principal | None:
        """Return the caller of the first value that is valid."""
        for value in values:
            digest = _digest(value)
            principal, until = self._by_digest.get(digest, (None, 0.0))
            if principal is None:
                continue
            if self._clock() < until and not principal.caller.revoked:
                return principal
            del self._by_digest[digest]
        return None

    def remove(self, values: Iterable[str]) -> None:
        """Sign out."""
        for value in values:
            self._by_digest.pop(_digest(value), None)


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()


def cookie_name(host: bytes) -> str:
    """Return the name of the cookie. Browsers do not keep cookies of two ports apart, so the port is part of it."""
    port = host.rpartition(b":")[2]
    return f"ingle-{port.decode()}" if port.isdigit() else "ingle"


def set_cookie(host: bytes, value: str, secure: bool) -> str:
    """Return the header that sets the cookie; without a value, the one that removes it."""
    age = LIFETIME_SECONDS if value else 0
    only_tls = "; Secure" if secure else ""
    return f"{cookie_name(host)}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{only_tls}"


class BrowserRequest:
    """Headers of a request that tell which page made it."""

    def __init__(self, scope: Scope) -> None:
        self.host = b""
        self._cookies: list[str] = []
        self._origins: list[bytes] = []
        self._site = self._mode = b""
        for name, value in scope["headers"]:
            if name == b"host":
                self.host = value
            elif name == b"cookie":
                self._cookies += value.decode("latin-1").split(";")
            elif name == b"origin":
                self._origins.append(value)
            elif name == b"sec-fetch-site":
                self._site = value
            elif name == b"sec-fetch-mode":
                self._mode = value
        self._safe = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")

    @property
    def cookies(self) -> list[str]:
        """Values of this server's cookie."""
        name = cookie_name(self.host)
        pairs = [each.strip().partition("=") for each in self._cookies]
        return [value for found, _, value in pairs if found == name]

    @property
    def secure(self) -> bool:
        """Whether the page came over TLS, perhaps from a proxy."""
        return any(origin.lower().startswith(b"https:") for origin in self._origins)

    @property
    def from_own_page(self) -> bool:
        """Whether a page of this server made the request, or a person who opened it.

        `SameSite` does not keep out pages of other ports of the same host, which may belong to other programs.
        """
        own = all(origin.partition(b"//")[2].lower() == self.host.lower() for origin in self._origins)
        if not own:
            return False
        if self._safe:
            return self._site in (b"", b"same-origin", b"none") or self._mode == b"navigate"
        return bool(self._origins) or self._site == b"same-origin"

    @property
    def from_other_site(self) -> bool:
        """Whether a page of another origin led here."""
        return self._site not in (b"", b"none", b"same-origin")

    @property
    def from_other_page(self) -> bool:
        """Whether a page of another origin made the request. Programs that are no browsers do not say."""
        return not self.from_own_page and bool(self._origins or self._site)
