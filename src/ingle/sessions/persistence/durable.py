"""Durable sessions: registered when they are made, taken over by the next server of the same place.

A place is a kind of server and the folder that it was started in. Two servers of one place have sessions of their own.
Those of a dead server are taken over by the next one that starts there. A name that is taken by then gets a number.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ingle import errors
from ingle.render.phrases import duration, some
from ingle.requests import NewSession
from ingle.sessions.persistence.autosave import SaveTarget
from ingle.sessions.persistence.save_store import SaveStore
from ingle.sessions.persistence.shared_sessions import SharedSessions
from ingle.sessions.persistence.stored_session import StoredSession
from ingle.sessions.spec import SessionSpec
from ingle.settings import Settings
from ingle.snapshots.cell_counter import CellCounter
from ingle.snapshots.registry import KEYS, SERVE, Registry, RequestStore, Row
from ingle.snapshots.session_names import SessionNames
from ingle.snapshots.store import DURABLE, HIBERNATED
from ingle.store.claims import Claim
from ingle.store.saves import FoundSave
from ingle.support import remove_tree
from ingle.support.idempotency import Idempotency, StoredKey

PREFIX = "durable."
"""Start of the names of their folders, so that they are not taken for those of a dead server."""

SHARED_PLACES = (SERVE, "agent")
"""Servers whose durable sessions are in the object store. Others end with a program of this machine."""

ORPHANED_SECONDS = 7 * 86400.0
"""Age at which saves and folders without a row are removed. The registry may be what was lost."""

logger = logging.getLogger(__name__)


class DurableSessions:
    def __init__(
        self, settings: Settings, home: Path, server: str, place: str, saves: SaveStore, agent: str = ""
    ) -> None:
        self._settings = settings
        self._sessions = home / "sessions"
        self._path = home / "registry.db"
        self._place = place
        self._saves = saves
        self._server = server
        self.registry = Registry(self._path, server)
        self.names = SessionNames(self.registry, server, place, enabled=settings.durable_size > 0)
        self._counts: dict[str, CellCounter] = {}
        """Counters of sessions that do not exist yet."""
        self.shared: SharedSessions | None = None
        """The sessions in the object store, if there is one."""
        if settings.store and place in SHARED_PLACES:
            self.shared = SharedSessions(settings, agent or server, place, saves, self.registry, self.folder)
        self._stored: dict[str, StoredSession] = {}
        """Sessions in the object store that do not exist here yet, by unique id."""

    def prepare(self) -> None:
        """Make the registry, if there is none, so that the first durable session does not wait for it."""
        if self._settings.durable_size:
            self.registry.later(lambda db: None)

    def folder(self, uid: str) -> Path:
        return self._sessions / f"{PREFIX}{uid}"

    async def left_behind(self, is_dead: Callable[[str], bool]) -> list[Row]:
        """Return the rows of sessions of earlier servers of this place, the newest first. Remove what has no owner."""
        # Saves of sessions that ended with their servers.
        gone: dict[str, bool] = {}

        def lives(name: str) -> bool:
            server = name.partition(".")[0]
            if server not in gone:
                gone[server] = server != self._server and is_dead(server)
            return not gone[server]

        await asyncio.to_thread(self._saves.tidy, HIBERNATED, lives)
        if not self._settings.durable_size or not await asyncio.to_thread(self._path.exists):
            return []
        try:
            expired = await self.registry.expire(time.time() - self._settings.durable_age, is_dead)
            rows = await self.registry.adopt(self._place, is_dead)
            known = await self.registry.known()
            await self.names.adopt(is_dead)
        except errors.RegistryBroken as error:
            logger.error("no session comes back: %s", error.message)
            return []
        if expired:
            unused = duration(self._settings.durable_age)
            logger.warning("durable sessions that were not used for %s are removed: %d", unused, len(expired))
        if self.registry.replaced:
            await asyncio.to_thread(self._salvage)
        await asyncio.to_thread(self._tidy, known, expired)
        if self.shared is not None:
            rows = [self._note(stored) for stored in await self.shared.reclaim(rows)]
        return [msgspec.structs.replace(row, cells=max(row.cells, await self._count(row.uid))) for row in rows]

    async def adopt(self, claim: Claim, save: FoundSave | None) -> Row | None:
        """Take over a session of another server from the object store. Return None if that server or another has it."""
        assert self.shared is not None
        stored = await self.shared.adopt(claim, save)
        if stored is None:
            return None
        row = self._note(stored)
        return msgspec.structs.replace(row, cells=max(row.cells, await self._count(row.uid)))

    def _note(self, stored: StoredSession) -> Row:
        self._stored[stored.row.uid] = stored
        return stored.row

    def _salvage(self) -> None:
        try:
            found = self._saves.salvage(DURABLE)
        except OSError as error:
            logger.error("what was saved of durable sessions could not be made snapshots: %s", error)
        else:
            logger.error("what was saved of durable sessions is kept as snapshots: %s", some(found) or "there was none")

    async def _count(self, uid: str) -> int:
        """Return the number of the last cell that began in a session."""
        try:
            count = self._counts[uid] = await asyncio.to_thread(CellCounter, self.folder(uid))
        except OSError as error:
            logger.warning("the number of the last cell is not written down: %s", error)
            return 0
        return count.last

    def _tidy(self, known: set[str], expired: list[str]) -> None:
        for uid in expired:
            remove_tree.remove(self.folder(uid))
        self._saves.tidy(DURABLE, lambda name: name not in expired)
        self._saves.tidy(DURABLE, known.__contains__, ORPHANED_SECONDS)
        for folder in self._sessions.glob(f"{PREFIX}*"):
            # Another server may remove the same folder.
            with contextlib.suppress(FileNotFoundError):
                if (
                    folder.name.removeprefix(PREFIX) not in known
                    and time.time() - folder.stat().st_mtime > ORPHANED_SECONDS
                ):
                    remove_tree.remove(folder)

    async def add(self, uid: str, name: str, wanted: NewSession) -> Row:
        """Register a new session."""
        if not self._settings.durable_size:
            raise errors.InvalidRequest("this server saves no session by itself (durable_size is 0); leave durable out")
        row = Row(uid, name, wanted, time.time())
        try:
            if self.shared is not None:
                self._note(await self.shared.claim(row))
            await self.registry.add(self._place, row)
            await self._count(uid)
        except BaseException:
            # The request may have been cancelled meanwhile. Then there is no such session.
            self.registry.remove_later(uid)
            stored = self._stored.pop(uid, None)
            if stored is not None:
                await stored.close(None, keep=False)
            raise
        return row

    async def hold_back(self, uid: str, key: str, error: errors.IngleError) -> None:
        """Leave a session of an earlier server in the registry, for a server that can have it."""
        await self.registry.release(uid)
        stored = self._stored.pop(uid, None)
        if stored is not None and self.shared is not None:
            await self.shared.hold_back(stored)
        logger.warning("session %s does not come back: %s", key.rpartition("/")[2], error.message)
        self.names.hold_back(key, error.message)

    def target(self, spec: SessionSpec, row: Row) -> SaveTarget:
        """Return where a durable session is saved."""
        stored = self._stored.pop(row.uid, None)
        store = self._saves.store(spec, DURABLE, row.uid, self._settings.durable_size, stored)
        return SaveTarget(store, self.registry, row.uid, row.save, self._counts.pop(row.uid, None), stored)

    def requests(self, row: Row, stored: StoredSession | None) -> Idempotency:
        """Return the idempotency keys of a durable session, which outlive the server."""
        # The server died before it wrote the cell of such a request down.
        also = None if stored is None else stored.begin_request
        known = [
            StoredKey(each.key, each.asked, errors.CellForgotten(None) if each.cell is None else each.cell)
            for each in row.requests
        ]
        return Idempotency(KEYS, store=RequestStore(self.registry, row.uid, also), stored=known)

    def temporary_target(self, spec: SessionSpec, uid: str) -> SaveTarget:
        """Return where a session is saved that ends with its server: when it is idle, to free its process."""
        store = self._saves.store(spec, HIBERNATED, f"{self._server}.{uid}", self._settings.durable_size)
        return SaveTarget(store)
