"""Doing what a request asks for once, however often the request comes: a key remembers what was begun.

A caller that lost its answer sends the same request with the same key again, and gets what the first one began. What
was begun goes on when its caller goes away. A key whose request failed is free again: nothing was begun.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ingle.errors import KeyReused

KEPT = 10_000
AGE = 86400.0

T = TypeVar("T")


class Once:
    def __init__(self) -> None:
        self._begun: dict[str, tuple[object, float, asyncio.Task[Any]]] = {}

    async def __call__(self, key: str | None, request: object, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `begin` answered for this key, which is called for the first of equal requests only.

        Without a key every request is the first; it still goes on to its end if the caller leaves.
        """
        known = self._begun.get(key) if key is not None else None
        if known is not None:
            if known[0] != request:
                raise KeyReused
            return await asyncio.shield(known[2])
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(begin())
        if key is not None:
            self._forget_old()
            self._begun[key] = (request, time.monotonic(), task)
        task.add_done_callback(lambda task: self._on_done(key, task))
        return await asyncio.shield(task)

    def _on_done(self, key: str | None, task: "asyncio.Task[Any]") -> None:
        # Looked at here, since whoever asked may have gone.
        failed = task.cancelled() or task.exception() is not None
        if failed and key is not None:
            self._begun.pop(key, None)

    def _forget_old(self) -> None:
        oldest = time.monotonic() - AGE
        for key, (_, begun, task) in list(self._begun.items()):
            if begun > oldest and len(self._begun) < KEPT:
                return
            if task.done():
                del self._begun[key]
