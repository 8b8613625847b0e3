"""Trees in snapshots: the list of entries and the bytes of files, both as chunks. Blocks.

A snapshot may be of any writer, so its list is typed, bounded and checked. The file agent carries it out with the
session's rights, and no path in it leads out of the folder.
"""

import hashlib
import os
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ingle import errors
from ingle.snapshots.manifest import Chunk, Digest, Files
from ingle.snapshots.transfer import Sink, Source
from ingle.support.bounded_json import Bounds, Decoder
from ingle.trees.store import Addition, KeptTree, TreeStore
from ingle.trees.tree import Entry, Kind, LeftOut, Tree
from ingle_worker.wire.snapshot_channel import MAX_CHUNK
from ingle_worker.wire.trees import MAX_DEPTH

BOUNDS = Bounds(elements=3_000_000, text=256 * 1024**2)
"""Bounds of a list: enough for 200,000 entries."""

PERMISSIONS = 0o777
"""Permissions that a snapshot gives: a file that runs as another user comes from no snapshot."""

MAX_PATH_CHARS = MAX_DEPTH * 256

Path = Annotated[str, Meta(min_length=1, max_length=MAX_PATH_CHARS)]
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class SavedEntry(Struct, frozen=True, array_like=True, gc=False):
    """An entry of a tree, as a snapshot has it."""

    path: Path
    kind: Kind
    mode: Number
    size: Number
    modified: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    digest: Annotated[str, Meta(max_length=64)]
    target: Annotated[str, Meta(max_length=8192)]
    chunks: list[tuple[Digest, Number]] = []
    """Parts of a file that is larger than a chunk. A smaller one is one chunk, with the same hash."""


class SavedTree(Struct, frozen=True):
    entries: list[SavedEntry]
    left_out: list[LeftOut]


_tree = Decoder(SavedTree, BOUNDS)


class PackedFiles:
    """Kept files that a snapshot takes in."""

    def __init__(self, store: TreeStore, kept: KeptTree) -> None:
        self._store = store
        self._tree = kept.tree

    def chunks(self) -> dict[str, int]:
        """Return the sizes of all chunks by their hashes."""
        return dict(chunk for digest in self._tree.digests for chunk in self._store.chunks(digest))

    def pack(self, sink: Sink) -> Files:
        """Put all chunks into a sink."""
        contents: dict[str, int] = {}
        for digest in sorted(self._tree.digests):
            chunks = self._store.chunks(digest)
            contents.update(chunks)
            if not all(sink.has(bytes.fromhex(each)) for each, _ in chunks):
                self._put(digest, chunks, sink)
        files = [each for each in self._tree.entries.values() if each.kind != "folder"]
        return Files(_put_list(self._list(), sink), list(contents.items()), len(files))

    def _put(self, digest: str, chunks: list[Chunk], sink: Sink) -> None:
        fd = self._store.open(digest)
        try:
            with open(fd, "rb", closefd=False) as file:
                for each, size in chunks:
                    data = file.read(size)
                    if not sink.has(bytes.fromhex(each)):
                        sink.put(bytes.fromhex(each), memoryview(data))
        finally:
            os.close(fd)

    def _list(self) -> bytes:
        entries = []
        for each in self._tree.entries.values():
            chunks = self._store.chunks(each.digest) if each.kind == "file" and each.size > MAX_CHUNK else []
            entries.append(
                SavedEntry(each.path, each.kind, each.mode, each.size, each.modified, each.digest, each.target, chunks)
            )
        return msgspec.json.encode(SavedTree(entries, list(self._tree.left_out)))


def _put_list(data: bytes, sink: Sink) -> list[Chunk]:
    chunks = []
    for start in range(0, len(data), MAX_CHUNK):
        part = data[start : start + MAX_CHUNK]
        digest = hashlib.sha256(part)
        if not sink.has(digest.digest()):
            sink.put(digest.digest(), memoryview(part))
        chunks.append((digest.hexdigest(), len(part)))
    return chunks


def unpack(name: str, files: Files, source: Source, store: TreeStore) -> KeptTree:
    """Put the files of a snapshot into a store. Raise SnapshotDamaged, or NotKept if the store has no room."""
    saved = _read_list(name, b"".join(source.read(bytes.fromhex(digest), size) for digest, size in files.tree))
    known = dict(files.contents)
    entries: dict[str, Entry] = {}
    with store.begin() as addition:
        missing = {each.digest: each.size for each in saved.entries if each.kind == "file"}
        held = {digest for digest in missing if addition.hold(digest)}
        addition.reserve(sum(size for digest, size in missing.items() if digest not in held))
        for each in saved.entries:
            if each.kind == "file" and each.digest not in held:
                chunks = each.chunks or ([(each.digest, each.size)] if each.size else [])
                if any(known.get(digest) != size for digest, size in chunks):
                    raise errors.SnapshotDamaged(name, "its list of files names bytes that it has not")
                _write(name, addition, each, (source.read(bytes.fromhex(one), size) for one, size in chunks))
                held.add(each.digest)
            mode = each.mode & PERMISSIONS
            entries[each.path] = Entry(each.path, each.kind, mode, each.size, each.modified, each.digest, each.target)
        return addition.finish(Tree(entries, tuple(saved.left_out)))


def _read_list(name: str, data: bytes) -> SavedTree:
    try:
        saved = _tree.decode(data)
        for each in saved.entries:
            # One character per byte, or the bytes are none of a path.
            (each.path + each.target).encode("latin-1")
            if "\0" in each.path or "\0" in each.target:
                raise ValueError("a path with a null byte")
        for left in saved.left_out:
            left.path.encode("latin-1")
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise errors.SnapshotDamaged(name, f"its list of files cannot be read ({error})") from None
    return saved


def _write(name: str, addition: Addition, entry: SavedEntry, parts: Iterable[bytes]) -> None:
    draft, fd = addition.new_draft()
    with open(fd, "wb") as file:
        file.writelines(parts)
    if addition.add(draft) != entry.digest:
        raise errors.SnapshotDamaged(name, "a file in it has another hash than its list says")
