"""Lists all entries below an open folder. No link is followed, and no other file system is entered."""

import os
import stat
from collections.abc import Iterator
from typing import Any

from ingle_worker.wire.trees import (
    FILE,
    FOLDER,
    LINK,
    MAX_DEPTH,
    MAX_ENTRIES_PER_MESSAGE,
    NOT_KEPT,
    encode_path,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def entries(root: int) -> "Iterator[list[list[Any]]]":
    """Yield entries in parts, each folder before its contents. Other processes may change the folder meanwhile."""
    part: list[list[Any]] = []
    for entry in _below(root, "", os.fstat(root).st_dev, 1):
        part.append(entry)
        if len(part) == MAX_ENTRIES_PER_MESSAGE:
            yield part
            part = []
    if part:
        yield part


def _below(folder: int, prefix: str, device: int, depth: int) -> "Iterator[list[Any]]":
    folders: list[tuple[str, str, os.stat_result]] = []
    with os.scandir(folder) as found:
        for each in found:
            try:
                about = each.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            name = each.name
            path = prefix + (name if name.isascii() else encode_path(name))
            kind = stat.S_IFMT(about.st_mode)
            if kind == stat.S_IFREG:
                yield _entry(FILE, path, about)
            elif kind == stat.S_IFDIR:
                folders.append((name, path, about))
            elif kind == stat.S_IFLNK:
                try:
                    yield _entry(LINK, path, about, encode_path(os.readlink(name, dir_fd=folder)))
                except OSError:
                    continue  # it was replaced meanwhile
            else:
                yield _entry(NOT_KEPT, path, about, "a pipe, a socket or a device")
    for name, path, about in folders:
        if about.st_dev != device:
            yield _entry(NOT_KEPT, path, about, "another file system")
            continue
        if depth == MAX_DEPTH:
            yield _entry(NOT_KEPT, path, about, "too deep")
            continue
        try:
            inside = os.open(name, _FOLDER, dir_fd=folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield _entry(NOT_KEPT, path, about, os.strerror(error.errno or 0))
            continue
        try:
            yield _entry(FOLDER, path, os.fstat(inside))
            yield from _below(inside, path + "/", device, depth + 1)
        finally:
            os.close(inside)


def _entry(kind: str, path: str, about: os.stat_result, text: str = "") -> "list[Any]":
    return [
        kind,
        path,
        stat.S_IMODE(about.st_mode),
        about.st_ino,
        about.st_size,
        about.st_mtime_ns,
        about.st_ctime_ns,
        text,
    ]
