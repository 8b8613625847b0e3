"""Durable sessions in an object store: claimed by this server, or taken over from one that is gone.

The store knows who has a session, so two servers never have the same one. A server is gone when it has released its
lease, or has not renewed it for `store_takeover` seconds.
"""

import asyncio
import logging
import platform
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from ingle import errors
from ingle.sessions.persistence.save_store import SaveStore
from ingle.sessions.persistence.stored_session import StoredSession
from ingle.sessions.spec import key_of
from ingle.settings import Settings
from ingle.snapshots.registry import SERVE, Registry, Request, Row
from ingle.store.claims import FORGOTTEN_SECONDS, Claim
from ingle.store.requests import StoredRequests
from ingle.store.saves import FoundSave, SessionSaves, StoredSave
from ingle.store.shared import SharedStore, hide_credentials
from ingle.store.store import open_store
from ingle.support.background import both
from ingle.support.threads import in_thread

CLAIM = "claim.json"
"""File in the folder of a session: its claim when this machine had it last."""

RENEWALS = 5
"""Renewals of the lease within the time after which a server counts as gone."""

logger = logging.getLogger(__name__)


class SharedSessions:
    def __init__(
        self,
        settings: Settings,
        server: str,
        place: str,
        saves: SaveStore,
        registry: Registry,
        folder: Callable[[str], Path],
    ) -> None:
        """`folder` returns the folder of a session by its unique id."""
        self._settings = settings
        self._server = server
        self._place = place
        self._saves = saves
        self._registry = registry
        self._folder = folder
        self._shared: SharedStore | None = None
        self._own: dict[str, StoredSession] = {}
        """Sessions that this server has, and those that it has to give up."""
        self._held_back: set[str] = set()
        """Keys of sessions that this server may not have."""

    @property
    def shared(self) -> SharedStore:
        assert self._shared is not None
        return self._shared

    @property
    def takes_over(self) -> bool:
        """Whether this server looks for sessions of others by itself. In a cluster, gateways say who takes one over."""
        return self.renews and self._settings.store_takeover > 0

    @property
    def renews(self) -> bool:
        """Whether this server has a lease of its own. In a cluster the agent above it renews the one they share."""
        return self._place == SERVE

    @property
    def renew_seconds(self) -> float:
        return (self._settings.store_takeover or 15.0) / RENEWALS

    async def start(self) -> None:
        """Open the store, and prove that it can be used. Raise an error if it cannot."""
        store = await asyncio.to_thread(open_store, self._settings.store)
        hide_credentials()
        await store.check()
        self._shared = SharedStore(store, self._server, self._settings.node or platform.node())
        self._saves.share(self._shared, await self._shared.signing_key())
        if self.renews:
            await self.renew()

    async def stop(self) -> None:
        if self._shared is not None:
            await self._shared.close(release=self.renews)

    async def renew(self) -> None:
        await self.shared.leases.renew(self._server)

    # --- new sessions ---

    async def claim(self, row: Row) -> StoredSession:
        """Claim the name of a new session. Raise SessionExists if another server has it, or has left a save of it."""
        key = key_of(row.made.tenant, row.name)
        ended = self._own.get(key)
        if ended is not None and ended.closed is not None:
            # The store failed at its end. Below its claim, its saves would be newer than those of the new session.
            await ended.end(keep=ended.closed)
        newest = await self.shared.claims.newest(key)
        if newest is not None and newest.agent == self._server and not newest.released:
            claim: Claim | None = newest  # a gateway has taken it for this server
        elif newest is not None and (not newest.released or await SessionSaves(self.shared.store, key).exist()):
            raise errors.SessionExists(row.name)
        else:
            claim = await self.shared.take(key, 0 if newest is None else newest.epoch)
        if claim is None:
            raise errors.SessionExists(row.name)
        stored = self._stored(claim, row)
        try:
            await stored.begin()
            await self._note(stored)
        except BaseException:
            await stored.close(None, keep=False)
            raise
        return stored

    def _stored(self, claim: Claim, row: Row) -> StoredSession:
        async def requests() -> list[Request]:
            return await self._registry.requests(row.uid)

        snapshots = self._saves.of(row.made.tenant)
        stored = StoredSession(self.shared, claim, row, snapshots, self._folder(row.uid), requests)
        self._own = {key: each for key, each in self._own.items() if each.closed is None or not each.released}
        self._own[claim.key] = stored
        return stored

    async def _note(self, stored: StoredSession) -> None:
        """Write the claim down beside the files of the session, for a later server of this machine."""
        path = self._folder(stored.row.uid) / CLAIM

        def write() -> None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(msgspec.json.encode(stored.claim))

        await in_thread(write)

    # --- sessions of other servers ---

    async def reclaim(self, rows: Iterable[Row]) -> list[StoredSession]:
        """Claim sessions of an earlier server of this machine. Those that another server has are given up here."""
        found = []
        for row in rows:
            key = key_of(row.made.tenant, row.name)
            newest = await self.shared.claims.newest(key)
            noted = await in_thread(partial(self._noted, row))
            stored = None
            if newest is None or noted == (newest.epoch, newest.agent):
                try:
                    stored = await self._take(key, newest, row)
                except (errors.SnapshotNotFound, errors.SnapshotDamaged) as error:
                    logger.error("session %s does not come back: %s", row.name, error.message)
                    await self._registry.release(row.uid)
                    continue
            if stored is None:
                logger.warning("another server has session %s, or had it last; it is not restored from here", row.name)
                await self._registry.remove(row.uid)
            else:
                found.append(stored)
        return found

    def _noted(self, row: Row) -> tuple[int, str]:
        """Return epoch and agent of the last claim of this machine."""
        try:
            claim = msgspec.json.decode((self._folder(row.uid) / CLAIM).read_bytes(), type=Claim)
        except (OSError, msgspec.MsgspecError):
            return 0, ""
        return claim.epoch, claim.agent

    async def settle(self) -> None:
        """Give up the sessions that ended here while the store failed."""
        for stored in list(self._own.values()):
            if stored.closed is not None:
                await stored.end(keep=stored.closed)

    async def abandoned(self, known: Callable[[str], bool]) -> list[Claim]:
        """Return claims of sessions that no server has. `known` says which of them this server has."""
        claims = await self.shared.claims.all()
        silences = await self.shared.leases.silences()
        found = []
        for claim in claims:
            own = self._own.get(claim.key)
            if own is not None and own.claim.epoch < claim.epoch:
                own.stale = True
            if known(claim.key) or claim.key in self._held_back:
                continue
            if claim.agent == self._server and not claim.released:
                gone = not self._had(claim)
            else:
                silence = silences.get(claim.agent)
                gone = claim.released or silence is None or silence > self._settings.store_takeover
            if gone:
                found.append(claim)
        return found

    def _had(self, claim: Claim) -> bool:
        """Return whether this server has or had the session of its claim. If not, the store failed after the claim."""
        stored = self._own.get(claim.key)
        return stored is not None and stored.claim.epoch == claim.epoch

    async def newest(self, before: Claim) -> FoundSave | None:
        """Return the newest save of an abandoned session. Remove what is left of one that has none."""
        try:
            save = await SessionSaves(self.shared.store, before.key).newest(before.epoch + 1)
        except errors.SnapshotDamaged:
            # It is not claimed: the machine that had it may still have its save on the disk.
            self.leave(before.key)
            raise
        if save is None:
            await self._settle(before)
        return save

    async def adopt(self, before: Claim, save: FoundSave | None) -> StoredSession | None:
        """Take a session over from the server that had it. Return None if another was faster, or if it has ended.

        The caller has seen a save that can be read. `save` is that one.
        """
        if before.agent == self._server and not before.released and self._had(before):
            return None  # it ends here at this moment, or has to be given up
        stored = await self._take(before.key, before, None, save)
        if stored is None:
            return None
        row = stored.row
        if time.time() - row.last_used > self._settings.durable_age:
            logger.warning("durable session %s was not used for long and is removed", row.name)
            await stored.end(keep=False)
            return None
        await self._registry.take(self._place, row)
        return stored

    async def _settle(self, claim: Claim) -> None:
        """Release the claim of a session without a save, or remove one that was released long ago."""
        if not claim.released:
            await self.shared.claims.end(claim, self.shared.agent, self.shared.node)
        elif time.time() - claim.at > FORGOTTEN_SECONDS:
            await self.shared.claims.forget(claim, self.shared.agent, self.shared.node)

    async def _take(
        self, key: str, before: Claim | None, row: Row | None, known: FoundSave | None = None
    ) -> StoredSession | None:
        """Claim a session, and go on with its newest save: that of the store, or one of this machine's row.

        Saves are listed after the claim: from then on, no earlier server can report one. `known` was read before.
        """
        after = 0 if before is None else before.epoch
        claim = await self.shared.claims.create(key, after, self.shared.agent, self.shared.node)
        if claim is None:
            return None
        reading = both(self._earlier(claim, row, known), StoredRequests(self.shared.store, key).read())
        # At the same time: callers wait, and the store may be far away.
        confirmed, found = await asyncio.gather(self.shared.claims.confirm(claim), reading, return_exceptions=True)
        if isinstance(confirmed, BaseException):
            raise confirmed
        if not confirmed:
            return None
        if isinstance(found, BaseException):
            raise found
        earlier, begun = found
        there = None if earlier is None else msgspec.json.decode(earlier.row, type=Row)
        if there is not None:
            # The server died before a save included them, so what became of their cells is not known.
            included = {each.key for each in there.requests}
            lost = [each for each in begun if each.key not in included]
            there = msgspec.structs.replace(there, requests=[*there.requests, *lost])
        stored = None
        try:
            if row is not None and (there is None or _time(row) >= _time(there)):
                stored = await self._go_on_here(claim, row, earlier)
            if stored is None and earlier is not None and there is not None:
                stored = self._stored(claim, there)
                await stored.begin_with(earlier)
            if stored is None:
                # A server that is only slow must find a newer epoch.
                await self.shared.claims.release(claim)
                return None
            await self._note(stored)
        except BaseException:
            # This server has the claim and not the session, so that it may be taken over again.
            self._own.pop(key, None)
            raise
        return stored

    async def _go_on_here(self, claim: Claim, row: Row, earlier: StoredSave | None) -> StoredSession | None:
        """Go on with the save of this machine. Return None if it cannot be read and the store has an earlier one."""
        stored = self._stored(claim, row)
        try:
            await stored.save(row.save)
        except (errors.SnapshotNotFound, errors.SnapshotDamaged) as error:
            if earlier is None:
                raise
            logger.error("session %s is restored from an earlier save in the store: %s", row.name, error.message)
            return None
        return stored

    async def _earlier(self, claim: Claim, row: Row | None, known: FoundSave | None) -> StoredSave | None:
        """Return the newest save before a claim. A damaged one does not matter to a machine that has a row."""
        try:
            found = await SessionSaves(self.shared.store, claim.key).newest(claim.epoch, known)
        except errors.SnapshotDamaged as error:
            if row is None:
                raise
            logger.warning("session %s is restored from this machine: %s", row.name, error.message)
            return None
        return None if found is None else found.save

    async def hold_back(self, stored: StoredSession) -> None:
        """Give up a session that this server may not have, for another one."""
        self.leave(stored.claim.key)
        await stored.close(None, keep=True)

    def leave(self, key: str) -> None:
        """Leave a session to other servers, unless somebody asks this one for it."""
        self._held_back.add(key)


def _time(row: Row) -> float:
    return 0.0 if row.save is None else row.save.time
