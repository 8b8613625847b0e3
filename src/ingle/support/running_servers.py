"""The running servers of a data folder: each has a socket in `run/`, and a file that describes it.

`run/<name>.sock` (0600) speaks HTTP; `run/<name>.json` describes the server. The socket is created before the file and
removed after it, so a reader of the file can connect. Listing removes what killed servers left.
Functions block for a moment at most, on the local disk.
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
"""Suffixes of a socket that does not listen yet, and of an incomplete file."""

DRAFT_SECONDS = 60.0
"""Age in seconds at which an unfinished socket or file belongs to a killed server."""

MAX_PATH_BYTES = 100
"""Bytes of a path that fit into a unix socket address, with a few in reserve."""


class ServerInfo(Struct, frozen=True, kw_only=True):
    """Description of one server, written by itself."""

    pid: int
    url: str | None
    """Address for other programs; null if the server has only its socket."""
    started_at: float
    folder: str
    """The folder it was started in."""
    kind: str
    """`serve`, `mcp`, `run`, or `client` for a server that ends with the program that started it."""
    version: str = __version__


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Provide a name for a socket's path that is short enough for an address."""
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect(path: Path) -> socket.socket:
    """Connect to the server of a socket in `run/`. Raises OSError if no one listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        with reachable(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def find_servers(home: Path) -> list[tuple[Path, ServerInfo]]:
    """Return all listening servers with their sockets, oldest first. Remove the files of dead ones."""
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
        # A server that starts or stops may have a socket without its file, but it listens.
        if not path.with_suffix(".json").exists() and not _listens(path):
            _forget(path)
    for suffix in DRAFTS:
        for draft in (home / "run").glob("*" + suffix):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > DRAFT_SECONDS:
                    draft.unlink()
    return sorted(found, key=lambda each: each[1].started_at)


def _listens(path: Path) -> bool:
    try:
        connect(path).close()
    except OSError as error:
        # A full backlog means a busy server, not a dead one.
        return error.errno in (errno.EAGAIN, errno.EACCES, errno.EPERM)
    return True


def _forget(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.with_suffix(".json").unlink(missing_ok=True)
        path.unlink(missing_ok=True)


class Announcement:
    """A server's own socket in `run/`, with the file that describes it."""

    def __init__(self, home: Path, kind: str) -> None:
        self._kind = kind
        # A server that stops during `announce` must not be announced afterwards.
        self._writing = threading.Lock()
        self._closed = False
        folder = home / "run"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.chmod(folder, 0o700)
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.sock"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # The socket has another name until it listens, or others would take it for one of a dead server. The folder
        # is private and the mode is set first, so no one else can ever connect.
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

    def announce(self, url: str | None) -> None:
        """Write the description, so that this server is found."""
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
    """Return the user at the other end of a unix socket, according to the kernel."""
    return _peer(connection)[1]


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the other end of a unix socket; a client gets the one that listens."""
    return _peer(connection)[0]


INIT_NAME = "ingle-init"
"""Process name of every session's init. Its descendants cannot change it."""


def peer_is_confined(connection: socket.socket) -> bool:
    """Return whether the peer is confined code of a session, which must not control its own server.

    Without its own root, a session of the same user passes the mode of the socket. A peer that has ended counts as
    confined, because nothing is known about it.
    """
    pid = peer_pid(connection)
    if pid == 0 or not os.path.isdir("/proc/self"):
        return False  # a pid namespace outside of this one, or a system without /proc
    try:
        if "NoNewPrivs:\t1" not in Path(f"/proc/{pid}/status").read_text():
            return False
        while pid > 1:
            name, _, fields = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            if name == INIT_NAME:
                return True
            pid = int(fields.split()[1])
    except (OSError, ValueError):
        return True
    return False


def _peer(connection: socket.socket) -> tuple[int, int]:
    pid, uid, _gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(uid)
