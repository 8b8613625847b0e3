"""A server's claim on the data folder: what in it is its own, and what was of servers that are gone.

A server holds a lock as long as it lives, and the kernel lets go of it however it ends. So what a dead one left can be
told from what a living one has, and the next that comes clears it away.
"""

import contextlib
import fcntl
import os
import secrets
from pathlib import Path

from ingle import errors
from ingle.sessions.persistence.durable import PREFIX
from ingle.support import remove_tree
from ingle.support.running_servers import find_servers


class Claim:
    def __init__(self, home: Path) -> None:
        self._home = home
        self.server = secrets.token_hex(8)
        """The name of this server, which no other ever has."""
        self._sessions = home / "sessions"
        self._lock_fd = -1

    def folder(self, name: str) -> Path:
        """A folder of this server's own in the data folder; cleared away when the server is gone."""
        return self._sessions / f"{self.server}.{name}"

    def take(self) -> None:
        """Make the data folder if there is none, and clear what dead servers left in it."""
        try:
            self._take()
        except OSError as error:
            raise errors.DataFolderFailed(
                f"the data folder {self._home} cannot be used: {error.strerror or error}; see to the disk and its "
                "rights, or name another by INGLE_HOME"
            ) from None

    def _take(self) -> None:
        for folder in (self._home, self._home / "run", self._sessions):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_fd = _lock(self._lock_path(self.server))
        for lock in (self._home / "run").glob("*.lock"):
            if lock.stem != self.server:
                self.is_dead(lock.stem)
        for folder in self._sessions.iterdir():
            server = folder.name.partition(".")[0]
            if server != self.server and not folder.name.startswith(PREFIX) and self.is_dead(server):
                remove_tree.remove(folder)
        # Which takes away the sockets of those that are gone.
        find_servers(self._home)

    def release(self) -> None:
        if self._lock_fd >= 0:
            self._lock_path(self.server).unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = -1

    def is_dead(self, server: str) -> bool:
        """Whether the server of that name has gone: then nobody holds its lock."""
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


def _lock(path: Path) -> int:
    """Make a lock file and hold it. Another server may take it for a dead one's before it is held: then again."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)
