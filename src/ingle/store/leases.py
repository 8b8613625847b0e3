"""Leases: which servers are alive. A server renews its lease, and others see for how long it has not.

No clocks of two machines are compared. The store's own time of writing tells the silence at once. For a store with a
coarse clock, or a wrong one, the reader's own watch since it last saw a change tells it too. The longer one counts,
and neither is longer than the truth.

A store that fails or hangs silences every server. So the time that it did not answer the reader counts for none.
"""

import asyncio
import contextlib
import secrets
import time

from ingle import errors
from ingle.store.objects import quoted, unquoted
from ingle.store.store import Store

FOLDER = "leases/"
CLOCKS = "clocks/"

CLOSE_SECONDS = 5.0
"""Time for the store when a server ends."""


class Leases:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._clock = f"{CLOCKS}{secrets.token_hex(8)}"
        self._seen: dict[str, tuple[str, float]] = {}
        """Version of each lease, and when it was seen first, by the monotonic clock."""
        self._answers_since: float | None = float("-inf")
        """When the store has answered again after a failure, by the monotonic clock. None while it fails."""

    async def renew(self, agent: str) -> None:
        """Say that an agent is alive."""
        await self._store.write(_path(agent), secrets.token_bytes(8))

    async def release(self, agent: str) -> None:
        """Say that an agent has ended."""
        await self._store.delete(_path(agent))

    async def last_seen(self, agent: str) -> float | None:
        """Return for how many seconds an agent was silent. None: it has no lease, so it ended or never began."""
        return (await self.silences()).get(agent)

    async def silences(self) -> dict[str, float]:
        """Return for how many seconds each agent was silent while the store answered."""
        began = time.monotonic()
        try:
            await self._store.write(self._clock, secrets.token_bytes(8))
            (clock,) = [each for each in await self._store.list(CLOCKS) if each.path == self._clock]
            leases = await self._store.list(FOLDER)
        except errors.StoreFailed:
            self._answers_since = None
            raise
        listed = time.monotonic()
        if self._answers_since is None:
            self._answers_since = listed
        found = {}
        seen = {}
        for lease in leases:
            agent = unquoted(lease.path.removeprefix(FOLDER))
            version, since = self._seen.get(agent, ("", listed))
            if version != lease.version:
                since = listed
            seen[agent] = (lease.version, since)
            by_store = clock.modified - lease.modified - self._store.objects.resolution - (listed - began)
            silence = max(by_store, began - since)
            found[agent] = max(0.0, min(silence, began - self._answers_since))
        self._seen = seen
        return found

    async def close(self, agent: str | None = None) -> None:
        """Remove what belongs to this reader, and the lease of an agent that has ended. A store that fails keeps it."""
        with contextlib.suppress(errors.StoreFailed, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if agent is not None:
                    await self.release(agent)
                await self._store.delete(self._clock)


def _path(agent: str) -> str:
    return f"{FOLDER}{quoted(agent)}"
