"""Connection to one MCP server, with the official SDK: started on first use, started again after its end.

Secrets of a server are in its own process or in the headers of its requests, and in no message to a session.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import time
from typing import Any

import msgspec

from ingle.errors import IngleError
from ingle.tools.config import expand
from ingle.tools.shapes import NewServer, ToolFailed, ToolSpec

START_SECONDS = 60.0
"""Time for the start of a server: its first start may download it."""

LIST_SECONDS = 30.0
LIST_AGE_SECONDS = 5.0
"""Time for which a listing counts as current, unless the server says that it changed."""

MAX_TOOLS = 2000
MAX_PAGES = 100
MAX_SCHEMA_BYTES = 200_000
"""Size of a tool's schemas. Beyond it the tool takes any arguments."""

SESSION_LOST = re.compile(r"session (has been )?(terminated|not found|expired)", re.IGNORECASE)
"""Words with which a server behind a URL refuses a client that it does not know: it was started again."""

CLOSE_SECONDS = 5.0
"""Time for a connection to end."""

RESTART_PAUSE_SECONDS = 1.0
"""Time between two starts of a server that cannot be started."""

logger = logging.getLogger(__name__)


class Listing:
    """Tools of a server at one moment."""

    def __init__(self, tools: list[ToolSpec]) -> None:
        self.tools = tools
        self.by_name = {tool.name: tool for tool in tools}
        self.version = hashlib.sha256(msgspec.json.encode(tools)).hexdigest()[:16]
        self.made_at = time.monotonic()


class McpServer:
    def __init__(self, name: str, config: NewServer) -> None:
        self.name = name
        self.config = config
        self._running: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._closing = asyncio.Event()
        self._over = asyncio.Event()
        """The connection of this moment has ended."""
        self._listing: Listing | None = None
        self._failed_at = 0.0
        self._last_words = ""

    # --- the connection ---

    async def _connected(self) -> Any:
        """Return the connection. Raise ToolFailed if the server cannot be reached."""
        if self._closing.is_set():
            raise ToolFailed("unavailable", f"the server {self.name!r} is being stopped")
        if self._running is None or self._running.done():
            pause = self._failed_at + RESTART_PAUSE_SECONDS - time.monotonic()
            if pause > 0:
                raise ToolFailed("unavailable", f"the server {self.name!r} cannot be reached: {self._last_words}")
            self._listing = None
            self._ready = asyncio.get_running_loop().create_future()
            self._running = asyncio.get_running_loop().create_task(self._run(self._ready))
        assert self._ready is not None
        return self._ready.result() if self._ready.done() else await asyncio.shield(self._ready)

    async def _run(self, ready: "asyncio.Future[Any]") -> None:
        """Be connected until the server ends or `close` is called. The SDK wants all of it in one task."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(START_SECONDS):
                    connection, self._over = await self._connect(stack)
                ready.set_result(connection)
                over = [asyncio.ensure_future(each.wait()) for each in (self._over, self._closing)]
                try:
                    await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in over:
                        each.cancel()
        except Exception as error:  # the edge of a background task: the server is a stranger's program
            logger.debug("the server %s has ended", self.name, exc_info=error)
            if not ready.done():
                self._last_words = self._last_words or _reason(error)
                self._failed_at = time.monotonic()
                text = f"the server {self.name!r} could not be started: {self._last_words}"
                ready.set_exception(ToolFailed("unavailable", text))
                ready.exception()  # retrieved here, since the caller may have left
        finally:
            # The next process may have other tools.
            self._listing = None
            if not ready.done():
                ready.cancel()

    async def _connect(self, stack: contextlib.AsyncExitStack) -> "tuple[Any, asyncio.Event]":
        # Imported late: only servers of tools need the SDK's client.
        from ingle.tools import connect

        self._last_words = ""
        process = connect.process_of(self.config)
        if process is not None:
            stack.callback(lambda: setattr(self, "_last_words", process.last_words))
        headers = {name: expand(value) for name, value in self.config.headers.items()}
        made = await connect.open_connection(self.config, process, headers, self._on_message, stack)
        return made, asyncio.Event() if process is None else process.over

    async def _on_message(self, message: Any) -> None:
        if type(message).__name__ == "ToolListChangedNotification":
            self._listing = None

    async def close(self) -> None:
        self._closing.set()
        if self._running is not None:
            await asyncio.wait({self._running}, timeout=CLOSE_SECONDS)
            self._running.cancel()

    # --- tools ---

    async def tools(self, *, fresh: bool = False) -> Listing:
        """Return the tools, from the server if the last listing is old."""
        known = self._listing
        if known is not None and not fresh and time.monotonic() - known.made_at < LIST_AGE_SECONDS:
            return known
        found = await self._guarded(self._list, LIST_SECONDS)
        self._listing = Listing(found)
        return self._listing

    async def find(self, tool: str) -> ToolSpec:
        """Return a tool. Raise ToolFailed if there is none of that name."""
        known = self._listing or await self.tools()
        if tool not in known.by_name:
            known = await self.tools(fresh=True)
        if tool not in known.by_name:
            raise ToolFailed("unknown", f"the server {self.name!r} has no tool {tool[:200]!r}")
        return known.by_name[tool]

    async def _list(self, connection: Any) -> list[ToolSpec]:
        found: list[ToolSpec] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page, cursor = await connection.list_tools(cursor)
            found += [_spec(tool) for tool in page]
            if cursor is None or len(found) >= MAX_TOOLS:
                break
        unique = {tool.name: tool for tool in found[:MAX_TOOLS]}
        return list(unique.values())

    async def call(self, tool: ToolSpec, arguments: dict[str, Any], seconds: float | None) -> bytes:
        """Call a tool and return the payload of its result. Cancelling this tells the server."""
        payload: bytes = await self._guarded(lambda connection: connection.call(tool, arguments), seconds)
        return payload

    async def _guarded(self, ask: Any, seconds: float | None, *, again: bool = True) -> Any:
        """Ask the server, and turn every failure of it into ToolFailed.

        A server that does not know this client any more has done nothing. It is asked once more, by a new connection.
        """
        connection = await self._connected()
        running = self._running
        try:
            async with asyncio.timeout(seconds):
                return await ask(connection)
        except ToolFailed:
            raise
        except TimeoutError:
            raise ToolFailed("timeout", f"the server {self.name!r} did not answer within {seconds:g} s") from None
        except Exception as error:  # the edge to a stranger's program: the SDK raises many kinds
            if again and running is not None and self.config.url is not None and SESSION_LOST.search(str(error)):
                self._over.set()
                await asyncio.wait({running}, timeout=CLOSE_SECONDS)
                if running.done():
                    return await self._guarded(ask, seconds, again=False)
            if running is not None and (running.done() or self._ended(error)):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait({running}, timeout=2)
                words = f": {self._last_words}" if self._last_words else ""
                raise ToolFailed("unavailable", f"the server {self.name!r} ended before it answered{words}") from None
            raise ToolFailed("tool", _reason(error)) from None

    def _ended(self, error: Exception) -> bool:
        return type(error).__name__ in ("ClosedResourceError", "BrokenResourceError") or "closed" in str(error).lower()


def _spec(tool: Any) -> ToolSpec:
    hints = tool.annotations
    schema, output = tool.input_schema, tool.output_schema
    if not isinstance(schema, dict) or len(msgspec.json.encode([schema, output])) > MAX_SCHEMA_BYTES:
        schema, output = {}, None
    return ToolSpec(
        tool.name,
        tool.description or "",
        schema,
        output,
        bool(hints is not None and hints.read_only_hint),
        bool(hints is not None and hints.destructive_hint and not hints.read_only_hint),
    )


def _reason(error: BaseException) -> str:
    """Return the innermost reason of a failure in one line."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {START_SECONDS:g} s"
    text = error.message if isinstance(error, IngleError) else str(error)
    return (text.strip() or type(error).__name__)[:2000]
