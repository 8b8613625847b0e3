# Generated from ../aio/files.py by tools/unasync.py: edit that file, and run the script.
"""Files of a session: read, written, listed, and copied as whole folders."""

import os

from ingle.client.address import file_address
from ingle.client.decode import read
from ingle.client.sync.attached import Attached
from ingle.client.sync.io import in_thread
from ingle.client.transfer import Download, Transferred, Upload
from ingle.files import FileInfo, FileList, Unpacked


class Files(Attached):
    """Methods for files. A path starts at the session's folder; an absolute one lies in a granted folder."""

    def read_file(self, path: str) -> bytes:
        """Return the contents of a file."""
        below, query = file_address(path)
        return self._get(below, query)

    def write_file(self, path: str, data: bytes | str) -> FileInfo:
        """Write a file atomically, and create missing folders. Text is encoded as UTF-8."""
        content = data.encode() if isinstance(data, str) else data
        below, query = file_address(path)
        said = self._request("PUT", below, content=content, query=query, repeatable=True)
        return read(said, FileInfo)

    def list_files(self, folder: str = "") -> list[FileInfo]:
        """Return the files in the session's folder, or in another one."""
        return read(self._get("/files", {"folder": folder} if folder else None), FileList).files

    def delete_file(self, path: str) -> None:
        """Remove a file, or an empty folder."""
        below, query = file_address(path)
        self._request("DELETE", below, query=query)

    def upload(self, local: "str | os.PathLike[str]", remote: str | None = None) -> Transferred:
        """Copy a local file or folder to the path `remote` in the session; default: under its own name.

        Files that exist are replaced, others in the folder stay. Links are copied as links. `skipped` in the answer
        names what was left out.
        """
        self._attach()
        upload = in_thread(Upload, local, remote)
        try:
            said = self._connection.send("PUT", self._path + "/archive", upload.pieces(), {"path": upload.folder})
        finally:
            upload.close()
        unpacked = read(said, Unpacked)
        return upload.done(unpacked.files, unpacked.bytes)

    def download(self, remote: str, local: "str | os.PathLike[str] | None" = None) -> Transferred:
        """Copy a file or folder of the session to the path `local`; default: under its own name.

        Files that exist are replaced, others in the folder stay. Links are copied as links, without those that lead
        out of the folder. `skipped` in the answer names what was left out.
        """
        self._attach()
        target = local if local is not None else remote.rstrip("/").rpartition("/")[2] or self.name
        download = Download(target)
        try:
            self._connection.receive("GET", self._path + "/archive", download.feed, {"path": remote})
            return in_thread(download.finish)
        finally:
            download.close()
