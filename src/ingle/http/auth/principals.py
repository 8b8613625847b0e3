"""Callers by token. A token is looked up by its digest, in constant time."""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from ingle import errors
from ingle.callers import IMPLIED, OWNER, Caller, Meter
from ingle.http.auth import tokens_file
from ingle.service import Service

REFRESH_SECONDS = 1.0
"""Interval between two looks at the file of tokens."""

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


class Principals:
    def __init__(self, service: Service, token: str | None) -> None:
        """`token` is the owner's. With None every caller is the owner."""
        self._service = service
        self._entries: dict[str, tokens_file.Entry] = {}
        self._by_index: dict[bytes, Principal] = {}
        self.anybody: Principal | None = None
        if token is None:
            self.anybody = Principal(service, OWNER, b"")
        else:
            self._add(Principal(service, OWNER, digest(token.encode())))

    def _add(self, principal: Principal) -> None:
        self._by_index[principal.digest[:INDEX_BYTES]] = principal

    def find(self, token: bytes) -> Principal | None:
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
                gone = self._by_index.pop(bytes.fromhex(known)[:INDEX_BYTES])
                gone.caller.revoked = True
                del self._entries[known]
        for new, entry in now.items():
            if new not in self._entries:
                caller = Caller(entry.name, entry.tenant, IMPLIED[entry.scope], entry.limits, entry.bounds)
                self._add(Principal(self._service, caller, bytes.fromhex(new)))
                self._entries[new] = entry

    async def follow(self, home: Path) -> None:
        """Follow changes of the file until cancelled."""
        seen: tuple[int, int] | None = (0, 0)
        told: tuple[int, int] | None = (0, 0)
        while True:
            stamp = await asyncio.to_thread(tokens_file.stamp, home)
            try:
                if stamp != seen:
                    self.take(await asyncio.to_thread(tokens_file.read, home))
                    seen = stamp
            except (errors.IngleError, ValueError, KeyError) as error:
                # The known tokens stay in force until the file can be read again.
                if stamp != told:
                    logger.error("the file of tokens could not be read: %s", error)
                told = stamp
            await asyncio.sleep(REFRESH_SECONDS)


def digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
