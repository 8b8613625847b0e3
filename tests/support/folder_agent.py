"""A file agent of a folder, in a thread of the test, and the folder as a plain value."""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

from ingle.trees.agent import TreeAgent
from ingle_worker.processes import file_agent

State = dict[str, tuple[str, int, bytes]]
"""Entries by path: kind, permissions, and the bytes of a file or the target of a link."""


@contextlib.contextmanager
def agent_of(folder: Path) -> Iterator[TreeAgent]:
    """Provide an agent as the host sees it."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=file_agent.serve, args=(theirs.detach(),))
    thread.start()
    try:
        with ours:
            yield TreeAgent(ours, str(folder))
    finally:
        thread.join()


def state_of(folder: Path) -> State:
    """Return everything below a folder, byte for byte."""
    found: State = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        name, mode = str(path.relative_to(folder)), stat.S_IMODE(about.st_mode)
        if stat.S_ISLNK(about.st_mode):
            found[name] = "link", 0, os.fsencode(os.readlink(path))
        elif stat.S_ISDIR(about.st_mode):
            found[name] = "folder", mode, b""
        elif stat.S_ISREG(about.st_mode):
            found[name] = "file", mode, path.read_bytes()
        else:
            found[name] = "other", mode, b""
    return found
