"""Unpacks a tar stream below an open folder. Nothing is written outside of it, whatever the archive says.

Each step of a path is opened without following links, so a link in the folder or in the archive leads nowhere. A file
is written under another name and renamed when it is complete. Owners and set-id bits are not restored.
"""

import errno
import os
import stat

from ingle_worker.archive.tar_format import FILE, FOLDER, HARD_LINK, Entry, Malformed, TarReader

MAX_ENTRIES = 250_000
MAX_DEPTH = 100

MADE_MODE = 0o755
"""Mode of folders as they are made."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unpacker:
    """Entries of one archive as files below a folder. Close it after use, also after an error."""

    def __init__(self, root: int, *, name: str | None = None, links_out: bool = True) -> None:
        """`name` replaces the name of a single file. Without `links_out`, links that lead out are skipped."""
        self._root = root
        self._name = name
        self._links_out = links_out
        self._reader = TarReader()
        self._parent: tuple[tuple[str, ...], int] = ((), root)
        """The folder of the last entry, which is mostly that of the next one."""
        self._modes: dict[tuple[str, ...], int] = {}
        """Of folders, set at the end: some are not writable."""
        self._file: int | None = None
        self._draft = ""
        self._entry: Entry | None = None
        self._left = 0
        self._entries = 0
        self.files = 0
        self.bytes = 0
        self.skipped: list[str] = []
        self.path = ""
        """The entry that is unpacked now, for errors."""

    def feed(self, data: bytes) -> None:
        """Unpack what has come. Raise Malformed for what is refused, and OSError for what the system refuses."""
        for each in self._reader.feed(data):
            if isinstance(each, Entry):
                self._begin(each)
            else:
                self._write(each)

    def finish(self) -> None:
        """Complete the folders. Raise Malformed if the archive has not ended."""
        self._reader.close()
        for parts, mode in sorted(self._modes.items(), reverse=True):
            folder = self._open(parts, make=False)
            os.fchmod(folder, mode)

    def close(self) -> None:
        """Remove an incomplete file, and close all but the root."""
        self._discard()
        self._leave()

    # --- entries ---

    def _begin(self, entry: Entry) -> None:
        self.path = entry.path
        self._entries += 1
        if entry.comment:
            self.skipped.append(entry.comment)
        if self._entries > MAX_ENTRIES:
            raise Malformed(f"it has more than {MAX_ENTRIES} entries")
        parts = _parts(entry.path)
        if self._name is not None:
            if self._entries > 1 or entry.kind != FILE:
                raise Malformed("it holds more than one file")
            parts = (self._name,)
        if not parts:
            if entry.kind != FOLDER:
                raise Malformed(f"{entry.path[:200]!r} is no path of a file")
            return  # the folder itself, which exists
        if entry.kind == FOLDER:
            self._open(parts, make=True)
            if entry.mode != MADE_MODE:
                self._modes[parts] = entry.mode
            return
        folder = self._open(parts[:-1], make=True)
        if entry.kind == FILE:
            self._draft = _draft()
            self._file = os.open(self._draft, _NEW, 0o600, dir_fd=folder)
            self._entry, self._left = entry, entry.size
            self.files += 1
            if not self._left:
                self._complete()
        elif entry.kind == HARD_LINK:
            self._link(parts, _parts(entry.target))
        elif self._links_out or not _leads_out(parts, entry.target):
            draft = _draft()
            os.symlink(entry.target, draft, dir_fd=folder)
            self._rename(draft, parts[-1], folder)
            self.files += 1
        else:
            self.skipped.append(f"{entry.path} (a link that leads out: {entry.target[:200]})")

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self.bytes += len(data)
        self._left -= len(data)
        if not self._left:
            self._complete()

    def _complete(self) -> None:
        assert self._file is not None
        assert self._entry is not None
        entry, folder = self._entry, self._parent[1]
        os.fchmod(self._file, entry.mode)
        os.utime(self._file, (entry.modified, entry.modified))
        os.close(self._file)
        self._file = None
        self._rename(self._draft, _parts(entry.path)[-1] if self._name is None else self._name, folder)

    def _link(self, parts: tuple[str, ...], target: tuple[str, ...]) -> None:
        """Make another name of a file that was unpacked before."""
        if not target:
            raise Malformed(f"{self.path[:200]!r} links to nothing")
        # A copy of the descriptor: opening the folder of the new name closes that of the target.
        source = os.dup(self._open(target[:-1], make=False))
        draft = _draft()
        try:
            if not stat.S_ISREG(os.stat(target[-1], dir_fd=source, follow_symlinks=False).st_mode):
                raise Malformed(f"{self.path[:200]!r} links to what is no file")
            folder = self._open(parts[:-1], make=True)
            os.link(target[-1], draft, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(source)
        self._rename(draft, parts[-1], folder)
        # Two names of one file are renamed to each other without effect, and the draft stays.
        _remove(draft, folder)
        self.files += 1

    def _rename(self, draft: str, name: str, folder: int) -> None:
        try:
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _remove(draft, folder)
            raise

    def _discard(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
            _remove(self._draft, self._parent[1])

    # --- folders ---

    def _open(self, parts: tuple[str, ...], *, make: bool) -> int:
        """Return the folder with these names on the way from the root. It stays open until the next call."""
        if self._parent[0] == parts:
            return self._parent[1]
        self._leave()
        folder = self._root
        for part in parts:
            try:
                below = _enter(folder, part, make)
            finally:
                if folder != self._root:
                    os.close(folder)
            folder = below
        self._parent = (parts, folder)
        return folder

    def _leave(self) -> None:
        if self._parent[1] != self._root:
            os.close(self._parent[1])
        self._parent = ((), self._root)


def _enter(folder: int, part: str, make: bool) -> int:
    if make:
        try:
            os.mkdir(part, MADE_MODE, dir_fd=folder)
        except FileExistsError:
            pass
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except NotADirectoryError:
        # With O_DIRECTORY the kernel reports a link as this, too.
        if stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def _parts(path: str) -> tuple[str, ...]:
    """Return the names on a path. Refuse one that leads out."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if path.startswith("/") or ".." in parts:
        raise Malformed(f"{path[:200]!r} leads out of the folder")
    if len(parts) > MAX_DEPTH:
        raise Malformed(f"{path[:200]!r} is deeper than {MAX_DEPTH} folders")
    return parts


def _leads_out(parts: tuple[str, ...], target: str) -> bool:
    """Return whether a link with this path may lead out of the folder.

    After a name, `..` may lead anywhere, because the name may be a link.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    return target.startswith("/") or up > len(parts) - 1 or ".." in steps[up:]


def _draft() -> str:
    return f".{os.urandom(8).hex()}.part"


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
