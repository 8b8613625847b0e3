"""inotify of the kernel: which entries of a directory were made, written, renamed or removed.

The kernel queues an event within the system call that causes it. So once a process has reported something, all its
earlier changes can be read here.
"""

import array
import ctypes
import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from typing import NamedTuple

MODIFY = 0x2
ATTRIB = 0x4
CLOSE_WRITE = 0x8
MOVED_FROM = 0x40
MOVED_TO = 0x80
CREATE = 0x100
DELETE = 0x200
DELETE_SELF = 0x400
MOVE_SELF = 0x800
UNMOUNT = 0x2000
OVERFLOW = 0x4000
IGNORED = 0x8000
ONLY_DIRECTORIES = 0x1000000
IS_DIRECTORY = 0x40000000

READ_BYTES = 64 * 1024

_HEAD = struct.Struct("iIII")


class Event(NamedTuple):
    watch: int
    """Number of the watch; -1 for an overflow, which concerns all of them."""
    mask: int
    name: str
    """Name of the entry; empty for the directory itself."""


class Inotify:
    """One instance. Reading never blocks."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._waiting = array.array("i", [0])

    def add(self, directory: int, mask: int) -> int:
        """Watch an open directory. Return the number of the watch, which is the same for the same directory."""
        # By the descriptor: a path could lead elsewhere by now.
        path = f"/proc/self/fd/{directory}".encode()
        return self._checked(self._libc.inotify_add_watch(self.fd, path, mask | ONLY_DIRECTORIES))

    def remove(self, watch: int) -> None:
        """End a watch. The kernel may have ended it already, with its directory."""
        self._libc.inotify_rm_watch(self.fd, watch)

    @property
    def waiting(self) -> int:
        """Number of bytes of events that wait to be read."""
        # A third of the time of a read that finds nothing and raises.
        fcntl.ioctl(self.fd, termios.FIONREAD, self._waiting)
        return self._waiting[0]

    def read(self) -> Iterator[Event]:
        """Yield the events so far, of one buffer."""
        data = os.read(self.fd, READ_BYTES)
        place = 0
        while place < len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, place)
            place += _HEAD.size
            yield Event(watch, mask, os.fsdecode(data[place : place + length].rstrip(b"\0")))
            place += length

    def close(self) -> None:
        os.close(self.fd)

    def _checked(self, answer: int) -> int:
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return answer
