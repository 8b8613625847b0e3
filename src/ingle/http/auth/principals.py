"""Callers by token. A token is looked up by its digest, in constant time."""

import asyncio
import contextlib
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from ingle import errors
from ingle.callers import IMPLIED, OWNER, Caller, Meter
from ingle.http.auth import tokens_file
from ingle.service import Service

REFRESH_SECONDS = 1.0
"""Interval between two looks at the file of tokens, for tokens that were revoked. A new one is looked for at once."""

INDEX_BYTES = 8
"""Bytes of a digest that are looked up; the whole digest is compared."""

logger = logging.getLogger(__name__)


class Principal:
    """A caller, the service that acts for it, and what it has used."""

    def __init__(self, service: Service, caller: Caller, digest: bytes) -> None:
        self.caller = caller
        self.service = service.acting_for(caller)
        self.digest = digest
        per_minute = caller.limits.bytes_per_minute
        self.meter = None if per_minute is None else Meter(per_minute)
        self._open: set[asyncio.Timeout] = set()
        """Requests that are being answered."""
        self._dependants: list[Principal] = []

    def dependant(self, caller: Caller) -> "Principal":
        """Return a principal for another caller, which is revoked with this one."""
        made = Principal(self.service, caller, b"")
        self._dependants = [each for each in self._dependants if not each.caller.revoked]
        self._dependants.append(made)
        return made

    @contextlib.asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Cancel the request inside when the token is revoked, and raise Unauthorized instead."""
        bound = asyncio.timeout(None)
        try:
            async with bound:
                self._open.add(bound)
                try:
                    yield
                finally:
                    self._open.discard(bound)
        except TimeoutError:
            if not bound.expired():
                raise
            raise errors.Unauthorized("this token was revoked; ask for another") from None

    def revoke(self) -> None:
        """Refuse further verbs, and end the requests that are being answered."""
        self.caller.revoked = True
        for bound in self._open:
            bound.reschedule(0.0)
        for dependant in self._dependants:
            dependant.revoke()


class Principals:
    def __init__(self, service: Service, token: str | None, home: Path | None = None) -> None:
        """`token` is the owner's; with None every caller is the owner. `home` holds the tokens of others."""
        self._service = service
        self.home = home
        self._looking = asyncio.Lock()
        self._asked = self._answered = 0
        """Number of wishes to look at the file, and how many of them were met by a look that began later."""
        self._seen: tuple[int, int] | None = (0, 0)
        self._told: tuple[int, int] | None = (0, 0)
        self._entries: dict[str, tokens_file.Entry] = {}
        self._by_index: dict[bytes, Principal] = {}
        self.owner = Principal(service, OWNER, b"" if token is None else digest(token.encode()))
        self.anybody: Principal | None = None
        if token is None:
            self.anybody = self.owner
        else:
            self._add(self.owner)

    def _add(self, principal: Principal) -> None:
        self._by_index[principal.digest[:INDEX_BYTES]] = principal

    async def find(self, token: bytes) -> Principal | None:
        """Return the caller with this token. Look at the file again for one that may be new."""
        found = self.known(token)
        if found is None and self.home is not None and token.startswith(tokens_file.PREFIX.encode()):
            await self.look()
            found = self.known(token)
        return found

    def known(self, token: bytes) -> Principal | None:
        """Return the caller with this token, as of the last look at the file."""
        given = digest(token)
        found = self._by_index.get(given[:INDEX_BYTES])
        # A caller cannot choose a part of a hash. The whole of it is compared in constant time.
        if found is None or not hmac.compare_digest(given, found.digest):
            return None
        return found

    def take(self, entries: Iterable[tokens_file.Entry]) -> None:
        """Take over the entries of the file. Mark the callers of removed tokens as revoked."""
        now = {entry.hash: entry for entry in entries}
        for known, entry in list(self._entries.items()):
            if now.get(known) != entry:
                self._by_index.pop(bytes.fromhex(known)[:INDEX_BYTES]).revoke()
                del self._entries[known]
        for new, entry in now.items():
            if new not in self._entries:
                caller = Caller(entry.name, entry.tenant, IMPLIED[entry.scope], entry.limits, entry.bounds)
                self._add(Principal(self._service, caller, bytes.fromhex(new)))
                self._entries[new] = entry

    async def follow(self) -> None:
        """Follow changes of the file until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(REFRESH_SECONDS)

    async def look(self) -> None:
        """Look at the file now. Callers that come meanwhile share the next look, so many strangers cost little."""
        self._asked += 1
        wish = self._asked
        async with self._looking:
            if self._answered < wish:
                asked = self._asked
                await self._look()
                self._answered = asked

    async def _look(self) -> None:
        assert self.home is not None
        stamp = await asyncio.to_thread(tokens_file.stamp, self.home)
        try:
            if stamp != self._seen:
                self.take(await asyncio.to_thread(tokens_file.read, self.home))
                self._seen = stamp
        except (errors.IngleError, ValueError, KeyError) as error:
            # The known tokens stay in force until the file can be read again.
            if stamp != self._told:
                logger.error("the file of tokens could not be read: %s", error)
            self._told = stamp


def digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
