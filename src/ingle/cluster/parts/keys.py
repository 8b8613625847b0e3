"""Idempotency keys that all gateways of a cluster share, each an object in the store.

The gateway that creates the object carries the request out. Others wait for its result. A gateway that dies in between
leaves a key without a result, whose request is never carried out again.
"""

import asyncio
import hashlib
import logging
import secrets
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

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._folder = f"{FOLDER}/{quoted(tenant)}/"
        self._begun: dict[str, _Stored] = {}
        self._writing = Tasks()

    async def begin(self, key: str, digest: str) -> StoredKey | None:
        own = _Stored(digest, secrets.token_hex(8))
        deadline = asyncio.get_running_loop().time() + RESULT_SECONDS
        while not await self._store.create(self._path(key), msgspec.json.encode(own)):
            data = await self._store.read(self._path(key))
            if data is not None:
                found = msgspec.json.decode(data, type=_Stored)
                if found.done or found.digest != digest:
                    return StoredKey(key, found.digest, found.result)
            if asyncio.get_running_loop().time() > deadline:
                raise errors.Unavailable("another gateway has begun a request with this key; try again")
            await asyncio.sleep(LOOK_SECONDS)
        self._begun[key] = own
        return None

    def end(self, key: str, result: Any) -> None:
        begun = self._begun.pop(key, None)
        if begun is None:
            return  # the key is another request's
        if result is None:
            self._writing.start(self._store.delete(self._path(key)))
            return
        kind = {"session": result} if isinstance(result, SessionInfo) else {"task": str(result)}
        ended = msgspec.structs.replace(begun, done=True, **kind)
        self._writing.start(self._store.write(self._path(key), msgspec.json.encode(ended)))

    def _path(self, key: str) -> str:
        return self._folder + hashlib.sha256(key.encode()).hexdigest()
