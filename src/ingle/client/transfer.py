"""Local side of uploads and downloads: files and folders as tar streams. Every function blocks.

A stream comes from a session, so it is untrusted. Nothing is written outside of the target, and links that lead out of
it are not made.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from ingle import errors
from ingle_worker.archive.pack import Packer
from ingle_worker.archive.tar_format import BLOCK, Malformed
from ingle_worker.archive.unpack import Unpacker

BATCH_BYTES = 256 * 1024

FOLDER_ITSELF = b"./\0"
"""Begin of the stream of a folder. That of a file begins with its name."""


@dataclass(frozen=True)
class Transferred:
    """What was copied."""

    files: int
    """Files and links."""
    bytes: int
    skipped: list[str] = field(default_factory=list)
    """What was left out, with the reason: pipes, unreadable files, links that lead out."""


class Upload:
    """A local file or folder as the body of a request. `folder` is where the session unpacks it."""

    def __init__(self, local: str | os.PathLike[str], remote: str | None) -> None:
        """`remote` is the path of the copy in the session. Default: the name of the original."""
        if remote is None:
            remote = os.path.basename(os.path.abspath(local))
        self._local = os.fspath(local)
        self._packer = Packer()
        remote = remote.rstrip("/") or "/"
        self._descriptor = os.open(self._local, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._about = os.fstat(self._descriptor)
        self.is_folder = stat.S_ISDIR(self._about.st_mode)
        if not self.is_folder and not stat.S_ISREG(self._about.st_mode):
            os.close(self._descriptor)
            raise errors.InvalidRequest(f"{self._local} is neither a file nor a folder")
        parent, slash, self._name = remote.rpartition("/")
        self.folder = remote if self.is_folder else parent or slash

    def pieces(self) -> Iterator[bytes]:
        """Yield the stream in pieces of some size."""
        if self.is_folder:
            stream = self._packer.folder(self._descriptor)
        else:
            stream = self._packer.file(self._name, self._descriptor, self._about)
        batch = bytearray()
        for piece in stream:
            batch += piece
            if len(batch) >= BATCH_BYTES:
                yield bytes(batch)
                batch.clear()
        yield bytes(batch)

    def close(self) -> None:
        os.close(self._descriptor)

    def done(self, files: int, size: int) -> Transferred:
        return Transferred(files, size, self._packer.left_out)


class Download:
    """A stream that becomes a local file or folder. Close it after use, also after an error."""

    def __init__(self, local: str | os.PathLike[str]) -> None:
        self._local = os.fspath(local)
        self._begin = b""
        self._root = -1
        self._unpacker: Unpacker | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._unpacker is None:
            self._begin += data
            if len(self._begin) < BLOCK:
                return
            data, self._begin = self._begin, b""
            self._unpacker = self._open(data.startswith(FOLDER_ITSELF))
        try:
            self._unpacker.feed(data)
        except Malformed as error:
            raise errors.Conflict(f"the archive of the session is refused: {error}") from None

    def _open(self, is_folder: bool) -> Unpacker:
        local = self._local.rstrip("/") or "/"
        parent, name = os.path.split(local)
        folder = local if is_folder else parent or "."
        os.makedirs(folder, exist_ok=True)
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return Unpacker(self._root, name=None if is_folder else name, links_out=False)

    def finish(self) -> Transferred:
        """Complete the copy. Raise Conflict if the stream has not ended."""
        if self._unpacker is None:
            raise errors.Conflict("the archive of the session is empty; ask again")
        try:
            self._unpacker.finish()
        except Malformed as error:
            raise errors.Conflict(f"the archive of the session is refused: {error}") from None
        return Transferred(self._unpacker.files, self._unpacker.bytes, self._unpacker.skipped)

    def close(self) -> None:
        if self._unpacker is not None:
            self._unpacker.close()
        if self._root >= 0:
            os.close(self._root)
