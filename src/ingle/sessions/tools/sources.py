"""Sources of tools by name: an MCP server, or the functions of clients."""

from typing import Any, Protocol

import msgspec

from ingle.support import bounded_json
from ingle.tools.functions import Functions
from ingle.tools.mcp_server import Listing, McpServer
from ingle.tools.shapes import ALLOW, CLIENT, NewServer, ToolFailed, ToolSpec

BOUNDS = bounded_json.Bounds(elements=1_000_000, text=64 * 1024**2, depth=110)
"""Bounds of the arguments of one call."""

_decode = bounded_json.Decoder(dict[str, Any], BOUNDS).decode


class Source(Protocol):
    """A server of tools, as listings see it."""

    @property
    def kind(self) -> str: ...

    @property
    def config(self) -> NewServer: ...

    async def tools(self) -> Listing:
        """Return its tools. Raise ToolFailed."""
        ...


class McpSource:
    """An MCP server. Each method raises ToolFailed."""

    def __init__(self, server: McpServer, named: NewServer) -> None:
        self._server = server
        self.config = named
        self.kind = "stdio" if named.command is not None else "http"

    async def tools(self) -> Listing:
        return await self._server.tools()

    async def find(self, tool: str) -> ToolSpec:
        return await self._server.find(tool)

    async def call(self, tool: ToolSpec, arguments: bytes, seconds: float | None) -> bytes:
        """Return the payload of the result. Cancelling this cancels the call."""
        return await self._server.call(tool, arguments_of(arguments), seconds)


class ClientSource:
    """Functions that clients provide. A client may always be called: it chose to provide them."""

    kind = CLIENT
    config = NewServer(policy=ALLOW)

    def __init__(self, functions: Functions, name: str) -> None:
        self._functions = functions
        self._name = name

    async def tools(self) -> Listing:
        return self._functions.listing(self._name)


def arguments_of(data: bytes) -> dict[str, Any]:
    """Return the arguments of a call. Raise ToolFailed if they are not an object within the bounds."""
    try:
        return _decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ToolFailed("tool", f"the arguments are not a JSON object: {error}") from None
