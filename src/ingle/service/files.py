"""Verbs for the files of a session. Paths start at its folder; absolute ones lie in a granted folder."""

from collections.abc import AsyncIterator

from ingle.callers import EXECUTE
from ingle.files import FileInfo, FileList, Unpacked
from ingle.nodes import OpenArchive, OpenFile
from ingle.service.verbs import Verbs


class Files(Verbs):
    async def list_files(self, session_id: str, folder: str = "") -> FileList:
        return await (await self.access.session(session_id).files()).list(folder)

    async def open_file(self, session_id: str, path: str) -> OpenFile:
        """Open a file of the session's folder. The caller closes it."""
        return await (await self.access.session(session_id).files()).open(path)

    async def write_file(self, session_id: str, path: str, chunks: AsyncIterator[bytes]) -> tuple[FileInfo, bool]:
        """Write a file in one step. Return what it is now, and whether it is new."""
        folder = await self.access.session(session_id, EXECUTE).files()
        return await folder.write(path, chunks, self.settings.max_file)

    async def remove_file(self, session_id: str, path: str, *, whole: bool = False) -> None:
        """Remove a file or an empty folder; with `whole` a folder and all in it."""
        await (await self.access.session(session_id, EXECUTE).files()).remove(path, whole=whole)

    async def stat_file(self, session_id: str, path: str) -> FileInfo:
        """Describe a file, a folder, or a link itself."""
        return await (await self.access.session(session_id).files()).stat(path)

    async def make_folder(self, session_id: str, path: str) -> tuple[FileInfo, bool]:
        """Make a folder and those around it. Return what it is now, and whether it is new."""
        return await (await self.access.session(session_id, EXECUTE).files()).make_folder(path)

    async def move_file(self, session_id: str, path: str, target: str) -> FileInfo:
        """Move a file or a folder, and replace a file at the target."""
        return await (await self.access.session(session_id, EXECUTE).files()).move(path, target)

    async def open_archive(self, session_id: str, path: str = "") -> OpenArchive:
        """Open a file or a folder as a tar stream. The caller closes it."""
        return await (await self.access.session(session_id).files()).pack(path)

    async def write_archive(self, session_id: str, path: str, chunks: AsyncIterator[bytes]) -> Unpacked:
        """Unpack a tar stream into a folder."""
        folder = await self.access.session(session_id, EXECUTE).files()
        return await folder.unpack(path, chunks, self.settings.max_archive)
