"""The contents of a snapshot: names, the chunks with their values, and the environment of the session.

A worker sends a `Summary`. It is untrusted, so it is typed and bounded here and checked against the received chunks.
The signed and stored form is the `Manifest`.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Struct, field

from ingle import errors
from ingle.events import Skipped, SnapshotInfo, SnapshotName
from ingle.support.bounded_json import Bounds, Decoder, OutOfBounds
from ingle_worker.wire import snapshot_channel

VERSION = 1
VERSION_WITH_FILES = 2
"""Version of a snapshot that holds files: an older ingle, which knows of none, must not remove their bytes."""

Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
"""SHA-256 in hexadecimal. The length is checked while decoding, so hostile data cannot grow in memory first."""

Chunk = tuple[Digest, int]
"""Hash and size of a chunk."""

BOUNDS = Bounds(elements=3_000_000, text=128 * 1024**2)
"""Bounds of a contents list: enough for 125,000 names, each with its own objects."""


class Group(Struct, frozen=True):
    """Names that share objects: their buffers and their stream."""

    names: list[SnapshotName]
    stream: list[Chunk]
    buffers: list[list[Chunk]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    size: int = 0


class Source(Struct, frozen=True):
    """The text of a cell that saved objects still refer to."""

    file: str
    chunks: list[Chunk]


class Random(Struct, frozen=True):
    stream: list[Chunk]
    buffers: list[list[Chunk]] = field(default_factory=list)


class Summary(Struct, frozen=True):
    groups: list[Group]
    skipped: list[Skipped]
    sources: list[Source]
    random: Random
    flags: int
    packages: dict[str, str]
    environ: dict[str, str | None]
    path: list[str] | None
    cwd: str | None
    makers: list[str] = field(default_factory=list)
    """Cells that made the unsaved variables, in order. Their texts are among the sources."""
    library: list[str] = field(default_factory=list)
    """Names among those of the groups that are definitions of the user's library, and no variables."""

    def pieces(self) -> Iterator[Chunk]:
        """Yield all chunks in loading order, with repetitions."""
        for source in self.sources:
            yield from source.chunks
        groups: list[Group | Random] = [*self.groups, self.random]
        for group in groups:
            for buffer in group.buffers:
                yield from buffer
            yield from group.stream

    @property
    def variables(self) -> list[SnapshotName]:
        library = set(self.library)
        return [each for group in self.groups for each in group.names if each.name not in library]


class Files(Struct, frozen=True):
    """Files of the session's own folder: the list of its tree, and the bytes of all files."""

    tree: list[Chunk]
    contents: list[Chunk]
    """Each chunk once."""
    count: int


class Manifest(Struct, frozen=True):
    version: int
    session_id: str
    saved_at: float
    python: str
    isolation: str
    cell: int
    """The last cell that had ended."""
    stdlib: bool
    """Whether the session started with the user's library."""
    summary: Summary
    files: Files | None = None
    no_files: str = ""
    """Why there are no files. Empty in a snapshot that is older than saved files."""
    changes: list[str] = field(default_factory=list)
    """Undo logs of rollbacks and commits that this state has. They are not needed from this save on."""

    def pieces(self) -> Iterator[Chunk]:
        """Yield all chunks of variables and files, with repetitions."""
        yield from self.summary.pieces()
        if self.files is not None:
            yield from self.files.tree
            yield from self.files.contents

    @property
    def size(self) -> int:
        return sum(size for _, size in self.pieces())

    def info(self, name: str) -> SnapshotInfo:
        summary = self.summary
        return SnapshotInfo(
            name=name,
            session_id=self.session_id,
            saved_at=self.saved_at,
            python=self.python,
            isolation=self.isolation,
            cell=self.cell,
            size=self.size,
            variables=summary.variables,
            skipped=summary.skipped,
            packages=summary.packages,
            files=None if self.files is None else self.files.count,
        )


_summary = Decoder(Summary, BOUNDS)
_manifest = Decoder(Manifest, BOUNDS)


def read_summary(data: bytes) -> Summary:
    """Decode a worker's summary, or raise SaveFailed."""
    try:
        return _summary.decode(data)
    except OutOfBounds as error:
        raise errors.SaveFailed(f"the list of what to save is too long ({error}); delete some names") from None
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise errors.SaveFailed(f"the session's copy sent an unreadable summary ({error}); retry") from None


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode(data: bytes, name: str) -> Manifest:
    """Decode an untrusted manifest, or raise SnapshotDamaged."""
    try:
        manifest = _manifest.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise errors.SnapshotDamaged(name, f"its list of contents cannot be read ({error})") from None
    if manifest.version not in (VERSION, VERSION_WITH_FILES):
        known = f"{VERSION} and {VERSION_WITH_FILES}"
        raise errors.SnapshotDamaged(name, f"it has format {manifest.version}; this ingle reads {known}")
    for number, group in enumerate(manifest.summary.groups):
        if any(not 0 <= need < number for need in group.needs):
            raise errors.SnapshotDamaged(name, "its parts depend on later ones")
    for digest, size in manifest.pieces():
        if len(digest) != 64 or not 0 <= size <= snapshot_channel.MAX_CHUNK:
            raise errors.SnapshotDamaged(name, "it names an invalid chunk")
        try:
            bytes.fromhex(digest)
        except ValueError:
            raise errors.SnapshotDamaged(name, "it names an invalid chunk") from None
    return manifest
