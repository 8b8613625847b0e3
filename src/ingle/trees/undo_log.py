"""Undo logs: what folders were like before a rollback or a commit changed them, on disk until all are changed.

A server that dies on the way leaves its log. The next session that has one of these folders undoes the change there.
So the files are wholly those before it, or wholly those after it.

The log of a durable session stays until a save has the state after the change. That save names the log. A session that
is lost meanwhile comes back from a save that does not, so the change is undone. Blocks.
"""

import contextlib
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from ingle.snapshots.disk_errors import sync_folder
from ingle.support import remove_tree
from ingle.trees.agent import draft_name
from ingle.trees.store import KeptTree, TreeStore
from ingle.trees.tree import Entry, Tree, parent, visible

LEFT_SECONDS = 7 * 86400.0
"""Age at which the log of a dead server is removed, if no session had its folders since."""

DRAFT = ".draft"
"""End of the name of a log that is incomplete, or not needed any more."""


class Change(Struct, frozen=True):
    """Change of one folder: its entries before and after, as far as they differ."""

    tenant: str
    place: str
    """Path of the folder for the host."""
    tracked: bool
    """Whether others than the session may change the folder."""
    made_at: float
    before: dict[str, Entry]
    after: dict[str, Entry]
    layered: bool = False
    """Whether it changes no other entries than these, whatever the rules of a tracked folder are."""
    session: str = ""
    """Unique id of the durable session whose save decides, if there is one."""

    @classmethod
    def between(
        cls, tenant: str, place: str, before: Tree, after: Tree, *, tracked: bool, layered: bool = False
    ) -> "Change":
        old, new = before.entries, after.entries
        was = {path: entry for path, entry in old.items() if new.get(path) != entry}
        will = {path: entry for path, entry in new.items() if old.get(path) != entry}
        return cls(tenant, place, tracked, time.time(), was, will, layered)

    @property
    def paths(self) -> set[str]:
        """Paths of the entries that differ, and of all folders above them."""
        found = {*self.before, *self.after}
        for path in [*found]:
            while path := parent(path):
                found.add(path)
        return found

    @property
    def digests(self) -> set[str]:
        """Hashes of the files that were there before."""
        return {each.digest for each in self.before.values() if each.kind == "file"}

    def undone(self, now: Tree) -> tuple[Tree, list[str]]:
        """Return the tree that the folder has without this change, and the files that others have changed since."""
        entries = dict(now.entries)
        others: list[str] = []
        for path in {**self.before, **self.after}:
            found, was, will = entries.get(path), self.before.get(path), self.after.get(path)
            if self.tracked and _content(found) not in (_content(was), _content(will)):
                others.append(visible(path))
            elif was is not None:
                entries[path] = was
            else:
                entries.pop(path, None)
        # A folder that was made stays as long as another process has put something into it.
        for path in list(entries):
            above = path.rpartition("/")[0]
            while above and above not in entries:
                entries[above] = Entry(above, "folder", 0o700)
                above = above.rpartition("/")[0]
        return Tree(dict(sorted(entries.items())), now.left_out), others


def _content(entry: Entry | None) -> object:
    return None if entry is None else entry.content


_decode = msgspec.msgpack.Decoder(Change).decode


@dataclass(frozen=True)
class UndoLog:
    """A log on disk, in a folder of its own."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def draft(self) -> str:
        """Name of the files that are incomplete while the change is made or undone."""
        return draft_name(self.name)


class Saves(Protocol):
    """Saves of durable sessions."""

    def changes(self, tenant: str, session: str) -> list[str]:
        """Return the names of the logs that the last save of a session names. Raise DataFolderFailed."""
        ...


@dataclass(frozen=True)
class LeftChange:
    """A change that was begun and not finished."""

    change: Change
    file: Path
    """File in the log that describes it."""

    @property
    def log(self) -> UndoLog:
        return UndoLog(self.file.parent)

    @property
    def drafts(self) -> list[str]:
        """Paths at which a file agent that was killed may have left an incomplete file."""
        folders = {path.rpartition("/")[0] for path in (*self.change.before, *self.change.after)}
        return [f"{folder}/{self.log.draft}".lstrip("/") for folder in sorted(folders)]

    def target(self, store: TreeStore, now: KeptTree) -> tuple[KeptTree, list[str]]:
        """Keep the tree that the folder has without this change. Return the files that others have changed, too."""
        tree, others = self.change.undone(now.tree)
        with store.begin() as addition:
            for digest in tree.digests:
                if not addition.hold(digest):
                    draft, fd = addition.new_draft()
                    with open(fd, "wb") as file, open(self.file.parent / digest, "rb") as source:
                        shutil.copyfileobj(source, file)
                    addition.add(draft)
            return addition.finish(tree), others


class UndoLogs:
    """Logs of all servers that have the same data folder."""

    def __init__(self, folder: Path, server: str, is_dead: Callable[[str], bool], saves: Saves) -> None:
        """`server` is the name of this server, and `is_dead` tells whether another one has ended."""
        self._folder = folder
        self._server = server
        self._is_dead = is_dead
        self._saves = saves
        self._lock = threading.Lock()
        self._undoing: set[Path] = set()
        self._begun: set[Path] = set()
        """Folders of this server's own logs. Others with its name are of dead servers, and were taken over."""

    @property
    def empty(self) -> bool:
        """Whether there is certainly no log, as most often. Then nothing has to be looked for in a thread."""
        try:
            # A folder without folders has two links, where the file system counts them.
            return os.stat(self._folder).st_nlink == 2
        except FileNotFoundError:
            return True

    def begin(self, store: TreeStore, changes: Sequence[Change], session: str = "") -> UndoLog | None:
        """Write down what folders are like before these changes. Return None if nothing changes.

        `session` is the unique id of a durable session.
        """
        changes = [each for each in changes if each.before or each.after]
        if not changes:
            return None
        log = self._folder / secrets.token_hex(8)
        draft = log.with_name(log.name + DRAFT)
        draft.mkdir(mode=0o700, parents=True)
        try:
            for digest in {digest for each in changes for digest in each.digests}:
                store.copy_to(digest, draft / digest)
            for number, change in enumerate(changes):
                change = msgspec.structs.replace(change, session=session)
                _write(draft / f"{number}.{self._server}", msgspec.msgpack.encode(change))
            sync_folder(draft)
            self._begun.add(log)
            os.rename(draft, log)
            # After a power cut, a folder on another disk must not have changed without its log.
            sync_folder(self._folder)
        except OSError:
            remove_tree.remove(draft)
            raise
        return UndoLog(log)

    def end(self, log: UndoLog) -> None:
        """Remove a log. All of its changes are done and saved, or undone."""
        ended = log.folder.with_name(log.folder.name + DRAFT)
        with contextlib.suppress(FileNotFoundError):
            # In one step, since a part of a log would undo a part of the change.
            os.rename(log.folder, ended)
        # Later saves do not name it, so after a power cut it must not be there again.
        sync_folder(self._folder)
        self._begun.discard(log.folder)
        remove_tree.remove(ended)

    def left(
        self, tenant: str, places: Iterable[str], layered: Iterable[str] = (), own: Iterable[UndoLog] = ()
    ) -> list[LeftChange]:
        """Return the changes of these folders that dead servers, or these logs, have left. The newest comes first.

        Of the folders of `layered`, only layered changes are wanted. Changes that a save has are left no more.
        """
        self._tidy()
        mine = {each.folder for each in own}
        wanted = {(place, False) for place in places} | {(place, True) for place in layered}
        found: list[LeftChange] = []
        logs = [each for each in self._folder.glob("*") if each.suffix != DRAFT]
        for file in [file for log in logs for file in _changes_in(log)]:
            server = file.suffix[1:]
            taken_over = server == self._server and file.parent not in self._begun
            is_left = file.parent in mine or taken_over or (server != self._server and self._is_dead(server))
            change = _read(file) if is_left else None
            if change is None:
                continue
            if change.session and file.parent.name in self._saves.changes(change.tenant, change.session):
                # Whatever folder it is about: the next save of the session names it no more.
                self.end(UndoLog(file.parent))
            elif change.tenant == tenant and (change.place, change.layered) in wanted:
                claimed = self._claim(file)
                found += [LeftChange(change, claimed)] if claimed is not None else []
        return sorted(found, key=lambda each: each.change.made_at, reverse=True)

    def undone(self, left: LeftChange) -> None:
        """Note that a change was undone, or is not wanted any more. The last one of a log removes it."""
        log = left.file.parent
        left.file.unlink(missing_ok=True)
        with self._lock:
            self._undoing.discard(left.file)
        if not _changes_in(log):
            self.end(UndoLog(log))

    def release(self, left: LeftChange) -> None:
        """Leave a change that could not be undone to the next process or session."""
        with self._lock:
            self._undoing.discard(left.file)

    def _claim(self, file: Path) -> Path | None:
        """Take a change over. Return None if another session has done so."""
        claimed = file.with_suffix(f".{self._server}")
        with self._lock:
            if claimed in self._undoing:
                return None
            try:
                os.rename(file, claimed)
            except FileNotFoundError:
                return None
            self._undoing.add(claimed)
        return claimed

    def _tidy(self) -> None:
        """Remove logs and drafts that are too old."""
        for folder in self._folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - folder.stat().st_mtime > LEFT_SECONDS:
                    remove_tree.remove(folder)


def _changes_in(log: Path) -> list[Path]:
    """Return the files that describe changes. There are none if another session has just ended the log."""
    try:
        return [log / name for name in sorted(os.listdir(log)) if "." in name]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(file: Path) -> Change | None:
    try:
        return _decode(file.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
