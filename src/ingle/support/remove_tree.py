"""Removing a folder that somebody else has filled, whatever he has put there: nested as deep as the disk holds, or
closed even to its owner. Links are removed and never followed, also where somebody is still at work in it and puts one
in the place of a folder: the folder of a fork lies where its original may write. Blocks.
"""

import contextlib
import os
import secrets
import stat

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(folder: str | os.PathLike[str]) -> None:
    """Remove it with all that is in it. What cannot be removed stays, and is not told.

    Level by level it would take a descriptor, or a longer path, for each. So every folder inside is first moved up
    to the top, emptied of its files there, and its own folders moved up in their turn.
    """
    with contextlib.suppress(OSError):
        top = _open(folder)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _empty(top: int) -> None:
    moved, mark = 0, secrets.token_hex(8)
    todo = _clear(top)
    while todo:
        name = todo.pop()
        with contextlib.suppress(OSError):
            try:
                os.rmdir(name, dir_fd=top)
                continue
            except OSError:
                pass  # not empty
            inside = _open(name, top)
            try:
                for each in _clear(inside):
                    moved += 1
                    _move_up(each, inside, f".{mark}.{moved}", top)
                    todo.append(f".{mark}.{moved}")
            finally:
                os.close(inside)
            os.rmdir(name, dir_fd=top)


def _clear(folder: int) -> list[str]:
    """Remove all but the folders in it, and tell their names."""
    found = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                found.append(name)
            else:
                os.unlink(name, dir_fd=folder)
    return found


def _unlock(name: str | os.PathLike[str], above: int | None) -> None:
    """Let its owner in. By a descriptor: its name may be that of a link by now, and of somebody else's folder."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, 0o700, dir_fd=above, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{fd}", 0o700)
    finally:
        os.close(fd)


def _open(name: str | os.PathLike[str], above: int | None = None) -> int:
    try:
        fd = os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        _unlock(name, above)
        fd = os.open(name, _FOLDER, dir_fd=above)
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o700)
    return fd


def _move_up(name: str, inside: int, as_name: str, top: int) -> None:
    try:
        os.rename(name, as_name, src_dir_fd=inside, dst_dir_fd=top)
    except PermissionError:
        # To move a folder is to write the name of the one above it, which is in there.
        _unlock(name, inside)
        os.rename(name, as_name, src_dir_fd=inside, dst_dir_fd=top)
