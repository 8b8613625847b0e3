"""Shapes of answers about files: listings, archives, and the files that a cell changed."""

from msgspec import Struct, field


class FileChanges(Struct, frozen=True, gc=False):
    """Files of the session's folder that a cell created, changed and deleted: sorted paths relative to that folder."""

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)


class FileInfo(Struct, frozen=True):
    """A file in a session's folder; `kind` is file, folder, link or other."""

    name: str
    kind: str
    size: int
    modified: float


class FileList(Struct):
    folder: str
    files: list[FileInfo]
    truncated: bool
    """The folder has more files than are listed."""


class Unpacked(Struct, frozen=True):
    """Files, with links, and bytes that an archive has left in a session's folder."""

    files: int
    bytes: int
