"""Verbs for what outlives a session: its snapshots, and the user's library."""

from collections.abc import AsyncIterator

from ingle import errors
from ingle.callers import ADMIN, EXECUTE, READ
from ingle.events import Restored, Saved, SnapshotInfo, Stdlib, StdlibChange
from ingle.nodes import OpenFile
from ingle.requests import NewSession
from ingle.service.validation import check_seconds
from ingle.service.verbs import Verbs
from ingle.sessions.spec import check_name
from ingle.snapshots.user_library import MAX_BYTES


class Snapshots(Verbs):
    async def save_session(self, session_id: str, target: str, *, start: str | None = None) -> Saved:
        """Save a session under a name, or to a file below its folder or the folder `start`.

        The session is paused for a moment only. The answer names what could not be saved.
        """
        return await self.access.session(session_id, EXECUTE).save(target, start)

    async def load_session(
        self,
        source: str,
        session_id: str | None = None,
        *,
        python: str | None = None,
        cwd: str | None = None,
        idle_timeout: float | None = None,
        isolation: str | None = None,
        start: str | None = None,
        trust: bool = False,
        rerun: bool = False,
        durable: bool = False,
    ) -> Restored:
        """Create a session with the variables of a snapshot. Default name: that of the saved session.

        The answer names what could not be saved, with the cells that made it; `rerun` runs these cells again.

        A snapshot that this ingle did not write for this caller is refused, unless a caller with the scope `admin`
        sets `trust`. The new session is confined at least as far as the saved one was.
        """
        self.access.check(EXECUTE)
        if trust:
            self.access.check(ADMIN)
        check_seconds("idle_timeout", idle_timeout)
        await self.access.check_sessions()
        caller = self.access.caller
        new = NewSession(
            session_id=session_id,
            tenant=caller.tenant,
            python=python,
            cwd=cwd,
            idle_timeout=idle_timeout,
            isolation=isolation,
            durable=durable,
            bounds=caller.bounds,
        )
        restored = await self._node.snapshots.load(new, source, start, trust=trust, rerun=rerun)
        await self.access.keep(restored.session)
        return restored

    async def list_snapshots(self) -> list[SnapshotInfo]:
        return [each async for each in self.each_snapshot()]

    def each_snapshot(self) -> AsyncIterator[SnapshotInfo]:
        """Yield snapshots one by one: each may name a hundred thousand variables."""
        self.access.check(READ)
        return self._node.snapshots.list(self.access.caller.tenant)

    async def delete_snapshot(self, name: str) -> None:
        self.access.check(EXECUTE)
        await self._node.snapshots.delete(self.access.caller.tenant, name)

    async def open_snapshot(self, name: str) -> OpenFile:
        """Return a snapshot as one portable file. The caller closes it."""
        self.access.check(READ)
        return await self._node.snapshots.open(self.access.caller.tenant, name)

    async def write_snapshot(self, name: str, chunks: AsyncIterator[bytes]) -> SnapshotInfo:
        """Store a portable file under a name. Loading it checks who wrote it."""
        self.access.check(EXECUTE)
        check_name(name)
        return await self._node.snapshots.write(self.access.caller.tenant, name, chunks, self.settings.max_snapshot)

    async def list_stdlib(self) -> Stdlib:
        self.access.check(READ)
        return await self._node.library.list(self.access.caller.tenant)

    async def add_to_stdlib(self, function_code: str) -> StdlibChange:
        """Add code to the library that new sessions load, once the code has compiled and run."""
        self.access.check(EXECUTE)
        self.access.check_accepting()
        if len(function_code) > MAX_BYTES:
            raise errors.InvalidRequest(f"the code has more than {MAX_BYTES} characters; put data into files")
        caller = self.access.caller
        return await self._node.library.add(caller.tenant, function_code, caller.bounds)
