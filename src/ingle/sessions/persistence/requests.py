"""Requests with a key: what each of them began, so that however often one comes, nothing begins twice.

Those of a durable session are written down before they begin, so that this holds across a restart too. What they began
can be told then, but not shown: what it printed went with the server.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable

from ingle import errors
from ingle.snapshots.registry import Registry, Request

REMEMBERED = 1000
"""Keys that a session remembers; a retry comes soon or not at all."""


class Requests:
    def __init__(self) -> None:
        self._known: dict[str, tuple[str, asyncio.Future[int]]] = {}
        self._registry: Registry | None = None
        self._uid = ""

    def write_down(self, registry: Registry, uid: str, requests: list[Request]) -> None:
        """From now on in the registry too, where these were found."""
        self._registry, self._uid = registry, uid
        loop = asyncio.get_running_loop()
        for request in requests:
            begun: asyncio.Future[int] = loop.create_future()
            if request.cell is not None:
                begun.set_result(request.cell)
            else:
                begun.set_exception(errors.CellForgotten(None))
                begun.exception()  # seen: perhaps nobody asks again
            self._known[request.key] = (request.asked, begun)

    async def once(self, key: str, asked: object, begin: Callable[[], Awaitable[int]]) -> int:
        """The cell that the first of these requests began. What failed has begun nothing, and may be tried again."""
        digest = hashlib.blake2b(repr(asked).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
        while (known := self._known.get(key)) is not None:
            if known[0] != digest:
                raise errors.KeyReused()
            await asyncio.wait({known[1]})
            if not known[1].cancelled():
                return known[1].result()
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._known[key] = (digest, first)
        try:
            await self._write(Request(key, digest, None))
            number = await begin()
        except BaseException:
            # Nothing was begun, so there is nothing to remember; whoever waited on this one tries for himself.
            self._known.pop(key, None)
            first.cancel()
            if self._registry is not None:
                self._registry.answered(self._uid, key, None)
            raise
        first.set_result(number)
        if self._registry is not None:
            self._registry.answered(self._uid, key, number)
        self._forget_old()
        return number

    async def _write(self, request: Request) -> None:
        if self._registry is None:
            return
        try:
            await self._registry.asked(self._uid, request)
        except errors.RegistryBroken:
            # A full disk stops no cell. It is remembered here, as for any session.
            return

    def _forget_old(self) -> None:
        """The oldest that are settled, where there are too many."""
        if len(self._known) > REMEMBERED:
            for key in [key for key, (_, first) in self._known.items() if first.done()][: REMEMBERED // 4]:
                del self._known[key]
