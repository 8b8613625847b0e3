"""Bytes that a session occupies on disk: its folders, and files without a name that its processes hold.

Every function blocks. A file that was removed occupies the disk until the last process has closed it. Such a file is
found by the descriptors and mappings of the session's processes.
"""

import contextlib
import ctypes
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MIN_FILE_BYTES = 4096
"""Least size of a file: an empty one occupies disk too."""

MAX_PATH_CHARS = 3000
MAX_OPENED_FOLDERS = 64
TOO_DEEP = 1 << 62
"""Folders with longer paths are opened, up to this number. Only an attack nests folders that deep."""

MAX_MAPS_BYTES = 1 << 20
"""Part of the list of a process's mappings that is read."""

TMP = "tmp-"
"""Begin of the names of folders for temporary files."""

FORKS = "forks"
REMOVED = " (deleted)"
"""End of the name of a file that has none any more, as /proc shows it."""

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4


MIN_FREE_BYTES = 1 << 20
"""A disk with less than this is full: the write that failed may have been larger than what is left."""


class Usage(NamedTuple):
    """Bytes on disk, and bytes of temporary files."""

    disk: int = 0
    tmp: int = 0

    def plus(self, other: "Usage") -> "Usage":
        return Usage(self.disk + other.disk, self.tmp + other.tmp)


def is_full(folder: str) -> bool:
    """Return whether the disk of a folder has no bytes or no files left. False if there is no such folder."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES or (disk.f_files > 0 and disk.f_favail == 0)


def of_session(folder: Path, kept: Iterable[str], pids: Iterable[int], user: int) -> Usage:
    """Return what a session occupies. `kept` are names in its folder that the host writes.

    `user` is the user of its processes, if that is another one than the server's; else 0.
    """
    return of_folder(folder, frozenset(kept)).plus(of_nameless(folder, pids, user))


def of_folder(folder: Path, kept: frozenset[str] = frozenset()) -> Usage:
    """Return what the files of a session occupy. Its forks have folders below its own."""
    usage = Usage()
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in kept:
                    continue
                if entry.name == FORKS and entry.is_dir(follow_symlinks=False):
                    usage = usage.plus(_of_forks(entry.path))
                elif entry.name.startswith(TMP):
                    usage = usage.plus(Usage(tmp=_size_of(entry)))
                else:
                    usage = usage.plus(Usage(disk=_size_of(entry)))
    except OSError:
        pass  # the session has just ended
    return usage


def _of_forks(folder: str) -> Usage:
    usage = Usage()
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            own = of_folder(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else Usage()
            usage = usage.plus(own).plus(Usage(disk=_blocks(entry)))
    return usage


def _size_of(entry: "os.DirEntry[str]") -> int:
    return _blocks(entry) + (size(entry.path) if entry.is_dir(follow_symlinks=False) else 0)


def _blocks(entry: "os.DirEntry[str]") -> int:
    try:
        return max(entry.stat(follow_symlinks=False).st_blocks * 512, MIN_FILE_BYTES)
    except OSError:
        return 0  # it vanished meanwhile


def size(folder: "str | Path") -> int:
    """Return the bytes of all files below a folder, without following links.

    Files that vanish meanwhile are not counted. A path longer than the kernel accepts is opened in steps.
    """
    total, todo = 0, [os.fspath(folder)]
    opened: list[int] = []
    try:
        while todo:
            path = todo.pop()
            try:
                if len(path) > MAX_PATH_CHARS:
                    if len(opened) == MAX_OPENED_FOLDERS:
                        return TOO_DEEP
                    opened.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
                    path = f"/proc/self/fd/{opened[-1]}"
                with os.scandir(path) as entries:
                    for entry in entries:
                        total += _blocks(entry)
                        if entry.is_dir(follow_symlinks=False):
                            todo.append(entry.path)
            except OSError:
                continue
    finally:
        for fd in opened:
            os.close(fd)
    return total


# --- files without a name ------------------------------------------------------------------------------------


def of_nameless(folder: Path, pids: Iterable[int], user: int = 0) -> Usage:
    """Return what files without a name occupy, on the disk of this folder, that these processes hold."""
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return Usage()
    found: dict[int, Usage] = {}
    for pid in pids:
        for inode, usage in _held_by(pid, user):
            if inode[0] == device:
                found[inode[1]] = max(usage, found.get(inode[1], usage))
    total = Usage()
    for usage in found.values():
        total = total.plus(usage)
    return total


Held = tuple[tuple[int, int], Usage]
"""Device and inode of a file, and what it occupies."""


def _held_by(pid: int, user: int) -> list[Held]:
    try:
        return [*_open_files(pid), *_mapped_files(pid)]
    except PermissionError:
        if not user or os.geteuid() != 0:
            return []
    with contextlib.suppress(OSError), _looking_as(user):
        return [*_open_files(pid), *_mapped_files(pid)]
    return []


def _open_files(pid: int) -> Iterator[Held]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except (FileNotFoundError, ProcessLookupError):
        return
    for name in names:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            path = f"/proc/{pid}/fd/{name}"
            # The link first: it says whether the file has a name, and never waits for a file system.
            target = os.readlink(path)
            if target.endswith(REMOVED):
                yield from _nameless(path, target)


def _mapped_files(pid: int) -> Iterator[Held]:
    """Yield files that a process has mapped and closed."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            lines = file.read(MAX_MAPS_BYTES).splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in lines:
        if not line.endswith(REMOVED.encode()):
            continue
        area, _, _, device, inode, path, *_ = line.split(None, 5)
        first, last = (int(each, 16) for each in area.split(b"-"))
        try:
            yield from _nameless(f"/proc/{pid}/map_files/{first:x}-{last:x}", os.fsdecode(path))
        except OSError:
            # Only the administrator may look at the file itself. At least what is mapped of it occupies the disk.
            major, minor = (int(each, 16) for each in device.split(b":"))
            yield (os.makedev(major, minor), int(inode)), _as_usage(last - first, os.fsdecode(path))


def _nameless(path: str, target: str) -> Iterator[Held]:
    about = os.stat(path)
    if stat.S_ISREG(about.st_mode) and about.st_nlink == 0:
        yield (about.st_dev, about.st_ino), _as_usage(about.st_blocks * 512, target)


def _as_usage(used: int, path: str) -> Usage:
    return Usage(tmp=used) if f"/{TMP}" in path else Usage(disk=used)


@contextlib.contextmanager
def _looking_as(user: int) -> Iterator[None]:
    """Look at /proc as this user, in this thread. Root may not look at others' processes without CAP_SYS_PTRACE."""
    libc = ctypes.CDLL(None, use_errno=True)
    dumpable = libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)
    libc.setfsgid(user)
    libc.setfsuid(user)
    try:
        yield
    finally:
        libc.setfsuid(os.geteuid())
        libc.setfsgid(os.getegid())
        # The kernel takes the flag away with every change of the user.
        libc.prctl(PR_SET_DUMPABLE, dumpable, 0, 0, 0)
