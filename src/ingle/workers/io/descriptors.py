"""What the host asks of its descriptors beyond reading and writing."""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios

from ingle.workers.io.writer import Sender
from ingle_worker.wire import BadMessage

_NO_BYTES = b"\0\0\0\0"
_CREDENTIALS = struct.Struct("3i")
_CREDENTIALS_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)
_INT = struct.calcsize("i")
MAX_FDS = 4
"""Descriptors that are taken with one message; an honest process sends one."""

_ALL_SPACE = _CREDENTIALS_SPACE + socket.CMSG_SPACE(MAX_FDS * _INT)

RETRY = 0.001
"""A socket that is full is tried again after this: descriptors are sent rarely, and its reader is quick."""


def unread(fd: int) -> int:
    """Bytes that are there to be read."""
    number: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, _NO_BYTES))[0]
    return number


async def send_with(sock: socket.socket, out: Sender, frame: bytes, fds: list[int]) -> None:
    """Send a frame together with descriptors, behind all that waits to be sent. Raises OSError when nobody reads."""
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
        await asyncio.sleep(RETRY)


SO_PASSRIGHTS = 83
"""Since Linux 6.16; on a kernel without it the filter of confined sessions sees to it (`ingle_worker.lockdown`)."""


def refuse_descriptors(sock: socket.socket) -> None:
    """Have nobody send descriptors to this socket. Whoever reads closes those that he does not want, and that may take
    as long as the sender likes: a connection that lingers blocks who closes it last, for hours."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)


def as_socket(fd: int) -> socket.socket:
    """A descriptor that came along, and is ours now. Raises BadMessage when it is no socket."""
    try:
        return socket.socket(fileno=fd)
    except OSError as error:
        os.close(fd)
        raise BadMessage(f"a door that is none: {error.strerror}") from None


def expect_pid(sock: socket.socket) -> None:
    """Have the kernel tell who writes here (see `receive_with_pid`)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def receive_with_pid(sock: socket.socket, size: int) -> tuple[bytes, int | None]:
    """What is there, and the process that wrote it, by the kernel's word. Asked once: then nobody pays for it."""
    data, extra, _, _ = sock.recvmsg(size, _CREDENTIALS_SPACE)
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid: int = _CREDENTIALS.unpack(content)[0]
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
            return data, pid or None
    return data, None


def receive_with_all(sock: socket.socket, size: int) -> tuple[bytes, int | None, list[int]]:
    """What is there, who wrote it, if that was to be told, and the descriptors that came along."""
    data, extra, _, _ = sock.recvmsg(size, _ALL_SPACE, socket.MSG_CMSG_CLOEXEC)
    pid: int | None = None
    fds: list[int] = []
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            pid = _CREDENTIALS.unpack(content)[0] or None
        elif level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += struct.unpack(f"{len(content) // _INT}i", content[: len(content) // _INT * _INT])
    return data, pid, fds
