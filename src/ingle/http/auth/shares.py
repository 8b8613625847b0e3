"""Read-only links to one session. The secret is a part of the path: `/share/SECRET/…`.

A link needs no cookie, so opening one changes nothing about who a browser is signed in as. A caller that came by a link
has the scope `read` and a list of routes that it may read; it sees no files. A link ends at its time, when it is
revoked, with the token that made it, and with the session it shows: another session of that name is not shown.
"""

import asyncio
import hashlib
import re
import secrets
import time

from msgspec import Struct
from starlette.types import Scope

from ingle import errors
from ingle.callers import READ, Caller
from ingle.events import SessionInfo
from ingle.http.auth.principals import Principal

PREFIX = "/share/"

BASE = "ingle.base"
"""Key of the scope for the part of the path that was removed: the prefix and the secret."""

SHARED = "ingle.shared"
"""Key of the scope for the name of the session that a link shows."""

BYTES = 24

MAX_SHARES = 1000
"""Links that one tenant may have at the same time."""

_PAGES = r"/?|/sessions/[^/]+(/\w+)?|/console/.+|/v1/me"
_READS = r"(/(events|usage|export|checkpoints|variables|figures/[^/]+|cells(/\d+(/(output|events))?)?))?"


class ShareInfo(Struct, frozen=True):
    """A read-only link to one session, without its secret."""

    share_id: str
    session_id: str
    created_at: float
    expires_at: float
    made_by: str
    """Name of the token that made it."""


class Share:
    """One link: what it shows, and the caller that everybody who opens it is."""

    def __init__(self, maker: Principal, session: SessionInfo, seconds: float) -> None:
        now = time.time()
        self.secret = secrets.token_urlsafe(BYTES)
        self.info = ShareInfo(secrets.token_hex(4), session.session_id, now, now + seconds, maker.caller.name)
        caller = Caller(f"share {self.info.share_id}", maker.caller.tenant, frozenset({READ}))
        self.principal = maker.dependant(caller)
        self._session_created_at = session.created_at
        self._allowed = re.compile(f"{_PAGES}|/v1/sessions/{re.escape(session.session_id)}{_READS}")

    def allows(self, scope: Scope, path: str) -> bool:
        """Return whether a request reads what the link shows. `path` is without the secret."""
        reads = scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD")
        return reads and self._allowed.fullmatch(path) is not None

    async def check_session(self) -> None:
        """Raise SessionNotFound if the session is another one by now."""
        found = await self.principal.service.get_session(self.info.session_id)
        if found.created_at != self._session_created_at:
            raise errors.SessionNotFound(self.info.session_id)


class Shares:
    """All links, found by the digest of their secret."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, Share] = {}

    def add(self, maker: Principal, session: SessionInfo, seconds: float) -> Share:
        """Make a link that ends after so many seconds."""
        if len(self._of(maker.caller.tenant)) >= MAX_SHARES:
            raise errors.QuotaExceeded(f"there are {MAX_SHARES} links already; revoke some with `ingle share --revoke`")
        share = Share(maker, session, seconds)
        digest = _digest(share.secret)
        self._by_digest[digest] = share
        asyncio.get_running_loop().call_later(seconds, self._end, digest)
        return share

    def find(self, secret: str) -> Share | None:
        share = self._by_digest.get(_digest(secret))
        if share is not None and share.principal.caller.revoked:
            self._end(_digest(secret))
            return None
        return share

    async def list(self, tenant: str) -> list[ShareInfo]:
        """Return the links of a tenant that can be opened, oldest first. End those whose session has ended."""
        found = []
        for digest, share in self._of(tenant).items():
            try:
                await share.check_session()
                found.append(share.info)
            except errors.IngleError:
                self._end(digest)
        return found

    def _of(self, tenant: str) -> dict[bytes, Share]:
        return {key: share for key, share in self._by_digest.items() if share.principal.caller.tenant == tenant}

    def revoke(self, tenant: str, share_id: str) -> None:
        for digest, share in self._of(tenant).items():
            if share.info.share_id == share_id:
                self._end(digest)
                return
        raise errors.NotFound(f"there is no link {share_id[:80]!r}; `ingle share --list` shows those there are")

    def _end(self, digest: bytes) -> None:
        share = self._by_digest.pop(digest, None)
        if share is not None:
            share.principal.revoke()

    async def open(self, scope: Scope) -> Principal:
        """Check a request whose path has a secret, and remove the secret from its path. Return the caller."""
        secret, _, rest = scope["path"].removeprefix(PREFIX).partition("/")
        share = self.find(secret)
        if share is None:
            raise errors.NotFound("this link has expired or was revoked; ask for another")
        path = f"/{rest}"
        if not share.allows(scope, path):
            raise errors.Forbidden("this link shows one session and changes nothing; sign in to do more")
        await share.check_session()
        scope[BASE] = PREFIX + secret
        scope[SHARED] = share.info.session_id
        scope["path"] = path
        scope["raw_path"] = path.encode("utf-8", "surrogateescape")
        return share.principal


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
