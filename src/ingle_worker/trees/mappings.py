"""Files below the session's folder that a live copy has mapped into memory together with the original.

A fork shares such memory with the original, and so would write to its files. A copy with its own files maps those
instead, at the same addresses. SQLite, for example, maps the index of its write-ahead log.
"""

import errno
import mmap
import os
from dataclasses import dataclass

MAP_FIXED = 0x10

_PROTECTION = {"r": mmap.PROT_READ, "w": mmap.PROT_WRITE, "x": mmap.PROT_EXEC}


@dataclass(frozen=True)
class Mapping:
    """Memory that is a part of a file, and shared with all processes that have it mapped."""

    path: str
    start: int
    size: int
    offset: int
    permissions: str
    """Letters of `rwx`."""

    def move_to(self, path: str) -> None:
        """Have the memory be that part of the file at a path. Raises OSError."""
        flags = os.O_RDWR if "w" in self.permissions else os.O_RDONLY
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # Also if the inode is the same: a file that is seen through an overlay has the inode of the file below.
            protection = sum(_PROTECTION[each] for each in self.permissions if each in _PROTECTION)
            _map_at(self.start, self.size, protection, fd, self.offset)
        finally:
            os.close(fd)


def _map_at(start: int, size: int, protection: int, fd: int, offset: int) -> None:
    try:
        import ctypes
    except ImportError:  # a Python that was built without libffi
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    # The lock of the interpreter is held: no other thread meets the addresses without their memory.
    call = ctypes.PyDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    if call(start, size, protection, mmap.MAP_SHARED | MAP_FIXED, fd, offset) != start:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def read_maps() -> bytes:
    """Return the kernel's list of the memory of this process."""
    try:
        with open("/proc/self/maps", "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def find_mappings(data: bytes, *folders: str) -> "list[Mapping]":
    """Return the shared mappings of files below these folders, by what `read_maps` has returned."""
    # A process with many libraries has thousands of lines, and mostly none of these.
    prefixes = tuple(prefix for folder in folders if (prefix := os.fsencode(folder) + b"/") in data)
    found = []
    for line in data.splitlines() if prefixes else []:
        columns = line.split(None, 5)
        if len(columns) < 6 or not columns[1].endswith(b"s") or not columns[5].startswith(prefixes):
            continue
        addresses, permissions, offset, _, _, path = columns
        start, end = (int(each, 16) for each in addresses.split(b"-"))
        found.append(
            Mapping(
                # The kernel escapes a line break, and nothing else.
                os.fsdecode(path.replace(b"\\012", b"\n")),
                start,
                end - start,
                int(offset, 16),
                permissions[:3].decode(),
            )
        )
    return found
