"""Packs a file or a folder as a tar stream. No link is followed: links are packed as links."""

import os
import stat
from collections.abc import Iterator

from ingle_worker.archive import tar_format
from ingle_worker.archive.tar_format import FILE, FOLDER, LINK, Entry

CHUNK_BYTES = 256 * 1024
MAX_ENTRIES = 250_000
MAX_DEPTH = 100
MAX_COMMENT_CHARS = 10_000

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: a pipe without a writer would block the open.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Packer:
    """A tar stream of one file or folder. Entries that cannot be packed are left out and named at the end."""

    def __init__(self) -> None:
        self.entries = 0
        self.bytes = 0
        self.left_out: list[str] = []

    def folder(self, descriptor: int) -> Iterator[bytes]:
        """Yield the stream of an open folder. Its first entry is the folder itself, as `./`."""
        itself = Entry("./", FOLDER, stat.S_IMODE(os.fstat(descriptor).st_mode))
        yield self._entry(itself)
        yield from self._below(descriptor, "", 1)
        if self.left_out:
            # Again, with a comment: other programs refuse a header without an entry after it.
            text = "left out: " + ", ".join(self.left_out)
            yield tar_format.encode_entry(itself._replace(comment=text[:MAX_COMMENT_CHARS]))
        yield tar_format.END

    def file(self, name: str, descriptor: int, about: os.stat_result) -> Iterator[bytes]:
        """Yield the stream of one open file under this name."""
        yield from self._content(name, descriptor, about)
        yield tar_format.END

    def _entry(self, entry: Entry) -> bytes:
        self.entries += 1
        return tar_format.encode_entry(entry)

    def _below(self, descriptor: int, prefix: str, depth: int) -> Iterator[bytes]:
        with os.scandir(descriptor) as found:
            names = sorted(entry.name for entry in found)
        for name in names:
            path = prefix + name
            try:
                about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:
                continue
            why = self._refusal(about, depth)
            if why is not None:
                self.left_out.append(f"{path} ({why})")
                continue
            try:
                if stat.S_ISLNK(about.st_mode):
                    target = os.readlink(name, dir_fd=descriptor)
                    yield self._entry(Entry(path, LINK, 0o777, 0, about.st_mtime, target))
                    continue
                below = os.open(name, _FOLDER if stat.S_ISDIR(about.st_mode) else _FILE, dir_fd=descriptor)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):
                    self.left_out.append(f"{path} ({error.strerror})")
                continue
            try:
                about = os.fstat(below)
                if stat.S_ISDIR(about.st_mode):
                    yield self._entry(Entry(path, FOLDER, stat.S_IMODE(about.st_mode), 0, about.st_mtime))
                    yield from self._below(below, path + "/", depth + 1)
                elif stat.S_ISREG(about.st_mode):
                    yield from self._content(path, below, about)
            finally:
                os.close(below)

    def _refusal(self, about: os.stat_result, depth: int) -> str | None:
        if not (stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)):
            return "a pipe, a socket or a device"
        if depth > MAX_DEPTH:
            return "too deep"
        if self.entries >= MAX_ENTRIES:
            return "too many files"
        return None

    def _content(self, path: str, descriptor: int, about: os.stat_result) -> Iterator[bytes]:
        size = about.st_size
        yield self._entry(Entry(path, FILE, stat.S_IMODE(about.st_mode), size, about.st_mtime))
        left = size
        while left:
            data = os.read(descriptor, min(CHUNK_BYTES, left))
            if not data:
                # The size is already sent. Zeros would be wrong content under a right name.
                raise OSError(f"{path} became shorter while it was read")
            left -= len(data)
            self.bytes += len(data)
            yield data
        yield tar_format.encode_padding(size)
