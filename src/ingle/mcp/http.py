"""MCP over HTTP: an ASGI app for `/mcp`, to be mounted behind a guard that checks token, Host and Origin.

Each request is independent, in both versions of the protocol. A client that reconnects finds its sessions by
`session_id`, and no connection state expires. The SDK is imported with the first request.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ingle.callers import SERVICE, Caller
from ingle.mcp.handlers import Tools
from ingle.mcp.stdio.lazy_import import load
from ingle.mcp.tools import Tool, chosen
from ingle.service import Service
from ingle.support import bounded_json

PATH = "/mcp"

EXTRA_BODY_BYTES = 1024 * 1024
"""Bytes of a request in addition to a cell's source."""

BOUNDS = bounded_json.Bounds(elements=100_000, text=1 << 40)
"""Bounds of a request. Its texts are bounded by the size of the body."""

INVALID_REQUEST = -32600
"""Code of JSON-RPC."""

FACTS_SECONDS = 1.0
"""Age at which facts are asked for anew: grants and environments change while the server runs."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


@asynccontextmanager
async def mounted(service: Service) -> AsyncIterator[dict[str, App]]:
    """Provide the apps to mount, by path."""
    mount = Mount(service)
    try:
        yield {PATH: mount}
    finally:
        await mount.stop()


class Mount:
    """One app for each caller, with the rights of the caller's service."""

    def __init__(self, owner: Service) -> None:
        self._owner = owner
        self._listed = chosen(owner.settings.tools)
        self._apps: dict[Caller, McpApp] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        service: Service = scope.get(SERVICE, self._owner)
        app = self._apps.get(service.caller)
        if app is None:
            for caller in [each for each in self._apps if each.revoked]:
                await self._apps.pop(caller).stop()
            app = self._apps.setdefault(service.caller, McpApp(service, self._listed))
        await app(scope, receive, send)

    async def stop(self) -> None:
        for app in self._apps.values():
            await app.stop()


class McpApp:
    def __init__(self, service: Service, listed: tuple[Tool, ...]) -> None:
        self._handlers = Tools(service, listed, durable=service.settings.durable_size > 0)
        self._limit = service.settings.max_code + EXTRA_BODY_BYTES
        self._over = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[App] | None = None
        self._sdk: Any = None
        self._server: Any = None
        self._asked = 0.0
        """When the facts were asked for."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            # There is no stream to read and no session to delete, and the protocol allows this answer.
            await send({"type": "http.response.start", "status": 405, "headers": [(b"allow", b"POST")]})
            await send({"type": "http.response.body", "body": b""})
            return
        if self._ready is None:
            loop = asyncio.get_running_loop()
            self._ready = loop.create_future()
            self._running = loop.create_task(self._run(self._ready))
        handle = await asyncio.shield(self._ready)
        await self._renew_facts()
        body = await read_body(receive, self._limit)
        try:
            # The SDK decodes without bounds, and a few bytes of JSON can take a hundred of memory.
            bounded_json.check(body.data, BOUNDS)
        except bounded_json.OutOfBounds as error:
            await _refuse(send, f"the request cannot be read: {error}")
            return
        await handle(scope, body.receive, send)

    async def _run(self, ready: "asyncio.Future[App]") -> None:
        """Run the SDK's manager in one task, because of its cancel scopes."""
        try:
            self._sdk = await load("ingle.mcp.server")
            self._asked = asyncio.get_running_loop().time()
            self._server = self._sdk.make_server(self._handlers, await self._handlers.facts())
            manager = self._sdk.make_manager(self._server, self._limit)
            async with manager.run():
                ready.set_result(manager.handle_request)
                await self._over.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    async def _renew_facts(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._asked > FACTS_SECONDS:
            self._asked = now
            self._sdk.renew(self._server, await self._handlers.facts())

    async def stop(self) -> None:
        self._over.set()
        if self._running is not None:
            await asyncio.wait({self._running})


class Body:
    """Body of a request that was read, and is received again by the SDK."""

    def __init__(self, data: bytes, more: bool, receive: Receive) -> None:
        self.data = data
        self._more = more
        self._receive = receive
        self._given = False

    async def receive(self) -> Message:
        """Return the whole body, then what follows it."""
        if self._given:
            return await self._receive()
        self._given = True
        return {"type": "http.request", "body": self.data, "more_body": self._more}


async def read_body(receive: Receive, limit: int) -> Body:
    """Read a body up to the limit. The rest of a longer one is left to the SDK, which refuses it."""
    data, more = bytearray(), True
    while more and len(data) <= limit:
        message = await receive()
        if message["type"] != "http.request":
            return Body(bytes(data), False, _repeating(message))
        data += message.get("body", b"")
        more = message.get("more_body", False)
    return Body(bytes(data), more, receive)


def _repeating(message: Message) -> Receive:
    """Return a function that answers with this message, which says that the client is gone."""

    async def receive() -> Message:
        return message

    return receive


async def _refuse(send: Send, text: str) -> None:
    error = {"code": INVALID_REQUEST, "message": text}
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})
