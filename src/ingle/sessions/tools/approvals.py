"""Calls that wait until a person allows them."""

import asyncio
import secrets

from ingle import errors
from ingle.grants import ApprovalInfo
from ingle.tools.shapes import ToolSpec
from ingle_worker.wire.signatures import visible

MAX_ARGUMENT_CHARS = 10_000
"""Characters of the arguments that a person is shown. Longer ones are refused: nobody can approve what is not shown."""


class Approval:
    """One call that waits."""

    def __init__(self, server: str, tool: ToolSpec, arguments: str, cell: int | None) -> None:
        self.info = ApprovalInfo(
            secrets.token_hex(8),
            server,
            tool.name,
            visible(arguments, MAX_ARGUMENT_CHARS),
            cell,
            tool.read_only,
            tool.destructive,
        )
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Approvals:
    """Calls of one session that wait, in order."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._waiting: dict[str, Approval] = {}

    def add(self, approval: Approval) -> None:
        self._waiting[approval.info.id] = approval

    def remove(self, approval: Approval) -> None:
        self._waiting.pop(approval.info.id, None)

    def of_cell(self, cell: int) -> ApprovalInfo | None:
        """Return the first one that this cell waits for."""
        return next((each.info for each in self._waiting.values() if each.info.cell == cell), None)

    def list(self) -> list[ApprovalInfo]:
        return [each.info for each in self._waiting.values()]

    def decide(self, approval_id: str, *, allow: bool) -> ApprovalInfo:
        """Answer one. Raise ApprovalNotFound if nothing of this id waits."""
        found = self._waiting.pop(approval_id, None)
        if found is None or found.answer.done():
            raise errors.ApprovalNotFound(self._session_id, approval_id)
        found.answer.set_result(allow)
        return found.info
