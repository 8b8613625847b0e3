"""Brings a folder back to a tree: files created since are removed, changed ones are written, each in one step.

Files that are as they were are not touched. Entries that the tree leaves out stay as they are.
"""

import errno
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from msgspec import Struct

from ingle.files import FileChanges
from ingle.render.phrases import some
from ingle.trees.agent import Applied, Seen, TreeAgent
from ingle.trees.in_use import InUse
from ingle.trees.index import Index
from ingle.trees.snapshot import batches, read_digests
from ingle.trees.store import NotKept, TreeStore
from ingle.trees.tree import MAX_NAMED, Tree, listed, parent, visible
from ingle_worker.wire import trees as wire

MAX_ENTRIES = 2_000_000
"""Size of a folder that can be brought back, however much was added to it since."""

RULES_FILE = ".gitignore"

Step = list[Any]


class Restored(Struct, frozen=True):
    """What going back to a tree has done."""

    changes: FileChanges
    failed: list[str]
    """Files that could not be brought back, and why."""
    tree: Tree

    @property
    def differences(self) -> list[str]:
        """Return a sentence about the files that were not as in a save."""
        changes = self.changes
        groups = (("brought back", [*changes.created, *changes.changed]), ("removed", changes.deleted))
        parts = [f"{what}: {some(names, MAX_NAMED)}" for what, names in groups if names]
        return [f"files that were not as in this save were {'; '.join(parts)}"] if parts else []

    @property
    def notices(self) -> list[str]:
        """Return sentences about what has failed."""
        return [f"files that could not be brought back: {some(self.failed, MAX_NAMED)}"] if self.failed else []


def plan(seen: list[Seen], digests: Mapping[str, str], tree: Tree, opened: frozenset[int]) -> list[Step]:
    """Return the steps from a folder as it was seen to a tree. They may be carried out in this order.

    `digests` are hashes of files that are known to be as they were. All others are written.
    """
    now = {each.path: each for each in seen}
    removed = [each for each in seen if not _stays(each, tree)]
    gone = {each.path for each in removed}
    steps: list[Step] = [
        [wire.MAKE_FOLDER, each.path] for each in seen if each.kind == wire.FOLDER and each.mode & 0o700 != 0o700
    ]
    steps += [[wire.REMOVE, each.path, each.kind == wire.FOLDER] for each in reversed(removed)]
    modes: list[Step] = []
    for entry in tree.entries.values():
        found = None if entry.path in gone else now.get(entry.path)
        if entry.kind == "folder":
            if found is None:
                steps.append([wire.MAKE_FOLDER, entry.path])
            if found is None or found.mode != entry.mode or found.mode & 0o700 != 0o700:
                modes.append([wire.SET_MODE, entry.path, entry.mode])
        elif entry.kind == "link":
            if found is None:
                steps.append([wire.MAKE_LINK, entry.path, entry.target])
        elif found is None or digests.get(entry.path) != entry.digest:
            in_place = found is not None and found.inode in opened
            steps.append([wire.WRITE_FILE, entry.path, entry.mode, entry.modified, in_place])
        elif (found.mode, found.modified) != (entry.mode, entry.modified):
            steps.append([wire.SET_ATTRIBUTES, entry.path, entry.mode, entry.modified])
    return [*steps, *reversed(modes)]


def _stays(seen: Seen, tree: Tree) -> bool:
    """Return whether an entry is of the kind that the tree has there, or is none of the tree's."""
    entry = tree.entries.get(seen.path)
    if entry is None:
        return tree.covers(seen.path)
    if seen.kind == wire.LINK:
        return entry.kind == "link" and entry.target == seen.text
    return seen.kind == {"file": wire.FILE, "folder": wire.FOLDER, "link": wire.LINK}[entry.kind]


def restore(
    agent: TreeAgent,
    store: TreeStore,
    tree: Tree,
    index: Index,
    use: InUse,
    *,
    why_not: str = "",
    only: Iterable[str] | None = None,
) -> Restored:
    """Bring a folder back to a tree. Raise AgentLost if the agent is lost on the way; then try again.

    With `why_not`, change nothing: raise NotKept with this reason if there is a difference. With `only`, all entries
    but these stay as they are.
    """
    if only is None:
        # By the rules of that moment: those of now may be about other files, which would be removed.
        seen = agent.entries(MAX_ENTRIES, _rules(store, tree) if agent.tracked else None)
    else:
        seen = agent.find(((path, False) for path in only), MAX_ENTRIES)
    steps = plan(seen, _digests(agent, store, tree, index, use.writable, seen), tree, use.opened)
    if steps and why_not:
        raise NotKept(why_not)
    failed: list[str] = []
    carried_out: list[Step] = []
    for batch in batches(steps):
        began = time.time_ns()
        for step, done in zip(batch, _apply(agent, store, tree, batch), strict=True):
            what, path = step[0], step[1]
            if done.errno:
                stays = done.errno == errno.ENOENT or (agent.tracked and done.errno == errno.ENOTEMPTY)
                if not (what == wire.REMOVE and stays):  # a folder with ignored files stays
                    failed.append(f"{visible(path)} ({os.strerror(done.errno)})")
                continue
            carried_out.append(step)
            if what in (wire.WRITE_FILE, wire.SET_ATTRIBUTES):
                index.learn(path, done.stamp, tree.entries[path].digest, began, use.writable)
    index.keep_only(set(tree.entries))
    return Restored(_changes(seen, carried_out), failed, tree)


def sweep(agent: TreeAgent, drafts: Iterable[str]) -> None:
    """Remove incomplete files that a killed agent may have left at these paths. Most are not there."""
    for batch in batches([[wire.REMOVE, path, False] for path in drafts]):
        agent.apply(batch, [])


def _rules(store: TreeStore, tree: Tree) -> dict[str, str]:
    """Return the texts of the ignore rules in a tree, by the paths of their folders. Raise NotKept for too many."""
    found: dict[str, str] = {}
    left = wire.MAX_RULES_BYTES
    for path, entry in tree.entries.items():
        folder, _, name = path.rpartition("/")
        if name == RULES_FILE and entry.kind == "file" and entry.size <= wire.MAX_RULES_FILE_BYTES:
            left -= entry.size
            if left < 0:
                raise NotKept("the ignore rules of the folder are too long")
            fd = store.open(entry.digest)
            try:
                found[f"{folder}/" if folder else ""] = os.read(fd, entry.size).decode("latin-1")
            finally:
                os.close(fd)
    return found


def _digests(
    agent: TreeAgent, store: TreeStore, tree: Tree, index: Index, writable: frozenset[int], seen: list[Seen]
) -> dict[str, str]:
    """Return the hashes of files that may be as they were. Those that are not known are read."""
    found: dict[str, str] = {}
    unknown: list[Seen] = []
    for each in seen:
        entry = tree.entries.get(each.path)
        if each.kind != wire.FILE or entry is None or entry.size != each.size:
            continue
        digest = index.digest(each.path, each.stamp, writable)
        if digest is not None:
            found[each.path] = digest
        else:
            unknown.append(each)
    for batch in batches(unknown):
        found |= read_digests(agent, store, index, writable, batch)
    return found


def _apply(agent: TreeAgent, store: TreeStore, tree: Tree, batch: list[Step]) -> list[Applied]:
    with ExitStack() as stack:
        sources = []
        for step in batch:
            if step[0] == wire.WRITE_FILE:
                sources.append(store.open(tree.entries[step[1]].digest))
                stack.callback(os.close, sources[-1])
        return agent.apply(batch, sources)


def _changes(seen: list[Seen], steps: list[Step]) -> FileChanges:
    """Return what the steps change: files, links and empty folders, as paths that can be shown."""
    before = {each.path for each in seen if each.kind in (wire.FILE, wire.LINK)}
    modes = {each.path: each.mode for each in seen}
    touched = {step[1] for step in steps if step[0] in (wire.WRITE_FILE, wire.MAKE_LINK)}
    touched |= {step[1] for step in steps if step[0] == wire.SET_ATTRIBUTES and step[2] != modes[step[1]]}
    removed = {step[1] for step in steps if step[0] == wire.REMOVE} & before
    folders = {each.path for each in seen if each.kind == wire.FOLDER}
    made = {step[1] for step in steps if step[0] == wire.MAKE_FOLDER} - folders
    made -= {parent(path) for path in touched | made}
    gone = {step[1] for step in steps if step[0] == wire.REMOVE} & folders
    gone -= {parent(each.path) for each in seen}
    return listed((touched - before, made), (touched & before, ()), (removed - touched, gone))
