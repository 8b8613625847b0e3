"""Removal of a folder with hostile contents, such as very deep or locked folders. Blocks.

Links are removed and never followed, also while another process replaces a folder by a link.
"""

import contextlib
import os
import secrets

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove(folder: str | os.PathLike[str]) -> None:
    """Remove the folder with its contents. What cannot be removed stays, without an error.

    Recursion would need a descriptor or a longer path for each level. So every inner folder is moved to the top first
    and emptied of its files there. Its own folders are moved up in turn.
    """
    with contextlib.suppress(OSError):
        top = _open(folder)
        try:
            _empty(top)
            os.rmdir(folder)
        finally:
            os.close(top)


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
    """Remove everything but folders, and return the names of the folders."""
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)
    found = []
    with os.scandir(folder) as entries:
        # Listed before the first is removed, so that none is missed.
        for entry in list(entries):
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    found.append(entry.name)
                else:
                    os.unlink(entry.name, dir_fd=folder)
    return found


def _unlock(name: str | os.PathLike[str], above: int | None) -> None:
    """Give the owner access, by descriptor, because the name may be a link by now."""
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
        return os.open(name, _FOLDER, dir_fd=above)
    except PermissionError:
        _unlock(name, above)
        return os.open(name, _FOLDER, dir_fd=above)


def _move_up(name: str, inside: int, as_name: str, top: int) -> None:
    try:
        os.rename(name, as_name, src_dir_fd=inside, dst_dir_fd=top)
    except PermissionError:
        # Moving a folder writes its `..` entry, so it must be writable.
        _unlock(name, inside)
        os.rename(name, as_name, src_dir_fd=inside, dst_dir_fd=top)
