"""Files of a session's folder over HTTP: whole, bounded, and never outside of it."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.processes import own_mark
from support.server import PATIENCE, Server, problem, raw_exchange
from support.waiting import wait_until

pytestmark = pytest.mark.both_levels

FILES = "/v1/sessions/main/files"


def test_a_file_is_written_seen_by_the_session_read_listed_and_removed(server: Server) -> None:
    server.make_session()
    data = os.urandom(3_000_000)
    put = server.client.put(f"{FILES}/data/deep/blob.bin", content=data)
    assert (put.status_code, put.json()["size"], put.json()["kind"]) == (201, len(data), "file")
    code = "import hashlib; hashlib.sha256(open('data/deep/blob.bin', 'rb').read()).hexdigest()"
    assert server.execute(code)["result"] == {"text/plain": repr(hashlib.sha256(data).hexdigest())}
    got = server.client.get(f"{FILES}/data/deep/blob.bin")
    assert (got.status_code, got.content) == (200, data)
    assert got.headers["content-type"] == "application/octet-stream"

    server.execute("import os; os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe'); open('é.txt', 'w').write('x')")
    listed = server.client.get(FILES).json()
    assert [(each["name"], each["kind"]) for each in listed["files"]] == [
        ("data", "folder"), ("link", "link"), ("pipe", "other"), ("é.txt", "file")
    ]  # fmt: skip
    assert server.client.get(FILES, params={"folder": "data/deep"}).json()["files"][0]["name"] == "blob.bin"
    assert server.client.get(f"{FILES}/é.txt").text == "x"

    again = server.client.put(f"{FILES}/data/deep/blob.bin", content=b"")
    assert (again.status_code, server.client.get(f"{FILES}/data/deep/blob.bin").content) == (200, b"")
    problem(server.client.delete(f"{FILES}/data"), 409, "conflict")
    assert server.client.delete(f"{FILES}/data/deep/blob.bin").status_code == 204
    assert server.client.delete(f"{FILES}/link").status_code == 204
    problem(server.client.get(f"{FILES}/data/deep/blob.bin"), 404, "file_not_found")
    assert Path("/etc/passwd").exists()


def test_a_client_that_has_a_file_already_is_not_sent_it_again(server: Server) -> None:
    server.make_session()
    server.client.put(f"{FILES}/a", content=b"one")
    tag = server.client.get(f"{FILES}/a").headers["etag"]
    same = server.client.get(f"{FILES}/a", headers={"If-None-Match": f'"x", {tag}'})
    assert (same.status_code, same.content) == (304, b"")
    server.client.put(f"{FILES}/a", content=b"two")
    assert server.client.get(f"{FILES}/a", headers={"If-None-Match": tag}).content == b"two"
    head = server.client.head(f"{FILES}/a")
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "3", b"")


@pytest.mark.parametrize(
    ("asked", "status", "part", "told"),
    [
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=3-6", 206, b"3456", "bytes 3-6/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-100", 206, b"89", "bytes 8-9/10"),
        ("bytes=-4", 206, b"6789", "bytes 6-9/10"),
        ("bytes=-100", 206, b"0123456789", "bytes 0-9/10"),
        ("Bytes= 1-2", 206, b"12", "bytes 1-2/10"),
        # What is no range, or more than one, is answered with the whole.
        ("bytes=6-3", 200, b"0123456789", None),
        ("bytes=1-2,4-5", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("bytes=a-b", 200, b"0123456789", None),
        ("bytes=" + "9" * 5000 + "-", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
        # Where the file has nothing.
        ("bytes=10-", 416, None, "bytes */10"),
        ("bytes=-0", 416, None, "bytes */10"),
    ],
)
def test_a_part_of_a_file_can_be_asked_for(
    shared: Server, asked: str, status: int, part: bytes | None, told: str | None
) -> None:
    shared.client.put(f"{FILES}/digits", content=b"0123456789")
    answer = shared.client.get(f"{FILES}/digits", headers={"Range": asked})
    assert (answer.status_code, answer.headers.get("content-range")) == (status, told)
    if part is None:
        problem(answer, 416, "range_not_satisfiable")
    else:
        assert answer.content == part
        assert answer.headers["accept-ranges"] == "bytes"
        assert answer.headers["content-length"] == str(len(part))


def test_a_download_goes_on_where_it_broke_off_unless_the_file_has_changed(shared: Server) -> None:
    data = os.urandom(1_000_000)
    shared.client.put(f"{FILES}/big", content=data)
    with shared.client.stream("GET", f"{FILES}/big") as broken:
        tag = broken.headers["etag"]
        have = next(broken.iter_raw())
    rest = {"Range": f"bytes={len(have)}-", "If-Range": tag}
    answer = shared.client.get(f"{FILES}/big", headers=rest)
    assert (answer.status_code, have + answer.content, answer.headers["etag"]) == (206, data, tag)

    shared.client.put(f"{FILES}/big", content=data[::-1])
    answer = shared.client.get(f"{FILES}/big", headers=rest)
    assert (answer.status_code, answer.content) == (200, data[::-1])
    for other in ("W/" + tag, "Sun, 15 Nov 2026 19:22:17 GMT", "*"):
        assert shared.client.get(f"{FILES}/big", headers={**rest, "If-Range": other}).status_code == 200


def test_parts_are_of_the_content_of_files_only(shared: Server) -> None:
    shared.client.put(f"{FILES}/a", content=b"abc")
    shared.client.put(f"{FILES}/empty", content=b"")
    part = {"Range": "bytes=1-1"}
    head = shared.client.head(f"{FILES}/a", headers=part)
    assert (head.status_code, head.headers["content-length"], head.headers["accept-ranges"]) == (200, "3", "bytes")
    listing = shared.client.get(FILES, headers=part)
    assert (listing.status_code, "accept-ranges" in listing.headers) == (200, False)
    problem(shared.client.get(f"{FILES}/empty", headers={"Range": "bytes=0-"}), 416, "range_not_satisfiable")
    # A client that has it all is told so first.
    tag = shared.client.get(f"{FILES}/a").headers["etag"]
    assert shared.client.get(f"{FILES}/a", headers={**part, "If-None-Match": f"W/{tag}"}).status_code == 304
    assert shared.client.get(f"{FILES}/a", headers={**part, "If-None-Match": "*"}).status_code == 304


@pytest.mark.req("safe.input")
@pytest.mark.parametrize(
    ("path", "statuses"),
    [
        ("%2e%2e/token", {422}),
        ("a/%2e%2e/%2e%2e/token", {422}),
        ("..%2f..%2ftoken", {422}),
        ("%2fetc%2fpasswd", {422}),
        ("//etc/passwd", {422}),
        (".", {422}),
        ("a%00b", {422}),
        ("x" * 300, {422}),
        ("a/" * 70 + "b", {422}),
        ("%ff%fe", {404, 422}),
        ("link/passwd", {422}),
        ("link", {422}),
        ("file-link", {422}),
        ("pipe", {422}),
        ("folder", {409}),
        ("file/below", {404}),
    ],
)
def test_no_path_leads_out_or_hangs(shared: Server, path: str, statuses: set[int]) -> None:
    for method in (b"GET", b"PUT"):
        request = b"%s %s/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nConnection: close\r\n" % (
            method,
            FILES.encode(),
            path.encode(),
            shared.token.encode(),
        )
        answer = raw_exchange(shared.port, request + b"Content-Length: 1\r\n\r\nx")
        status = int(answer.split()[1])
        if method == b"PUT" and path in ("link", "file-link", "pipe", "x"):
            # A file takes the place of what was there; the link's own target is not touched.
            assert status == 200
            shared.execute(SETTING)
        elif method == b"PUT" and path in ("%ff%fe",):
            assert status in (201, 422)
        elif method == b"PUT" and path == "file/below":
            assert status in (404, 409)
        else:
            assert status in statuses, answer
    assert OUTSIDE.read_text() == "outside"


OUTSIDE = Path("/tmp") / f"ingle-test-outside-{os.getpid()}"
SETTING = f"""
import os
for name, target in (("link", "/etc"), ("file-link", {str(OUTSIDE)!r})):
    if os.path.lexists(name): os.unlink(name)
    os.symlink(target, name)
if os.path.lexists("pipe"): os.unlink("pipe")
os.mkfifo("pipe")
os.makedirs("folder", exist_ok=True)
open("file", "w").close()
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    OUTSIDE.write_text("outside")
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as home:
        server = Server(Path(home), env=own_mark())
        server.make_session()
        server.execute(SETTING)
        yield server
        assert server.stop() == 0
    OUTSIDE.unlink()


@pytest.mark.req("safe.input")
def test_code_that_swaps_folders_for_links_meanwhile_gets_nothing_out(server: Server, tmp_path: Path) -> None:
    server.make_session()
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("SECRET")
    server.execute(
        f"""
import os, random, shutil, threading, time
os.makedirs("box"); open("box/key", "w").write("mine")
def swap():
    while True:
        # As quick as it can, or so that each state lasts for a while: a request may meet all of them on its way.
        def step(): time.sleep(random.choice((0, 0, 0.001)))
        try:
            step(); os.rename("box", "real"); step(); os.symlink({str(secret)!r}, "box"); step(); os.unlink("box")
            step(); os.rename("real", "box")
        except OSError:
            # A file was put while there was no folder, so one was made for it; and perhaps is made again.
            while os.path.exists("real/key"):
                shutil.rmtree("box", ignore_errors=True)
                try: os.rename("real", "box")
                except OSError: pass
threading.Thread(target=swap, daemon=True).start()
"""
    )
    seen = {"mine": 0, "other": 0}

    def the_race_was_run() -> bool:
        answer = server.client.get(f"{FILES}/box/key")
        assert "SECRET" not in answer.text
        seen["mine" if answer.status_code == 200 else "other"] += 1
        server.client.put(f"{FILES}/box/new", content=b"x")
        return min(seen.values()) >= 50

    assert wait_until(the_race_was_run, PATIENCE), seen
    assert [path.name for path in secret.iterdir()] == ["key"]


@pytest.mark.req("safe.input")
def test_a_folder_that_became_a_link_is_not_followed(server: Server) -> None:
    session = server.make_session()
    tried = server.execute(f"import os; os.rmdir({session['cwd']!r}); os.symlink('/etc', {session['cwd']!r})")
    assert problem(server.client.get(f"{FILES}/passwd"), 404, "file_not_found")
    if session["isolation"] == "none":
        assert (tried["status"], server.client.get(FILES).status_code) == ("ok", 404)
    else:
        # There its folder is a mount, and stays.
        assert (tried["error"]["name"], server.client.get(FILES).json()["files"]) == ("OSError", [])


def test_a_file_above_the_limit_or_broken_off_leaves_nothing(start: Callable[..., Server]) -> None:
    server = start("--max-file", "100000")
    cwd = Path(server.make_session()["cwd"])
    server.client.put(f"{FILES}/kept", content=b"before")
    problem(server.client.put(f"{FILES}/kept", content=b"x" * 100_001), 413, "too_large")

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 10_000

    problem(server.client.put(f"{FILES}/kept", content=endless()), 413, "too_large")
    request = f"PUT {FILES}/kept HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {server.token}\r\n"
    import socket

    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(f"{request}Content-Length: 50000\r\n\r\nhalf".encode())
        assert wait_until(lambda: len(list(cwd.iterdir())) == 2)
    assert wait_until(lambda: [path.name for path in cwd.iterdir()] == ["kept"])
    assert server.client.get(f"{FILES}/kept").content == b"before"


def test_others_see_a_file_whole_or_not_at_all(server: Server) -> None:
    server.make_session()
    whole = [bytes([letter]) * 2_000_000 for letter in b"ab"]
    server.client.put(f"{FILES}/f", content=whole[0])
    stop = threading.Event()

    def write() -> None:
        with server.make_client() as client:
            while not stop.is_set():
                for data in whole:
                    client.put(f"{FILES}/f", content=data)

    writing = threading.Thread(target=write)
    writing.start()
    seen: set[bytes] = set()

    def both_were_seen() -> bool:
        content = server.client.get(f"{FILES}/f").content
        assert content in whole
        seen.add(content[:1])
        return len(seen) == 2

    try:
        assert wait_until(both_were_seen, PATIENCE)
        for _ in range(20):
            both_were_seen()
    finally:
        stop.set()
        writing.join(PATIENCE)


def test_what_is_put_into_a_sandbox_belongs_to_the_session(start: Callable[..., Server]) -> None:
    server = start("--isolation", "sandbox")
    server.make_session()
    server.client.put(f"{FILES}/folder/file", content=b"put")
    code = "with open('folder/file', 'a') as file: _ = file.write(', changed')\nopen('folder/own', 'x').close()"
    result = server.execute(code)
    assert (result["status"], result["error"]) == ("ok", None)
    assert server.client.get(f"{FILES}/folder/file").content == b"put, changed"
    assert server.execute("import shutil; shutil.rmtree('folder')")["status"] == "ok"
