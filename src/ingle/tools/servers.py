"""All MCP servers of a node: those that the operator names, each started on first use."""

import asyncio
from pathlib import Path

from ingle.settings import Settings
from ingle.support.background import Tasks
from ingle.tools import config
from ingle.tools.mcp_server import McpServer
from ingle.tools.shapes import NewServer

ALL = "*"


class ToolServers:
    """Servers by owner: one for a tenant, or one for a session where the server says so."""

    def __init__(self, settings: Settings, home: Path) -> None:
        self.settings = settings
        self._configured = config.read_all(home, settings.servers)
        self._running: dict[tuple[str, str], McpServer] = {}
        self._endings = Tasks()

    def configured(self, tenant: str) -> dict[str, NewServer]:
        """Return the servers that a tenant may use. The owner may use all."""
        return {name: server for name, server in self._configured.items() if _may_use(tenant, server)}

    def find(self, name: str, tenant: str) -> NewServer | None:
        """Return one of them by name."""
        server = self._configured.get(name)
        return server if server is not None and _may_use(tenant, server) else None

    def names(self, tenant: str) -> list[str]:
        return list(self.configured(tenant))

    def get(self, name: str, server: NewServer, tenant: str, session_key: str, *, own: bool) -> McpServer:
        """Return a server, which need not be running yet. `own`: it was named for this session alone."""
        owner = f"session:{session_key}" if own or server.share == "session" else f"tenant:{tenant}"
        found = self._running.get((owner, name))
        if found is None or (found.config is not server and found.config != server):
            if found is not None:
                self._endings.start(found.close())
            found = self._running[owner, name] = McpServer(name, server)
        return found

    async def end_server(self, name: str, session_key: str) -> None:
        """Stop a server that was named for this session alone."""
        await self._stop([key for key in self._running if key == (f"session:{session_key}", name)])

    async def end_session(self, session_key: str) -> None:
        """Stop the servers that only this session had."""
        await self._stop([key for key in self._running if key[0] == f"session:{session_key}"])

    async def close(self) -> None:
        await self._stop(list(self._running))
        await self._endings.wait()

    async def _stop(self, keys: list[tuple[str, str]]) -> None:
        stopping = [self._running.pop(key) for key in keys]
        if stopping:
            await asyncio.gather(*(server.close() for server in stopping))


def _may_use(tenant: str, server: NewServer) -> bool:
    return not tenant or ALL in server.tenants or tenant in server.tenants
