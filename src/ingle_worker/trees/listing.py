"""Lists all entries below an open folder. No link is followed, and no other file system is entered.

Entries that ignore rules are about are left out, if the host asks for that.
"""

import os
import stat
from collections.abc import Iterator
from typing import Any

from ingle_worker.trees.ignore import NAME, Rules, ignored
from ingle_worker.trees.paths import Paths
from ingle_worker.wire.trees import (
    FILE,
    FOLDER,
    LINK,
    MAX_DEPTH,
    MAX_ENTRIES_PER_MESSAGE,
    MAX_RULES_FILE_BYTES,
    NOT_KEPT,
    OPAQUE,
    REMOVED,
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


def entries(root: int, ignoring: "Ignoring | None" = None, *, layer: bool = False) -> "Iterator[list[list[Any]]]":
    """Yield entries in parts, each folder before its contents. Other processes may change the folder meanwhile.

    In a `layer` of overlayfs, what stands for removed entries is told as such.
    """
    return _in_parts(_inside(root, "", Listing(os.fstat(root).st_dev, ignoring, layer), 1))


def find(root: int, paths: Paths, wanted: "list[tuple[str, bool]]") -> "Iterator[list[list[Any]]]":
    """Yield those of the wanted entries that exist, in parts. Each has a path, and whether all below it is wanted."""
    return _in_parts(_find(Listing(os.fstat(root).st_dev), paths, wanted))


def _find(listing: "Listing", paths: Paths, wanted: "list[tuple[str, bool]]") -> "Iterator[list[Any]]":
    for path, deep in wanted:
        try:
            folder, name = paths.find(path)
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            continue  # it is not there, or below something that is no folder
        if not stat.S_ISDIR(about.st_mode):
            entry = _no_folder(listing, folder, name, path, about)
            yield from [entry] if entry is not None else []
        elif deep:
            yield from _folder(folder, name, path, about, listing, path.count("/") + 1)
        else:
            yield _entry(FOLDER, path, about)


def _in_parts(found: "Iterator[list[Any]]") -> "Iterator[list[list[Any]]]":
    part: list[list[Any]] = []
    for entry in found:
        part.append(entry)
        if len(part) == MAX_ENTRIES_PER_MESSAGE:
            yield part
            part = []
    if part:
        yield part


class Listing:
    """What all entries of one list have in common."""

    def __init__(self, device: int, ignoring: "Ignoring | None" = None, layer: bool = False) -> None:
        self.device = device
        self.ignoring = ignoring
        self.layer = layer


def _inside(folder: int, prefix: str, listing: Listing, depth: int) -> "Iterator[list[Any]]":
    """Yield what is below a folder. Its ignore rules hold for that long."""
    ignoring = listing.ignoring
    if ignoring is None or not ignoring.enter(folder, prefix):
        yield from _below(folder, prefix, listing, depth)
        return
    try:
        yield from _below(folder, prefix, listing, depth)
    finally:
        ignoring.leave()


def _below(folder: int, prefix: str, listing: Listing, depth: int) -> "Iterator[list[Any]]":
    folders: list[tuple[str, str, os.stat_result]] = []
    ignoring = listing.ignoring
    with os.scandir(folder) as found:
        for each in found:
            try:
                about = each.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            name = each.name
            path = prefix + (name if name.isascii() else encode_path(name))
            is_folder = stat.S_ISDIR(about.st_mode)
            if ignoring is not None and ignoring.hides(path, name, is_folder):
                continue
            if is_folder:
                folders.append((name, path, about))
            elif (entry := _no_folder(listing, folder, name, path, about)) is not None:
                yield entry
    for name, path, about in folders:
        yield from _folder(folder, name, path, about, listing, depth)


def _no_folder(listing: Listing, folder: int, name: str, path: str, about: os.stat_result) -> "list[Any] | None":
    """Return an entry that is no folder, or None if it was replaced meanwhile."""
    kind = stat.S_IFMT(about.st_mode)
    if kind == stat.S_IFREG:
        return _entry(FILE, path, about)
    if kind == stat.S_IFLNK:
        try:
            return _entry(LINK, path, about, encode_path(os.readlink(name, dir_fd=folder)))
        except OSError:
            return None
    if listing.layer and kind == stat.S_IFCHR and about.st_rdev == 0:
        return _entry(REMOVED, path, about)
    return _entry(NOT_KEPT, path, about, "a pipe, a socket or a device")


def _folder(
    around: int, name: str, path: str, about: os.stat_result, listing: Listing, depth: int
) -> "Iterator[list[Any]]":
    """Yield a folder, and what is below it."""
    if about.st_dev != listing.device:
        yield _entry(NOT_KEPT, path, about, "another file system")
        return
    if depth == MAX_DEPTH:
        yield _entry(NOT_KEPT, path, about, "too deep")
        return
    try:
        inside = os.open(name, _FOLDER, dir_fd=around)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield _entry(NOT_KEPT, path, about, os.strerror(error.errno or 0))
        return
    try:
        hides = listing.layer and _is_opaque(inside)
        yield _entry(FOLDER, path, os.fstat(inside), OPAQUE if hides else "")
        yield from _inside(inside, path + "/", listing, depth + 1)
    finally:
        os.close(inside)


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, "user.overlay.opaque") == b"y"
    except OSError:
        return False


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
