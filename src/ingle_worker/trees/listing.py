"""Lists all entries below an open folder. No link is followed, and no other file system is entered.

Entries that ignore rules are about are left out, if the host asks for that.
"""

import os
import stat
from collections.abc import Iterator
from typing import Any

from ingle_worker.trees.ignore import NAME, Rules, ignored
from ingle_worker.wire.trees import (
    FILE,
    FOLDER,
    LINK,
    MAX_DEPTH,
    MAX_ENTRIES_PER_MESSAGE,
    MAX_RULES_FILE_BYTES,
    NOT_KEPT,
    encode_path,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Ignoring:
    """Ignore rules on the way to the folder that is listed now."""

    def __init__(self, given: "dict[str, str] | None") -> None:
        """`given` are texts of rules by the paths of their folders; None: they are read from the folders."""
        self._given = given
        self._rules: list[Rules] = []

    def enter(self, folder: int, prefix: str) -> bool:
        """Add the rules of a folder. Return whether there are some."""
        text = self._given.get(prefix) if self._given is not None else _read_rules(folder)
        if text:
            self._rules.append(Rules(text, prefix))
        return bool(text)

    def leave(self) -> None:
        self._rules.pop()

    def hides(self, path: str, name: str, is_folder: bool) -> bool:
        return ignored(self._rules, path, name, is_folder)


def _read_rules(folder: int) -> str:
    try:
        fd = os.open(NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_RULES_FILE_BYTES:
            return ""
        return os.read(fd, MAX_RULES_FILE_BYTES).decode("latin-1")
    finally:
        os.close(fd)


def entries(root: int, ignoring: "Ignoring | None" = None) -> "Iterator[list[list[Any]]]":
    """Yield entries in parts, each folder before its contents. Other processes may change the folder meanwhile."""
    part: list[list[Any]] = []
    for entry in _inside(root, "", os.fstat(root).st_dev, 1, ignoring):
        part.append(entry)
        if len(part) == MAX_ENTRIES_PER_MESSAGE:
            yield part
            part = []
    if part:
        yield part


def _inside(folder: int, prefix: str, device: int, depth: int, ignoring: "Ignoring | None") -> "Iterator[list[Any]]":
    """Yield what is below a folder. Its ignore rules hold for that long."""
    if ignoring is None or not ignoring.enter(folder, prefix):
        yield from _below(folder, prefix, device, depth, ignoring)
        return
    try:
        yield from _below(folder, prefix, device, depth, ignoring)
    finally:
        ignoring.leave()


def _below(folder: int, prefix: str, device: int, depth: int, ignoring: "Ignoring | None") -> "Iterator[list[Any]]":
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
            if ignoring is not None and ignoring.hides(path, name, kind == stat.S_IFDIR):
                continue
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
            yield from _inside(inside, path + "/", device, depth + 1, ignoring)
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
