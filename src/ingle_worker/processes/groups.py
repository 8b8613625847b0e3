"""How an init enters the session's cgroups: the host creates them, and sends descriptors with the `Join` order."""

import _socket
import os
import struct

# Imported by name: a lookup in the module would touch three more pages, which are then copied in every init.
from os import O_CLOEXEC, O_WRONLY, close, fstat, write

from ingle_worker.wire import messages

JOIN = messages.encode(messages.Join())
JOIN_FDS_SPACE = _socket.CMSG_SPACE(messages.FDS_PER_JOIN * struct.calcsize("i"))
FILE_KIND, FOLDER = 0o170000, 0o040000


def join(status_fd: int) -> tuple[bool, int] | None:
    """Wait for the `Join` order and enter the session's cgroups of version 1, before the worker is forked.

    Return whether that worked, and the folder of a group of version 2, or -1. Return None if there will be no session.
    """
    status = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, status_fd)
    try:
        # Read no more than this message: the rest is for `Init`.
        data, extra, _, _ = status.recvmsg(len(JOIN), JOIN_FDS_SPACE, _socket.MSG_CMSG_CLOEXEC)
    finally:
        status.detach()
    if data != JOIN:
        return None
    joined, folder = bool(extra), -1
    for each in extra:
        for (fd,) in struct.iter_unpack("i", each[2]):
            if fstat(fd).st_mode & FILE_KIND == FOLDER:
                folder = fd
                continue
            try:
                write(fd, b"0")
            except OSError:
                joined = False  # the host moves the process itself
            close(fd)
    return joined, folder


def enter_group(folder: int) -> bool:
    """Enter a cgroup of version 2, given as a folder's descriptor. Return whether that worked.

    To enter may take 10 ms, so init does it while its worker starts.
    """
    try:
        fd = os.open("cgroup.procs", O_WRONLY | O_CLOEXEC, dir_fd=folder)
        try:
            write(fd, b"0")
        finally:
            close(fd)
    except OSError:
        return False  # the host moves the process itself
    return True
