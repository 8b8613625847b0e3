# Generated from ../aio/tools.py by tools/unasync.py: edit that file, and run the script.
"""Tools of a session: functions of this program that its code may call, and approvals of calls."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ingle.client.address import POLL_SECONDS
from ingle.client.decode import read
from ingle.client.sync.attached import Attached
from ingle.client.sync.provided import Provided, as_functions
from ingle.grants import ApprovalInfo
from ingle.tools.shapes import ServerInfo


class ServerList(Struct):
    servers: list[ServerInfo]


class ApprovalList(Struct):
    approvals: list[ApprovalInfo]


class Tools(Attached):
    """What a session's code may call outside of it."""

    def provide(
        self,
        *functions: Callable[..., Any],
        server: str = "client",
        name: str | None = None,
        read_only: bool = False,
    ) -> Provided:
        """Let the session's code call functions of this program, as `tools.client.NAME`, until they are closed.

        Annotations and docstring become the tool's schema and description. Arguments and results are JSON, and a result
        may be bytes. An exception is raised in the session as `tools.ToolError`. Functions are called in threads, so
        that a cell can call one while this program waits for the cell; coroutine functions of an `Client` run in
        its event loop.
        """
        self._attach()
        provided = Provided(self._connection, self._path, server, as_functions(functions, name, read_only))
        provided.open()
        return provided

    def tools(self) -> list[ServerInfo]:
        """Return the servers of tools that the session's code may call, with their tools."""
        return read(self._get("/tools", turn=POLL_SECONDS), ServerList).servers

    def approvals(self) -> list[ApprovalInfo]:
        """Return the calls of tools that wait for a person."""
        return read(self._get("/approvals"), ApprovalList).approvals

    def approve(self, approval_id: str, *, allow: bool = True) -> ApprovalInfo:
        """Allow or refuse a call that waits for a person. The token needs the scope `approve`."""
        return read(self._request("POST", f"/approvals/{approval_id}", body={"allow": allow}), ApprovalInfo)
