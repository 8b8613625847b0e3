"""Files that processes have open or mapped, from /proc. Blocks."""

import os
import stat

from msgspec import Struct

from ingle.support import processes

MAX_MAPS_BYTES = 64 * 1024**2


class InUse(Struct, frozen=True):
    """Inodes of files that processes use. The file system is not told, so there may be a few too many."""

    opened: frozenset[int] = frozenset()
    """Open or mapped in any way."""
    writable: frozenset[int] = frozenset()
    """Mapped together with others, or open for writing. Such a file may change without a sign."""


def find_in_use(root: int | None) -> InUse:
    """Return the files that a process and its descendants use. Processes that cannot be examined are left out."""
    if root is None:
        return InUse()
    opened: set[int] = set()
    writable: set[int] = set()
    for pid in (root, *processes.below(root)):
        _add_mapped(pid, opened, writable)
        _add_open(pid, opened, writable)
    return InUse(frozenset(opened), frozenset(writable))


def _add_mapped(pid: int, opened: set[int], writable: set[int]) -> None:
    # The columns are address, permissions, offset, device, inode and path.
    for line in processes.read_whole(f"/proc/{pid}/maps", MAX_MAPS_BYTES).splitlines():
        columns = line.split(None, 5)
        if len(columns) > 5 and columns[4] != b"0":
            inode = int(columns[4])
            opened.add(inode)
            if columns[1].endswith(b"s"):
                writable.add(inode)


def _add_open(pid: int, opened: set[int], writable: set[int]) -> None:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            about = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if not stat.S_ISREG(about.st_mode):
            continue
        opened.add(about.st_ino)
        for line in processes.read(f"/proc/{pid}/fdinfo/{name}").splitlines():
            if line.startswith(b"flags:") and int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                writable.add(about.st_ino)
