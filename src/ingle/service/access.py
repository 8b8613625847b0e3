"""For whom the verbs act: with which rights, on whose sessions, and how much of them.

Every verb turns the name of a session into the caller's own (`_own`), so that a tenant sees nothing of another, and
asks whether the caller's scopes and limits allow it.
"""

from collections import Counter
from pathlib import Path

from ingle import errors
from ingle.callers import OWNER, READ, Caller
from ingle.nodes import Node
from ingle.service.validation import check_seconds
from ingle.settings import Settings
from ingle.support.idempotency import Idempotency

MAX_KEYS = 10_000
KEY_AGE_SECONDS = 86400.0
"""Idempotency keys that a service remembers, of requests other than executes, and for how long."""


class Shared:
    """What a service has in common with those that act for other callers."""

    def __init__(self) -> None:
        self.stopping = False
        self.draining = False
        self.beginning: Counter[str] = Counter()
        """Cells of each tenant that were asked for and have not begun."""


class Acting:
    caller: Caller = OWNER
    workspace: Path | None = None
    """Where code runs that has no session of its own; None is a folder of its own for each."""

    def __init__(self, settings: Settings, node: Node) -> None:
        self.settings = settings
        self._node = node
        self.once = Idempotency(MAX_KEYS, max_age=KEY_AGE_SECONDS, detached=True)
        self._shared = Shared()

    def check(self, scope: str) -> None:
        """Whether the caller may do what needs this scope; an error says why not."""
        caller = self.caller
        if scope not in caller.scopes:
            raise errors.Forbidden(
                f"this token lacks the scope {scope!r}; create one with `ingle token new --scope {scope}`"
            )
        if caller.revoked:
            raise errors.Unauthorized("this token was revoked; ask for another")

    def _own(self, session_id: str, scope: str = READ) -> str:
        """The id by which placement knows a session of this caller, who must have the scope."""
        self.check(scope)
        if "/" in session_id:
            raise errors.SessionNotFound(session_id)
        tenant = self.caller.tenant
        return f"{tenant}/{session_id}" if tenant else session_id

    async def _check_sessions(self, more: int = 1) -> None:
        limit = self.caller.limits.sessions
        if limit is not None and (await self._node.load(self.caller.tenant)).sessions + more > limit:
            raise errors.QuotaExceeded(f"this token may have {limit} sessions, and they are in use; end one", 10.0)

    def _check_beginning(self) -> None:
        if self._shared.draining:
            raise errors.Unavailable("the server is stopping; start it again")

    def _wait(self, wait: float | None) -> float:
        if wait is None:
            return self.settings.wait
        check_seconds("wait", wait)
        return wait
