"""Lists directories and has them watched. Each is watched before it is listed, so that no file is missed.

Only directories are opened, and never over a link: what lies elsewhere is neither watched nor listed.
"""

import os
from dataclasses import dataclass, field

from ingle.support import inotify
from ingle.support.inotify import Inotify

MASK = (
    inotify.CREATE
    | inotify.DELETE
    | inotify.MOVED_FROM
    | inotify.MOVED_TO
    | inotify.MODIFY
    | inotify.CLOSE_WRITE
    | inotify.ATTRIB
    | inotify.DELETE_SELF
    | inotify.MOVE_SELF
)
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


MAX_DEPTH = 64


class TooLarge(Exception):
    """There are more files or directories than may be listed, or one is too deep."""


@dataclass
class Directory:
    """A watched directory."""

    path: str
    """Relative to the watched folder, with a final slash; empty for the folder itself."""
    watch: int
    files: set[str] = field(default_factory=set)
    directories: "dict[str, Directory]" = field(default_factory=dict)

    def all_files(self) -> list[str]:
        found = [self.path + name for name in self.files]
        for below in self.directories.values():
            found += below.all_files()
        return found


class Listing:
    """Watched directories and their files. May be made in a thread."""

    def __init__(self, kernel: Inotify, skipped: frozenset[str], files: int, folders: int, *, times: bool) -> None:
        self._kernel = kernel
        self._skipped = skipped
        self._most_files = files
        self._most_folders = folders
        self._times = times
        self.directories: list[Directory] = []
        """The first one holds all others."""
        self.files: dict[str, int] = {}
        """By path: the time of the last change in nanoseconds, or 0 without `times`."""

    def enter(self, descriptor: int, path: str) -> Directory:
        """Watch and list an open directory with all below it, and close it. Raise TooLarge above the bounds."""
        try:
            if len(self.directories) >= self._most_folders or path.count("/") > MAX_DEPTH:
                raise TooLarge
            directory = Directory(path, self._kernel.add(descriptor, MASK))
            self.directories.append(directory)
            with os.scandir(descriptor) as entries:
                for entry in entries:
                    self._add(descriptor, directory, entry)
            return directory
        finally:
            os.close(descriptor)

    def _add(self, descriptor: int, directory: Directory, entry: "os.DirEntry[str]") -> None:
        path = directory.path + entry.name
        changed = 0
        try:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in self._skipped:
                    below = os.open(entry.name, DIRECTORY, dir_fd=descriptor)
                    directory.directories[entry.name] = self.enter(below, path + "/")
                return
            if self._times:
                changed = entry.stat(follow_symlinks=False).st_ctime_ns
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # gone again, replaced by a link, or closed to the host
        if len(self.files) >= self._most_files:
            raise TooLarge
        directory.files.add(entry.name)
        self.files[path] = changed


def open_below(root: str, path: str) -> int:
    """Open a directory below a folder. No link is followed on any part of the way."""
    descriptor = os.open(root, DIRECTORY)
    for part in path.split("/"):
        try:
            below = os.open(part, DIRECTORY, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor
