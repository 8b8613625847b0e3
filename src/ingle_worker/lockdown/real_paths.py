"""Granted paths, opened without following links.

The host has resolved every link of a granted path. A link that is found there later was put there by a session, and
must not lead another session out of the folders that are granted.
"""

import errno
import os
import stat

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_real(path: str) -> int:
    """Return a descriptor of an absolute path, for its place only. Raise OSError if a part of the path is a link."""
    fd = os.open("/", _STEP)
    for part in path.split("/"):
        if not part:
            continue
        try:
            below = os.open(part, _STEP, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return fd


def is_real(path: str) -> bool:
    """Return whether a path exists and no part of it is a link."""
    try:
        os.close(open_real(path))
    except OSError:
        return False
    return True
