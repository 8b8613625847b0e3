"""Regular files that a live copy has open below the session's folder.

A fork shares positions in open files with the original. A copy opens them again, so that each has positions of its own.
It also remembers their paths: after a rollback, a file may be another one of the same path.
"""

import fcntl
import os
import stat

DELETED = " (deleted)"

_ONLY_AT_OPENING = os.O_CREAT | os.O_EXCL | os.O_TRUNC
_MAX_NAMED = 5


class OpenFiles:
    def __init__(self) -> None:
        self._paths: dict[int, tuple[str, int]] = {}
        """By descriptor: the path and the inode."""
        self._cwd = ""

    def forget(self) -> None:
        """Forget the paths: code runs now, and may change them."""
        if self._paths or self._cwd:
            self._paths = {}
            self._cwd = ""

    def separate(self, folder: str) -> None:
        """Give this process its own positions in all open files below the folder. Does nothing without a folder."""
        if not folder:
            return
        known, self._paths = self._paths, {}
        written: dict[tuple[int, int, int], int] = {}
        """By inode, flags and position: descriptors of one open file have all three in common."""
        for fd, path in _opened_below(folder + "/"):
            try:
                about, flags = os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GETFL)
                if not stat.S_ISREG(about.st_mode) or flags & os.O_PATH:
                    continue
                position = os.lseek(fd, 0, os.SEEK_CUR)
                same = (about.st_ino, flags, position)
                if flags & os.O_ACCMODE != os.O_RDONLY and same in written:
                    os.dup2(written[same], fd, inheritable=os.get_inheritable(fd))
                else:
                    _open_again(fd, f"/proc/self/fd/{fd}", flags & ~os.O_NOFOLLOW, position)
                    written[same] = fd
            except OSError:
                continue  # it stays shared with the original
            if not path.endswith(DELETED):
                self._paths[fd] = path, about.st_ino
            elif fd in known and known[fd][1] == about.st_ino:
                # This is a copy of a parked copy, and the file was removed since that one was made.
                self._paths[fd] = known[fd]
        if not self._cwd:
            cwd = working_directory()
            self._cwd = cwd if cwd == folder or cwd.startswith(folder + "/") else ""

    def reopen(self) -> list[str]:
        """Open the files at the same paths that were replaced since. Return notices of those that cannot be opened."""
        lost = []
        for fd, (path, inode) in self._paths.items():
            try:
                if os.fstat(fd).st_ino != inode or os.stat(path, follow_symlinks=False).st_ino == inode:
                    continue
                _open_again(fd, path, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NOFOLLOW, os.lseek(fd, 0, os.SEEK_CUR))
                self._paths[fd] = path, os.fstat(fd).st_ino
            except OSError as error:
                lost.append(f"{path} ({error.strerror})")
        if self._cwd:
            try:
                os.chdir(self._cwd)
            except OSError as error:
                lost.append(f"{self._cwd} ({error.strerror})")
        if not lost:
            return []
        more = f" and {len(lost) - _MAX_NAMED} more" if len(lost) > _MAX_NAMED else ""
        return [f"open files that could not be opened again: {', '.join(lost[:_MAX_NAMED])}{more}"]


def working_directory() -> str:
    """Return the path of the working directory, or nothing if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _opened_below(prefix: str) -> list[tuple[int, str]]:
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
        if path.startswith(prefix):
            found.append((int(name), path))
    return sorted(found)


def _open_again(fd: int, path: str, flags: int, position: int) -> None:
    """Put a newly opened file in the place of a descriptor."""
    own = os.open(path, (flags & ~_ONLY_AT_OPENING) | os.O_CLOEXEC)
    try:
        os.lseek(own, position, os.SEEK_SET)
        os.dup2(own, fd, inheritable=os.get_inheritable(fd))
    finally:
        os.close(own)
