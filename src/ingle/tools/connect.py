"""The SDK's client over both transports. Only this module, `stdio` and `repair` import the SDK."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from ingle import __version__
from ingle.tools.config import expand
from ingle.tools.repair import RepairedStream
from ingle.tools.shapes import NewServer
from ingle.tools.stdio import MAX_LINE_BYTES, ServerProcess

HTTP_SECONDS = 30.0
"""Time to connect to a server, and between two bytes of it. The calls have limits of their own."""

READ_SECONDS = 3600.0


def process_of(config: NewServer) -> ServerProcess | None:
    """Return the process of a server, not started yet; None for one behind a URL."""
    return None if config.command is None else ServerProcess(config)


async def client_of(
    config: NewServer,
    process: ServerProcess | None,
    headers: dict[str, str],
    on_message: Any,
    stack: contextlib.AsyncExitStack,
) -> Client:
    """Return a connected client. It is closed with the stack."""
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
    return await stack.enter_async_context(client)


@contextlib.asynccontextmanager
async def _repaired(transport: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with transport as (read, write):
        yield RepairedStream(read), write
