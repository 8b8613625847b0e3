"""Idempotency keys of a session in the store, each written before its request starts anything.

A save knows the keys of all requests before it. These objects tell those that came after it, so that the next server
does not run them again.
"""

import hashlib

import msgspec

from ingle.snapshots.registry import Request
from ingle.store.objects import quoted
from ingle.store.store import Store

FOLDER = "requests"


class StoredRequests:
    def __init__(self, store: Store, key: str) -> None:
        tenant, _, name = key.rpartition("/")
        self._store = store
        self._folder = f"{FOLDER}/{quoted(tenant)}/{quoted(name)}/"

    def _path(self, key: str) -> str:
        return self._folder + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()

    async def begin(self, request: Request) -> None:
        await self._store.write(self._path(request.key), msgspec.json.encode(request))

    async def drop(self, keys: list[str]) -> None:
        for key in keys:
            await self._store.delete(self._path(key))

    async def read(self) -> list[Request]:
        """Return all requests that no save was known to include."""
        found = []
        for entry in await self._store.list(self._folder):
            data = await self._store.read(entry.path)
            if data is not None:
                found.append(msgspec.json.decode(data, type=Request))
        return found

    async def remove(self) -> None:
        for entry in await self._store.list(self._folder):
            await self._store.delete(entry.path)
