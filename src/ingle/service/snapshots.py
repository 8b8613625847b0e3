"""What outlives a session: snapshots of it, and the user's library."""

from collections.abc import AsyncIterator

from ingle import errors
from ingle.callers import ADMIN, EXECUTE, READ
from ingle.events import Restored, Saved, SnapshotInfo, Stdlib, StdlibChange
from ingle.nodes import OpenFile
from ingle.requests import NewSession
from ingle.service.access import Acting
from ingle.service.validation import check_seconds
from ingle.sessions.manager import check_name
from ingle.snapshots.user_library import MAX_BYTES


class Keeping(Acting):
    async def save_session(self, session_id: str, target: str, *, start: str | None = None) -> Saved:
        """Save a session under a name, or as a file below its folder, or below `start` where a door has such a folder.

        The session is held up for a moment only; what cannot be saved is named in the answer.
        """
        return await self._node.save(self._own(session_id, EXECUTE), target, start)

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
    ) -> Restored:
        """A new session with what a snapshot holds; without a name it has the one that the saved session had.

        What could not be saved is named, with the cells that made it; `rerun` runs these again.

        A snapshot that this ingle did not write for this caller is refused, unless one who may administer the server
        says to `trust` it. It is confined at least as far as the saved session was.
        """
        self.check(EXECUTE)
        if trust:
            self.check(ADMIN)
        check_seconds("idle_timeout", idle_timeout)
        await self._check_sessions()
        wanted = NewSession(
            session_id=session_id,
            tenant=self.caller.tenant,
            python=python,
            cwd=cwd,
            idle_timeout=idle_timeout,
            isolation=isolation,
            bounds=self.caller.bounds,
        )
        return await self._node.restore(wanted, source, start, trust=trust, rerun=rerun)

    async def list_snapshots(self) -> list[SnapshotInfo]:
        self.check(READ)
        return await self._node.snapshots(self.caller.tenant)

    async def delete_snapshot(self, name: str) -> None:
        self.check(EXECUTE)
        await self._node.delete_snapshot(self.caller.tenant, name)

    async def open_snapshot(self, name: str) -> OpenFile:
        """A snapshot as one portable file; whoever has it closes it."""
        self.check(READ)
        return await self._node.open_snapshot(self.caller.tenant, name)

    async def write_snapshot(self, name: str, chunks: AsyncIterator[bytes]) -> SnapshotInfo:
        """Keep a portable file under a name. Whether it is to be trusted is asked when it is loaded."""
        self.check(EXECUTE)
        check_name(name)
        return await self._node.write_snapshot(self.caller.tenant, name, chunks)

    async def list_stdlib(self) -> Stdlib:
        self.check(READ)
        return await self._node.stdlib(self.caller.tenant)

    async def add_to_stdlib(self, function_code: str) -> StdlibChange:
        """Add code to the library that new sessions begin with, once it has been seen to compile and run."""
        self.check(EXECUTE)
        self._check_beginning()
        if len(function_code) > MAX_BYTES:
            raise errors.InvalidRequest(f"the code has more than {MAX_BYTES} characters; put data into files")
        return await self._node.add_to_stdlib(self.caller.tenant, function_code, self.caller.bounds)
