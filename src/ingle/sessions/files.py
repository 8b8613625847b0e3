"""Files of a session's folder, for callers who are not in it: read, written whole, listed, removed.

A path is walked one folder at a time from a descriptor of the session's folder, and no link is followed anywhere on
the way. So nothing outside is reached, whatever the code of the session does to its folder meanwhile. A file is
written beside its place and moved there when it is whole. Every function here blocks, and is called in a thread.
"""

import asyncio
import contextlib
import errno
import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from ingle import errors
from ingle.events import FileInfo, FileList

CHUNK = 256 * 1024
MAX_LISTED = 10_000
MAX_DEPTH = 64
MAX_NAME = 255

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def parts_of(path: str) -> list[str]:
    """The names on the way to a file; no name leads back up or nowhere."""
    parts = path.split("/")
    for part in parts:
        if part in ("", ".", "..") or "\0" in part or len(os.fsencode(_plain(part))) > MAX_NAME:
            raise errors.InvalidRequest(
                f"{path[:200]!r} is not the path of a file in the session's folder: give it relative to that folder, "
                "without '.', '..' or empty parts"
            )
    if len(parts) > MAX_DEPTH:
        raise errors.InvalidRequest(f"the path has {len(parts)} parts; {MAX_DEPTH} are allowed")
    return parts


def _plain(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@contextlib.contextmanager
def failing_plainly(path: str) -> Iterator[None]:
    """What the system says, as an error of ours."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise errors.FileNotThere(path) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise errors.InvalidRequest(f"{path[:200]!r} leads over a link, and links are not followed") from None
        if error.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise errors.Conflict(f"{path[:200]!r} is a folder, or not empty: {error.strerror}") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENXIO):
            raise errors.InvalidRequest(f"{path[:200]!r} cannot be used: {error.strerror}") from None
        raise errors.Unavailable(f"{path[:200]!r} could not be read or written: {error.strerror}") from None
    except UnicodeEncodeError:
        raise errors.InvalidRequest("the path is not text that can name a file") from None


def _make(name: str, folder: int) -> bool:
    """Whether it is new."""
    try:
        os.mkdir(name, 0o755, dir_fd=folder)
    except FileExistsError:
        return False
    return True


def _give(fd: int, folder: int) -> None:
    """What is put into a folder belongs to its owner: where the server is root, sessions are others."""
    if os.geteuid() == 0:
        about = os.fstat(folder)
        os.fchown(fd, about.st_uid, about.st_gid)


class Folder:
    """The folder of one session. `fixed` says that it is one of ours, which must not have become a link. `real` that
    there was no link on the whole way to it when it was granted: what lies above it may be the session's to write."""

    def __init__(self, root: Path, fixed: bool, *, real: bool = False) -> None:
        self.root = root
        self._flags = _FOLDER if fixed else _FOLDER & ~os.O_NOFOLLOW
        self._real = real

    def _open_root(self) -> int:
        if not self._real:
            return os.open(self.root, self._flags)
        fd = os.open("/", _ON_THE_WAY)
        way = self.root.parts[1:]
        try:
            for number, part in enumerate(way, 1):
                below = os.open(part, _FOLDER if number == len(way) else _ON_THE_WAY, dir_fd=fd)
                os.close(fd)
                fd = below
        except BaseException:
            os.close(fd)
            raise
        return fd

    @contextlib.contextmanager
    def _at(self, parts: list[str], make: bool = False) -> Iterator[int]:
        """A descriptor of the folder reached by these names."""
        fd = self._open_root()
        try:
            for part in parts:
                made = make and _make(part, fd)
                try:
                    below = os.open(part, _FOLDER, dir_fd=fd)
                except NotADirectoryError:
                    # With O_DIRECTORY a link is told as this, too.
                    if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
                    raise
                if made and not os.listdir(below):
                    # Should it be another one by now, nothing is given away with it.
                    _give(below, fd)
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)

    def list(self, path: str) -> FileList:
        with failing_plainly(path), self._at(parts_of(path) if path else []) as fd:
            infos: list[FileInfo] = []
            whole = True
            with os.scandir(fd) as entries:
                for entry in entries:
                    if len(infos) == MAX_LISTED:
                        whole = False
                        break
                    with contextlib.suppress(FileNotFoundError):
                        infos.append(_info(_plain(entry.name), entry.stat(follow_symlinks=False)))
            return FileList(path, sorted(infos, key=lambda info: info.name), not whole)

    def open(self, path: str) -> "OpenFile":
        """A file to read from."""
        *way, name = parts_of(path)
        with failing_plainly(path):
            with self._at(way) as folder:
                # Not blocking: a pipe without a writer would hold this thread up.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(name, flags, dir_fd=folder)
            try:
                about = os.fstat(fd)
                if stat.S_ISDIR(about.st_mode):
                    raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
                if not stat.S_ISREG(about.st_mode):
                    raise errors.InvalidRequest(f"{path[:200]!r} is no regular file; only such can be read")
            except BaseException:
                os.close(fd)
                raise
            return OpenFile(fd, about)

    def begin(self, path: str, mode: int = 0o644) -> "Draft":
        """A file to be written; the folders on the way are made."""
        *way, name = parts_of(path)
        with failing_plainly(path), self._at(way, make=True) as folder:
            draft = f".{secrets.token_hex(8)}.part"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(draft, flags, mode, dir_fd=folder)
            _give(fd, folder)
            return Draft(path, name, draft, os.dup(folder), fd)

    def remove(self, path: str) -> None:
        """A file, a link itself, or an empty folder."""
        *way, name = parts_of(path)
        with failing_plainly(path), self._at(way) as folder:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)


class OpenFile:
    """A file that is being read. It has the size it had when it was opened, or is broken off."""

    def __init__(self, fd: int, about: os.stat_result) -> None:
        self._fd = fd
        self.size = about.st_size
        self.modified = about.st_mtime
        self.tag = f"{about.st_ino:x}-{about.st_mtime_ns:x}-{about.st_size:x}"

    async def chunks(self, start: int, count: int) -> AsyncIterator[bytes]:
        end = start + count
        while start < end:
            data = await asyncio.to_thread(os.pread, self._fd, min(CHUNK, end - start), start)
            if not data:
                raise errors.Conflict("the file became shorter while it was read; ask again")
            start += len(data)
            yield data

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Draft:
    """A file that is being written, under a name of its own until it is whole."""

    def __init__(self, path: str, name: str, draft: str, folder: int, fd: int) -> None:
        self._path, self._name, self._draft, self._folder, self._fd = path, name, draft, folder, fd
        self._size = 0

    def write(self, data: bytes) -> None:
        with failing_plainly(self._path):
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        self._size += len(data)

    def fileno(self) -> int:
        return self._fd

    def finish(self) -> tuple[FileInfo, bool]:
        """Put it in its place, in one step. What it is now, and whether it is new there."""
        with failing_plainly(self._path):
            os.fsync(self._fd)
            try:
                before = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            except FileNotFoundError:
                before = None
            os.rename(self._draft, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            return _info(self._path, os.fstat(self._fd)), before is None

    def close(self) -> None:
        """Let go of it; what was not finished is removed."""
        with contextlib.suppress(OSError):
            os.unlink(self._draft, dir_fd=self._folder)
        os.close(self._fd)
        os.close(self._folder)


async def write_file(folder: Folder, path: str, chunks: AsyncIterator[bytes], limit: int) -> tuple[FileInfo, bool]:
    """Write what comes to a file, in one step as others see it."""
    draft = await asyncio.to_thread(folder.begin, path)
    try:
        size = 0
        async for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise errors.TooLarge(
                    f"the file is above the limit of {limit} bytes; raise max_file, or send it in parts"
                )
            await asyncio.to_thread(draft.write, chunk)
        return await asyncio.to_thread(draft.finish)
    finally:
        await asyncio.to_thread(draft.close)


def _info(name: str, about: os.stat_result) -> FileInfo:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    return FileInfo(name, kinds.get(stat.S_IFMT(about.st_mode), "other"), about.st_size, about.st_mtime)
