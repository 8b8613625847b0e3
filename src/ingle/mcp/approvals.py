"""Approvals that a person answers in the host, by elicitation, where the host has it.

The question goes to the host and not to the model: no tool answers it. A question that nobody answers in time is asked
again by the next call that waits for the cell. A call that waits is never carried out twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from ingle import errors
from ingle.events import Result
from ingle.grants import ApprovalInfo
from ingle.service import Service

Ask = Callable[[ApprovalInfo], Awaitable[bool | None]]
"""Asks the person, and returns the decision. None: there is none, or the host cannot ask now."""

asking: ContextVar[Ask | None] = ContextVar("asking", default=None)
"""How to ask the person behind the call that is answered."""


def question(wanted: ApprovalInfo) -> str:
    """Return the question for a person."""
    hint = " It says that it may destroy something." if wanted.destructive else ""
    return f"Code in a session wants to call {wanted.server}.{wanted.tool} with {wanted.arguments}.{hint} Allow it?"


async def follow(wait: Callable[[], Awaitable[Result]], service: Service, left: Callable[[], float]) -> Result:
    """Return what `wait` returns. Before a result that needs approval is returned, the person is asked."""
    while True:
        result = await wait()
        if result.approval is None or not await _answered(result, result.approval, service, left()):
            return result


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
