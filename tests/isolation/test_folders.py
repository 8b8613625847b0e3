"""Removing what a session leaves behind, whatever that is."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from ingle.service import Service
from ingle.support import remove_tree
from support.internals import session_folders

DEPTH = 1500
NESTED = f"""
import os
for number in range({DEPTH}):
    os.mkdir("d")
    open("file", "w").close()
    os.symlink("/etc", "link")
    os.chdir("d")
"""


def nest(folder: Path) -> None:
    """By a process of its own, which is then somewhere far below."""
    subprocess.run([sys.executable, "-c", NESTED], cwd=folder, check=True)


def test_a_folder_is_removed_however_deep_it_is_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    folder = tmp_path / "folder"
    for name in ("one/two/three", "one/d", "two/one/two"):
        (folder / name).mkdir(parents=True)
    (folder / "one" / "link").symlink_to(kept)
    (folder / "\udce4").mkdir()
    os.mkfifo(folder / "pipe")
    nest(folder)
    remove_tree.remove(folder)
    assert sorted(tmp_path.iterdir()) == [kept]
    assert (kept / "file").exists()


def test_a_link_in_its_place_is_left_alone_and_so_is_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree.remove(tmp_path / "link")
    remove_tree.remove(tmp_path / "nothing")
    assert (tmp_path / "kept" / "file").exists()


def test_folders_with_something_inside_and_links_go_too(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "folder"
    (kept / "workspace").mkdir(parents=True)
    (folder / "packages" / "inside").mkdir(parents=True)
    (folder / "workspace").symlink_to(kept)
    (folder / "tmp").touch()
    remove_tree.remove(folder)
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
    (tmp_path / "folder").symlink_to(kept)
    remove_tree.remove(folder)
    assert (kept / "workspace").is_dir()


CLOSED = """
import os, sys
from ingle.support import remove_tree
os.setresuid(54321, 54321, 54321)
os.makedirs("folder/a/b/c")
for name in ("folder/a/b/c", "folder/a/b", "folder/a", "folder"):
    open(name + "/file", "w").close()
    os.chmod(name, 0)
remove_tree.remove("folder")
sys.exit(os.path.lexists("folder"))
"""


@pytest.mark.parametrize("place", ["folder", "folder/inside"])
def test_a_link_that_takes_the_place_of_a_closed_folder_changes_nobodys_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The original of a fork may be at work where the fork's folder is removed."""
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o755)
    folder = tmp_path / "folder"
    (folder / "inside" / "full").mkdir(parents=True)
    swapped = tmp_path / place
    real = os.open

    def swap(path: Any, flags: int, *mode: int, dir_fd: int | None = None) -> int:
        """It is closed; and by the time that somebody does something about it, it is a link."""
        if not swapped.is_symlink() and Path(path).name == swapped.name:
            swapped.rename(tmp_path / "aside")
            swapped.symlink_to(kept)
            raise PermissionError(13, "closed", str(path))
        return real(path, flags, *mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swap)
    remove_tree.remove(folder)
    assert swapped.is_symlink() or not folder.exists()
    assert kept.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody to whom a folder is closed")
def test_a_folder_that_is_closed_to_its_owner_is_removed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        subprocess.run([sys.executable, "-c", CLOSED], cwd=folder, check=True)


async def test_a_session_that_has_nested_its_folder_deep_leaves_nothing_behind(service: Service, home: Path) -> None:
    session = (await service.create_session()).session_id
    assert (await service.execute(session, NESTED)).status == "ok"
    await service.end_session(session)
    assert session_folders(service, home) == []
