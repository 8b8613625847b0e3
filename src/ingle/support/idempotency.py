"""Idempotency keys: a request takes effect once, however often it is sent.

A caller that lost the answer sends the same request with the same key, and gets the result of the first one. The key
of a failed request is free again. With a store, keys outlive the server.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ingle.errors import KeyReused

T = TypeVar("T")


class KeyStore(Protocol):
    """Storage of keys and of the results of their requests."""

    async def begin(self, key: str, digest: str) -> "StoredKey | None":
        """Store a key and the digest of its request, before the request starts anything.

        Return what is known of the key already, if another server has begun a request with it.
        """

    def end(self, key: str, result: Any) -> None:
        """Store the result of the request; None if it started nothing."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key from an earlier server. The result is an exception if it is unknown or lost."""

    key: str
    digest: str
    result: Any


@dataclass(frozen=True, slots=True)
class _Known:
    digest: str
    time: float
    outcome: "asyncio.Future[Any]"
    """The result; cancelled if nothing was started."""


class Idempotency:
    """Keys of requests with their results. The oldest keys are dropped above `capacity` and `max_age`.

    If `detached`, a started operation continues when its caller is cancelled. Otherwise it is cancelled too, and the
    key is free again.
    """

    def __init__(
        self,
        capacity: int,
        *,
        max_age: float = math.inf,
        detached: bool = False,
        store: KeyStore | None = None,
        stored: Iterable[StoredKey] = (),
    ) -> None:
        self._capacity = capacity
        self._max_age = max_age
        self._detached = detached
        self._store = store
        self._known: dict[str, _Known] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        for each in stored:
            outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            if isinstance(each.result, Exception):
                outcome.set_exception(each.result)
                outcome.exception()  # retrieved here, because perhaps no request has this key
            else:
                outcome.set_result(each.result)
            self._known[each.key] = _Known(each.digest, time.monotonic(), outcome)

    async def __call__(self, key: str | None, request: object, begin: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `begin` for the first request with this key, and call it if this is the first.

        Requests are equal if their `repr` is. Without a key every request is the first.
        """
        work = self._once(key, request, begin) if key is not None else _call(begin)
        if not self._detached:
            return await work
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return await asyncio.shield(task)

    def _on_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved here, because the caller may have left

    async def _once(self, key: str, request: object, begin: Callable[[], Awaitable[T]]) -> T:
        digest = hashlib.blake2b(repr(request).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
        while (known := self._known.get(key)) is not None:
            if known.digest != digest:
                raise KeyReused
            await asyncio.wait({known.outcome})
            if not known.outcome.cancelled():
                result: T = known.outcome.result()
                return result
        self._forget_old()
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._known[key] = _Known(digest, time.monotonic(), outcome)
        try:
            earlier = None if self._store is None else await self._store.begin(key, digest)
            if earlier is not None and earlier.digest != digest:
                raise KeyReused
            result = await begin() if earlier is None else earlier.result
        except BaseException:
            # Nothing was started, so each waiting request now tries itself.
            del self._known[key]
            outcome.cancel()
            if self._store is not None:
                self._store.end(key, None)
            raise
        outcome.set_result(result)
        if self._store is not None and earlier is None:
            self._store.end(key, result)
        return result

    def _forget_old(self) -> None:
        """Drop the oldest keys of ended requests to make space for one."""
        oldest = time.monotonic() - self._max_age
        old: list[str] = []
        for key, known in self._known.items():
            if known.time > oldest and len(self._known) - len(old) < self._capacity:
                break
            if known.outcome.done():
                old.append(key)
        for key in old:
            del self._known[key]


async def _call(begin: Callable[[], Awaitable[T]]) -> T:
    return await begin()
