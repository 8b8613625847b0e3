"""Shapes of answers about files: listings, archives, changed files, and differences."""

from typing import Literal

from msgspec import Struct, field


class FileChanges(Struct, frozen=True, gc=False):
    """Files that were created, changed and deleted, in the session's own folder and in tracked ones: sorted paths.

    They are relative to the folder that the session starts in; those of files elsewhere are full.
    A rollback also names empty folders, with a slash at the end.
    """

    created: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)


class FileInfo(Struct, frozen=True):
    """A file in a session's folder; `kind` is file, folder, link or other."""

    name: str
    kind: str
    size: int
    modified: float
    mode: int = 0
    """Permissions."""


class FileList(Struct):
    folder: str
    files: list[FileInfo]
    truncated: bool
    """The folder has more files than are listed."""


class Unpacked(Struct, frozen=True):
    """Files, with links, and bytes that an archive has left in a session's folder."""

    files: int
    bytes: int


class FileState(Struct, frozen=True):
    """A file, a link or an empty folder at one moment; `kind` is file, link or folder."""

    kind: str
    mode: int
    """Permissions."""
    size: int
    digest: str
    """SHA-256 of a file's bytes; empty for others."""
    target: str
    """Target of a link; empty for others."""


class FileDiff(Struct, frozen=True):
    """A file, link or empty folder that differs."""

    path: str
    """Relative to the folder that the session starts in; in full elsewhere."""
    change: Literal["created", "changed", "deleted"]
    before: FileState | None
    """Null for one that was created."""
    after: FileState | None
    """Null for one that was deleted."""
    text: str | None
    """Unified diff; empty if only permissions differ; null for what is no text, or large."""


class VariableState(Struct, frozen=True):
    """A variable at one moment."""

    type: str
    shape: list[int] | None = None
    length: int | None = None
    size: int | None = None
    """Bytes without the objects it refers to; arrays and tables include their data."""
    preview: str | None = None
    """Short text of its value, of at most 200 characters; only of types that are known to have one."""


class VariableDiff(Struct, frozen=True):
    """A variable that differs."""

    name: str
    change: Literal["created", "changed", "deleted"]
    """`changed`: it was bound again, or its saved bytes differ."""
    before: VariableState | None
    """Null for one that was created."""
    after: VariableState | None
    """Null for one that was deleted."""


class Diff(Struct, frozen=True):
    """Difference between a checkpoint, a fork or a snapshot, and the session as it is now."""

    to: str
    """Name of the checkpoint, fork or snapshot."""
    kind: Literal["checkpoint", "session", "snapshot"]
    variables: list[VariableDiff] | None
    """Variables that differ, sorted by name; null where they could not be compared."""
    unknown: list[str]
    """Variables that were not compared in time, or that cannot be saved."""
    files: list[FileDiff] | None
    """Files of the own folder that differ, sorted by path; null where they are not kept."""
    more_files: int
    """Files that differ and are not listed."""
    notices: list[str]
    """What could not be compared."""
