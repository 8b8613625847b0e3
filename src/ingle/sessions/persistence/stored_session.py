"""A durable session in the object store: its claim, and its saves under the epoch of that claim."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import msgspec

from ingle import errors
from ingle.output import kept_timeline
from ingle.snapshots.registry import Request, Row, Save
from ingle.snapshots.store import DURABLE, Snapshots
from ingle.store.claims import Claim
from ingle.store.packs import Placed
from ingle.store.requests import StoredRequests
from ingle.store.saves import SessionSaves, StoredSave
from ingle.store.shared import SharedStore
from ingle.store.timelines import StoredTimeline, TimelineMark
from ingle.support.background import both
from ingle.support.threads import in_thread

TIMELINE = "timeline.ndjson"

TIDY_SAVES = 4
"""Saves after which older ones are removed, since looking for them takes as long as a save."""

REQUEST_SECONDS = 2.0
"""Time for writing an idempotency key to the store, for which its cell waits."""

CLOSE_SECONDS = 10.0
"""Time for the store when a session ends. Another server takes the session over later if that was not enough."""

logger = logging.getLogger(__name__)


class StoredSession:
    def __init__(
        self,
        shared: SharedStore,
        claim: Claim,
        row: Row,
        snapshots: Snapshots,
        folder: Path,
        requests: Callable[[], Awaitable[list[Request]]],
    ) -> None:
        """`folder` is that of the session on this server. `requests` reads its idempotency keys."""
        self.claim = claim
        self.row = row
        self._shared = shared
        self._snapshots = snapshots
        self._requests = requests
        self._path = folder / TIMELINE
        self._saves = SessionSaves(shared.store, claim.key)
        self._timeline = StoredTimeline(shared.store, claim.key, claim.epoch, self._path)
        self._keys = StoredRequests(shared.store, claim.key)
        self._written: set[str] = set()
        """Idempotency keys that have an object of their own. The next save includes them."""
        self._number = 0
        self._elsewhere: StoredSave | None = None
        """A save of another server, of which chunks may be missing on the disk."""
        self.stale = False
        """Another server has taken the session over."""
        self.released = False
        self.closed: bool | None = None
        """After its end on this server: whether its saves were to stay. Then it may still have to be given up."""

    @property
    def _tenant(self) -> str:
        return self.row.made.tenant

    # --- requests ---

    async def begin_request(self, request: Request) -> None:
        """Write an idempotency key down before its cell starts. A store that fails or is slow stops no cell."""
        self._written.add(request.key)
        with contextlib.suppress(errors.StoreFailed, TimeoutError):
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._keys.begin(request)

    # --- saving ---

    async def save(self, save: Save | None) -> None:
        """Have the last save on the disk in the store. None: there is none any more.

        Raise StaleSave if another server has the session by now. Then that server does not see this save.
        """
        if self.stale:
            raise errors.StaleSave(self.row.name)
        cells = self.row.cells if save is None else max(self.row.cells, save.cell)
        row = msgspec.structs.replace(self.row, save=save, cells=cells, requests=await self._requests())
        # A key that is in no row started nothing, or is in this save.
        included = [each for each in self._written if each not in self._running(row)]
        timeline = await self._timeline.push()
        forgotten = await in_thread(lambda: kept_timeline.read_forgotten(str(self._path)))
        await self._write(row, timeline, forgotten)
        await self._check()
        self.row, self._elsewhere = row, None
        if included:
            with contextlib.suppress(errors.StoreFailed):
                await self._keys.drop(included)
                self._written.difference_update(included)
        if self._number % TIDY_SAVES == 0:
            with contextlib.suppress(errors.StoreFailed):  # a later save does it
                await self._saves.tidy()
                await self._timeline.tidy(timeline)

    @staticmethod
    def _running(row: Row) -> set[str]:
        """Return keys of requests whose cell may run now: this save does not have what they do."""
        last = 0 if row.save is None else row.save.cell
        return {each.key for each in row.requests if each.cell is None or each.cell > last}

    async def _write(self, row: Row, timeline: TimelineMark, forgotten: int) -> None:
        self._number += 1
        manifest, chunks = b"", dict[str, int]()
        if row.save is not None:
            manifest, chunks = await in_thread(partial(self._snapshots.raw, row.uid, DURABLE))
        made = StoredSave(row=msgspec.json.encode(row), manifest=manifest, timeline=timeline, forgotten=forgotten)

        async def put(placed: Placed) -> None:
            whole = msgspec.structs.replace(made, packs=placed.packs, inline=placed.inline)
            await self._saves.put(self.claim.epoch, self._number, whole)

        await self._shared.push(self._tenant, self._snapshots, manifest, chunks, put)

    async def _check(self) -> None:
        """Raise StaleSave if there is a newer claim. A server that takes one later sees what was written before."""
        if await self._shared.claims.epoch(self.claim.key) != self.claim.epoch:
            self.stale = True
            raise errors.StaleSave(self.row.name)

    # --- the beginning ---

    async def begin(self) -> None:
        """Write a new session down, before it has a save."""
        await self._write(self.row, TimelineMark(), 0)

    async def begin_with(self, earlier: StoredSave) -> None:
        """Go on with a save of an earlier epoch. From now on its writer can change nothing any more.

        Nothing is acknowledged here, so a newer claim is looked for only by the next save.
        """
        await in_thread(lambda: self._put_local(earlier))
        await both(self._timeline.fetch(earlier.timeline), self._copy(earlier))
        self._elsewhere = earlier

    async def _copy(self, earlier: StoredSave) -> None:
        self._number += 1
        again = msgspec.structs.replace(earlier, row=msgspec.json.encode(self.row))
        await self._saves.put(self.claim.epoch, self._number, again)
        packs = self._shared.packs(self._tenant)
        packs.learn(earlier.packs)
        if await packs.any_lost(earlier.packs):
            # Its writer died before it looked for them itself. Those that are marked may still be there.
            await self._shared.pull(self._tenant, self._snapshots, earlier)
            await self._write(self.row, earlier.timeline, earlier.forgotten)

    def _put_local(self, earlier: StoredSave) -> None:
        if earlier.manifest:
            self._snapshots.put_raw(self.row.uid, DURABLE, earlier.manifest)
        if earlier.forgotten:
            kept_timeline.write_forgotten(str(self._path), earlier.forgotten)

    async def fetch(self) -> None:
        """Have all chunks of the last save on the disk."""
        earlier = self._elsewhere
        if earlier is not None and earlier.manifest:
            await self._shared.pull(self._tenant, self._snapshots, earlier)
        self._elsewhere = None

    # --- the end ---

    async def close(self, unsent: Save | None, *, keep: bool) -> None:
        """End the session on this server, in a bounded time. A save that was not sent yet is sent first."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                if unsent is not None:
                    await self.save(unsent)
                await self.end(keep=keep)
        except (errors.IngleError, TimeoutError) as error:
            why = getattr(error, "message", "the store did not answer in time")
            logger.warning("session %s was not given up in the store yet: %s", self.row.name, why)
        self.closed = keep

    async def end(self, *, keep: bool) -> None:
        """Give the session up. Its saves stay for another server, or are removed."""
        if self.stale or self.released:
            return
        if not keep:
            # The store may have failed before, and another session may have the name by now.
            if await self._shared.claims.epoch(self.claim.key) == self.claim.epoch:
                await self._keys.remove()
            await self._saves.remove(self.claim.epoch)
            await self._timeline.remove()
        await self._shared.claims.release(self.claim)
        self.released = True
