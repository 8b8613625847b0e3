"""Access of one caller: which verbs it may use, on which sessions, and how much of them.

The verbs reach sessions and tasks through `Access.session` and `Access.task` only. Both check the caller's scope, and
both find what belongs to the caller's tenant only.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from ingle import errors
from ingle.callers import ADMIN, DEFAULT_TENANT, EXECUTE, READ, Caller
from ingle.events import SessionInfo
from ingle.nodes import Node, SessionHandle, TaskHandle
from ingle.requests import Author, NewCell, NewTask, session_key, shell_key
from ingle.support.idempotency import Idempotency, KeyStore

MAX_KEYS = 10_000
KEY_AGE_SECONDS = 86400.0
"""Number and age of the idempotency keys that a service remembers for each tenant. Sessions remember keys of cells."""


class Shared:
    """State of a service that all its callers have in common."""

    def __init__(self, key_store: Callable[[str], KeyStore] | None = None) -> None:
        """`key_store` returns the keys of a tenant that other gateways know too."""
        self._keys: dict[str, Idempotency] = {}
        self._key_store = key_store
        self.stopping = False
        self.draining = False
        self.beginning: Counter[str] = Counter()
        """Cells of each tenant that were asked for and have not begun."""

    def keys(self, tenant: str) -> Idempotency:
        """Return the idempotency keys of a tenant. No tenant can push out those of another."""
        if tenant not in self._keys:
            store = None if self._key_store is None else self._key_store(tenant)
            self._keys[tenant] = Idempotency(MAX_KEYS, max_age=KEY_AGE_SECONDS, detached=True, store=store)
        return self._keys[tenant]


class Access:
    """Rights and quotas of one caller on one node."""

    def __init__(self, caller: Caller, node: Node, shared: Shared, author: Author) -> None:
        self.caller = caller
        self.author = author
        self._node = node
        self._shared = shared

    def check(self, scope: str) -> None:
        """Raise Forbidden or Unauthorized if the caller may not use verbs of this scope."""
        caller = self.caller
        if scope not in caller.scopes:
            raise errors.Forbidden(
                f"this token lacks the scope {scope!r}; create one with `ingle token new NAME --scope {scope}`"
            )
        if caller.revoked:
            raise errors.Unauthorized("this token was revoked; ask for another")

    def check_owner(self, what: str) -> None:
        """Raise Forbidden unless the owner of the server calls: `what` concerns all tenants, or the host itself."""
        if self.caller.tenant != DEFAULT_TENANT:
            # No scope would help.
            raise errors.Forbidden(f"only the owner of the server may {what}; ask the operator")
        self.check(ADMIN)

    def session_key(self, session_id: str, scope: str = READ) -> str:
        """Return the key of one of the caller's sessions."""
        self.check(scope)
        if "/" in session_id:
            raise errors.SessionNotFound(session_id)
        return session_key(self.caller.tenant, session_id)

    def session(self, session_id: str, scope: str = READ) -> SessionHandle:
        """Return one of the caller's sessions."""
        return self._node.session(self.session_key(session_id, scope))

    def task(self, task_id: str, scope: str = READ) -> TaskHandle:
        """Return one of the caller's shell tasks."""
        self.check(scope)
        return self._node.tasks.task(task_id, self.caller.tenant)

    @property
    def once(self) -> Idempotency:
        """Idempotency keys of the caller's tenant."""
        return self._shared.keys(self.caller.tenant)

    def check_accepting(self) -> None:
        """Raise Unavailable if the server is about to stop."""
        if self._shared.draining:
            raise errors.Unavailable("the server is stopping; start it again")

    async def check_sessions(self, more: int = 1) -> None:
        """Raise QuotaExceeded if the caller's tenant may not have so many more sessions."""
        limit = self.caller.limits.sessions
        if limit is None:
            return
        load = await self._node.load(self.caller.tenant)
        if load.sessions + len(load.shells) + more > limit:
            raise _too_many(limit)

    async def keep(self, *made: SessionInfo) -> None:
        """Count again after sessions were made. End them and raise QuotaExceeded if there are too many now.

        On one machine there never are. In a cluster another gateway may have made some at the same time.
        """
        limit = self.caller.limits.sessions
        if limit is None:
            return
        load = await self._node.load(self.caller.tenant)
        if load.sessions + len(load.shells) > limit:
            for info in made:
                await self.session(info.session_id, EXECUTE).end()
            raise _too_many(limit)

    async def _check_running(self, limit: int) -> None:
        """Raise QuotaExceeded if the caller's tenant may not run one more cell or shell task."""
        tenant = self.caller.tenant
        load = await self._node.load(tenant)
        if load.running + load.tasks + self._shared.beginning[tenant] >= limit:
            raise errors.QuotaExceeded(
                f"this token may run {limit} cells and shell tasks at once; wait for one of them to end"
            )

    async def start_task(self, new: NewTask) -> str:
        """Start a shell task, if the caller's tenant may run one more, and return its id."""
        if (limit := self.caller.limits.running) is not None:
            await self._check_running(limit)
        if new.shell_session is not None:
            if shell_key(new.session_key, new.shell_session) not in (await self._node.load(self.caller.tenant)).shells:
                await self.check_sessions()
        elif new.session_id is None and self.caller.limits.sessions == 0:
            raise errors.QuotaExceeded("this token may have no sessions, and a command without one is like a session")
        return await self._node.tasks.start(new)

    async def begin(self, session: SessionHandle, new: NewCell) -> int:
        """Start a cell, if the caller's tenant may run one more, and return its number."""
        self.check_accepting()
        if (limit := self.caller.limits.running) is not None:
            await self._check_running(limit)
        tenant, beginning = self.caller.tenant, self._shared.beginning
        beginning[tenant] += 1
        try:
            return await session.execute(msgspec.structs.replace(new, author=self.author))
        finally:
            beginning[tenant] -= 1


def _too_many(limit: int) -> errors.QuotaExceeded:
    return errors.QuotaExceeded(
        f"this token may have {limit} sessions and persistent shells, and they are in use; end one", 10.0
    )
