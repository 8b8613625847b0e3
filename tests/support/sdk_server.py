"""An MCP server of the official SDK: as a program on standard input and output, and over HTTP in a thread."""

import asyncio
import socket
import threading
from typing import Any

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

server = MCPServer("sdk")
total = 0


class Total(BaseModel):
    total: int


@server.tool()
def add(number: int) -> Total:
    """Add a number to those of all calls before."""
    global total
    total += number
    return Total(total=total)


@server.tool()
def picture() -> Image:
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def fails() -> str:
    raise ToolError("no luck today")


@server.tool()
async def hangs() -> str:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        global total
        total = 1000
        raise
    return ""


TOKEN = "Bearer the-token"


def guarded(app: Any) -> Any:
    """Ask for the token in each request."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and (b"authorization", TOKEN.encode()) not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body"})
            return
        await app(scope, receive, send)

    return answer


class HttpServer:
    """The server over HTTP. It can be started again on its port."""

    def __init__(self) -> None:
        self.port = 0

    def start(self) -> None:
        listening = socket.create_server(("127.0.0.1", self.port))
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(guarded(server.streamable_http_app()), log_level="warning", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],))
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


if __name__ == "__main__":
    server.run("stdio")
