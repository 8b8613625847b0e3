"""Claims: which server has a session, by exclusive creation of an object.

Each claim of a session has an epoch, a number that rises by one. A server that takes epoch 5 owns the session until
another one takes epoch 6. The object of an epoch is created once, so no epoch has two owners.

A claim counts once the server has seen that it is the newest one and that the claim before it is still there. The first
claim of a name counts if there is no other one. So claims can be removed while others are taken.
"""

import asyncio
import secrets
import time

import msgspec
from msgspec import Struct

from ingle import errors
from ingle.store.objects import Entry, quoted, unquoted
from ingle.store.store import Store

FOLDER = "claims/"

READS_AT_ONCE = 16

MAX_KNOWN = 100_000
"""Claims that a server remembers, so that it does not read them again."""

DAY_SECONDS = 86400
"""A name without a claim starts with the epoch of its day. That is above the epochs of claims that were removed."""

FORGOTTEN_SECONDS = float(DAY_SECONDS)
"""Time after which the last claim of an ended session is removed."""


class Claim(Struct, frozen=True):
    key: str
    """Key of the session: its name, or tenant and name."""
    epoch: int
    agent: str
    """The server, one run of it. A server that is started again is another agent."""
    node: str
    """Where that server is, for people."""
    at: float
    """When it was taken or released, by the server's clock."""
    after: int = 0
    """Epoch of the claim before it; 0: there was none."""
    released: bool = False
    """The session has ended, or its server gave it up. Another server may take the next epoch."""
    nonce: str = ""


class Claims:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[str, Claim]] = {}
        """Versions and contents of claims that were read, by path."""

    async def newest(self, key: str) -> Claim | None:
        """Return the claim in force, or the last one if it was released. None: the session was never claimed."""
        while True:
            entries = await self._store.list(_folder(key))
            if not entries:
                return None
            claim = await self._read(entries[-1])
            if claim is not None:
                return claim
            # It was removed since it was listed, so there is a newer one, or none.

    async def epoch(self, key: str) -> int:
        """Return the newest epoch of a session, in one request; 0 if it was never claimed."""
        entries = await self._store.list(_folder(key))
        return _epoch(entries[-1]) if entries else 0

    async def take(self, key: str, after: int, agent: str, node: str) -> Claim | None:
        """Take the epoch after the last one for an agent; 0: the name has no claim.

        Return None if another caller has it, or if there is a newer one.
        """
        claim = await self.create(key, after, agent, node)
        return claim if claim is not None and await self.confirm(claim) else None

    async def create(self, key: str, after: int, agent: str, node: str) -> Claim | None:
        """Create the claim after the last one. Return None if another caller has it. It counts once it is confirmed."""
        now = time.time()
        epoch = after + 1 if after else int(now // DAY_SECONDS) * DAY_SECONDS
        claim = Claim(key, epoch, agent, node, now, after=after, nonce=secrets.token_hex(8))
        made = await self._store.create(_path(key, epoch), msgspec.json.encode(claim))
        return claim if made else None

    async def confirm(self, claim: Claim) -> bool:
        """Return whether a claim that was created counts. Remove it otherwise."""
        entries = await self._store.list(_folder(claim.key))
        expected = [claim.after, claim.epoch] if claim.after else [claim.epoch]
        if [_epoch(each) for each in entries[-2:]] != expected:
            await self._store.delete(_path(claim.key, claim.epoch))
            return False
        for old in entries[:-2]:
            await self._store.delete(old.path)
        return True

    async def release(self, claim: Claim) -> None:
        """Give a session up. Its epochs go on from here."""
        given_up = msgspec.structs.replace(claim, released=True, at=time.time())
        await self._store.write(_path(claim.key, claim.epoch), msgspec.json.encode(given_up))

    async def end(self, claim: Claim, agent: str, node: str) -> None:
        """Release the claim of a session that is lost, in the name of another agent."""
        taken = await self.take(claim.key, claim.epoch, agent, node)
        if taken is not None:
            # A server that is only slow must find a newer epoch.
            await self.release(taken)

    async def forget(self, claim: Claim, agent: str, node: str) -> None:
        """Remove a claim that was released, in the name of another agent."""
        taken = await self.take(claim.key, claim.epoch, agent, node)
        if taken is not None:
            # A newer one may have come since.
            for entry in await self._store.list(_folder(claim.key)):
                if _epoch(entry) <= taken.epoch:
                    await self._store.delete(entry.path)

    async def all(self, agent: str | None = None) -> list[Claim]:
        """Return the newest claim of each session, or of those of one agent."""
        newest = await self._newest()
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def read(key: str, entry: Entry) -> Claim | None:
            async with limit:
                # One that is gone meanwhile has a successor.
                return await self._read(entry) or await self.newest(key)

        found = await asyncio.gather(*(read(key, entry) for key, entry in newest.items()))
        paths = {entry.path for entry in newest.values()}
        self._known = {path: known for path, known in self._known.items() if path in paths}
        return [claim for claim in found if claim is not None and agent in (None, claim.agent)]

    async def unchanged_since(self, moment: float) -> list[str]:
        """Return the keys of sessions whose newest claim was written before this time of the store."""
        return [key for key, entry in (await self._newest()).items() if entry.modified < moment]

    async def _newest(self) -> dict[str, Entry]:
        """Return the newest entry of each key. They are listed by key and epoch."""
        return {unquoted(entry.path.split("/")[1]): entry for entry in await self._store.list(FOLDER)}

    async def _read(self, entry: Entry) -> Claim | None:
        known = self._known.get(entry.path)
        if known is not None and known[0] == entry.version:
            return known[1]
        data = await self._store.read(entry.path)
        if data is None:
            return None
        try:
            claim = msgspec.json.decode(data, type=Claim)
        except msgspec.MsgspecError as error:
            raise errors.StoreFailed(
                f"{entry.path} in the store {self._store.name} is no claim ({error}); remove it if no server uses it"
            ) from None
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[entry.path] = (entry.version, claim)
        return claim


def _folder(key: str) -> str:
    return f"{FOLDER}{quoted(key)}/"


def _path(key: str, epoch: int) -> str:
    return f"{_folder(key)}{epoch:010d}"


def _epoch(entry: Entry) -> int:
    return int(entry.path.rpartition("/")[2])
