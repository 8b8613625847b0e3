"""Files of a session's folder."""

from collections.abc import AsyncIterator

from ingle.callers import EXECUTE
from ingle.events import FileInfo, FileList
from ingle.nodes import OpenFile
from ingle.service.access import Acting


class Files(Acting):
    async def list_files(self, session_id: str, folder: str = "") -> FileList:
        return await self._node.files(self._own(session_id), folder)

    async def open_file(self, session_id: str, path: str) -> OpenFile:
        """A file of the session's folder; whoever asked closes it."""
        return await self._node.open_file(self._own(session_id), path)

    async def write_file(self, session_id: str, path: str, chunks: AsyncIterator[bytes]) -> tuple[FileInfo, bool]:
        """Put a file into the session's folder, in one step; what it is, and whether it is new."""
        own_id = self._own(session_id, EXECUTE)
        return await self._node.write_file(own_id, path, chunks, self.settings.max_file)

    async def remove_file(self, session_id: str, path: str) -> None:
        await self._node.remove_file(self._own(session_id, EXECUTE), path)
