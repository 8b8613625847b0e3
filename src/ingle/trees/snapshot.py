"""Takes the tree of a folder: its list, and the bytes of files that the store does not have yet."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from ingle.render.phrases import size
from ingle.trees.agent import Fetched, Seen, TreeAgent
from ingle.trees.index import Index
from ingle.trees.store import Addition, KeptTree, NotKept, TreeStore, measure
from ingle.trees.tree import Entry, LeftOut, Tree
from ingle_worker.wire import trees as wire

T = TypeVar("T")

MAX_READ_BYTES = 2**62


class Bounds(Struct, frozen=True):
    """Size of a folder that is kept."""

    files: int
    bytes: int


def take(agent: TreeAgent, store: TreeStore, index: Index, bounds: Bounds, writable: frozenset[int]) -> KeptTree:
    """Keep a folder as it is now. Raise NotKept if that is not possible.

    `writable` are inodes that a process has mapped or open for writing.
    """
    return take_entries(agent, agent.entries(bounds.files), store, index, bounds, writable)


def take_entries(
    agent: TreeAgent,
    seen: list[Seen],
    store: TreeStore,
    index: Index,
    bounds: Bounds,
    writable: frozenset[int] = frozenset(),
) -> KeptTree:
    """Keep these entries of a folder, as `take` does."""
    files = {each.path: each for each in seen if each.kind == wire.FILE}
    total = sum(each.size for each in files.values())
    if total > bounds.bytes:
        raise NotKept(f"the folder holds {size(total)}, above the bound of {size(bounds.bytes)} (keep_bytes)")
    with store.begin() as addition:
        taking = _Taking(agent, addition, index, bounds, writable)
        digests = {
            path: digest
            for path, each in files.items()
            if (digest := index.digest(path, each.stamp, writable)) is not None and addition.hold(digest)
        }
        unread = [each for path, each in files.items() if path not in digests]
        addition.reserve(sum(each.size for each in unread))
        for batch in batches(unread):
            taking.read(batch)
        index.keep_only(set(files))
        return addition.finish(taking.tree(seen, digests))


def batches(items: list[T]) -> Iterator[list[T]]:
    """Yield parts that fit into one request to an agent."""
    for start in range(0, len(items), wire.MAX_FILES_PER_MESSAGE):
        yield items[start : start + wire.MAX_FILES_PER_MESSAGE]


def read_digests(
    agent: TreeAgent, store: TreeStore, index: Index, writable: frozenset[int], batch: list[Seen]
) -> dict[str, str]:
    """Return the hashes of files that stay the same while they are read. Nothing is kept."""
    began = time.time_ns()
    found: dict[str, str] = {}
    with store.begin() as addition:
        for each, got, draft in _fetch(agent, addition, batch, MAX_READ_BYTES):
            if not got.errno and got.steady:
                found[each.path], _ = measure(draft)
                index.learn(each.path, got.stamp, found[each.path], began, writable)
    return found


def _fetch(agent: TreeAgent, addition: Addition, batch: list[Seen], limit: int) -> list[tuple[Seen, Fetched, Path]]:
    """Have files copied to drafts. Return what each was, and its draft."""
    with ExitStack() as stack:
        drafts = [addition.new_draft() for _ in batch]
        for _, fd in drafts:
            stack.callback(os.close, fd)
        fetched = agent.fetch([(each.path, limit) for each in batch], [fd for _, fd in drafts])
    return list(zip(batch, fetched, [path for path, _ in drafts], strict=True))


class _Taking:
    """One tree that is being taken."""

    def __init__(
        self, agent: TreeAgent, addition: Addition, index: Index, bounds: Bounds, writable: frozenset[int]
    ) -> None:
        self._agent = agent
        self._addition = addition
        self._index = index
        self._bounds = bounds
        self._writable = writable
        self._read: dict[str, Entry | LeftOut | None] = {}
        """What was read by path; None if it was gone."""
        self._unsteady: list[str] = []

    def read(self, batch: list[Seen]) -> None:
        """Read files into the store."""
        began = time.time_ns()
        for each, got, draft in _fetch(self._agent, self._addition, batch, self._bounds.bytes):
            if got.errno:
                gone = got.errno in (errno.ENOENT, errno.ENOTDIR)
                self._read[each.path] = None if gone else LeftOut(each.path, os.strerror(got.errno))
                continue
            digest = self._addition.add(draft)
            self._read[each.path] = Entry(each.path, "file", got.mode, got.size, got.modified, digest)
            if got.steady:
                self._index.learn(each.path, got.stamp, digest, began, self._writable)
            else:
                self._unsteady.append(each.path)

    def tree(self, seen: list[Seen], digests: dict[str, str]) -> Tree:
        entries: dict[str, Entry] = {}
        left_out: list[LeftOut] = []
        for each in seen:
            path = each.path
            if each.kind == wire.FOLDER:
                entries[path] = Entry(path, "folder", each.mode)
            elif each.kind == wire.LINK:
                entries[path] = Entry(path, "link", target=each.text)
            elif each.kind == wire.NOT_KEPT:
                left_out.append(LeftOut(path, each.text))
            elif path in digests:
                entries[path] = Entry(path, "file", each.mode, each.size, each.modified, digests[path])
            else:
                read = self._read[path]
                if isinstance(read, LeftOut):
                    left_out.append(read)
                elif read is not None:
                    entries[path] = read
        return Tree(entries, tuple(left_out), tuple(self._unsteady))
