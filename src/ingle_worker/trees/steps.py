"""Reads files into descriptors of the host, and brings a folder to another state, step by step.

A file is written under another name and renamed when it is complete. Only a file that a process of the session has open
is written in place: the process would otherwise go on with a file that has no name any more.
"""

import errno
import os
import stat
from typing import Any

from ingle_worker.trees.paths import Paths
from ingle_worker.wire.trees import MAKE_FOLDER, MAKE_LINK, REMOVE, SET_ATTRIBUTES, SET_MODE, WRITE_FILE, decode_path

COPY_BYTES = 1 << 30
READ_BYTES = 1 << 18
ATTEMPTS = 3
"""How often a file is read that changes meanwhile."""

NO_COPY = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""Errors of file systems between which the kernel does not copy."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def fetch(paths: Paths, path: str, limit: int, target: int) -> "list[Any]":
    """Copy a file to a descriptor. Return what it was, and whether it stayed the same meanwhile."""
    folder, name = paths.find(path)
    # Non-blocking: a pipe without a writer would block the open.
    source = os.open(name, _READ, dir_fd=folder)
    try:
        for _ in range(ATTEMPTS):
            about = os.fstat(source)
            if not stat.S_ISREG(about.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if about.st_size > limit:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            copied = copy(source, target, about.st_size)
            after = os.fstat(source)
            steady = copied == about.st_size and _version(about) == _version(after)
            if steady:
                break
        os.ftruncate(target, copied)
        return [stat.S_IMODE(about.st_mode), about.st_ino, copied, about.st_mtime_ns, about.st_ctime_ns, steady]
    finally:
        os.close(source)


def _version(about: os.stat_result) -> "tuple[int, int, int]":
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns


def copy(source: int, target: int, size: int) -> int:
    """Copy up to so many bytes. Where the file system can, both files share them until one is changed."""
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source, target, min(COPY_BYTES, size - done), done, done)
        except OSError as error:
            if error.errno not in NO_COPY:
                raise
            return _copy_by_reading(source, target, size, done)
        if not count:
            break
        done += count
    return done


def _copy_by_reading(source: int, target: int, size: int, done: int) -> int:
    while done < size:
        data = os.pread(source, min(READ_BYTES, size - done), done)
        if not data:
            break
        view = memoryview(data)
        while view:
            count = os.pwrite(target, view, done)
            view, done = view[count:], done + count
    return done


def apply(paths: Paths, step: "list[Any]", source: "int | None", draft: str) -> "os.stat_result | None":
    """Carry out one step. Return what a file is after it. An incomplete file has the name `draft`."""
    what, path, *more = step
    if what == WRITE_FILE:
        assert source is not None
        return _write_file(paths, path, source, draft, *more)
    folder, name = paths.find(path)
    if what == MAKE_FOLDER:
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            mode = stat.S_IMODE(_state(folder, name).st_mode)
            if mode & 0o700 != 0o700:
                os.chmod(name, mode | 0o700, dir_fd=folder)
    elif what == MAKE_LINK:
        os.symlink(decode_path(more[0]), name, dir_fd=folder)
    elif what == REMOVE:
        if more[0]:
            paths.forget()
            folder, name = paths.find(path)
            os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
    elif what == SET_MODE:
        os.chmod(name, more[0], dir_fd=folder)
    elif what == SET_ATTRIBUTES:
        os.chmod(name, more[0], dir_fd=folder)
        os.utime(name, ns=(more[1], more[1]), dir_fd=folder, follow_symlinks=False)
        return _state(folder, name)
    return None


def _write_file(
    paths: Paths, path: str, source: int, draft: str, mode: int, modified: int, in_place: bool
) -> os.stat_result:
    folder, name = paths.find(path)
    if in_place:
        try:
            return _write_in_place(folder, name, mode, modified, source)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP, errno.ETXTBSY, errno.EACCES):
                raise
    target = _new(folder, draft)
    try:
        _fill(target, source, mode, modified)
        os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        return os.fstat(target)  # only now, since a rename changes the time of the last change
    except BaseException:
        os.unlink(draft, dir_fd=folder)
        raise
    finally:
        os.close(target)


def _new(folder: int, draft: str) -> int:
    try:
        return os.open(draft, _NEW, 0o600, dir_fd=folder)
    except FileExistsError:
        # An agent that was killed has left it. Nobody else uses this name.
        os.unlink(draft, dir_fd=folder)
        return os.open(draft, _NEW, 0o600, dir_fd=folder)


def _write_in_place(folder: int, name: str, mode: int, modified: int, source: int) -> os.stat_result:
    now = stat.S_IMODE(_state(folder, name).st_mode)
    if not now & 0o200:
        os.chmod(name, now | 0o200, dir_fd=folder)
    target = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        return _fill(target, source, mode, modified)
    finally:
        os.close(target)


def _fill(target: int, source: int, mode: int, modified: int) -> os.stat_result:
    size = os.fstat(source).st_size
    if copy(source, target, size) != size:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    os.ftruncate(target, size)
    os.fchmod(target, mode)
    os.utime(target, ns=(modified, modified))
    return os.fstat(target)


def _state(folder: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=folder, follow_symlinks=False)
