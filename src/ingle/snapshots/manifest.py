"""What a snapshot holds: its names, where their bytes are, and what the session had around them.

`Summary` is what a worker says of itself, so it is untrusted: typed and bounded here, and checked against the chunks
that really came. `Manifest` is what is signed and kept.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from msgspec import Struct, field

from ingle import errors
from ingle.events import Skipped, SnapshotInfo, SnapshotName
from ingle_worker.wire import snapshot_channel

VERSION = 1
MAX_NAMES = 1_000_000

Digest = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
"""A SHA-256 in hexadecimal digits. Its length is checked while it is read: a list of others would become far more than
it is before anybody could look at it."""

Chunk = tuple[Digest, int]
"""A chunk's hash, and its size."""

MOST_QUOTES = 8_000_000
"""In what a worker says of itself: twice the strings that it would become."""


class Group(Struct, frozen=True):
    """Names that hang together: first its buffers, then its stream."""

    names: list[SnapshotName]
    stream: list[Chunk]
    buffers: list[list[Chunk]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    size: int = 0


class Source(Struct, frozen=True):
    """The text of a cell of which something is left."""

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
    """The cells that made what could not be saved, in their order; their text is among the sources."""

    def pieces(self) -> Iterator[Chunk]:
        """All chunks in the order in which they are loaded; one that is used twice comes twice."""
        for source in self.sources:
            yield from source.chunks
        groups: list[Group | Random] = [*self.groups, self.random]
        for group in groups:
            for buffer in group.buffers:
                yield from buffer
            yield from group.stream

    @property
    def count(self) -> int:
        return sum(len(group.names) for group in self.groups)


class Manifest(Struct, frozen=True):
    version: int
    session_id: str
    saved_at: float
    python: str
    isolation: str
    cell: int
    """The last cell that had ended."""
    stdlib: bool
    """It began with the user's library."""
    summary: Summary

    @property
    def size(self) -> int:
        return sum(size for _, size in self.summary.pieces())

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
            variables=[each for group in summary.groups for each in group.names],
            skipped=summary.skipped,
            packages=summary.packages,
        )


_summary = msgspec.json.Decoder(Summary)
_manifest = msgspec.json.Decoder(Manifest)


def read_summary(data: bytes) -> Summary:
    """What a worker sent at the end; an error when it is no summary."""
    if data.count(b'"') - data.count(b'\\"') > MOST_QUOTES:
        raise errors.SaveFailed("the session's copy sent a summary of too many parts; delete names that are not needed")
    try:
        summary = _summary.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise errors.SaveFailed(f"the session's copy sent no summary that can be read ({error}); try again") from None
    if summary.count > MAX_NAMES:
        raise errors.SaveFailed(f"the session has more than {MAX_NAMES} names; delete some")
    return summary


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode(data: bytes, name: str) -> Manifest:
    """A manifest that may be anybody's."""
    try:
        manifest = _manifest.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise errors.SnapshotDamaged(name, f"its list of contents cannot be read ({error})") from None
    if manifest.version != VERSION:
        raise errors.SnapshotDamaged(name, f"it is of format {manifest.version}; this ingle reads {VERSION}")
    for number, group in enumerate(manifest.summary.groups):
        if any(not 0 <= need < number for need in group.needs):
            raise errors.SnapshotDamaged(name, "its parts need what comes after them")
    for digest, size in manifest.summary.pieces():
        if len(digest) != 64 or not 0 <= size <= snapshot_channel.MAX_CHUNK:
            raise errors.SnapshotDamaged(name, "it names a chunk that cannot be one")
        try:
            bytes.fromhex(digest)
        except ValueError:
            raise errors.SnapshotDamaged(name, "it names a chunk that cannot be one") from None
    return manifest
