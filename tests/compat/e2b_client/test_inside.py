"""Files, folders that are watched, commands and terminals of a sandbox."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from e2b import CommandExitException, FileNotFoundException, FilesystemEventType, FileType, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize
from e2b_code_interpreter import AsyncSandbox, Sandbox

pytestmark = pytest.mark.req("compat.sandboxes")

PATIENCE = 20.0


def until(condition: Callable[[], Any]) -> Any:
    """Return the value of the condition once it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


# --- files ---


def test_files_are_written_read_and_shared_with_code(sandbox: Sandbox) -> None:
    written = sandbox.files.write("notes/a.txt", "héllo")
    assert sandbox.files.read(written.path) == "héllo"
    assert sandbox.run_code("open('notes/a.txt').read()").text == "héllo"
    sandbox.run_code("open('made.bin', 'wb').write(bytes(range(256)))")
    assert sandbox.files.read("made.bin", format="bytes") == bytes(range(256))
    assert b"".join(sandbox.files.read("made.bin", format="stream")) == bytes(range(256))


@pytest.mark.parametrize("options", [{}, {"use_octet_stream": True}, {"gzip": True}])
def test_large_files_keep_their_bytes(sandbox: Sandbox, options: dict[str, Any]) -> None:
    data = bytes(range(256)) * 20_000 + b"\r\n--"
    sandbox.files.write("large", data, **options)
    assert sandbox.files.read("large", format="bytes") == data


def test_several_files_are_written_at_once(sandbox: Sandbox) -> None:
    infos = sandbox.files.write_files([{"path": "one", "data": "1"}, {"path": "d/two", "data": b"2"}])
    assert [each.name for each in infos] == ["one", "two"]
    assert (sandbox.files.read("one"), sandbox.files.read("d/two")) == ("1", "2")


def fetch(url: str, data: bytes | None = None, kind: str = "application/octet-stream") -> tuple[int, bytes]:
    request = urllib.request.Request(url, data, {} if data is None else {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_signed_urls_of_files_need_no_key(sandbox: Sandbox) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nh\xc3\xa9llo\r\n--x--\r\n'
    assert fetch(sandbox.upload_url("a b.txt"), form, "multipart/form-data; boundary=x")[0] == 200
    assert sandbox.files.read("a b.txt") == "héllo"
    assert fetch(sandbox.download_url("a b.txt")) == (200, "héllo".encode())
    assert fetch(sandbox.download_url("a b.txt", use_signature_expiration=60))[0] == 200
    assert fetch(sandbox.download_url("a b.txt", user="user"))[0] == 200
    # What was not signed is refused: another file, another operation, another time, a time that is over.
    read = sandbox.download_url("a b.txt")
    timed = sandbox.download_url("a b.txt", use_signature_expiration=60)
    for url, data in (
        (read.replace("a%20b", "c"), None),
        (read, b"written"),
        (read.replace("v1_", "v1_x"), None),
        (read + "&signature_expiration=99999999999", None),
        (timed.partition("&signature_expiration")[0], None),
        (sandbox.download_url("a b.txt", use_signature_expiration=-1), None),
    ):
        status, body = fetch(url, data)
        assert (status, json.loads(body)["code"]) in ((401, 401), (502, 502)), url
    assert sandbox.files.read("a b.txt") == "héllo"


def test_folders_are_made_listed_moved_and_removed(sandbox: Sandbox) -> None:
    assert sandbox.files.make_dir("d/e") is True
    assert sandbox.files.make_dir("d/e") is False
    sandbox.files.write("d/e/f", "x")
    assert [(each.name, each.type) for each in sandbox.files.list("d")] == [("e", FileType.DIR)]
    assert [each.name for each in sandbox.files.list("d", depth=2)] == ["e", "f"]
    info = sandbox.files.get_info("d/e/f")
    assert (info.name, info.type, info.size, info.permissions) == ("f", FileType.FILE, 1, "-rw-r--r--")
    assert sandbox.files.rename("d/e/f", "g").name == "g"
    assert sandbox.files.exists("g") is True
    assert sandbox.files.exists("d/e/f") is False
    sandbox.files.remove("d")
    assert sandbox.files.exists("d") is False


def test_what_is_not_there_is_told(sandbox: Sandbox) -> None:
    for act in (sandbox.files.read, sandbox.files.list, sandbox.files.remove, sandbox.files.get_info):
        with pytest.raises(FileNotFoundException):
            act("missing")
    with pytest.raises(Exception, match="in no folder of this session"):
        sandbox.files.read("/etc/shadow")


def test_changes_of_a_folder_are_told(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("watched/inner")
    watcher = sandbox.files.watch_dir("watched", recursive=True)
    found: list[tuple[str, FilesystemEventType]] = []
    sandbox.files.write("watched/inner/new.txt", "x")
    sandbox.run_code("import os; os.remove('watched/inner/new.txt')")

    def told() -> bool:
        found.extend((each.name, each.type) for each in watcher.get_new_events())
        return ("inner/new.txt", FilesystemEventType.REMOVE) in found

    until(told)
    assert ("inner/new.txt", FilesystemEventType.CREATE) in found
    watcher.stop()
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir("missing")


async def test_async_changes_of_a_folder_are_told(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.files.make_dir("watched")
    came: asyncio.Queue[Any] = asyncio.Queue()
    watcher = await async_sandbox.files.watch_dir("watched", came.put_nowait)
    await async_sandbox.files.write("watched/a", "1")
    async with asyncio.timeout(PATIENCE):
        while (event := await came.get()).name != "a":
            pass
    assert event.type == FilesystemEventType.CREATE
    await watcher.stop()


# --- commands ---


def test_a_command_has_output_and_an_exit_code(sandbox: Sandbox) -> None:
    got: list[str] = []
    result = sandbox.commands.run("echo out; echo err >&2; echo $V", envs={"V": "it's"}, on_stdout=got.append)
    assert (result.stdout, result.stderr, result.exit_code) == ("out\nit's\n", "err\n", 0)
    assert "".join(got) == result.stdout
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo no >&2; exit 3")
    assert (failed.value.exit_code, failed.value.stderr) == (3, "no\n")


def test_a_command_runs_in_the_folder_of_the_sandbox(sandbox: Sandbox) -> None:
    here = sandbox.run_code("import os; os.getcwd()").text
    assert sandbox.commands.run("pwd").stdout.strip() == here
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert "".join(sandbox.run_code("!pwd").logs.stdout).strip() == here


def test_commands_in_the_background_are_listed_fed_and_killed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read x; echo got $x; sleep 60", background=True, stdin=True)
    assert [each.pid for each in sandbox.commands.list()] == [handle.pid]
    sandbox.commands.send_stdin(handle.pid, "word\n")
    for stdout, _, _ in handle:
        if stdout and "got word" in stdout:
            break
    assert handle.kill() is True
    assert sandbox.commands.kill(handle.pid) is False
    assert sandbox.commands.list() == []
    other = sandbox.commands.run("cat", background=True, stdin=True)
    sandbox.commands.send_stdin(other.pid, "a")
    sandbox.commands.close_stdin(other.pid)
    assert other.wait().stdout == "a"


def test_a_command_can_be_left_and_joined_again(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("read x; echo end $x", background=True, stdin=True)
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "1\n")
    assert again.wait().stdout == "end 1\n"


def test_a_command_that_takes_too_long_is_ended(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 60", timeout=0.5)
    until(lambda: sandbox.commands.list() == [])


def test_a_terminal_takes_input_and_a_size(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=20, cols=70))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo s''een\n")
    seen = ""
    for _, _, data in terminal:
        seen += (data or b"").decode()
        if "seen" in seen:
            break
    assert "20 70" in seen
    sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=90))
    assert sandbox.pty.kill(terminal.pid) is True


async def test_async_files(async_sandbox: AsyncSandbox) -> None:
    files = async_sandbox.files
    written = await files.write("d/a.txt", "héllo")
    assert await files.read(written.path) == "héllo"
    assert [each async for each in await files.read("d/a.txt", format="stream")] == ["héllo".encode()]
    assert await files.make_dir("d/e") is True
    assert [(each.name, each.type) for each in await files.list("d")] == [("a.txt", FileType.FILE), ("e", FileType.DIR)]
    assert (await files.rename("d/a.txt", "b.txt")).name == "b.txt"
    assert (await files.get_info("b.txt")).size == len("héllo".encode())
    await files.remove("d")
    assert [await files.exists(name) for name in ("b.txt", "d")] == [True, False]
    with pytest.raises(FileNotFoundException):
        await files.read("missing")


async def test_async_commands_in_the_background(async_sandbox: AsyncSandbox) -> None:
    commands = async_sandbox.commands
    handle = await commands.run("read x; echo got $x; sleep 60", background=True, stdin=True)
    assert [each.pid for each in await commands.list()] == [handle.pid]
    heard = asyncio.Event()
    joined = await commands.connect(handle.pid, on_stdout=lambda text: heard.set() if "got word" in text else None)
    await commands.send_stdin(handle.pid, "word\n")
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    assert await joined.kill() is True
    assert await commands.list() == []
    with pytest.raises(CommandExitException) as failed:
        await commands.run("echo no >&2; exit 3")
    assert (failed.value.exit_code, failed.value.stderr) == (3, "no\n")


async def test_async_commands_and_terminals(async_sandbox: AsyncSandbox) -> None:
    result = await async_sandbox.commands.run("echo hi")
    assert (result.stdout, result.exit_code) == ("hi\n", 0)
    seen: list[bytes] = []
    terminal = await async_sandbox.pty.create(PtySize(rows=20, cols=70), on_data=lambda data: seen.append(data))
    await async_sandbox.pty.send_stdin(terminal.pid, b"exit 0\n")
    assert (await terminal.wait()).exit_code == 0
    assert seen
