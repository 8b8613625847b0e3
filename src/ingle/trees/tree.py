"""A tree: the state of a folder at one moment, without the bytes of its files. Pure values."""

from collections.abc import Iterable
from functools import cached_property
from typing import Literal

from msgspec import Struct

from ingle.files import FileChanges
from ingle.render.phrases import some
from ingle_worker.wire.trees import decode_path

MAX_NAMED = 5
"""Files that a notice names."""

Kind = Literal["file", "folder", "link"]


class Entry(Struct, frozen=True, gc=False):
    """A file, folder or symbolic link. Its path has one character per byte; see `ingle_worker.wire.trees`."""

    path: str
    kind: Kind
    mode: int = 0o777
    size: int = 0
    modified: int = 0
    """Nanoseconds."""
    digest: str = ""
    """SHA-256 of a file's bytes."""
    target: str = ""
    """Target of a link, with one character per byte."""

    @property
    def content(self) -> tuple[str, int, str, str]:
        """Return what two equal entries have in common. A time alone makes no difference."""
        return self.kind, self.mode if self.kind == "file" else 0, self.digest, self.target


class LeftOut(Struct, frozen=True, gc=False):
    """An entry that is not kept, and why."""

    path: str
    reason: str


class Tree(Struct, frozen=True, dict=True):
    """All entries of a folder by path, each folder before its contents."""

    entries: dict[str, Entry]
    left_out: tuple[LeftOut, ...] = ()
    """Entries that are not kept. Going back to this tree leaves them as they are."""
    unsteady: tuple[str, ...] = ()
    """Files that changed while they were read. Their bytes may be of several moments."""

    @cached_property
    def digests(self) -> frozenset[str]:
        return frozenset(each.digest for each in self.entries.values() if each.kind == "file")

    @cached_property
    def empty_folders(self) -> frozenset[str]:
        """Paths of folders without an entry."""
        parents = {parent(path) for path in self.entries}
        return frozenset(path for path in self.entries if self.has_folder(path) and path not in parents)

    def has_folder(self, path: str) -> bool:
        entry = self.entries.get(path)
        return entry is not None and entry.kind == "folder"

    @property
    def size(self) -> int:
        return sum(each.size for each in self.entries.values())

    def covers(self, path: str) -> bool:
        """Return whether a path is one that is left out, or lies below one."""
        return any(path == each.path or path.startswith(each.path + "/") for each in self.left_out)

    @property
    def notices(self) -> list[str]:
        """Return sentences about files that are not kept as they were."""
        found = []
        if self.left_out:
            named = [f"{visible(each.path)} ({each.reason})" for each in self.left_out]
            found.append(f"files that are not kept: {some(named, MAX_NAMED)}")
        if self.unsteady:
            named = [visible(each) for each in self.unsteady]
            found.append(f"files that changed while they were read: {some(named, MAX_NAMED)}")
        return found


EMPTY = Tree({})


def compare(before: Tree, after: Tree) -> FileChanges:
    """Return the files, links and empty folders that differ, as sorted paths that can be shown."""
    old = {path: each for path, each in before.entries.items() if each.kind != "folder"}
    new = {path: each for path, each in after.entries.items() if each.kind != "folder"}
    changed = [path for path in old.keys() & new.keys() if old[path].content != new[path].content]
    made = {path for path in after.empty_folders if not before.has_folder(path)}
    gone = {path for path in before.empty_folders if not after.has_folder(path)}
    return listed((new.keys() - old.keys(), made), (changed, ()), (old.keys() - new.keys(), gone))


def listed(*groups: tuple[Iterable[str], Iterable[str]]) -> FileChanges:
    """Return changes from the files and the empty folders of each group. A folder ends with a slash."""
    return FileChanges(
        *(sorted([*map(visible, files), *(f"{visible(each)}/" for each in folders)]) for files, folders in groups)
    )


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def visible(path: str) -> str:
    """Return a path as it is shown: bytes that are no text as escapes."""
    return decode_path(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
