"""Sessions that outlive their server: written down when they are made, found again by the next server of the place.

A place is a kind of server and the folder it was started in. Two servers that run in one place have each their own
sessions; those of one that is gone are taken over by the next that starts there. A name that is taken by then gets a
number.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ingle import errors
from ingle.render.phrases import duration, some
from ingle.requests import NewSession
from ingle.sessions.persistence.autosave import Keeper
from ingle.sessions.persistence.save_store import DURABLE, RESTING, Shelves
from ingle.sessions.session import Session
from ingle.settings import Settings
from ingle.snapshots.cell_counter import CellCounter
from ingle.snapshots.registry import KEYS, Registry, RequestStore, Row
from ingle.support import remove_tree
from ingle.support.idempotency import Idempotency, StoredKey

PREFIX = "durable."
"""What the names of their folders begin with, so that nobody takes them for those of a dead server."""

STALE = ("timeline.ndjson", "figures")
"""What a server leaves in such a folder and the next one cannot read."""

LEFT_OVER = 7 * 86400.0
"""What is in no registry is removed only after so long: the registry may be what was lost."""

logger = logging.getLogger(__name__)


class Durables:
    def __init__(self, settings: Settings, home: Path, server: str, place: str, shelves: Shelves) -> None:
        self._settings = settings
        self._sessions = home / "sessions"
        self._path = home / "registry.db"
        self._place = place
        self._shelves = shelves
        self._server = server
        self.registry = Registry(self._path, server)
        self._counts: dict[str, CellCounter] = {}
        """Of sessions that are about to be kept."""

    def prepare(self) -> None:
        """Make the registry now, if there is none: the first durable session does not wait for that."""
        if self._settings.durable_size:
            self.registry.later(lambda db: None)

    def folder(self, uid: str) -> Path:
        return self._sessions / f"{PREFIX}{uid}"

    async def left_behind(self, is_dead: Callable[[str], bool]) -> list[Row]:
        """What earlier servers of this place had, the newest first. What belongs to nobody is cleared away."""
        # What dead servers saved of sessions that ended with them.
        gone: dict[str, bool] = {}

        def lives(name: str) -> bool:
            server = name.partition(".")[0]
            if server not in gone:
                gone[server] = server != self._server and is_dead(server)
            return not gone[server]

        await asyncio.to_thread(self._shelves.tidy, RESTING, lives)
        if not self._settings.durable_size or not await asyncio.to_thread(self._path.exists):
            return []
        try:
            expired = await self.registry.expire(time.time() - self._settings.durable_age, is_dead)
            rows = await self.registry.adopt(self._place, is_dead)
            known = await self.registry.known()
        except errors.RegistryBroken as error:
            logger.error("no session comes back: %s", error.message)
            return []
        if expired:
            unused = duration(self._settings.durable_age)
            logger.warning("durable sessions that were not used for %s are removed: %d", unused, len(expired))
        if self.registry.replaced:
            await asyncio.to_thread(self._salvage)
        await asyncio.to_thread(self._tidy, known, [row.uid for row in rows], expired)
        return [msgspec.structs.replace(row, cells=max(row.cells, await self._count(row.uid))) for row in rows]

    def _salvage(self) -> None:
        try:
            found = self._shelves.salvage(DURABLE)
        except OSError as error:
            logger.error("what was saved of durable sessions could not be made snapshots: %s", error)
        else:
            logger.error("what was saved of durable sessions is kept as snapshots: %s", some(found) or "there was none")

    async def _count(self, uid: str) -> int:
        """The number of the last cell that began in it."""
        try:
            count = self._counts[uid] = await asyncio.to_thread(CellCounter, self.folder(uid))
        except OSError as error:
            logger.warning("the number of the last cell is not written down: %s", error)
            return 0
        return count.last

    def _tidy(self, known: set[str], mine: list[str], expired: list[str]) -> None:
        for uid in expired:
            remove_tree.remove(self.folder(uid))
        self._shelves.tidy(DURABLE, lambda name: name not in expired)
        self._shelves.tidy(DURABLE, known.__contains__, LEFT_OVER)
        for folder in self._sessions.glob(f"{PREFIX}*"):
            # Another server may be at the same.
            with contextlib.suppress(FileNotFoundError):
                if folder.name.removeprefix(PREFIX) not in known and time.time() - folder.stat().st_mtime > LEFT_OVER:
                    remove_tree.remove(folder)
        for uid in mine:
            for name in STALE:
                path = self.folder(uid) / name
                if path.is_dir():
                    remove_tree.remove(path)
                elif path.exists():
                    os.unlink(path)

    async def add(self, uid: str, name: str, wanted: NewSession) -> Row:
        """Write a new one down."""
        if not self._settings.durable_size:
            raise errors.InvalidRequest("this server saves no session by itself (durable_size is 0); leave durable out")
        row = Row(uid, name, wanted, time.time())
        try:
            await self.registry.add(self._place, row)
            await self._count(uid)
        except BaseException:
            # Whoever asked for it may have left meanwhile: then there is no such session.
            self.registry.remove_later(uid)
            raise
        return row

    def keep(self, session: Session, row: Row) -> None:
        """Save this session from now on, and store the keys of its requests, under that row."""
        store = self._shelves.store(session, DURABLE, row.uid, self._settings.durable_size)
        count = self._counts.pop(row.uid, None)
        session.keeper = Keeper(store, session.tell, registry=self.registry, uid=row.uid, save=row.save, count=count)
        # Of a request whose cell is not known, the server died before it wrote that down.
        stored = [
            StoredKey(each.key, each.asked, errors.CellForgotten(None) if each.cell is None else each.cell)
            for each in row.requests
        ]
        session.requests = Idempotency(KEYS, store=RequestStore(self.registry, row.uid), stored=stored)

    def keep_here(self, session: Session, uid: str) -> None:
        """A session that does not outlive its server: saved when it is idle, so that its process can be freed."""
        store = self._shelves.store(session, RESTING, f"{self._server}.{uid}", self._settings.durable_size)
        session.keeper = Keeper(store, session.tell)
