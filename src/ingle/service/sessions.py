"""Sessions: made, listed, ended, cleared; copied, and taken back to what they were."""

from ingle import errors
from ingle.callers import EXECUTE, READ
from ingle.events import CheckpointInfo, RolledBack, SessionInfo
from ingle.requests import NewSession, SessionLimits
from ingle.service.access import Acting
from ingle.service.validation import check_choice, check_environment, check_key, check_seconds
from ingle.sessions.manager import check_name


class Sessions(Acting):
    async def create_session(
        self,
        session_id: str | None = None,
        *,
        python: str | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        idle_timeout: float | None = None,
        include_stdlib: bool = True,
        durable: bool = False,
        isolation: str | None = None,
        network: str | None = None,
        limits: SessionLimits | None = None,
        checkpoints: str | None = None,
    ) -> SessionInfo:
        self.check(EXECUTE)
        check_environment(env)
        check_choice("checkpoints", checkpoints, ("manual", "auto"))
        check_seconds("idle_timeout", idle_timeout)
        await self._check_sessions()
        return await self._node.create(
            NewSession(
                session_id=session_id,
                tenant=self.caller.tenant,
                python=python,
                cwd=cwd,
                env=env or {},
                idle_timeout=idle_timeout,
                include_stdlib=include_stdlib,
                durable=durable,
                isolation=isolation,
                network=network,
                limits=limits or SessionLimits(),
                checkpoints=checkpoints,
                bounds=self.caller.bounds,
            )
        )

    async def list_sessions(self) -> list[SessionInfo]:
        self.check(READ)
        return await self._node.sessions(self.caller.tenant)

    async def get_session(self, session_id: str) -> SessionInfo:
        return await self._node.info(self._own(session_id))

    async def end_session(self, session_id: str, *, request_key: str | None = None) -> SessionInfo:
        """End it, and answer with what it was. The same `request_key` never ends another one of that name."""
        check_key(request_key)
        own_id = self._own(session_id, EXECUTE)
        key = None if request_key is None else f"{self.caller.tenant}/{request_key}"
        return await self.once(key, ("end", session_id), lambda: self._node.end(own_id))

    async def clear_session(self, session_id: str) -> SessionInfo:
        """Reset the namespace to the initial one; the session, its count and its outputs stay."""
        return await self._node.clear(self._own(session_id, EXECUTE))

    async def fork_session(
        self, session_id: str, new_id: str | None = None, *, count: int = 1, reseed: bool = False
    ) -> list[SessionInfo]:
        """Live copies of a session as it is now. Several are named `new_id-1` and so on; without a name, at random."""
        own_id = self._own(session_id, EXECUTE)
        most = self.settings.max_forks
        if not 1 <= count <= most:
            raise errors.InvalidRequest(f"count is {count}; it must be 1 to {most}")
        self._check_beginning()
        await self._check_sessions(count)
        names: list[str | None] = [new_id]
        if count > 1:
            names = [None if new_id is None else f"{new_id}-{number}" for number in range(1, count + 1)]
        return await self._node.fork(own_id, names, reseed=reseed)

    async def checkpoint(self, session_id: str, name: str) -> CheckpointInfo:
        """Keep the session as it is now, in memory, under this name."""
        own_id = self._own(session_id, EXECUTE)
        check_name(name)
        return await self._node.checkpoint(own_id, name)

    async def checkpoints(self, session_id: str) -> list[CheckpointInfo]:
        return await self._node.checkpoints(self._own(session_id))

    async def drop_checkpoint(self, session_id: str, name: str) -> None:
        """Give one up, and free its memory."""
        await self._node.drop_checkpoint(self._own(session_id, EXECUTE), name)

    async def rollback(self, session_id: str, name: str | None = None) -> RolledBack:
        """Go back to a checkpoint; without a name to before the last cell, or to the newest where that is not kept."""
        return await self._node.rollback(self._own(session_id, EXECUTE), name)
