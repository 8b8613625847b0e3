"""Who a token stands for: found by its digest, in a time that tells nothing about the tokens there are."""

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

REFRESH = 1.0
"""How often the file of tokens is looked at."""

INDEX = 8
"""Bytes of a digest by which it is looked up; the rest is compared."""

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
        """`token` is the owner's; with None everybody is the owner."""
        self._service = service
        self._entries: dict[str, tokens_file.Entry] = {}
        self._by_index: dict[bytes, Principal] = {}
        self.anybody: Principal | None = None
        if token is None:
            self.anybody = Principal(service, OWNER, b"")
        else:
            self._add(Principal(service, OWNER, digest(token.encode())))

    def _add(self, principal: Principal) -> None:
        self._by_index[principal.digest[:INDEX]] = principal

    def find(self, token: bytes) -> Principal | None:
        given = digest(token)
        found = self._by_index.get(given[:INDEX])
        # What is looked up is part of a hash, which nobody can choose; all of it is compared in constant time.
        if found is None or not hmac.compare_digest(given, found.digest):
            return None
        return found

    def take(self, entries: Iterable[tokens_file.Entry]) -> None:
        """The entries of the file as they are now. What is open by a token that is no longer there is refused."""
        now = {entry.hash: entry for entry in entries}
        for known, entry in list(self._entries.items()):
            if now.get(known) != entry:
                gone = self._by_index.pop(bytes.fromhex(known)[:INDEX])
                gone.caller.revoked = True
                del self._entries[known]
        for new, entry in now.items():
            if new not in self._entries:
                caller = Caller(entry.name, entry.tenant, IMPLIED[entry.scope], entry.limits, entry.bounds)
                self._add(Principal(self._service, caller, bytes.fromhex(new)))
                self._entries[new] = entry

    async def follow(self, home: Path) -> None:
        """Keep up with the file until cancelled."""
        seen: tuple[int, int] | None = (0, 0)
        told: tuple[int, int] | None = (0, 0)
        while True:
            stamp = await asyncio.to_thread(tokens_file.stamp, home)
            try:
                if stamp != seen:
                    self.take(await asyncio.to_thread(tokens_file.read, home))
                    seen = stamp
            except (errors.IngleError, ValueError, KeyError) as error:
                # As before, until somebody has put it right; or until it can be read, as when descriptors were few.
                if stamp != told:
                    logger.error("the file of tokens was not taken: %s", error)
                told = stamp
            await asyncio.sleep(REFRESH)


def digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
