"""Data folder of a server: the part of it that belongs to this server, and what dead servers left.

A server holds a lock as long as it lives, and the kernel releases it however the server ends. So the next server can
tell what a dead one left, and removes it.
"""

import contextlib
import fcntl
import os
import secrets
import struct
from pathlib import Path

from ingle import errors
from ingle.private_files import check_folder
from ingle.sessions.persistence.durable import PREFIX
from ingle.support import remove_tree
from ingle.support.running_servers import find_servers

GET_FLAGS, SET_FLAGS, TOP_FOLDER = 0x80086601, 0x40086602, 0x20000
"""Calls that read and set the flags of a file (FS_IOC_GETFLAGS, FS_IOC_SETFLAGS), and ext4's flag of a top folder."""


class DataFolder:
    def __init__(self, home: Path) -> None:
        self._home = home
        self.server = secrets.token_hex(8)
        """Name of this server, which no other server ever has."""
        self._sessions = home / "sessions"
        self._lock_fd = -1

    @property
    def undo(self) -> Path:
        """Folder of undo logs, which outlive their servers."""
        return self._home / "undo"

    def folder(self, name: str) -> Path:
        """Return a folder of this server. A later server removes it if this one dies."""
        return self._sessions / f"{self.server}.{name}"

    def take(self) -> None:
        """Lock the data folder, make it if there is none, and remove what dead servers left."""
        try:
            self._take()
        except OSError as error:
            raise errors.DataFolderFailed(
                f"the data folder {self._home} cannot be used: {error.strerror or error}; see to the disk and its "
                "rights, or name another by INGLE_HOME"
            ) from None

    def _take(self) -> None:
        check_folder(self._home)
        for folder in (self._home, self._home / "run", self._sessions):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _spread(self._sessions)
        self._lock_fd = _lock(self._lock_path(self.server))
        for lock in (self._home / "run").glob("*.lock"):
            if lock.stem != self.server:
                self.is_dead(lock.stem)
        for folder in self._sessions.iterdir():
            server = folder.name.partition(".")[0]
            if server != self.server and not folder.name.startswith(PREFIX) and self.is_dead(server):
                remove_tree.remove(folder)
        # This removes the sockets of dead servers.
        find_servers(self._home)

    def release(self) -> None:
        """Release the lock."""
        if self._lock_fd >= 0:
            self._lock_path(self.server).unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def is_dead(self, server: str) -> bool:
        """Return whether the server of that name has ended, because nothing holds its lock."""
        try:
            fd = os.open(self._lock_path(server), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            self._lock_path(server).unlink(missing_ok=True)
            return True
        finally:
            os.close(fd)

    def _lock_path(self, server: str) -> Path:
        return self._home / "run" / f"{server}.lock"


def _spread(folder: Path) -> None:
    """Tell ext4 that the folders inside have nothing to do with each other, as `chattr +T` does for /home.

    ext4 then spreads them over the disk. Side by side, each new one is searched behind all that were removed in the
    last minute: with 100 sessions a second up to a millisecond for each folder. Other file systems refuse the flag.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            (flags,) = struct.unpack("l", fcntl.ioctl(fd, GET_FLAGS, struct.pack("l", 0)))
            if not flags & TOP_FOLDER:
                fcntl.ioctl(fd, SET_FLAGS, struct.pack("l", flags | TOP_FOLDER))
    finally:
        os.close(fd)


def _lock(path: Path) -> int:
    """Make a lock file and hold it. Try again if another server removed it before it was locked."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)
