"""Whole folders over HTTP as tar streams: what goes in comes out, and nothing lands outside of the target."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from support.server import Server, problem

pytestmark = [pytest.mark.both_levels, pytest.mark.req("files.archive")]

ARCHIVE = "/v1/sessions/main/archive"


def entry(name: str, kind: bytes = tarfile.REGTYPE, **values: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in values.items():
        setattr(info, key, value)
    return info


def tar(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for each in entries:
            info, data = each if isinstance(each, tuple) else (each, b"")
            if data:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return out.getvalue()


def send(server: Server, path: str, content: bytes) -> Any:
    return server.client.put(ARCHIVE, params={"path": path}, content=content)


def tree(server: Server, folder: str) -> dict[str, tuple[str, str]]:
    """Return kind with mode, and content or target, of everything below a folder, as the session sees it."""
    code = f"""
import os, stat
found = {{}}
for where, folders, files in os.walk({folder!r}):
    for name in sorted(folders + files):
        path = os.path.join(where, name)
        about = os.lstat(path)
        what = os.readlink(path) if os.path.islink(path) else open(path).read() if os.path.isfile(path) else ''
        found[os.path.relpath(path, {folder!r})] = (stat.filemode(about.st_mode), what)
found"""
    told = server.execute(code)
    assert told["error"] is None, told
    found: dict[str, tuple[str, str]] = eval(told["result"]["text/plain"])
    return found


MADE = """
import os
os.makedirs('data/sub/empty')
os.chmod('data/sub', 0o750)
open('data/run.sh', 'w').write('echo')
os.chmod('data/run.sh', 0o755)
open('data/é' + 'n' * 150, 'w').write('long')
os.symlink('run.sh', 'data/inner')
os.symlink('/etc/passwd', 'data/outer')
"""


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_other_programs_are_unpacked_with_modes_times_and_links(server: Server, format: int) -> None:
    server.make_session()
    long = "d/" + "n" * 90 + "/" + "m" * 60
    archive = tar(
        entry("./", tarfile.DIRTYPE, mode=0o700),
        entry("closed", tarfile.DIRTYPE, mode=0o500),
        (entry("closed/file", mode=0o640, mtime=1_000_000_000), b"content"),
        (entry(long, mode=0o755), b"x"),
        entry("link", tarfile.SYMTYPE, linkname="closed/file"),
        entry("hard", tarfile.LNKTYPE, linkname="closed/file"),
        (entry("setuid", mode=0o4755), b"x"),
        format=format,
    )
    answer = send(server, "new/target", archive)
    assert (answer.status_code, answer.json()) == (200, {"files": 5, "bytes": 9})
    assert tree(server, "new/target") == {
        "closed": ("dr-x------", ""),
        "closed/file": ("-rw-r-----", "content"),
        "d": ("drwxr-xr-x", ""),
        os.path.dirname(long): ("drwxr-xr-x", ""),
        long: ("-rwxr-xr-x", "x"),
        "link": ("lrwxrwxrwx", "closed/file"),
        "hard": ("-rw-r-----", "content"),
        "setuid": ("-rwxr-xr-x", "x"),
    }
    assert server.execute("os.stat('new/target/hard').st_mtime")["result"] == {"text/plain": "1000000000.0"}


def test_a_folder_comes_out_and_goes_in_again_as_it_was(server: Server) -> None:
    server.make_session()
    assert server.execute(MADE)["error"] is None
    got = server.client.get(ARCHIVE, params={"path": "data"})
    assert (got.status_code, got.headers["content-type"]) == (200, "application/x-tar")
    with tarfile.open(fileobj=io.BytesIO(got.content)) as archive:
        names = ["", "inner", "outer", "run.sh", "sub", "sub/empty", "é" + "n" * 150]
        assert [info.name.removeprefix(".") for info in archive] == names
    assert send(server, "copy", got.content).json() == {"files": 4, "bytes": 8}
    assert tree(server, "copy") == tree(server, "data")

    one = server.client.get(ARCHIVE, params={"path": "data/run.sh"}).content
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        assert [(info.name, info.size, oct(info.mode)) for info in archive] == [("run.sh", 4, "0o755")]
    whole = server.client.get(ARCHIVE).content
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        assert {"./data/run.sh".removeprefix("./"), "copy/outer"} <= set(archive.getnames())


def test_what_cannot_be_packed_is_named_at_the_end(server: Server) -> None:
    server.make_session()
    server.execute("import os; os.mkdir('d'); os.mkfifo('d/pipe'); open('d/a', 'w').close()")
    with tarfile.open(fileobj=io.BytesIO(server.client.get(ARCHIVE, params={"path": "d"}).content)) as archive:
        infos = list(archive)
    assert [info.name for info in infos] == [".", "a", "."]
    assert infos[-1].pax_headers["comment"] == "left out: pipe (a pipe, a socket or a device)"


def test_a_large_folder_passes_without_being_held_in_memory(server: Server) -> None:
    server.make_session()
    assert server.execute("import os; os.mkdir('d'); open('d/big', 'wb').truncate(300_000_000)")["error"] is None
    size = 0
    with server.client.stream("GET", ARCHIVE, params={"path": "d"}) as got:
        for chunk in got.iter_raw():
            size += len(chunk)
    assert size > 300_000_000

    def pieces():
        yield tar(entry("d", tarfile.DIRTYPE))[:512]
        yield entry("big", size=200_000_000).tobuf(tarfile.PAX_FORMAT)
        for _ in range(200):
            yield bytes(1_000_000)
        yield bytes(-200_000_000 % 512 + 1024)

    answer = server.client.put(ARCHIVE, params={"path": "up"}, content=pieces())
    assert answer.json() == {"files": 1, "bytes": 200_000_000}
    peak = next(line for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines() if "VmHWM" in line)
    assert int(peak.split()[1]) < 250_000


HOSTILE = {
    "a path that leads up": ([(entry("../out"), b"x")], "'../out' leads out"),
    "a path that leads up further below": ([(entry("a/../../out"), b"x")], "leads out"),
    "an absolute path": ([(entry("/tmp/ingle-out"), b"x")], "leads out"),
    "a link and a file below it": (
        [entry("l", tarfile.SYMTYPE, linkname="/tmp"), (entry("l/ingle-out"), b"x")],
        "links are not followed",
    ),
    "a link that replaces a folder and a file below it": (
        [entry("a/b", tarfile.DIRTYPE), entry("a", tarfile.SYMTYPE, linkname="/tmp"), (entry("a/out"), b"x")],
        "'t/a'",
    ),
    "a folder in place of a link": (
        [entry("l", tarfile.SYMTYPE, linkname="/tmp"), entry("l", tarfile.DIRTYPE, mode=0o777)],
        "links are not followed",
    ),
    "a hard link that leads up": ([entry("h", tarfile.LNKTYPE, linkname="../secret")], "leads out"),
    "an absolute hard link": ([entry("h", tarfile.LNKTYPE, linkname="/etc/passwd")], "leads out"),
    "a hard link over a link": (
        [entry("l", tarfile.SYMTYPE, linkname="/etc"), entry("h", tarfile.LNKTYPE, linkname="l/passwd")],
        "links are not followed",
    ),
    "a hard link to a link": (
        [entry("l", tarfile.SYMTYPE, linkname="/etc/passwd"), entry("h", tarfile.LNKTYPE, linkname="l")],
        "is no file",
    ),
    "a character device": ([entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3)], "'null' is a device"),
    "a block device": ([entry("disk", tarfile.BLKTYPE)], "'disk' is a device"),
    "a pipe": ([entry("pipe", tarfile.FIFOTYPE)], "'pipe' is a pipe"),
    "a sparse file": (
        [entry("s", pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": str(2**60)})],
        "'s' is a sparse file",
    ),
    "a path that is too deep": ([entry("a/" * 200 + "b")], "is deeper than 100 folders"),
    "an unknown type": ([entry("m", b"M")], "unknown type"),
    "an endless extended header": ([entry("x", pax_headers={"comment": "y" * 100_000})], "65536 are allowed"),
}


@pytest.mark.req("safe.input")
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_is_refused_and_nothing_lands_outside(shared: Server, case: str) -> None:
    entries, said = HOSTILE[case]
    shared.execute("import shutil, os; shutil.rmtree('t', ignore_errors=True); open('secret', 'w').write('s')")
    answer = send(shared, "t", tar(*entries))
    assert answer.status_code in (409, 422), answer.text
    assert said in answer.json()["detail"]
    assert shared.execute("sorted(os.listdir('.'))")["result"] == {"text/plain": "['secret', 't']"}
    assert not list(Path("/tmp").glob("*ingle-out"))
    left = shared.execute("[name for *_, names in os.walk('t') for name in names if name.endswith('.part')]")
    assert left["result"] == {"text/plain": "[]"}


@pytest.fixture
def shared(server: Server) -> Server:
    server.make_session()
    return server


def test_of_a_name_that_comes_twice_the_last_one_counts(shared: Server) -> None:
    shared.execute("import os; os.mkdir('t'); open('t/keep', 'w').write('old'); os.symlink('keep', 't/link')")
    archive = tar(
        (entry("a"), b"one"), (entry("a"), b"two"), entry("b", tarfile.SYMTYPE, linkname="/etc"), (entry("b"), b"file"),
        (entry("link"), b"new"),
    )  # fmt: skip
    assert send(shared, "t", archive).status_code == 200
    assert tree(shared, "t") == {
        "a": ("-rw-r--r--", "two"),
        "b": ("-rw-r--r--", "file"),
        "keep": ("-rw-r--r--", "old"),
        "link": ("-rw-r--r--", "new"),
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "ends in the middle"),
        (b"x" * 2000, "no tar archive"),
        (b"\x1f\x8b" + bytes(600), "uncompressed"),
        (tar((entry("a"), b"x" * 5000))[:3000], "ends in the middle"),
        (tar((entry("a"), b"x" * 5000))[:5632], "ends in the middle"),
        (entry("a", size=2**62).tobuf(tarfile.GNU_FORMAT), "impossible size"),
    ],
)
def test_what_is_no_whole_archive_is_refused(shared: Server, content: bytes, said: str) -> None:
    assert said in problem(send(shared, "t", content), 422, "invalid_request")["detail"]
    assert shared.execute("import os; [name for *_, names in os.walk('t') for name in names]")["result"] in (
        {"text/plain": "[]"},
        {"text/plain": "['a']"},
    )


def test_an_archive_above_the_limit_is_refused(start) -> None:
    server = start("--max-archive", "100000")
    server.make_session()
    problem(send(server, "t", tar((entry("a"), bytes(200_000)))), 413, "too_large")


def test_paths_are_those_of_the_session_and_of_granted_folders(shared: Server, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    for parent in tmp_path.parents[:2]:
        os.chmod(parent, 0o755)
    (tmp_path / "in").mkdir(mode=0o777)
    (tmp_path / "in" / "file").write_text("granted")
    os.chmod(tmp_path / "in", 0o777)
    got = shared.client.get(ARCHIVE, params={"path": f"{tmp_path}/in"})
    with tarfile.open(fileobj=io.BytesIO(got.content)) as archive:
        assert archive.getnames() == [".", "file"]
    assert send(shared, f"{tmp_path}/in/new", got.content).json() == {"files": 1, "bytes": 7}
    assert (tmp_path / "in" / "new" / "file").read_text() == "granted"

    files = "/v1/sessions/main/files"
    inside = {"folder": f"{tmp_path}/in"}
    assert shared.client.get(f"{files}/file", params=inside).text == "granted"
    assert shared.client.put(f"{files}/other", params=inside, content=b"x").status_code == 201
    listed = shared.client.get(files, params=inside).json()["files"]
    assert [each["name"] for each in listed] == ["file", "new", "other"]
    assert shared.client.delete(f"{files}/other", params=inside).status_code == 204
    for path in ("../x", "a/../../x", "a/./b"):
        problem(shared.client.get(ARCHIVE, params={"path": path}), 422, "invalid_request")
        problem(send(shared, path, tar()), 422, "invalid_request")
    problem(shared.client.get(ARCHIVE, params={"path": "missing"}), 404, "file_not_found")


def test_other_folders_of_the_machine_are_refused_to_a_confined_session(start, pytestconfig, tmp_path: Path) -> None:
    if pytestconfig.getoption("--isolation") != "sandbox":
        pytest.skip("the owner's sessions have the rights of the server at the level none")
    (tmp_path / "ro").mkdir()
    server = start("--mount", f"{tmp_path}/ro:ro")
    server.make_session()
    problem(server.client.get(ARCHIVE, params={"path": "/etc"}), 403, "not_granted")
    problem(send(server, f"{tmp_path}/ro", tar((entry("a"), b"x"))), 403, "not_granted")
    assert list((tmp_path / "ro").iterdir()) == []
