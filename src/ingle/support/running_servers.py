"""The servers that run on a data folder: each listens on a socket under `run/`, and tells about itself beside it.

`run/<name>.sock` (0600) speaks HTTP; `run/<name>.json` says whose it is. The socket is there before the file and goes
after it, so whoever reads the file can connect. A server that was killed leaves both behind: nobody listens then, and
whoever lists removes them. Everything here blocks for a moment at most, on the local disk.
"""

import contextlib
import errno
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from ingle import __version__

BACKLOG = 128

NEW, DRAFT = DRAFTS = (".new", ".draft")
"""A socket that does not listen yet, and a file that is not whole."""

DRAFT_AGE = 60.0
"""Seconds after which a socket or file that never got its name is that of a server which was killed at that moment."""

LONGEST = 100
"""Bytes of a path that fit into the address of a unix socket, with a few to spare."""


class ServerInfo(Struct, frozen=True, kw_only=True):
    """One server, as it tells about itself."""

    pid: int
    url: str | None
    """Where it listens for other programs; null when it has its socket only."""
    started_at: float
    folder: str
    """The folder it was started in."""
    kind: str
    """`serve`, `mcp`, `run`, or `client` for one that ends with the program that started it."""
    version: str = __version__


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket's path that is short enough for an address, for as long as the context lasts."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """A connection to the server behind a socket under `run/`; OSError when nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with reachable(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def find_servers(home: Path) -> list[tuple[Path, ServerInfo]]:
    """All servers that listen now, oldest first, with the paths of their sockets. What dead ones left is removed."""
    found = []
    for file in sorted((home / "run").glob("*.json")):
        path = file.with_suffix(".sock")
        if not _listens(path):
            _forget(path)
            continue
        try:
            found.append((path, msgspec.json.decode(file.read_bytes(), type=ServerInfo)))
        except (OSError, msgspec.DecodeError):
            continue
    for path in (home / "run").glob("*.sock"):
        # Between the two files of a server that starts or ends, somebody listens.
        if not path.with_suffix(".json").exists() and not _listens(path):
            _forget(path)
    for suffix in DRAFTS:
        for draft in (home / "run").glob("*" + suffix):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > DRAFT_AGE:
                    draft.unlink()
    return sorted(found, key=lambda each: each[1].started_at)


def _listens(path: Path) -> bool:
    try:
        connect(path).close()
    except OSError as error:
        # A full backlog is the sign of a busy server, not of a dead one.
        return error.errno in (errno.EAGAIN, errno.EACCES, errno.EPERM)
    return True


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.with_suffix(".json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)


class Announcement:
    """A server's own socket under `run/`, from listening to the removal of what was written."""

    def __init__(self, home: Path, kind: str) -> None:
        self._kind = kind
        # A server that ends while it is still being told of must not be told of afterwards.
        self._writing = threading.Lock()
        self._closed = False
        folder = home / "run"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(folder, 0o700)
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # Under another name until it listens, so that nobody takes it for the socket of a dead server. Who may
        # connect is settled before it can be: the folder is ours alone, and the mode of the socket is set first.
        draft = self.path.with_suffix(NEW)
        try:
            with reachable(draft) as name:
                self.listener.bind(name)
            os.chmod(draft, 0o600)
            self.listener.listen(BACKLOG)
            self.listener.setblocking(False)
            os.rename(draft, self.path)
        except BaseException:
            self.listener.close()
            draft.unlink(missing_ok=True)
            raise

    def tell(self, url: str | None) -> None:
        """Write down who this is: from now on it is found."""
        info = ServerInfo(pid=os.getpid(), url=url, started_at=time.time(), folder=os.getcwd(), kind=self._kind)
        draft = self.path.with_suffix(DRAFT)
        with self._writing:
            if self._closed:
                return
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(info))
            os.rename(draft, self.path.with_suffix(".json"))

    def close(self) -> None:
        self.listener.close()
        with self._writing:
            self._closed = True
            _forget(self.path)


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a unix socket, by the kernel's word."""
    return _peer(connection)[1]


def peer_pid(connection: socket.socket) -> int:
    """The process at the other end of a unix socket, by the kernel's word; for a client the one that listens."""
    return _peer(connection)[0]


INIT = "ingle-init"
"""What the init of every session calls itself; nobody below it can change that."""


def peer_is_confined(connection: socket.socket) -> bool:
    """Whether the process at the other end is confined code of a session: it shall not order its own server about.

    Where a session has the server's user and no root of its own, the mode of the socket does not keep it out. One that
    is gone already, so that nothing can be told of it, counts as such.
    """
    pid = peer_pid(connection)
    if pid == 0 or not os.path.isdir("/proc/self"):
        return False  # of another pid namespace than those below ours, or a system that does not tell
    try:
        if "NoNewPrivs:\t1" not in Path(f"/proc/{pid}/status").read_text():
            return False
        while pid > 1:
            name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            if name == INIT:
                return True
            pid = int(fields.split()[1])
    except (OSError, ValueError):
        return True
    return False


def _peer(connection: socket.socket) -> tuple[int, int]:
    pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(uid)
