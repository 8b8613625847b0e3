"""The door over HTTP: an ASGI app for `/mcp`, to be mounted behind a guard that knows token, Host and Origin.

Nothing is kept of a connection: each request stands for itself, in both eras, so a client that reconnects, or comes
through another proxy, finds its sessions by their `session_id` and nothing has to expire. The SDK is imported when
the first request comes.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from ingle.callers import SERVICE, Caller
from ingle.mcp.handlers import Door
from ingle.mcp.stdio.lazy_import import load
from ingle.service import Service

PATH = "/mcp"

BODY_SPARE = 1024 * 1024
"""What a request may hold beside a cell's source."""

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


@asynccontextmanager
async def mounted(service: Service) -> AsyncIterator[dict[str, App]]:
    """The apps to mount, by path, for as long as the context lasts."""
    mount = Mount(service)
    try:
        yield {PATH: mount}
    finally:
        await mount.stop()


class Mount:
    """A door of its own for each caller: it sees and does what the caller's own service lets it."""

    def __init__(self, owner: Service) -> None:
        self._owner = owner
        self._apps: dict[Caller, McpApp] = {}

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        service: Service = scope.get(SERVICE, self._owner)
        app = self._apps.get(service.caller)
        if app is None:
            for caller in [each for each in self._apps if each.revoked]:
                await self._apps.pop(caller).stop()
            app = self._apps.setdefault(service.caller, McpApp(service))
        await app(scope, receive, send)

    async def stop(self) -> None:
        for app in self._apps.values():
            await app.stop()


class McpApp:
    def __init__(self, service: Service) -> None:
        self._door = Door(service)
        self._limit = service.settings.max_code + BODY_SPARE
        self._over = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[App] | None = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["method"] != "POST":
            # There is no stream to listen on and no session to delete; the protocol allows to say so.
            await send({"type": "http.response.start", "status": 405, "headers": [(b"allow", b"POST")]})
            await send({"type": "http.response.body", "body": b""})
            return
        if self._ready is None:
            loop = asyncio.get_running_loop()
            self._ready = loop.create_future()
            self._running = loop.create_task(self._run(self._ready))
        handle = await asyncio.shield(self._ready)
        await handle(scope, receive, send)

    async def _run(self, ready: "asyncio.Future[App]") -> None:
        """The SDK's manager lives in one task, as its cancel scopes want it."""
        try:
            server = await load("ingle.mcp.server")
            manager = server.make_manager(self._door, self._limit)
            async with manager.run():
                ready.set_result(manager.handle_request)
                await self._over.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    async def stop(self) -> None:
        self._over.set()
        if self._running is not None:
            await asyncio.wait({self._running})
