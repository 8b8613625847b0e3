"""The process's own standard streams, replaced so that a stray print cannot reach the host.

`claim` is the first step of `ingle mcp`. After it fd 0 is empty and fd 1 is stderr, also for child processes. The
connection to the host has descriptors that no child inherits.
"""

import fcntl
import os
import stat
import threading
from dataclasses import dataclass

CHUNK = 65536


@dataclass(frozen=True)
class Wire:
    """The descriptors to read from and write to the host."""

    reader: int
    writer: int


def claim() -> Wire:
    reader = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    writer = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without stderr
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.close(null)
    return Wire(_pollable(reader, reads=True), _pollable(writer, reads=False))


def _pollable(fd: int, *, reads: bool) -> int:
    """Return the descriptor if an event loop can wait for it, else a pipe that a thread copies.

    A terminal is not made non-blocking, because the parent shell uses the same one.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return fd
    out_of, into = os.pipe()
    source, target, ours = (fd, into, out_of) if reads else (out_of, fd, into)
    threading.Thread(target=_copy, args=(source, target), daemon=True).start()
    return ours


def _copy(source: int, target: int) -> None:
    try:
        while data := os.read(source, CHUNK):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    except OSError:
        pass  # one of the two is closed; closing the other one below reports it
    os.close(target)
