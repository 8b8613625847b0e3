"""Registry of durable sessions: how each was created, its server, its last save, and its idempotency keys.

It is one sqlite file for all servers of a data folder, used in its own thread. A server takes over a row only if the
lock of its owner is free. A save and its row are on disk before it is reported. A request is recorded before it starts
anything, so that no restart starts it again.
"""

import asyncio
import contextlib
import logging
import math
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from ingle.errors import RegistryBroken
from ingle.events import Skipped
from ingle.render.phrases import duration, some
from ingle.requests import NewSession

VERSION = 1

BUSY_TIMEOUT_SECONDS = 10.0
"""Time to wait for another server's transaction."""

KEYS = 1000
"""Idempotency keys stored for each session."""

SERVE = "serve"
"""Place of the sessions of `ingle serve`, whatever folder it was started in. Version 0.1 added the folder."""

SCHEMA = """
CREATE TABLE sessions (
    uid TEXT PRIMARY KEY,
    place TEXT NOT NULL,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    made BLOB NOT NULL,
    created_at REAL NOT NULL,
    cells INTEGER NOT NULL,
    save BLOB
) WITHOUT ROWID;
CREATE INDEX sessions_by_place ON sessions (place);
CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    uid TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE,
    key TEXT NOT NULL,
    asked TEXT NOT NULL,
    cell INTEGER,
    UNIQUE (uid, key)
);
"""

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Save(Struct, frozen=True):
    """The state of a session after a cell, on disk."""

    cell: int
    time: float
    python: str = ""
    names: list[str] = field(default_factory=list)
    missing: list[Skipped] = field(default_factory=list)

    def describe(self, failed: Sequence[Skipped] = ()) -> str:
        """Return a sentence about a session that was brought back from this save, without what has failed."""
        age = duration(max(0.0, time.time() - self.time))
        empty = "" if self.names else ", without any variable"
        text = f"this session is as it was after cell {self.cell}, saved {age} ago{empty}"
        names = {each.name: describe_missing(each) for each in (*self.missing, *failed)}
        return f"{text}; missing: {some(list(names.values()))}" if names else text


def describe_missing(each: Skipped) -> str:
    """Return a phrase about a variable that a save lacks."""
    made_by = f"; made by {each.made_by.strip('<>')}" if each.made_by else ""
    return f"{each.name} ({each.type}: {each.reason}{made_by})"


class Request(Struct, frozen=True):
    """A request with a key: its hash, and the cell it started, if known."""

    key: str
    asked: str
    cell: int | None


class Row(Struct, frozen=True):
    """A session in the registry."""

    uid: str
    name: str
    made: NewSession
    created_at: float
    cells: int = 0
    save: Save | None = None
    requests: list[Request] = field(default_factory=list)

    @property
    def last_used(self) -> float:
        return self.created_at if self.save is None else self.save.time


class Registry:
    def __init__(self, path: Path, server: str) -> None:
        self._path = path
        self._server = server
        self._thread = ThreadPoolExecutor(1, "registry")
        self._db: sqlite3.Connection | None = None
        self._closed = False
        self.replaced = False
        """Whether the file was damaged and replaced by an empty one."""

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `work`, which runs in the registry's thread."""
        if self._closed:
            raise RegistryBroken("the server is stopping")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(self._open()))
        except (sqlite3.Error, OSError) as error:
            raise RegistryBroken(f"{self._path.name} in the data folder cannot be used: {error}") from None

    def later(self, work: Callable[[sqlite3.Connection], object]) -> None:
        """Run `work` without waiting, in order. Failures are logged."""
        if not self._closed:
            asked = self._thread.submit(lambda: work(self._open()))
            asked.add_done_callback(_log_failure)

    # --- in the thread ---

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                self._db = self._connect()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise  # busy, full or not permitted: the file itself is intact
                aside = self._path.with_name(f"{self._path.name}.broken-{int(time.time())}")
                logger.error("%s is damaged (%s) and was moved to %s", self._path.name, error, aside.name)
                os.replace(self._path, aside)
                for suffix in ("-wal", "-shm"):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
                self.replaced = True
                self._db = self._connect()
        return self._db

    def _connect(self) -> sqlite3.Connection:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        db = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            with _transaction(db):
                (version,) = db.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    for statement in SCHEMA.split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA user_version = {VERSION}")
                elif version > VERSION:
                    raise sqlite3.OperationalError(f"it was written by a later version of ingle ({version})")
        except BaseException:
            db.close()
            raise
        return db

    # --- operations of servers ---

    async def adopt(self, place: str, is_dead: Callable[[str], bool]) -> list[Row]:
        """Take over the sessions of dead servers of this place, those with the newest save first.

        Sessions that cannot be decoded, because of damage or another version, are left alone and logged.
        """

        def work(db: sqlite3.Connection) -> list[Row]:
            with _transaction(db):
                found = db.execute(
                    "SELECT owner, uid, name, made, created_at, cells, save FROM sessions "
                    "WHERE place = :place OR (:place = :serve AND place LIKE :serve || ':%')",
                    {"place": place, "serve": SERVE},
                ).fetchall()
                dead = {owner: not owner or is_dead(owner) for owner in {each[0] for each in found} - {self._server}}
                rows, unread = [], 0
                for owner, *columns in found:
                    if dead.get(owner):
                        try:
                            rows.append(_row(db, *columns))
                        except msgspec.MsgspecError:
                            unread += 1
                for row in rows:
                    db.execute("UPDATE sessions SET owner = ? WHERE uid = ?", (self._server, row.uid))
            if unread:
                logger.error("%s has unreadable sessions that are not restored: %d", self._path.name, unread)
            return sorted(rows, key=lambda row: row.save.time if row.save is not None else row.created_at, reverse=True)

        return await self.do(work)

    async def expire(self, before: float, is_dead: Callable[[str], bool]) -> list[str]:
        """Remove sessions without a server that were last saved before this time, and return their ids."""

        def work(db: sqlite3.Connection) -> list[str]:
            with _transaction(db):
                found = db.execute("SELECT uid, owner, created_at, save FROM sessions").fetchall()
                old = [(uid, owner) for uid, owner, *times in found if _last_time(*times) < before]
                gone = [uid for uid, owner in old if not owner or (owner != self._server and is_dead(owner))]
                for uid in gone:
                    db.execute("DELETE FROM sessions WHERE uid = ?", (uid,))
            return gone

        return await self.do(work)

    async def known(self) -> set[str]:
        """Return the ids of all sessions of all servers."""
        return await self.do(lambda db: {uid for (uid,) in db.execute("SELECT uid FROM sessions")})

    async def add(self, place: str, row: Row) -> None:
        def work(db: sqlite3.Connection) -> None:
            made = msgspec.json.encode(row.made)
            values = (row.uid, place, self._server, row.name, made, row.created_at, row.cells)
            db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", values)

        await self.do(work)

    async def take(self, place: str, row: Row) -> None:
        """Record a session that another registry had, as one of this server."""

        def work(db: sqlite3.Connection) -> None:
            made, save = msgspec.json.encode(row.made), row.save and msgspec.json.encode(row.save)
            values = (row.uid, place, self._server, row.name, made, row.created_at, row.cells, save)
            with _durably(db), _transaction(db):
                db.execute("DELETE FROM sessions WHERE uid = ?", (row.uid,))
                db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
                db.executemany(
                    "INSERT INTO requests (uid, key, asked, cell) VALUES (?, ?, ?, ?)",
                    [(row.uid, each.key, each.asked, each.cell) for each in row.requests],
                )

        await self.do(work)

    async def requests(self, uid: str) -> list[Request]:
        """Return the requests of a session, the oldest first."""
        return await self.do(lambda db: _requests(db, uid))

    async def rename(self, uid: str, name: str) -> None:
        await self.do(lambda db: db.execute("UPDATE sessions SET name = ? WHERE uid = ?", (name, uid)))

    async def release(self, uid: str) -> None:
        """Give a session up, for another server of its place."""
        await self.do(lambda db: db.execute("UPDATE sessions SET owner = '' WHERE uid = ?", (uid,)))

    async def remove(self, uid: str) -> None:
        await self.do(lambda db: db.execute("DELETE FROM sessions WHERE uid = ?", (uid,)))

    def remove_later(self, uid: str) -> None:
        self.later(lambda db: db.execute("DELETE FROM sessions WHERE uid = ?", (uid,)))

    async def saved(self, uid: str, save: Save | None) -> None:
        """Record a complete save as the session's last one; None removes it."""

        def work(db: sqlite3.Connection) -> None:
            # A reported save must survive a power cut, with everything written before it.
            with _durably(db), _transaction(db):
                data = msgspec.json.encode(save) if save is not None else None
                cell = save.cell if save is not None else 0
                db.execute("UPDATE sessions SET save = ?, cells = max(cells, ?) WHERE uid = ?", (data, cell, uid))

        await self.do(work)

    async def asked(self, uid: str, request: Request) -> None:
        """Record a request before it starts anything."""

        def work(db: sqlite3.Connection) -> None:
            with _transaction(db):
                db.execute(
                    "INSERT OR REPLACE INTO requests (uid, key, asked, cell) VALUES (?, ?, ?, ?)",
                    (uid, request.key, request.asked, request.cell),
                )
                (count,) = db.execute("SELECT count(*) FROM requests WHERE uid = ?", (uid,)).fetchone()
                if count > KEYS * 2:
                    db.execute(
                        "DELETE FROM requests WHERE uid = ? AND number NOT IN "
                        "(SELECT number FROM requests WHERE uid = ? ORDER BY number DESC LIMIT ?)",
                        (uid, uid, KEYS),
                    )

        await self.do(work)

    def answered(self, uid: str, key: str, cell: int | None) -> None:
        """Record the cell that the request started; None if it started nothing."""
        if cell is None:
            self.later(lambda db: db.execute("DELETE FROM requests WHERE uid = ? AND key = ?", (uid, key)))
        else:
            self.later(
                lambda db: db.execute("UPDATE requests SET cell = ? WHERE uid = ? AND key = ?", (cell, uid, key))
            )

    async def close(self) -> None:
        """Release all sessions, so that the next server of this place takes them over."""
        if self._closed:
            return
        self._closed = True

        def work() -> None:
            # Queued after all earlier work, which may have opened the file.
            if self._db is not None:
                self._db.execute("UPDATE sessions SET owner = '' WHERE owner = ?", (self._server,))
                self._db.close()

        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            # The lock of this process is released on exit and has the same effect.
            logger.warning("%s in the data folder cannot be used: %s", self._path.name, error)
        self._thread.shutdown(wait=False)


class RequestStore:
    """Idempotency keys of one session in the registry."""

    def __init__(self, registry: Registry, uid: str, also: Callable[[Request], Awaitable[None]] | None = None) -> None:
        """`also` writes a request elsewhere, before its cell starts."""
        self._registry = registry
        self._uid = uid
        self._also = also

    async def begin(self, key: str, digest: str) -> None:
        """Store a key before its cell starts."""
        # A full disk must not stop cells. The key is then in memory only, like those of other sessions.
        request = Request(key, digest, None)
        with contextlib.suppress(RegistryBroken):
            await self._registry.asked(self._uid, request)
        if self._also is not None:
            await self._also(request)

    def end(self, key: str, cell: int | None) -> None:
        """Store the cell that the request started; None if it started nothing."""
        self._registry.answered(self._uid, key, cell)


def _last_time(created_at: float, save: bytes | None) -> float:
    """Return the time of the last save, or of the creation."""
    try:
        return created_at if save is None else msgspec.json.decode(save, type=Save).time
    except msgspec.MsgspecError:
        return math.inf  # unknown


def _row(
    db: sqlite3.Connection, uid: str, name: str, made: bytes, created_at: float, cells: int, save: bytes | None
) -> Row:
    return Row(
        uid,
        name,
        msgspec.json.decode(made, type=NewSession),
        created_at,
        cells,
        msgspec.json.decode(save, type=Save) if save is not None else None,
        _requests(db, uid),
    )


def _requests(db: sqlite3.Connection, uid: str) -> list[Request]:
    found = db.execute("SELECT key, asked, cell FROM requests WHERE uid = ? ORDER BY number", (uid,))
    return [Request(*each) for each in found]


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:  # false after a full disk has ended it
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextlib.contextmanager
def _durably(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("PRAGMA synchronous = FULL")
    try:
        yield
    finally:
        db.execute("PRAGMA synchronous = NORMAL")


def _log_failure(asked: "Future[object]") -> None:
    error = asked.exception()
    if error is not None:
        logger.warning("a change in the registry was lost: %s", error)
