"""Where saves of sessions lie: on shelves of their own among the snapshots of each tenant, with the same chunks.

A save takes the place of the one before in one step; that one stays beside it, in case the new one is damaged.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from ingle import errors
from ingle.events import Skipped
from ingle.render.phrases import size
from ingle.sessions.persistence.autosave import Feed, NoneWhole, Returned
from ingle.sessions.persistence.transfer import Keeping
from ingle.sessions.session import Session
from ingle.snapshots import manifest
from ingle.snapshots.disk_errors import system_errors
from ingle.snapshots.manifest import Manifest, Summary
from ingle.snapshots.registry import Save
from ingle.snapshots.store import OWNER, LoadCandidates, Snapshots
from ingle.workers.worker import Worker

DURABLE, RESTING = "sessions", "resting"
"""Saves of sessions that outlive their server, and of those that do not."""

AT_ONCE = 2
"""Saves and loads of sessions at a time; those that a caller asked for have threads of their own."""

LONG = 5.0
"""Seconds after which one of them gives its place to the next, and goes on beside it: it may be the session's own code
that takes so long, and other sessions do not wait for that."""

MOST = 64
"""Those that go on so, at most: each has a thread."""


class Shelves:
    def __init__(self, home: Path, limit: int) -> None:
        self._home = home
        self._limit = limit
        self._snapshots: dict[str, Snapshots] = {}
        self.executor = ThreadPoolExecutor(AT_ONCE + MOST, "ingle-saves")
        self.places = Places(AT_ONCE)

    def of(self, tenant: str) -> Snapshots:
        """All snapshots of a tenant."""
        if tenant not in self._snapshots:
            self._snapshots[tenant] = Snapshots(self._home, tenant, self._limit)
        return self._snapshots[tenant]

    def store(self, session: Session, shelf: str, name: str, limit: int) -> "SessionStore":
        return SessionStore(self, session, shelf, name, limit)

    def tidy(self, shelf: str, wanted: Callable[[str], bool], older_than: float = 0.0) -> None:
        """Remove from this shelf of every tenant what is not wanted. Blocks; the chunks go with a later save."""
        now = time.time()
        for path in self._home.glob(f"snapshots/*/{shelf}/*.json"):
            with contextlib.suppress(OSError):
                name = path.name.removesuffix(".json").removesuffix(".previous")
                if not wanted(name) and now - path.stat().st_mtime >= older_than:
                    os.unlink(path)

    def salvage(self, shelf: str) -> list[str]:
        """Of saves whose sessions nobody knows any more: snapshots, which anybody can load. Blocks."""
        suffix = time.strftime("found-%Y%m%d-%H%M%S")
        folders = sorted(path.parent.name for path in self._home.glob(f"snapshots/*/{shelf}"))
        tenants = ["" if name == OWNER else name for name in folders]
        return [name for tenant in tenants for name in self.of(tenant).salvage(shelf, suffix)]

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)


class Places:
    """So many at a time, of those that are quick."""

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        await self._free.acquire()
        held = True

        def give_back() -> None:
            nonlocal held
            if held:
                held = False
                self._free.release()

        timer = asyncio.get_running_loop().call_later(LONG, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


class SessionStore:
    """The saves of one session."""

    def __init__(self, shelves: Shelves, session: Session, shelf: str, name: str, limit: int) -> None:
        self._shelves = shelves
        self._executor = shelves.executor
        self._session = session
        self._shelf = shelf
        self._name = name
        self._limit = limit

    @property
    def _snapshots(self) -> Snapshots:
        """Those of the tenant whose session it is. One that was made ahead is nobody's yet."""
        return self._shelves.of(self._session.key.rpartition("/")[0])

    async def save(self, copy: Worker, cell: int) -> Save:
        plan, python = self._session.plan, copy.ready.result().python

        def describe(summary: Summary) -> Manifest:
            return Manifest(
                version=manifest.VERSION,
                session_id=self._session.id,
                saved_at=time.time(),
                python=python,
                isolation=plan.grant.isolation,
                cell=cell,
                stdlib=plan.library is not None,
                summary=summary,
            )

        def take(connection: socket.socket) -> tuple[Manifest, int]:
            return self._snapshots.save(self._name, connection, describe, self._shelf, self._limit)

        try:
            async with self._shelves.places.one():
                made, _ = await Keeping().save(copy, take, self._executor)
        except errors.TooLarge:
            raise errors.TooLarge(f"it holds more than {size(self._limit)} (durable_size)") from None
        return _save_of(made)

    async def load(self, feed: Feed) -> Returned:
        async with self._shelves.places.one():
            return await self._load(feed)

    async def _load(self, feed: Feed) -> Returned:
        loop = asyncio.get_running_loop()
        opening = await loop.run_in_executor(self._executor, self._open)
        try:
            try:
                opened = await loop.run_in_executor(self._executor, opening.next)
            except errors.DataFolderFailed:
                raise
            except errors.IngleError as error:
                raise NoneWhole(error.message) from None
            if opened is None:
                raise NoneWhole("there is none")
            loaded = await feed(msgspec.json.encode(opened.manifest.summary), opened.send, self._executor)
        finally:
            opening.close()
        failed = [Skipped(each.name, each.type, each.reason[:1000]) for each in loaded.failed]
        notices = [*opened.notices, *(each[:1000] for each in loaded.notices[:20])]
        return Returned(_save_of(opened.manifest), loaded.names, failed, notices)

    def _open(self) -> LoadCandidates:
        with system_errors("what was saved of the session"):
            return LoadCandidates(self._snapshots.opened(self._name, False, self._shelf))

    async def set_aside(self, *, all: bool = False) -> str | None:
        name = f"{self._session.id[:40]}-unusable-{time.strftime('%Y%m%d-%H%M%S')}"

        def move() -> bool:
            with system_errors("what was saved of the session"):
                return self._snapshots.set_aside(self._name, self._shelf, name, all=all)

        return name if await asyncio.get_running_loop().run_in_executor(self._executor, move) else None

    async def forget(self) -> None:
        def delete() -> None:
            with contextlib.suppress(errors.SnapshotNotFound):
                self._snapshots.delete(self._name, self._shelf)

        await asyncio.get_running_loop().run_in_executor(self._executor, delete)


def _save_of(made: Manifest) -> Save:
    names = [each.name for group in made.summary.groups for each in group.names]
    return Save(made.cell, made.saved_at, made.python, names, made.summary.skipped)
