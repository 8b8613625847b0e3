"""Tools of the sessions of this machine."""

from collections.abc import AsyncIterator, Callable

from ingle.grants import ApprovalInfo
from ingle.requests import Author
from ingle.sessions.session import Session
from ingle.sessions.tools.calls import SessionTools
from ingle.tools.functions import Provider
from ingle.tools.shapes import FunctionCall, FunctionCancelled, NewServer, ServerInfo, ToolSpec


class LocalTools:
    """Tools of a session in this process."""

    def __init__(self, session: Session) -> None:
        self._tools = session.tools

    async def servers(self) -> list[ServerInfo]:
        return await self._tools.listing()

    async def search(self, query: str, limit: int) -> list[str]:
        return await self._tools.search(query, limit)

    async def add(self, name: str, server: NewServer) -> None:
        self._tools.add_server(name, server)

    async def remove(self, name: str) -> bool:
        return await self._tools.remove_server(name)

    async def provide(self, server: str, tools: list[ToolSpec]) -> "LocalFunctions":
        return LocalFunctions(self._tools, server, self._tools.provide(server, tools))

    async def approvals(self) -> list[ApprovalInfo]:
        return self._tools.approvals.list()

    async def decide(self, approval_id: str, allow: bool, author: Author) -> ApprovalInfo:
        return self._tools.decide(approval_id, allow, author)


class LocalFunctions:
    """Functions of one client in a session of this process."""

    def __init__(self, tools: SessionTools, server: str, provider: Provider) -> None:
        self._tools = tools
        self._server = server
        self._provider = provider

    def send_by(self, send_now: Callable[[FunctionCall | FunctionCancelled], bool]) -> None:
        """Send calls by this function in the turn of the loop that brings them; `calls` yields what it refuses."""
        self._provider.send_by(send_now)

    def calls(self) -> AsyncIterator[FunctionCall | FunctionCancelled]:
        return self._provider.calls()

    def answer(self, number: int, payload: bytes) -> None:
        self._provider.answer(number, payload)

    def fail(self, number: int, message: str) -> None:
        self._provider.fail(number, message)

    def close(self) -> None:
        self._tools.withdraw(self._server, self._provider)
