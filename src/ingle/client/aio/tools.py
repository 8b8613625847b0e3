"""Tools of a session: functions of this program that its code may call, and approvals of calls."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ingle.client.address import POLL_SECONDS
from ingle.client.aio.attached import AsyncAttached
from ingle.client.aio.provided import AsyncProvided, as_functions
from ingle.client.decode import read
from ingle.grants import ApprovalInfo
from ingle.tools.shapes import ServerInfo


class ServerList(Struct):
    servers: list[ServerInfo]


class ApprovalList(Struct):
    approvals: list[ApprovalInfo]


class AsyncTools(AsyncAttached):
    """What a session's code may call outside of it."""

    async def provide(
        self,
        *functions: Callable[..., Any],
        server: str = "client",
        name: str | None = None,
        read_only: bool = False,
    ) -> AsyncProvided:
        """Let the session's code call functions of this program, as `tools.client.NAME`, until they are closed.

        Annotations and docstring become the tool's schema and description. Arguments and results are JSON, and a result
        may be bytes. An exception is raised in the session as `tools.ToolError`. Functions are called in threads, so
        that a cell can call one while this program waits for the cell; coroutine functions of an `AsyncClient` run in
        its event loop.
        """
        await self._attach()
        provided = AsyncProvided(self._connection, self._path, server, as_functions(functions, name, read_only))
        await provided.open()
        return provided

    async def tools(self) -> list[ServerInfo]:
        """Return the servers of tools that the session's code may call, with their tools."""
        return read(await self._get("/tools", turn=POLL_SECONDS), ServerList).servers

    async def approvals(self) -> list[ApprovalInfo]:
        """Return the calls of tools that wait for a person."""
        return read(await self._get("/approvals"), ApprovalList).approvals

    async def approve(self, approval_id: str, *, allow: bool = True) -> ApprovalInfo:
        """Allow or refuse a call that waits for a person. The token needs the scope `approve`."""
        return read(await self._request("POST", f"/approvals/{approval_id}", body={"allow": allow}), ApprovalInfo)
