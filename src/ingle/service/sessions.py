"""Verbs for sessions: create, list, end, clear, fork and roll back."""

from collections.abc import AsyncIterator

import msgspec

from ingle import errors
from ingle.callers import EXECUTE, READ
from ingle.capacity import NetworkUse, SessionUsage
from ingle.events import CheckpointInfo, RolledBack, SessionInfo
from ingle.files import Diff
from ingle.requests import NewSession, SessionLimits
from ingle.service.validation import check_choice, check_environment, check_key, check_seconds
from ingle.service.verbs import Verbs
from ingle.sessions.spec import check_name

DIFF_SECONDS = 5.0
"""Time for the comparison of variables."""

MAX_DIFF_SECONDS = 600.0


class Sessions(Verbs):
    async def create_session(
        self,
        session_id: str | None = None,
        *,
        python: str | None = None,
        environment: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        idle_timeout: float | None = None,
        include_stdlib: bool = True,
        durable: bool = False,
        isolation: str | None = None,
        network: str | None = None,
        gpus: str | None = None,
        limits: SessionLimits | None = None,
        checkpoints: str | None = None,
        keep_failures: int | None = None,
        shares: str | None = None,
        home: str | None = None,
    ) -> SessionInfo:
        """Create a session and wait until it is ready for its first cell.

        It `shares` the folder and the user id of another session. In a sandbox it sees its folder as `home`.
        """
        new = NewSession(
            session_id=session_id,
            python=python,
            environment=environment,
            cwd=cwd,
            env=env or {},
            idle_timeout=idle_timeout,
            include_stdlib=include_stdlib,
            durable=durable,
            isolation=isolation,
            network=network,
            gpus=gpus,
            limits=limits or SessionLimits(),
            checkpoints=checkpoints,
            keep_failures=keep_failures,
            shares=shares,
            home=home,
        )
        return await self.create(new)

    async def create(self, new: NewSession) -> SessionInfo:
        """Create a session from a request. The caller's tenant and bounds replace those of the request."""
        self.access.check(EXECUTE)
        check_environment(new.env)
        check_choice("checkpoints", new.checkpoints, ("manual", "auto"))
        check_seconds("idle_timeout", new.idle_timeout)
        await self.access.check_sessions()
        caller = self.access.caller
        made = await self._node.create(msgspec.structs.replace(new, tenant=caller.tenant, bounds=caller.bounds))
        await self.access.keep(made)
        return made

    async def list_sessions(self) -> list[SessionInfo]:
        self.access.check(READ)
        return await self._node.sessions(self.access.caller.tenant)

    async def each_session(self) -> AsyncIterator[SessionInfo]:
        """Yield what `list_sessions` returns, one by one."""
        for info in await self.list_sessions():
            yield info

    async def get_session(self, session_id: str) -> SessionInfo:
        return await self.access.session(session_id).info()

    async def usage(self, session_id: str) -> SessionUsage:
        """Return the CPU and memory that a session used in the last half hour."""
        return await self.access.session(session_id).usage()

    async def network(self, session_id: str) -> NetworkUse:
        """Return the hosts that a session asked for, and the flags that would allow the refused ones."""
        return await self.access.session(session_id).network()

    async def end_session(self, session_id: str, *, request_key: str | None = None) -> SessionInfo:
        """End a session and return its last state. A repeated `request_key` never ends another session of that name."""
        check_key(request_key)
        self.access.check(EXECUTE)

        async def end() -> SessionInfo:
            return await self.access.session(session_id, EXECUTE).end()

        return await self.access.once(request_key, ("end", session_id), end)

    async def clear_session(self, session_id: str) -> SessionInfo:
        """Reset the namespace. The session, its count of cells and its outputs stay."""
        return await self.access.session(session_id, EXECUTE).clear()

    async def fork_session(
        self,
        session_id: str,
        new_id: str | None = None,
        *,
        count: int = 1,
        at: int | None = None,
        reseed: bool = False,
        shares: str | None = None,
    ) -> list[SessionInfo]:
        """Make live copies of a session. Several are named `new_id-1` and so on. Default: random names.

        With `at`, they are of the state right after that cell. Raise CellNotKept without a checkpoint of it.
        A copy has files of its own, or uses those of the fork that `shares` names: so sessions of one folder are
        forked together.
        """
        key = self.access.session_key(session_id, EXECUTE)
        most = self.settings.max_forks
        if not 1 <= count <= most:
            raise errors.InvalidRequest(f"count is {count}; it must be 1 to {most}")
        self.access.check_accepting()
        await self.access.check_sessions(count)
        names: list[str | None] = [new_id]
        if count > 1:
            names = [None if new_id is None else f"{new_id}-{number}" for number in range(1, count + 1)]
        made = await self._node.fork(key, names, at=at, reseed=reseed, shares=shares)
        await self.access.keep(*made)
        return made

    async def checkpoint(self, session_id: str, name: str) -> CheckpointInfo:
        """Store the session's state, in memory, under this name."""
        check_name(name)
        return await self.access.session(session_id, EXECUTE).checkpoints.make(name)

    async def checkpoints(self, session_id: str) -> list[CheckpointInfo]:
        return await self.access.session(session_id).checkpoints.list()

    async def drop_checkpoint(self, session_id: str, name: str) -> None:
        """Remove a checkpoint and free its memory."""
        await self.access.session(session_id, EXECUTE).checkpoints.remove(name)

    async def diff(self, session_id: str, to: str | None = None, *, compare_seconds: float = DIFF_SECONDS) -> Diff:
        """Compare a checkpoint, another session or a snapshot with the session as it is now.

        Default: the checkpoint that `rollback` would go back to. Variables are compared for `compare_seconds`; those
        after that are `unknown`.
        """
        if not 0 <= compare_seconds <= MAX_DIFF_SECONDS:
            raise errors.InvalidRequest(f"compare_seconds is {compare_seconds}; it must be 0 to {MAX_DIFF_SECONDS:g}")
        return await self.access.session(session_id, EXECUTE).diff(to, compare_seconds)

    async def rollback(self, session_id: str, name: str | None = None) -> RolledBack:
        """Go back to a checkpoint. Default: to before the last cell, or to the newest checkpoint if that is gone."""
        return await self.access.session(session_id, EXECUTE).rollback(name)
