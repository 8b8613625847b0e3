"""Regular files that a live copy has open below the session's folder.

A fork shares positions in open files with the original. A copy opens them again, so that each has positions of its own.
It also remembers their paths: after a rollback, or in a folder of its own, a file may be another one of the same path.
"""

import fcntl
import os
import stat

from ingle_worker.trees.inherited import lead_nowhere, named
from ingle_worker.trees.mappings import Mapping, find_mappings, read_maps

DELETED = " (deleted)"

_ONLY_AT_OPENING = os.O_CREAT | os.O_EXCL | os.O_TRUNC

Identity = tuple[int, int]
"""Device and inode: a file that is seen through an overlay has the inode of the file below."""


class OpenFiles:
    def __init__(self) -> None:
        self._paths: dict[int, tuple[str, Identity]] = {}
        """By descriptor: the path and which file it is."""
        self._cwd = ""
        self._left = ""
        """Working directory of a copy that is about to enter its view."""
        self._mapped: list[Mapping] = []

    def forget(self) -> None:
        """Forget the paths: code runs now, and may change them."""
        if self._paths or self._cwd or self._mapped:
            self._paths = {}
            self._cwd = ""
            self._mapped = []

    def separate(self, folder: str, tracked: "list[str]") -> None:
        """Give this process its own positions in all open files below the folders. Does nothing without a folder."""
        if not folder:
            return
        known, self._paths = self._paths, {}
        if not self._mapped:
            # A parked copy has noted this already, at its own moment.
            self.note_mapped(read_maps(), folder, *tracked)
        opened = _Opened()
        folders = (folder, *tracked)
        for fd, path in _opened_below(*folders):
            try:
                about, flags = os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GETFL)
            except OSError:
                continue
            try:
                if stat.S_ISDIR(about.st_mode) or flags & os.O_PATH:
                    self._paths[fd] = path, _identity(about)
                    continue
                if not stat.S_ISREG(about.st_mode):
                    continue
                opened.open_again(fd, about.st_ino, f"/proc/self/fd/{fd}", flags & ~os.O_NOFOLLOW)
            except OSError:
                pass  # it stays shared with the original, unless the copy finds another file at this path
            if not path.endswith(DELETED):
                self._paths[fd] = path, _identity(about)
            elif fd in known and known[fd][1] == _identity(about):
                # This is a copy of a parked copy, and the file was removed since that one was made.
                self._paths[fd] = known[fd]
        if not self._cwd:
            cwd = working_directory()
            self._cwd = cwd if _is_below(cwd, folders) else ""

    def note(self, folder: str, more: "list[str]") -> None:
        """Remember which files below the folders are open or mapped, and the working directory."""
        self.note_mapped(read_maps(), folder, *more)
        self._paths = {}
        for fd, path in _opened_below(folder, *more):
            if not path.endswith(DELETED):
                self._paths[fd] = path, _identity(os.fstat(fd))
        self._left = working_directory()
        self._cwd = self._left if _is_below(self._left, (folder, *more)) else ""

    def note_mapped(self, maps: bytes, *folders: str) -> None:
        """Remember which files below the folders are mapped, while their paths are those of the original."""
        self._mapped = find_mappings(maps, *folders)

    def leave(self) -> None:
        """Remember the working directory. A process that enters a mount namespace starts at its root."""
        self._left = working_directory()

    def reopen(self, source: str = "", target: str = "", *, cut_off: bool = False) -> list[str]:
        """Open the files at the same paths that were replaced since. Return notices of those that cannot be opened.

        Files below `source` are opened below `target`. Mapped files are mapped from there too. If `cut_off`, a file
        that cannot be opened again is closed: it is one of another session.
        """
        lost = []
        opened = _Opened()
        self._mapped = [each for each in self._mapped if not _map_again(each, _moved(each.path, source, target))]
        for fd, (path, identity) in self._paths.items():
            place = _moved(path, source, target)
            try:
                if _identity(os.fstat(fd)) != identity:
                    continue
                if _identity(os.stat(place, follow_symlinks=False)) == identity:
                    continue
                opened.open_again(fd, identity[1], place, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NOFOLLOW)
                self._paths[fd] = place, _identity(os.fstat(fd))
            except OSError as error:
                lost.append(f"{path} ({error.strerror})")
                if cut_off:
                    lead_nowhere(fd)
        self._cwd = _moved(self._cwd, source, target)
        if cwd := self._cwd or self._left:
            try:
                os.chdir(cwd)
            except OSError as error:
                lost.append(f"{cwd} ({error.strerror})")
        self._left = ""
        return named("open files that could not be opened again", lost)

    def shared(self) -> list[str]:
        """Return notices of the files that a copy still shares with the original, of whose files it has copies."""
        mapped = sorted({each.path for each in self._mapped})
        deleted = [path for _, path in _opened_below("") if path.endswith(DELETED) and not path.startswith("/dev/")]
        deleted = [path.removesuffix(DELETED) for path in deleted if path.removesuffix(DELETED) not in mapped]
        return [
            *named("files that are mapped, and shared with the original", mapped),
            *named("deleted files that are open, and shared with the original", deleted),
        ]


class _Opened:
    """Files that were opened anew in the place of descriptors."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int, int], int] = {}
        """By inode, flags and position: descriptors of one open file have all three in common."""

    def open_again(self, fd: int, inode: int, path: str, flags: int) -> None:
        """Put a newly opened file in the place of a descriptor, at its position. Raises OSError."""
        position = _position(fd)
        same = (inode, flags, position)
        if flags & os.O_ACCMODE != os.O_RDONLY and same in self._written:
            os.dup2(self._written[same], fd, inheritable=os.get_inheritable(fd))
            return
        own = os.open(path, (flags & ~_ONLY_AT_OPENING) | os.O_CLOEXEC)
        try:
            if position:
                os.lseek(own, position, os.SEEK_SET)
            os.dup2(own, fd, inheritable=os.get_inheritable(fd))
        finally:
            os.close(own)
        self._written[same] = fd


def _identity(about: os.stat_result) -> Identity:
    return about.st_dev, about.st_ino


def _moved(path: str, source: str, target: str) -> str:
    if source and (path == source or path.startswith(source + "/")):
        return target + path[len(source) :]
    return path


def _map_again(mapping: Mapping, path: str) -> bool:
    """Map the file at a path instead. Return False if that is not possible, so that the memory stays shared."""
    try:
        mapping.move_to(path)
    except OSError:
        return False
    return True


def _position(fd: int) -> int:
    """Return the position in a file; 0 for a folder or a path."""
    return os.lseek(fd, 0, os.SEEK_CUR) if stat.S_ISREG(os.fstat(fd).st_mode) and not _is_path(fd) else 0


def _is_path(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH)


def working_directory() -> str:
    """Return the path of the working directory, or nothing if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _is_below(path: str, folders: "tuple[str, ...]") -> bool:
    """Return whether a path is one of the folders, or lies in one. The root is written as nothing."""
    return path in folders or path.startswith(tuple(f"{folder}/" for folder in folders))


def _opened_below(*folders: str) -> list[tuple[int, str]]:
    """Return descriptors with the paths of their files."""
    found = []
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return []
    for name in names:
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if _is_below(path, folders):
            found.append((int(name), path))
    return sorted(found)
