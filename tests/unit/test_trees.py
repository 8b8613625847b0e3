"""States of a folder: taken, brought back byte for byte, and stored once."""

import hashlib
import mmap
import os
import socket
from pathlib import Path

import pytest

from ingle.files import FileChanges
from ingle.trees import restore, snapshot
from ingle.trees.index import Index
from ingle.trees.restore import InUse
from ingle.trees.snapshot import Bounds
from ingle.trees.store import KeptTree, NotKept, TreeStore
from ingle.trees.tree import LeftOut, compare
from support.folder_agent import agent_of, state_of


class Folder:
    """A folder with a store and an index, as a session has them."""

    def __init__(self, parent: Path, quota: int = 1 << 30) -> None:
        self.path = parent / "folder"
        self.path.mkdir()
        self.blobs = parent / "store"
        self.store = TreeStore(self.blobs, quota)
        self.index = Index()

    def take(self, bounds: Bounds = Bounds(10_000, 1 << 30), writable: frozenset[int] = frozenset()) -> KeptTree:  # noqa: B008
        with agent_of(self.path) as agent:
            return snapshot.take(agent, self.store, self.index, bounds, writable)

    def restore(self, kept: KeptTree, use: InUse = InUse()) -> FileChanges:  # noqa: B008
        with agent_of(self.path) as agent:
            done = restore.restore(agent, self.store, kept.tree, self.index, use)
        assert done.failed == []
        return done.changes

    def stored(self) -> set[str]:
        """Return the hashes of the files on disk, and check that each is there once."""
        found = [hashlib.sha256(path.read_bytes()).hexdigest() for path in self.blobs.glob("*")]
        assert len(found) == len(set(found))
        return set(found)

    def let_age(self) -> None:
        """Make all files too old for a change in the same tick of the clock."""
        self.index._known = {path: each._replace(sure=True) for path, each in self.index._known.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_folder_comes_back_byte_for_byte(folder: Folder) -> None:
    top = folder.path
    (top / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir(mode=0o700)
    (top / "changed.txt").write_bytes(b"before")
    (top / "deleted.bin").write_bytes(os.urandom(300_000))
    (top / "deep" / "er" / "renamed").write_text("same bytes")
    (top / "script.sh").write_text("#!/bin/sh\n")
    (top / "link").symlink_to("changed.txt")
    (top / "turned").symlink_to("/etc/passwd")
    (top / os.fsdecode(b"n\xfcmber")).write_text("not UTF-8")
    os.utime(top / "changed.txt", ns=(1_000_000_007, 1_000_000_007))
    before, kept = state_of(top), folder.take()

    (top / "changed.txt").write_bytes(b"after, and longer")
    (top / "deleted.bin").unlink()
    (top / "deep" / "er" / "renamed").rename(top / "elsewhere")
    (top / "script.sh").chmod(0o755)
    (top / "link").unlink()
    (top / "link").symlink_to("nowhere")
    (top / "turned").unlink()
    (top / "turned").mkdir()
    (top / "turned" / "new").write_text("new")
    (top / "empty").rmdir()
    (top / "empty").write_text("a file now")
    changes = folder.restore(kept)

    assert state_of(top) == before
    assert (top / "changed.txt").stat().st_mtime_ns == 1_000_000_007
    assert changes == FileChanges(
        created=["deep/er/renamed", "deleted.bin", "empty/", "turned"],
        changed=["changed.txt", "link", "script.sh"],
        deleted=["elsewhere", "empty", "turned/new"],
    )


def test_files_as_they_were_are_not_touched(folder: Folder) -> None:
    for name in "ab":
        (folder.path / name).write_text(name)
    kept = folder.take()
    inodes = {name: (folder.path / name).stat().st_ino for name in "ab"}
    (folder.path / "b").write_text("c")  # of the same size, in the same tick of the clock
    assert folder.restore(kept) == FileChanges(changed=["b"])
    assert (folder.path / "a").stat().st_ino == inodes["a"]
    assert (folder.path / "b").read_text() == "b"
    assert folder.restore(kept) == FileChanges()


def test_a_file_that_changed_in_the_same_tick_is_read_again(folder: Folder) -> None:
    path = folder.path / "quick"
    for number in range(30):
        path.write_text(f"{number:02}")
        kept = folder.take()
        entry = kept.tree.entries["quick"]
        fd = folder.store.open(entry.digest)
        assert os.read(fd, 10) == f"{number:02}".encode()
        os.close(fd)
        folder.store.release(kept)


def test_a_mapped_file_is_read_although_its_times_stay(folder: Folder) -> None:
    path = folder.path / "mapped"
    path.write_bytes(b"a" * mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[0] = ord("b")
        inode = frozenset({path.stat().st_ino})
        folder.take(writable=inode)
        mapped[1] = ord("c")  # the page is dirty already, so no time changes
        entry = folder.take(writable=inode).tree.entries["mapped"]
        fd = folder.store.open(entry.digest)
        assert os.read(fd, 3) == b"bca"
        os.close(fd)
        mapped[2] = ord("d")
    # It may have been written after it was last read, while it was still mapped.
    assert folder.index.digest("mapped", folder.index._known["mapped"].stamp, frozenset()) is None


def test_unchanged_files_are_not_read_again(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        (folder.path / f"{number}").write_text(f"{number}")
    first = folder.take()
    folder.let_age()
    (folder.path / "7").write_text("another")
    read: list[str] = []
    fetch = snapshot.TreeAgent.fetch

    def note(self: snapshot.TreeAgent, files: list[tuple[str, int]], fds: list[int]) -> object:
        read.extend(path for path, _ in files)
        return fetch(self, files, fds)

    monkeypatch.setattr(snapshot.TreeAgent, "fetch", note)
    second = folder.take()
    assert read == ["7"]
    assert compare(first.tree, second.tree) == FileChanges(changed=["7"])


def test_a_file_in_use_keeps_its_inode(folder: Folder) -> None:
    path = folder.path / "open"
    path.write_bytes(b"one\n")
    with path.open("r+b", buffering=0) as file:
        kept = folder.take()
        file.write(b"two, three\n")
        folder.restore(kept, InUse(opened=frozenset({os.fstat(file.fileno()).st_ino})))
        file.seek(0)
        assert file.read() == b"one\n"
        assert os.fstat(file.fileno()).st_nlink == 1


def test_what_cannot_be_kept_is_named_and_left_alone(folder: Folder) -> None:
    os.mkfifo(folder.path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder.path / "socket"))
    kept = folder.take()
    reason = "a pipe, a socket or a device"
    assert sorted(kept.tree.left_out, key=lambda each: each.path) == [
        LeftOut("pipe", reason),
        LeftOut("socket", reason),
    ]
    assert kept.tree.notices[0].startswith("files that are not kept: ")
    os.mkfifo(folder.path / "later")
    before = state_of(folder.path)
    folder.restore(kept)
    del before["later"]
    assert state_of(folder.path) == before


def test_folders_without_permission_to_write_come_back(folder: Folder) -> None:
    (folder.path / "locked").mkdir()
    (folder.path / "locked" / "file").write_text("a")
    (folder.path / "locked").chmod(0o500)
    before, kept = state_of(folder.path), folder.take()
    (folder.path / "locked").chmod(0o700)
    (folder.path / "locked" / "file").write_text("b")
    (folder.path / "locked").chmod(0o500)
    folder.restore(kept)
    assert state_of(folder.path) == before
    (folder.path / "locked").chmod(0o700)


@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (Bounds(2, 1000), "the folder has more than 2 entries (keep_files)"),
        (Bounds(10, 2), "the folder holds 3 bytes, above the bound of 2 bytes (keep_bytes)"),
    ],
)
def test_a_large_folder_is_not_kept_and_the_reason_is_told(folder: Folder, bounds: Bounds, why: str) -> None:
    for name in "abc":
        (folder.path / name).write_text(name)
    with pytest.raises(NotKept) as told:
        folder.take(bounds)
    assert str(told.value) == why
    assert folder.stored() == set()


def test_a_full_store_keeps_no_more_until_something_is_released(tmp_path: Path) -> None:
    folder = Folder(tmp_path, quota=100)
    (folder.path / "a").write_bytes(b"a" * 80)
    first = folder.take()
    (folder.path / "a").write_bytes(b"b" * 80)
    with pytest.raises(NotKept, match=r"they need 80 bytes, and 20 bytes of 100 bytes are left \(keep_disk\)"):
        folder.take()
    folder.store.release(first)
    assert (folder.store.used, folder.stored()) == (0, set())
    second = folder.take()
    assert (folder.store.used, folder.stored()) == (80, {second.tree.entries["a"].digest})


def test_no_link_leads_out_of_the_folder(folder: Folder, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("untouched")
    (folder.path / "inside").mkdir()
    (folder.path / "inside" / "file").write_text("kept")
    kept = folder.take()
    (folder.path / "inside" / "file").unlink()
    (folder.path / "inside").rmdir()
    (folder.path / "inside").symlink_to(outside)
    folder.restore(kept)
    assert (outside / "file").read_text() == "untouched"
    assert (folder.path / "inside" / "file").read_text() == "kept"
    assert not (folder.path / "inside").is_symlink()


def test_a_file_that_somebody_still_writes_to_is_not_stored(folder: Folder) -> None:
    with folder.store.begin() as addition:
        draft, fd = addition.new_draft()
        os.write(fd, b"half")
        with pytest.raises(NotKept, match="another process still writes"):
            addition.add(draft)
        os.close(fd)
    assert folder.stored() == set()


def test_the_event_loop_never_waits_for_files_that_are_removed(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.path / "a").write_text("a")
    first = folder.take()
    (folder.path / "a").write_text("b")
    second = folder.take()
    unlink, locked = Path.unlink, []

    def note(path: Path, missing_ok: bool = False) -> None:
        locked.append(folder.store._lock.locked())
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", note)
    folder.store.release(first)
    assert locked == [False]
    assert folder.stored() == second.tree.digests
