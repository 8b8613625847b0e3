"""Waiting for a cell: the client hears of progress, and a person is asked for approval where the host can ask one.

The question goes to the host and not to the model: no tool answers it. A question that nobody answers in time is asked
again by the next call that waits for the cell. Nothing is carried out twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass

from ingle import errors
from ingle.events import Result
from ingle.grants import ApprovalInfo
from ingle.mcp.progress import Progress, last_line
from ingle.service import Service

Ask = Callable[[ApprovalInfo], Awaitable[bool | None]]
"""Asks the person, and returns the decision. None: there is none, or the host cannot ask now."""

asking: ContextVar[Ask | None] = ContextVar("asking", default=None)
"""How to ask the person behind the call that is answered."""


def question(wanted: ApprovalInfo) -> str:
    """Return the question for a person."""
    hint = " It says that it may destroy something." if wanted.destructive else ""
    return f"Code in a session wants to call {wanted.server}.{wanted.tool} with {wanted.arguments}.{hint} Allow it?"


@dataclass(frozen=True)
class Following:
    """A call that waits for a cell."""

    service: Service
    session_id: str
    progress: Progress
    left: Callable[[], float]
    """Seconds until the call has to answer."""
    from_event: int = 0

    async def follow(self, cell: int | None) -> Result:
        """Return the result once the cell has ended, or waits for something that nobody answers, or time is up."""
        while True:
            result = await self._follow(cell)
            if result.approval is None or not await _answered(result, result.approval, self.service, self.left()):
                return result

    async def _follow(self, cell: int | None) -> Result:
        progress = self.progress
        with progress.by_handler():
            while True:
                seconds = min(max(0.0, self.left()), progress.left)
                result = await self.service.wait(self.session_id, cell, wait=seconds, from_event=self.from_event)
                if result.status != "running" or self.left() <= 0:
                    return result
                cell = result.cell
                if not progress.left:
                    await progress.report(last_line(result.stdout, result.stderr) or f"cell {cell} is running")


async def _answered(result: Result, wanted: ApprovalInfo, service: Service, seconds: float) -> bool:
    ask = asking.get()
    if ask is None or seconds <= 0:
        return False
    try:
        async with asyncio.timeout(seconds):
            allow = await ask(wanted)
        if allow is None:
            return False
        await service.decide_approval(result.session_id, wanted.id, allow=allow)
    except errors.ApprovalNotFound:
        return True  # answered elsewhere meanwhile
    except (TimeoutError, errors.Forbidden):
        return False
    return True
