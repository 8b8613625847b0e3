"""Differences between two kept trees: unified diffs of texts, and sizes and hashes of all else. Blocks.

Work is bounded: a file that is large, or comes late, is told without its text.
"""

import difflib
import os
import time
from typing import Literal

from ingle.files import FileDiff, FileState
from ingle.trees.store import KeptTree, TreeStore
from ingle.trees.tree import Entry, Tree, visible

MAX_FILES = 2000
MAX_TEXT_BYTES = 256 * 1024
MAX_LINES = 4000
"""Size of a file whose text is compared: more would take long."""

MAX_ALL_BYTES = 4 * 1024**2
"""Text of all diffs together."""

MAX_SECONDS = 3.0
"""Time for all diffs together. Files after that are told without their text."""


def differences(store: TreeStore, before: KeptTree, after: KeptTree) -> tuple[list[FileDiff], int]:
    """Return the files, links and empty folders that differ, sorted by path, and how many more there are."""
    old, new = _told(before.tree, after.tree), _told(after.tree, before.tree)
    paths = [path for path in old.keys() | new.keys() if _content(old.get(path)) != _content(new.get(path))]
    until, left = time.monotonic() + MAX_SECONDS, MAX_ALL_BYTES
    found = []
    for path in sorted(paths)[:MAX_FILES]:
        was, now = old.get(path), new.get(path)
        text = _text(store, path, was, now) if left > 0 and time.monotonic() < until else None
        left -= len(text or "")
        found.append(FileDiff(visible(path), _change(_state(was), _state(now)), _state(was), _state(now), text))
    return found, len(paths) - len(found)


def _told(tree: Tree, other: Tree) -> dict[str, Entry]:
    """Return the entries of a tree that a difference can be about: no folder that the other has, or that has files."""
    return {
        path: each
        for path, each in tree.entries.items()
        if each.kind != "folder" or (path in tree.empty_folders and not other.has_folder(path))
    }


def _content(entry: Entry | None) -> object:
    return None if entry is None else entry.content


def _change(before: FileState | None, after: FileState | None) -> Literal["created", "changed", "deleted"]:
    if before is None:
        return "created"
    return "deleted" if after is None else "changed"


def _state(entry: Entry | None) -> FileState | None:
    if entry is None:
        return None
    return FileState(entry.kind, entry.mode, entry.size, entry.digest, visible(entry.target))


def _text(store: TreeStore, path: str, before: Entry | None, after: Entry | None) -> str | None:
    """Return a unified diff, or None if one of the two is no text or too large. A folder has no text to compare."""
    before, after = (None if each is None or each.kind == "folder" else each for each in (before, after))
    if before is None and after is None:
        return None
    old, new = _lines(store, before), _lines(store, after)
    if old is None or new is None:
        return None
    name = visible(path)
    heads = (f"a/{name}" if before else "/dev/null", f"b/{name}" if after else "/dev/null")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(old, new, *heads)
    )


def _lines(store: TreeStore, entry: Entry | None) -> list[str] | None:
    if entry is None:
        return []
    if entry.kind != "file" or entry.size > MAX_TEXT_BYTES:
        return None
    fd = store.open(entry.digest)
    try:
        data = os.read(fd, MAX_TEXT_BYTES + 1)
    finally:
        os.close(fd)
    if b"\0" in data or data.count(b"\n") > MAX_LINES:
        return None
    try:
        # Only line feeds end a line here: other separators belong to the text.
        *whole, last = data.decode().split("\n")
    except UnicodeDecodeError:
        return None
    return [*(f"{line}\n" for line in whole), *([last] if last else [])]
