"""Store of automatic saves: kinds of their own among the snapshots of each tenant, with shared chunks.

A save replaces the one before in one step. The one before stays beside it, in case the new one is damaged.
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
from ingle.sessions.persistence.autosave import Feed, LoadFiles, NoneWhole, Returned
from ingle.sessions.persistence.stored_session import StoredSession
from ingle.sessions.persistence.transfer import Transfer
from ingle.sessions.spec import SessionSpec
from ingle.snapshots import manifest
from ingle.snapshots.disk_errors import system_errors
from ingle.snapshots.manifest import Manifest, Summary
from ingle.snapshots.registry import Save
from ingle.snapshots.store import DURABLE, OWNER, LoadCandidates, Snapshots
from ingle.store.shared import SharedStore
from ingle.trees.packing import PackedFiles
from ingle.workers.worker import Worker

AT_ONCE = 2
"""Automatic saves and loads at a time. Those that a caller asked for have threads of their own."""

SLOW_AFTER_SECONDS = 5.0
"""Time after which a save or load gives its slot to the next, and goes on beside it. The session's own code may take so
long, and other sessions must not wait for that."""

MAX_SLOW = 64
"""Slow saves and loads at a time. Each has a thread."""


class SaveStore:
    def __init__(self, home: Path, limit: int, files_limit: int) -> None:
        """`limit` is the size of one snapshot, `files_limit` the size of all files in all snapshots of a tenant."""
        self._home = home
        self._limit = limit
        self._files_limit = files_limit
        self._snapshots: dict[str, Snapshots] = {}
        self.shared: SharedStore | None = None
        """The object store that has these saves too."""
        self._key: bytes | None = None
        self.executor = ThreadPoolExecutor(AT_ONCE + MAX_SLOW, "ingle-saves")
        self.slots = Slots(AT_ONCE)

    def of(self, tenant: str) -> Snapshots:
        """Return the snapshots of a tenant."""
        if tenant not in self._snapshots:
            self._snapshots[tenant] = Snapshots(self._home, tenant, self._limit, self._files_limit, self._key)
        return self._snapshots[tenant]

    def share(self, shared: SharedStore, key: bytes) -> None:
        """Have saves in an object store, signed by the key of all its servers."""
        self.shared, self._key = shared, key
        self._snapshots.clear()

    def store(
        self, spec: SessionSpec, kind: str, name: str, limit: int, stored: StoredSession | None = None
    ) -> "SessionStore":
        return SessionStore(self, spec, kind, name, limit, stored)

    def changes(self, tenant: str, session: str) -> list[str]:
        """Return the undo logs that the last save of a durable session names. Blocks. Raise DataFolderFailed."""
        try:
            return self.of(tenant).read(session, DURABLE).changes
        except (errors.SnapshotNotFound, errors.SnapshotDamaged, errors.SnapshotUntrusted):
            return []

    def tidy(self, kind: str, wanted: Callable[[str], bool], older_than: float = 0.0) -> None:
        """Remove saves of this kind that are not wanted, of all tenants. Blocks. A later save removes their chunks."""
        now = time.time()
        for path in self._home.glob(f"snapshots/*/{kind}/*.json"):
            with contextlib.suppress(OSError):
                name = path.name.removesuffix(".json").removesuffix(".previous")
                if not wanted(name) and now - path.stat().st_mtime >= older_than:
                    os.unlink(path)

    def salvage(self, kind: str) -> list[str]:
        """Turn saves of unknown sessions into snapshots, which can be loaded by name. Blocks."""
        suffix = time.strftime("found-%Y%m%d-%H%M%S")
        folders = sorted(path.parent.name for path in self._home.glob(f"snapshots/*/{kind}"))
        tenants = ["" if name == OWNER else name for name in folders]
        return [name for tenant in tenants for name in self.of(tenant).salvage(kind, suffix)]

    def close(self) -> None:
        self.executor.shutdown(wait=False, cancel_futures=True)


class Slots:
    """Semaphore for quick work: work that takes long gives its slot back, and goes on."""

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

        timer = asyncio.get_running_loop().call_later(SLOW_AFTER_SECONDS, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


class SessionStore:
    """Saves of one session."""

    def __init__(
        self, saves: SaveStore, spec: SessionSpec, kind: str, name: str, limit: int, stored: StoredSession | None
    ) -> None:
        self._saves = saves
        self._stored = stored
        self._executor = saves.executor
        self._spec = spec
        self._kind = kind
        self._name = name
        self._limit = limit

    @property
    def _snapshots(self) -> Snapshots:
        return self._saves.of(self._spec.tenant)

    async def save(self, copy: Worker, cell: int, files: PackedFiles | str, changes: list[str]) -> tuple[Save, str]:
        spec, python = self._spec, copy.ready.result().python

        def describe(summary: Summary) -> Manifest:
            return Manifest(
                version=manifest.VERSION,
                session_id=self._spec.session_id,
                saved_at=time.time(),
                python=python,
                isolation=spec.grant.isolation,
                cell=cell,
                stdlib=spec.library is not None,
                summary=summary,
                changes=changes,
            )

        def take(connection: socket.socket) -> tuple[Manifest, int]:
            return self._snapshots.save(self._name, connection, describe, self._kind, self._limit, files)

        try:
            async with self._saves.slots.one():
                made, _ = await Transfer().save(copy, take, self._executor)
        except errors.TooLarge:
            raise errors.TooLarge(f"it holds more than {size(self._limit)} (durable_size)") from None
        return _save_of(made), made.no_files

    async def load(self, feed: Feed, files: LoadFiles) -> Returned:
        if self._stored is not None:
            await self._stored.fetch()  # it waits for the network, and uses little of this machine
        async with self._saves.slots.one():
            return await self._load(feed, files)

    async def _load(self, feed: Feed, files: LoadFiles) -> Returned:
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
            await files(opened)
            loaded = await feed(msgspec.json.encode(opened.manifest.summary), opened.send, self._executor)
        finally:
            opening.close()
        failed = [Skipped(each.name, each.type, each.reason[:1000]) for each in loaded.failed]
        notices = [*opened.notices, *(each[:1000] for each in loaded.notices[:20])]
        return Returned(_save_of(opened.manifest), loaded.names, failed, notices)

    def _open(self) -> LoadCandidates:
        with system_errors("what was saved of the session"):
            return LoadCandidates(self._snapshots.opened(self._name, False, self._kind))

    async def set_aside(self, *, all: bool = False) -> str | None:
        name = f"{self._spec.session_id[:40]}-unusable-{time.strftime('%Y%m%d-%H%M%S')}"

        def move() -> bool:
            with system_errors("what was saved of the session"):
                return self._snapshots.set_aside(self._name, self._kind, name, all=all)

        return name if await asyncio.get_running_loop().run_in_executor(self._executor, move) else None

    async def forget(self) -> None:
        def delete() -> None:
            with contextlib.suppress(errors.SnapshotNotFound):
                self._snapshots.delete(self._name, self._kind)

        await asyncio.get_running_loop().run_in_executor(self._executor, delete)


def _save_of(made: Manifest) -> Save:
    names = [each.name for each in made.summary.variables]
    return Save(made.cell, made.saved_at, made.python, names, made.summary.skipped)
