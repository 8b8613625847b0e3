"""Idempotency keys: what a request asks for is begun once, however often the request comes.

A caller that lost its answer sends the same request with the same key again, and gets what the first one began. The key
of a request that failed is free again, since nothing was begun. With a store, keys outlive the server.
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
    """Disk storage of keys and of what their requests began."""

    async def begin(self, key: str, digest: str) -> None:
        """Write a key and the digest of its request down, before the request begins anything."""

    def end(self, key: str, result: Any) -> None:
        """Write down what the request began; None if it began nothing."""


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A key of an earlier server. The result is an exception where it is not known, or cannot be told any more."""

    key: str
    digest: str
    result: Any


@dataclass(frozen=True, slots=True)
class _Known:
    digest: str
    time: float
    outcome: "asyncio.Future[Any]"
    """What was begun; cancelled when nothing was."""


class Idempotency:
    """Keys of requests, and what each request began. The oldest keys are forgotten above `capacity` and `max_age`.

    If `detached`, what a request begins goes on when its caller is cancelled. Else it is cancelled too, and the key is
    free again.
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
                outcome.exception()  # retrieved here, since perhaps no request comes with this key
            else:
                outcome.set_result(each.result)
            self._known[each.key] = _Known(each.digest, time.monotonic(), outcome)

    async def __call__(self, key: str | None, request: object, begin: Callable[[], Awaitable[T]]) -> T:
        """Return what `begin` returned for the first of equal requests with this key; call it if this is the first.

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
            task.exception()  # retrieved here, since the caller may have left

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
            if self._store is not None:
                await self._store.begin(key, digest)
            result = await begin()
        except BaseException:
            # Nothing was begun. Whoever waits for this request now tries for itself.
            del self._known[key]
            outcome.cancel()
            if self._store is not None:
                self._store.end(key, None)
            raise
        outcome.set_result(result)
        if self._store is not None:
            self._store.end(key, result)
        return result

    def _forget_old(self) -> None:
        """Forget the oldest keys whose requests are over, so that one more has a place."""
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
