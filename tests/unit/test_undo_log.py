"""Undo logs on disk: which of them are left, and by whom."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ingle.trees.store import TreeStore
from ingle.trees.tree import Entry, Tree
from ingle.trees.undo_log import Change, UndoLog, UndoLogs

EMPTY = Tree({}, ())
CREATED = Tree({"new": Entry("new", "folder", 0o700)}, ())


class Saves:
    """Saves that name these logs."""

    def __init__(self) -> None:
        self.named: list[str] = []

    def changes(self, tenant: str, session: str) -> list[str]:
        return self.named if (tenant, session) == ("t", "s") else []


@pytest.fixture
def saves() -> Saves:
    return Saves()


Make = Callable[..., UndoLogs]


@pytest.fixture
def make(tmp_path: Path, saves: Saves) -> Make:
    def make(server: str, is_dead: Callable[[str], bool] = lambda server: True) -> UndoLogs:
        return UndoLogs(tmp_path / "undo", server, is_dead, saves)

    return make


def begin(logs: UndoLogs, tmp_path: Path, *places: str, session: str = "") -> UndoLog:
    store = TreeStore(tmp_path / "store", 1 << 20)
    changes = [Change.between("t", place, EMPTY, CREATED, tracked=True) for place in places]
    log = logs.begin(store, changes, session)
    assert log is not None
    return log


def test_a_change_of_a_dead_server_is_left_once(make: Make, tmp_path: Path) -> None:
    begin(make("first"), tmp_path, "/a", "/b")
    second = make("second")
    assert second.left("t", ["/c"]) == second.left("other", ["/a"]) == []
    (left,) = second.left("t", ["/a"])
    assert second.left("t", ["/a"]) == []
    second.release(left)
    (left,) = second.left("t", ["/a"])
    second.undone(left)
    assert not second.empty
    (left,) = second.left("t", ["/b"])
    second.undone(left)
    assert second.empty


def test_a_change_that_the_last_save_names_is_left_no_more(make: Make, tmp_path: Path, saves: Saves) -> None:
    """Whatever folder the session that looks has: the next save does not name it."""
    first = make("first")
    kept = begin(first, tmp_path, "/a", "/b", session="s")
    other = begin(first, tmp_path, "/a", session="s")
    saves.named = [kept.name]
    second = make("second")
    (left,) = second.left("t", ["/a"])
    assert left.log == other
    assert not kept.folder.exists()


def test_a_log_of_this_server_is_left_for_its_own_session(make: Make, tmp_path: Path) -> None:
    logs = make("only")
    log = begin(logs, tmp_path, "/a", session="s")
    assert logs.left("t", ["/a"]) == []
    (left,) = logs.left("t", ["/a"], own=[log])
    assert left.log == log


def test_logs_that_end_meanwhile_are_passed_over(make: Make, tmp_path: Path) -> None:
    """Other sessions and servers end theirs at any moment."""
    first = make("first")
    logs = [begin(first, tmp_path, "/a") for _ in range(3)]

    def is_dead(server: str) -> bool:
        for log in logs:
            shutil.rmtree(log.folder, ignore_errors=True)
        return True

    assert make("second", is_dead).left("t", ["/a"]) == []


def test_an_incomplete_file_is_looked_for_beside_each_changed_one(make: Make, tmp_path: Path) -> None:
    logs = make("only")
    store = TreeStore(tmp_path / "store", 1 << 20)
    entries = {path: Entry(path, "folder", 0o700) for path in ("deep", "deep/er", "deep/er/one", "deep/er/two")}
    log = logs.begin(store, [Change.between("t", "/a", EMPTY, Tree(entries, ()), tracked=True)])
    assert log is not None
    (left,) = logs.left("t", ["/a"], own=[log])
    assert left.drafts == [log.draft, f"deep/{log.draft}", f"deep/er/{log.draft}"]
