"""Names of sessions, in the registry: those that ended with their server, and namesakes of other servers.

A session that is not durable ends with its server. The next server of the same place tells its callers that.
"""

import re
import sqlite3
import time
from collections.abc import Callable

import msgspec

from ingle import errors
from ingle.render.phrases import duration
from ingle.requests import NewSession
from ingle.snapshots.registry import SERVE, Registry, Save

TABLE = """CREATE TABLE IF NOT EXISTS names (
    key TEXT NOT NULL, server TEXT NOT NULL, place TEXT NOT NULL, time REAL NOT NULL, PRIMARY KEY (key, server)
) WITHOUT ROWID"""

MAX_FORMER = 1000
"""Names that a server remembers of earlier ones, the newest."""

RANDOM = re.compile(r"(s-)?[0-9a-f]{12,16}(-[0-9a-f]{8,16}-[0-9a-f]{12})?")
"""Names that the server or a client made up. No caller comes back to them."""

PLACES = (SERVE, "mcp:")
"""Starts of the places of servers that are started again. Others end with a program."""

MAIN = "main"


class SessionNames:
    def __init__(self, registry: Registry, server: str, place: str, *, enabled: bool) -> None:
        self._registry = registry
        self._server = server
        self._place = place
        self._enabled = enabled and place.startswith(PLACES)
        self._former: dict[str, float] = {}
        """Keys of sessions that ended with an earlier server, and when they were made."""
        self._held_back: dict[str, str] = {}
        """Keys of durable sessions that this server may not have, and why."""

    def _counts(self, key: str) -> bool:
        return self._enabled and RANDOM.fullmatch(key.rpartition("/")[2]) is None

    async def adopt(self, is_dead: Callable[[str], bool]) -> None:
        """Take over the names that dead servers of this place left."""
        if not self._enabled:
            return

        def work(db: sqlite3.Connection) -> dict[str, float]:
            db.execute(TABLE)
            rows = db.execute("SELECT key, server, time FROM names WHERE place = ?", (self._place,)).fetchall()
            dead = {server for server in {row[1] for row in rows} if server != self._server and is_dead(server)}
            found = {key: made for key, server, made in sorted(rows, key=lambda row: row[2]) if server in dead}
            kept = dict(list(found.items())[-MAX_FORMER:])
            for server in dead:
                db.execute("DELETE FROM names WHERE server = ?", (server,))
            db.executemany(
                "INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)",
                [(key, self._server, self._place, made) for key, made in kept.items()],
            )
            return kept

        self._former = await self._registry.do(work)

    def begin(self, key: str) -> None:
        """Record a session that will end with this server. Does not wait."""
        if self._counts(key):
            values = (key, self._server, self._place, time.time())
            self._registry.later(lambda db: _with_table(db, "INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)", values))

    def end(self, key: str) -> None:
        """Forget a session that was ended, or that is durable now. Does not wait."""
        if self._counts(key):
            self._registry.later(
                lambda db: _with_table(db, "DELETE FROM names WHERE key = ? AND server = ?", (key, self._server))
            )

    def hold_back(self, key: str, why: str) -> None:
        """Remember a durable session that does not come back on this server."""
        self._held_back[key] = why

    def missing(self, key: str, *, stopping: bool = False) -> errors.SessionNotFound:
        """Return the error for a session that does not exist. `stopping`: the server ends its sessions."""
        name = key.rpartition("/")[2]
        if key in self._held_back:
            return errors.SessionHeldBack(name, self._held_back[key])
        if key in self._former:
            return errors.SessionEnded(name)
        return errors.SessionStopped(name) if stopping else errors.SessionNotFound(name)

    async def notices(self, key: str) -> list[str]:
        """Return what a new session of this name is to say: that it is not the one that a caller may mean."""
        if not self._counts(key):
            return []
        tenant, _, name = key.rpartition("/")
        found = []
        if self._former.pop(key, None) is not None:
            found.append(
                f"an earlier session {name!r} ended with its server; it was not durable, so its variables are gone"
            )
        if key in self._held_back:
            found.append(
                f"a saved session {name!r} exists and did not come back: {self._held_back.pop(key)}; this one is new "
                "and empty"
            )
            return found
        if name == MAIN and self._place != SERVE:
            return found  # every project has one
        try:
            return [*found, *await self._registry.do(lambda db: self._namesakes(db, tenant, name))]
        except errors.RegistryBroken:
            return found

    def _namesakes(self, db: sqlite3.Connection, tenant: str, name: str) -> list[str]:
        """Return a sentence about each durable session of this name that another server or folder has."""
        found = []
        rows = db.execute("SELECT place, made, save FROM sessions WHERE name = ? AND owner != ?", (name, self._server))
        for place, made, save in rows:
            kind, _, folder = place.partition(":")
            wanted = msgspec.json.decode(made, type=NewSession)
            if wanted.tenant == tenant:
                saved = None if save is None else msgspec.json.decode(save, type=Save).time
                age = f", saved {duration(time.time() - saved)} ago" if saved is not None else ""
                where = f" in {wanted.cwd or folder}" if wanted.cwd or folder else ""
                found.append(
                    f"another session {name!r} exists, of `ingle {kind}`{where}{age}; this one is new and empty"
                )
        return found


def _with_table(db: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> None:
    db.execute(TABLE)
    db.execute(statement, values)
