"""Connection to a server with the SDK's client, over both transports.

Only this module, `stdio` and `repair` import the SDK.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Implementation, Tool
from pydantic import ValidationError

from ingle import __version__
from ingle.tools import content
from ingle.tools.config import expand
from ingle.tools.repair import RepairedStream
from ingle.tools.shapes import NewServer, ToolFailed, ToolSpec
from ingle.tools.stdio import MAX_LINE_BYTES, ServerProcess

HTTP_SECONDS = 30.0
"""Time to connect to a server, and between two bytes of it. The calls have limits of their own."""

READ_SECONDS = 3600.0

MAX_CHECKED_BYTES = 1024 * 1024
"""Size of a result up to which it is compared with the tool's schema. A larger one would hold up all sessions."""


def process_of(config: NewServer) -> ServerProcess | None:
    """Return the process of a server, not started yet; None for one behind a URL."""
    return None if config.command is None else ServerProcess(config)


class Connection:
    """A server that answers. It is closed with the stack that it was opened with."""

    def __init__(self, client: Client, process: ServerProcess | None) -> None:
        self._client = client
        self._process = process

    async def list_tools(self, cursor: str | None) -> tuple[list[Tool], str | None]:
        """Return a page of tools, and where the next one begins."""
        page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
        return page.tools, page.next_cursor

    async def call(self, tool: ToolSpec, arguments: dict[str, Any]) -> bytes:
        """Return the payload of a result. Cancelling this tells the server."""
        if self._process is None:
            result = await self._client.call_tool(tool.name, arguments)
            return content.of_json(result.model_dump_json(by_alias=True, exclude_none=True).encode())
        data = await self._process.call(tool.name, arguments)
        payload = content.of_json(data)
        if tool.output_schema is not None and len(data) <= MAX_CHECKED_BYTES:
            try:
                await self._client.session.validate_tool_result(tool.name, CallToolResult.model_validate_json(data))
            except ValidationError as error:
                raise ToolFailed("tool", f"the server's result is not one of MCP: {error}") from None
        return payload


async def open_connection(
    config: NewServer,
    process: ServerProcess | None,
    headers: dict[str, str],
    on_message: Any,
    stack: contextlib.AsyncExitStack,
) -> Connection:
    transport: Any
    if process is not None:
        transport = process.transport()
    else:
        assert config.url is not None
        timeout = httpx2.Timeout(HTTP_SECONDS, read=READ_SECONDS)
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
        transport = streamable_http_client(expand(config.url), http_client=http, max_sse_event_size=MAX_LINE_BYTES)
    about = Implementation(name="ingle", version=__version__)
    client = Client(_repaired(transport), message_handler=on_message, client_info=about, cache=None)
    return Connection(await stack.enter_async_context(client), process)


@contextlib.asynccontextmanager
async def _repaired(transport: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with transport as (read, write):
        yield RepairedStream(read), write
