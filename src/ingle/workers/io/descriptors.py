"""Operations on descriptors beyond reading and writing: ancillary data, credentials, unread bytes."""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios

from ingle.workers.io.writer import Writer
from ingle_worker.wire import BadMessage, messages

_NO_BYTES = b"\0\0\0\0"
_CREDENTIALS = struct.Struct("3i")
_CREDENTIALS_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)
_INT = struct.calcsize("i")
MAX_FDS = messages.FDS_PER_KEEP
"""Descriptors that are accepted with one message."""

_ALL_SPACE = _CREDENTIALS_SPACE + socket.CMSG_SPACE(MAX_FDS * _INT)

RETRY_SECONDS = 0.001
"""Pause before a full socket is tried again. Descriptors are sent rarely, and the reader is quick."""


class ChildEnds:
    """Descriptors that go to a child: stdin, stdout, stderr, wire and status, or only status."""

    def __init__(self, fds: list[int]) -> None:
        self.fds = fds

    def close(self) -> None:
        """Close those that are left."""
        for fd in self.fds:
            with contextlib.suppress(OSError):
                os.close(fd)
        self.fds = []


def unread(fd: int) -> int:
    """Return the number of bytes that can be read."""
    number: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, _NO_BYTES))[0]
    return number


async def send_with(sock: socket.socket, out: Writer, frame: bytes, fds: list[int]) -> None:
    """Send a frame with descriptors, behind all that waits in `out`. Raises OSError when nobody reads."""
    while True:
        if not out.pending:
            try:
                if fds:
                    socket.send_fds(sock, [frame], fds)
                else:
                    out.write(frame)
                return
            except BlockingIOError:
                pass
        await asyncio.sleep(RETRY_SECONDS)


SO_PASSRIGHTS = 83
"""Socket option since Linux 6.16. On older kernels, the system call filter of confined sessions does the same."""


def refuse_descriptors(sock: socket.socket) -> None:
    """Forbid peers to send descriptors to this socket.

    The reader would have to close them, and the sender decides how long that takes: the close of a connection that
    lingers blocks for hours.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def identity(fd: int) -> tuple[int, int, int]:
    """Return what tells a pipe or socket from all others: device, inode, and the direction it is open for."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino, fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE


def as_socket(fd: int) -> socket.socket:
    """Return a received descriptor as a socket. Raises BadMessage, and closes it, if it is none."""
    try:
        return socket.socket(fileno=fd)
    except OSError as error:
        os.close(fd)
        raise BadMessage(f"a proxy listener that is no socket: {error.strerror}") from None


def expect_pid(sock: socket.socket) -> None:
    """Have the kernel report the sender of each message (see `receive_with_pid`)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive_with_pid(sock: socket.socket, size: int) -> tuple[bytes, int | None]:
    """Return the data that is there and the process that sent it. After the first success it is no longer reported."""
    data, extra, _, _ = sock.recvmsg(size, _CREDENTIALS_SPACE)
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid: int = _CREDENTIALS.unpack(content)[0]
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            return data, pid or None
    return data, None


def receive_with_all(sock: socket.socket, size: int) -> tuple[bytes, int | None, list[int]]:
    """Return the data that is there, its sender if that is reported, and the descriptors that came along."""
    data, extra, _, _ = sock.recvmsg(size, _ALL_SPACE, socket.MSG_CMSG_CLOEXEC)
    pid: int | None = None
    fds: list[int] = []
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(content)[0] or None
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(content) // _INT}i", content[: len(content) // _INT * _INT])
    return data, pid, fds
