"""Idempotency keys that all gateways of a cluster share, each an object in the store.

The gateway that creates the object carries the request out. Others wait for its result. A gateway that dies in between
leaves a key without a result, whose request is never carried out again.

The objects lie in windows of a day, and a request looks into the windows beside its own too. So a key counts for a day
at least, clocks of gateways may differ, and whole windows are removed later without a look at their requests.
"""

import asyncio
import hashlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from ingle import errors
from ingle.events import SessionInfo
from ingle.store.objects import quoted
from ingle.store.store import Store
from ingle.support.background import Tasks
from ingle.support.idempotency import StoredKey

FOLDER = "keys"

RESULT_SECONDS = 30.0
"""Time to wait for the result of a request that another gateway carries out."""

LOOK_SECONDS = 0.1

WINDOW_SECONDS = 86400.0
"""Least time that a key counts, as on one machine. Clocks of gateways must differ by less."""

RESEND_SECONDS, RESENDS = 5.0, 60
"""Pause after which a result that the store did not take is written again, and how often."""

logger = logging.getLogger(__name__)


class _Stored(Struct, frozen=True, omit_defaults=True):
    """A request with a key. It has ended once it has a result."""

    digest: str
    nonce: str
    task: str | None = None
    session: SessionInfo | None = None
    done: bool = False

    @property
    def result(self) -> Any:
        return self.task if self.task is not None else self.session


class ClusterKeys:
    """Keys of one tenant. Implements `KeyStore`."""

    def __init__(self, store: Store, tenant: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._folder = f"{FOLDER}/{quoted(tenant)}/"
        self._clock = clock
        self._begun: dict[str, tuple[str, _Stored]] = {}
        """Paths and contents of keys whose requests this gateway carries out."""
        self._swept = 0
        """Window in which this gateway has removed old ones."""
        self._writing = Tasks()

    async def begin(self, key: str, digest: str) -> StoredKey | None:
        own = _Stored(digest, secrets.token_hex(8))
        deadline = asyncio.get_running_loop().time() + RESULT_SECONDS
        while True:
            window = int(self._clock() // WINDOW_SECONDS)
            path = self._path(window, key)
            if await self._store.create(path, msgspec.json.encode(own)):
                found = await self._beside(window, key)
                if found is None:
                    self._begun[key] = (path, own)
                    self._sweep_soon(window)
                    return None
                # Of two gateways that create one key in two windows, at least one sees the other, and withdraws.
                await self._store.delete(path)
            else:
                found = await self._read(path)
            if found is not None and (found.done or found.digest != digest):
                return StoredKey(key, found.digest, found.result)
            if asyncio.get_running_loop().time() > deadline:
                raise errors.Unavailable("another gateway has begun a request with this key; try again")
            await asyncio.sleep(LOOK_SECONDS * random.uniform(1.0, 2.0))

    async def _beside(self, window: int, key: str) -> _Stored | None:
        """Return what the windows before and after this one have of a key."""
        found = await asyncio.gather(*(self._read(self._path(each, key)) for each in (window - 1, window + 1)))
        return next((each for each in found if each is not None), None)

    async def _read(self, path: str) -> _Stored | None:
        data = await self._store.read(path)
        return None if data is None else msgspec.json.decode(data, type=_Stored)

    def end(self, key: str, result: Any) -> None:
        if key not in self._begun:
            return  # the key is another request's
        path, begun = self._begun.pop(key)
        if result is None:
            self._writing.start(_repeat(lambda: self._store.delete(path)))
            return
        kind = {"session": result} if isinstance(result, SessionInfo) else {"task": str(result)}
        ended = msgspec.json.encode(msgspec.structs.replace(begun, done=True, **kind))
        self._writing.start(_repeat(lambda: self._store.write(path, ended)))

    def _sweep_soon(self, window: int) -> None:
        """Remove keys of earlier windows in the background, once in each window."""
        if self._swept < window:
            self._swept = window
            self._writing.start(self._sweep(window - 1))

    async def _sweep(self, oldest: int) -> None:
        """Remove the keys of windows before the oldest one that counts. No request creates a key there any more."""
        try:
            for entry in await self._store.list(self._folder):
                if int(entry.path.removeprefix(self._folder).partition("/")[0]) < oldest:
                    await self._store.delete(entry.path)
        except errors.StoreFailed as error:
            logger.info("old keys in the store were not removed: %s", error.message)

    def _path(self, window: int, key: str) -> str:
        return f"{self._folder}{window:010d}/{hashlib.sha256(key.encode()).hexdigest()}"


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    """Do what the store must learn about a request, again and again while the store fails."""
    for _ in range(RESENDS):
        try:
            return await work()
        except errors.StoreFailed as error:
            logger.warning("the end of a request with a key is not in the store yet: %s", error.message)
        await asyncio.sleep(RESEND_SECONDS)
