"""Verbs for tools that the code of sessions may call, and for approvals of their calls."""

from ingle import errors
from ingle.callers import APPROVE, EXECUTE
from ingle.grants import ApprovalInfo
from ingle.nodes import ProvidedFunctions
from ingle.service.verbs import Verbs
from ingle.tools.config import NAME
from ingle.tools.shapes import NewServer, ServerInfo, ToolSpec


class Tools(Verbs):
    @property
    def tool_servers(self) -> list[str]:
        """Names of the MCP servers whose tools the code of the caller's sessions may call."""
        return self._node.tools.names(self.access.caller.tenant)

    async def list_tools(self, session_id: str) -> list[ServerInfo]:
        """Return the servers of tools of a session. Servers that do not run yet are started."""
        return await self.access.session(session_id, EXECUTE).tools.servers()

    async def search_tools(self, session_id: str, query: str, limit: int = 10) -> list[str]:
        """Return the tools that fit these words best, each as a line with its signature."""
        return await self.access.session(session_id, EXECUTE).tools.search(query, limit)

    async def add_tool_server(self, session_id: str, name: str, server: NewServer) -> None:
        """Name an MCP server for one session, until the session or this server ends.

        It runs with the rights of this server, outside of every sandbox, so only the owner may name one.
        """
        session = self.access.session(session_id)
        self.access.check_owner("name a server of tools")
        await session.tools.add(name, server)

    async def remove_tool_server(self, session_id: str, name: str) -> None:
        session = self.access.session(session_id)
        self.access.check_owner("remove a server of tools")
        if not await session.tools.remove(name):
            raise errors.NotFound(f"session {session_id!r} has no server of tools {name[:80]!r} of its own")

    async def provide(self, session_id: str, server: str, tools: list[ToolSpec]) -> ProvidedFunctions:
        """Offer functions of the caller to a session, until they are closed."""
        if not NAME.fullmatch(server):
            raise errors.InvalidRequest(f"{server[:80]!r} is not a name: use letters, digits, '_', '-' and '.'")
        return await self.access.session(session_id, EXECUTE).tools.provide(server, tools)

    async def approvals(self, session_id: str) -> list[ApprovalInfo]:
        """Return the calls of a session that wait for a person."""
        return await self.access.session(session_id).tools.approvals()

    async def decide_approval(self, session_id: str, approval_id: str, *, allow: bool) -> ApprovalInfo:
        """Allow or refuse a call that waits for a person."""
        session = self.access.session(session_id, APPROVE)
        return await session.tools.decide(approval_id, allow, self.access.author)
