"""Leases: which servers are alive. A server renews its lease, and others see for how long it has not.

No clocks of two machines are compared. The store's own time of writing tells the silence at once. For a store with a
coarse clock, or a wrong one, the reader's own watch since it last saw a change tells it too. The longer one counts,
and neither is longer than the truth.

A reader that hears from a server by another way need not look at the store to begin its watch. The server tells the
mark of each renewal that it is about to write. If the store has the mark that was told last, no later renewal has been
written, and the watch began when the mark was told. For this to be exact, a mark never comes back once a later one is
there. A write that was given up may still be carried out later, so the server renews in a new object after it, the next
generation. A mark of an earlier generation than the newest in the store proves nothing.

A store that fails or hangs silences every server. So the time that it did not answer the reader counts for none.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator

from msgspec import Struct

from ingle import errors
from ingle.store.objects import Entry, quoted, unquoted
from ingle.store.store import ATTEMPTS, Store

FOLDER = "leases/"
CLOCKS = "clocks/"

CLOSE_SECONDS = 5.0
"""Time for the store when a server ends."""

LEFT_SECONDS = 7 * 86400.0
"""Age of leases and clocks whose servers were killed, or were not heard for so long. Any reader removes them."""

MAX_TOLD = 10_000
"""Servers whose last marks a reader remembers."""


class Renewal(Struct, frozen=True):
    """One renewal of a lease."""

    mark: str
    """Content of the object, which no other renewal has."""
    generation: int = 0
    """Number of the object. It rises after a write that was not answered."""


def new_renewal(generation: int = 0) -> Renewal:
    return Renewal(secrets.token_hex(8), generation)


class Leases:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = f"{CLOCKS}{secrets.token_hex(8)}"
        self._seen: dict[str, tuple[str, float]] = {}
        """Version of each object, and when it was seen first, by the monotonic clock."""
        self._told: dict[str, tuple[Renewal, float]] = {}
        """The renewal that each server has told last, and when, by the monotonic clock."""
        self._answers_since: float | None = float("-inf")
        """When the store has answered again after a failure, by the monotonic clock. None while it fails."""

    # --- the server's side ---

    async def renew(self, agent: str, renewal: Renewal | None = None) -> None:
        """Say that an agent is alive. A renewal that was told is written once: an attempt may be carried out late."""
        attempts = ATTEMPTS if renewal is None else 1
        renewal = renewal or new_renewal()
        await self._store.write(_path(agent, renewal.generation), renewal.mark.encode(), attempts=attempts)

    async def release(self, agent: str, before: int | None = None) -> None:
        """Say that an agent has ended, or remove the generations `before` the one that it renews."""
        for entry in await self._store.list(FOLDER):
            owner, generation = _owner(entry)
            if owner == agent and (before is None or generation < before):
                await self._store.delete(entry.path)

    # --- the reader's side ---

    def tell(self, agent: str, renewal: Renewal) -> None:
        """Note a renewal that an agent is about to write, or has just written."""
        self._told.pop(agent, None)
        if len(self._told) >= MAX_TOLD:
            del self._told[next(iter(self._told))]
        self._told[agent] = (renewal, time.monotonic())

    async def last_seen(self, agent: str) -> float | None:
        """Return for how many seconds an agent was silent. None: it has no lease, so it ended or never began."""
        since_told = await self._since_told(agent)
        return (await self.silences()).get(agent) if since_told is None else since_told

    async def _since_told(self, agent: str) -> float | None:
        """Return for how long an agent was silent since it told a renewal. None: it has renewed its lease after that.

        The newest generation is read first and its mark second. So at the first of the two moments no renewal was
        there that followed the mark.
        """
        if agent not in self._told:
            return None
        renewal, told_at = self._told[agent]
        began = time.monotonic()
        with self._answering():
            generations = [_owner(each)[1] for each in await self._store.list(FOLDER) if _owner(each)[0] == agent]
            if not generations or max(generations) != renewal.generation:
                return None
            if await self._store.read(_path(agent, renewal.generation)) != renewal.mark.encode():
                return None
        return self._counted(began - told_at, began)

    async def silences(self) -> dict[str, float]:
        """Return for how many seconds each agent was silent while the store answered."""
        began = time.monotonic()
        with self._answering():
            now = await self.time()
            leases = await self._store.list(FOLDER)
        listed = time.monotonic()
        found: dict[str, float] = {}
        seen = {}
        for lease in leases:
            version, since = self._seen.get(lease.path, ("", listed))
            if version != lease.version:
                since = listed
            seen[lease.path] = (lease.version, since)
            by_store = now - lease.modified - self._store.objects.resolution - (listed - began)
            silence = self._counted(max(by_store, began - since), began)
            agent, _ = _owner(lease)
            found[agent] = min(silence, found.get(agent, silence))
        self._seen = seen
        for lease in leases:
            if now - lease.modified > LEFT_SECONDS:
                # It counts as silent with this object and without it.
                await self._store.delete(lease.path)
        return found

    async def time(self) -> float:
        """Return the time of the store. Remove the clocks of readers that were killed."""
        clocks: dict[str, float] = {}
        while self._clock not in clocks:  # another reader may have removed it, if it was not used for long
            await self._store.write(self._clock, secrets.token_bytes(8))
            clocks = {each.path: each.modified for each in await self._store.list(CLOCKS)}
        now = clocks[self._clock]
        for path, modified in clocks.items():
            if now - modified > LEFT_SECONDS:
                await self._store.delete(path)
        return now

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Note since when the store answers this reader."""
        try:
            yield
        except errors.StoreFailed:
            self._answers_since = None
            raise
        if self._answers_since is None:
            self._answers_since = time.monotonic()

    def _counted(self, silence: float, began: float) -> float:
        """Return the part of a silence that counts, at a look that began then."""
        assert self._answers_since is not None
        return max(0.0, min(silence, began - self._answers_since))

    async def close(self, agent: str | None = None) -> None:
        """Remove what belongs to this reader, and the lease of an agent that has ended. A store that fails keeps it."""
        with contextlib.suppress(errors.StoreFailed, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if agent is not None:
                    await self.release(agent)
                await self._store.delete(self._clock)


def _path(agent: str, generation: int) -> str:
    return f"{FOLDER}{quoted(agent)}.{generation}"


def _owner(entry: Entry) -> tuple[str, int]:
    """Return the agent of a lease and the generation. A quoted name has no dot."""
    name, _, generation = entry.path.removeprefix(FOLDER).partition(".")
    return unquoted(name), int(generation)
