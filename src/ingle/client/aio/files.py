"""Files of a session: read, written, listed, and copied as whole folders."""

import os

from ingle.client.address import file_address
from ingle.client.aio.attached import AsyncAttached
from ingle.client.aio.io import in_thread
from ingle.client.decode import read
from ingle.client.transfer import Download, Transferred, Upload
from ingle.files import FileInfo, FileList, Unpacked


class AsyncFiles(AsyncAttached):
    """Methods for files. A path starts at the session's folder; an absolute one lies in a granted folder."""

    async def read_file(self, path: str) -> bytes:
        """Return the contents of a file."""
        below, query = file_address(path)
        return await self._get(below, query)

    async def write_file(self, path: str, data: bytes | str) -> FileInfo:
        """Write a file atomically, and create missing folders. Text is encoded as UTF-8."""
        content = data.encode() if isinstance(data, str) else data
        below, query = file_address(path)
        said = await self._request("PUT", below, content=content, query=query, repeatable=True)
        return read(said, FileInfo)

    async def list_files(self, folder: str = "") -> list[FileInfo]:
        """Return the files in the session's folder, or in another one."""
        return read(await self._get("/files", {"folder": folder} if folder else None), FileList).files

    async def delete_file(self, path: str) -> None:
        """Remove a file, or an empty folder."""
        below, query = file_address(path)
        await self._request("DELETE", below, query=query)

    async def upload(self, local: "str | os.PathLike[str]", remote: str | None = None) -> Transferred:
        """Copy a local file or folder to the path `remote` in the session; default: under its own name.

        Files that exist are replaced, others in the folder stay. Links are copied as links. `skipped` in the answer
        names what was left out.
        """
        await self._attach()
        upload = await in_thread(Upload, local, remote)
        try:
            said = await self._connection.send("PUT", self._path + "/archive", upload.pieces(), {"path": upload.folder})
        finally:
            upload.close()
        unpacked = read(said, Unpacked)
        return upload.done(unpacked.files, unpacked.bytes)

    async def download(self, remote: str, local: "str | os.PathLike[str] | None" = None) -> Transferred:
        """Copy a file or folder of the session to the path `local`; default: under its own name.

        Files that exist are replaced, others in the folder stay. Links are copied as links, without those that lead
        out of the folder. `skipped` in the answer names what was left out.
        """
        await self._attach()
        target = local if local is not None else remote.rstrip("/").rpartition("/")[2] or self.name
        download = Download(target)
        try:
            await self._connection.receive("GET", self._path + "/archive", download.feed, {"path": remote})
            return await in_thread(download.finish)
        finally:
            download.close()
