"""Uploads, downloads and `ingle cp`: whole folders between this machine and a session."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingle import AsyncClient, Client, errors
from ingle.client import Session
from ingle.client.transfer import Download, Transferred
from support.server import Server

pytestmark = pytest.mark.req("files.archive")


@pytest.fixture
def session(server: Server) -> Iterator[Session]:
    with Client(server.url, server.token) as client, client.session("main") as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files, a program, an empty folder and links."""
    made = tmp_path / "project"
    (made / "sub" / "empty").mkdir(parents=True)
    (made / "data.csv").write_text("1,2")
    (made / "sub" / "run.sh").write_text("echo")
    (made / "sub" / "run.sh").chmod(0o750)
    (made / "sub" / "up").symlink_to("../data.csv")
    (made / "out").symlink_to("/etc/passwd")
    return made


def tree(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_text(),
            0 if path.is_symlink() else path.stat().st_mode & 0o777,
        )
        for path in folder.rglob("*")
    }


def test_a_folder_goes_up_and_comes_down_as_it_was(session: Session, folder: Path, tmp_path: Path) -> None:
    assert session.upload(folder) == Transferred(4, 7)
    assert session.run("import os; sorted(os.listdir('project'))").result == {
        "text/plain": "['data.csv', 'out', 'sub']"
    }
    assert session.upload(folder, "deep/er/copy") == Transferred(4, 7)
    back = session.download("deep/er/copy", tmp_path / "back" / "copy")
    assert back == Transferred(3, 7, ["out (a link that leads out: /etc/passwd)"])
    expected = tree(folder)
    del expected["out"]
    assert tree(tmp_path / "back" / "copy") == expected


def test_a_file_goes_up_and_comes_down_under_any_name(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(data := os.urandom(3_000_000))
    (tmp_path / "a.bin").chmod(0o700)
    session.upload(tmp_path / "a.bin", "data/b.bin")
    assert session.read_file("data/b.bin") == data
    assert session.download("data/b.bin", tmp_path / "c.bin") == Transferred(1, 3_000_000)
    assert ((tmp_path / "c.bin").read_bytes(), (tmp_path / "c.bin").stat().st_mode & 0o777) == (data, 0o700)
    with pytest.raises(errors.FileNotThere):
        session.download("missing", tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        session.upload(tmp_path / "missing")
    with pytest.raises(errors.Conflict):
        session.upload(tmp_path / "a.bin", "data")
    assert not (tmp_path / "missing").exists()


def test_absolute_paths_name_granted_folders(session: Session, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    session.upload(tmp_path / "a", f"{tmp_path}/b")
    assert (tmp_path / "b").read_text() == "x"
    assert session.read_file(f"{tmp_path}/b") == b"x"
    session.write_file(f"{tmp_path}/c", "y")
    assert [file.name for file in session.list_files(str(tmp_path))] == ["a", "b", "c"]
    session.delete_file(f"{tmp_path}/c")
    assert not (tmp_path / "c").exists()


def test_the_async_client_copies_too(server: Server, folder: Path, tmp_path: Path) -> None:
    async def copy() -> Transferred:
        async with AsyncClient(server.url, server.token) as client, client.session("main") as session:
            await session.upload(folder, "p")
            return await session.download("p", tmp_path / "back")

    assert asyncio.run(copy()).files == 3


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


HOSTILE = {
    "a path that leads up": [tarfile.TarInfo("../out")],
    "an absolute path": [tarfile.TarInfo("/tmp/ingle-client-out")],
    "a link and a file below it": [link("l", "."), tarfile.TarInfo("l/out")],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_client_refuses_what_would_land_elsewhere(tmp_path: Path, case: str) -> None:
    assert_refused(tmp_path, HOSTILE[case])


def assert_refused(tmp_path: Path, entries: list[tarfile.TarInfo]) -> None:
    download = Download(tmp_path / "target")
    with pytest.raises((errors.Conflict, OSError)):
        feed(download, entries)
    download.close()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def feed(download: Download, entries: list[tarfile.TarInfo]) -> Transferred:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        itself = tarfile.TarInfo("./")
        itself.type = tarfile.DIRTYPE
        for each in (itself, *entries):
            archive.addfile(each)
    # As `pack` writes it.
    download.feed(out.getvalue().replace(b".\0", b"./", 1) if not out.getvalue().startswith(b"./") else out.getvalue())
    return download.finish()


@pytest.mark.parametrize(
    ("path", "target", "made"),
    [
        ("a", "b", True), ("d/a", "../b", True), ("d/a", "../../b", False), ("a", "..", False), ("a", "/etc", False),
        ("a", "x/../../b", False), ("a", "x/../y", False), ("d/a", ".././b", True), ("a", "./b", True),
    ],
)  # fmt: skip
def test_links_that_lead_out_are_not_made_on_this_machine(tmp_path: Path, path: str, target: str, made: bool) -> None:
    download = Download(tmp_path / "target")
    done = feed(download, [link(path, target)])
    download.close()
    assert (os.path.lexists(tmp_path / "target" / path), len(done.skipped)) == (made, int(not made))


# `ingle cp`


def cp(server: Server, *args: str, stdin: bytes = b"", cwd: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "INGLE_URL": server.url, "INGLE_TOKEN": server.token}
    return subprocess.run(
        [sys.executable, "-m", "ingle", "cp", *args], input=stdin, capture_output=True, env=env, cwd=cwd, timeout=60
    )


def test_cp_copies_files_folders_and_streams(server: Server, folder: Path, tmp_path: Path) -> None:
    server.make_session()
    assert cp(server, str(folder), "main:").stdout.decode() == "copied 4 files, 7 bytes, to main:project\n"
    assert cp(server, str(folder), "main:other").returncode == 0
    assert cp(server, str(folder / "data.csv"), "main:other").stdout.startswith(
        b"copied 1 file, 3 bytes, to main:other/"
    )
    assert server.execute("import os; [sorted(os.listdir(each)) for each in ('.', 'other')]")["result"] == {
        "text/plain": "[['other', 'project'], ['data.csv', 'out', 'sub']]"
    }
    assert cp(server, "-", "main:in.txt", stdin=b"typed").returncode == 0
    assert cp(server, "main:in.txt", "-").stdout == b"typed"
    assert cp(server, "main:in.txt", ".", cwd=tmp_path).returncode == 0
    assert (tmp_path / "in.txt").read_bytes() == b"typed"
    done = cp(server, "main:project", "back", cwd=tmp_path)
    assert done.stdout.decode().splitlines() == [
        "copied 3 files, 7 bytes, to back",
        "left out: out (a link that leads out: /etc/passwd)",
    ]
    assert (tmp_path / "back" / "sub" / "run.sh").stat().st_mode & 0o777 == 0o750
    streamed = cp(server, "main:project", "-").stdout
    with tarfile.open(fileobj=io.BytesIO(streamed)) as archive:
        assert "sub/run.sh" in archive.getnames()


def test_cp_says_what_is_wrong(server: Server, tmp_path: Path) -> None:
    server.make_session()
    for args, said in (
        (("a", "b"), "exactly one of the two must be SESSION:PATH"),
        (("main:a", "main:b"), "exactly one of the two must be SESSION:PATH"),
        (("main:missing", str(tmp_path / "x")), "missing"),
        (("missing", "main:"), "missing cannot be read: No such file or directory"),
        (("nobody:a", "b"), "there is no session 'nobody'"),
        (("-", "main:"), "standard input needs the name of a file"),
    ):
        done = cp(server, *args)
        assert (done.returncode, done.stdout) == (2, b"")
        assert said in done.stderr.decode(), done.stderr
