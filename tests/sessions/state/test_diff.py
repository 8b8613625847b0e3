"""The difference between a checkpoint and a session: files, over every interface."""

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ingle import AsyncClient, errors
from ingle.files import Diff, FileChanges, FileDiff, FileState, VariableDiff, VariableState
from ingle.service import Service
from ingle.sessions.persistence import fingerprints
from ingle.sessions.persistence.fingerprints import Fingerprint
from ingle.settings import Settings
from ingle.workers.worker import Worker
from support.internals import session_of
from support.server import Server
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("diff.state")]

SETUP = (
    "import os\nopen('a.txt', 'w').write('one\\ntwo\\n'); "
    "open('b.bin', 'wb').write(b'\\0' * 5); os.symlink('a.txt', 'l')"
)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, keep_bytes=1024**2)


def state(data: bytes, mode: int = 0o644) -> FileState:
    return FileState("file", mode, len(data), hashlib.sha256(data).hexdigest(), "")


async def say(service: Service, code: str) -> None:
    result = await service.execute("main", code)
    assert (result.status, result.error) == ("ok", None), result


async def test_files_are_told_with_diffs_of_texts(service: Service) -> None:
    await service.create_session("main")
    await say(service, "os = __import__('os'); os.umask(0o022)")
    await say(service, SETUP)
    await service.checkpoint("main", "base")
    assert await service.diff("main") == Diff("base", "checkpoint", [], [], [], 0, [])
    await say(service, "open('a.txt', 'w').write('one\\n2'); open('b.bin', 'wb').write(b'\\0'); os.remove('l')")
    await say(service, "os.mkdir('d'); open('d/new.txt', 'w').write('new\\n'); os.chmod('b.bin', 0o755)")
    found = await service.diff("main", "base")
    assert found == Diff(
        "base",
        "checkpoint",
        [],
        [],
        [
            FileDiff(
                "a.txt",
                "changed",
                state(b"one\ntwo\n"),
                state(b"one\n2"),
                "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\\ No newline at end of file\n",
            ),
            FileDiff("b.bin", "changed", state(b"\0" * 5), state(b"\0", 0o755), None),
            FileDiff(
                "d/new.txt",
                "created",
                None,
                state(b"new\n"),
                "--- /dev/null\n+++ b/d/new.txt\n@@ -0,0 +1 @@\n+new\n",
            ),
            FileDiff("l", "deleted", FileState("link", 0o777, 0, "", "a.txt"), None, None),
        ],
        0,
        [],
    )
    await service.rollback("main", "base")
    assert (await service.diff("main")).files == []
    await say(service, "os.remove('a.txt'); os.mkdir('a.txt')")
    (file,) = (await service.diff("main")).files or []
    assert file.after is not None
    assert (file.path, file.change, file.after.kind) == ("a.txt", "changed", "folder")
    assert file.text == "--- a/a.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"


async def test_empty_folders_are_told_and_no_others(service: Service) -> None:
    await service.create_session("main")
    await say(service, "import os\nos.umask(0o022)\nfor each in ('old', 'filled', 'kept'): os.mkdir(each)")
    await service.checkpoint("main", "base")
    await say(service, "os.makedirs('new/inner'); os.rmdir('old'); open('filled/x', 'w').close(); os.mkdir('kept/sub')")
    folder = FileState("folder", 0o755, 0, "", "")
    assert (await service.diff("main")).files == [
        FileDiff("filled/x", "created", None, state(b""), ""),
        FileDiff("kept/sub", "created", None, folder, None),
        FileDiff("new/inner", "created", None, folder, None),
        FileDiff("old", "deleted", folder, None, None),
    ]
    back = await service.rollback("main")
    assert back.files == FileChanges(["old/"], [], ["filled/x", "kept/sub/", "new/inner/"])
    assert (await service.diff("main")).files == []


async def test_what_cannot_be_compared_is_told(service: Service) -> None:
    await service.create_session("main")
    with pytest.raises(errors.CheckpointNotFound):
        await service.diff("main", "none")
    await say(service, "open('large', 'wb').write(bytes(2_000_000))")
    await service.checkpoint("main", "base")
    why = "the folder holds 2.0 MB, above the bound of 1.0 MB (keep_bytes)"
    found = await service.diff("main")
    assert found == Diff("base", "checkpoint", [], [], None, 0, [f"the files cannot be compared: {why}"])


async def test_a_busy_session_is_not_compared(service: Service) -> None:
    await service.create_session("main")
    await service.checkpoint("main", "base")
    await service.execute("main", "input()", wait=5)
    with pytest.raises(errors.Busy):
        await service.diff("main")
    await service.interrupt("main")


async def test_over_http_the_client_and_the_command_line(server: Server) -> None:
    async with AsyncClient(server.url, server.token) as client, client.session("main") as session:
        await session.run(SETUP)
        await session.checkpoint("base")
        await session.run("new = 1; open('a.txt', 'w').write('three\\n'); open('b.bin', 'wb').write(b'\\0')")
        await session.run("os.mkdir('d')")
        found = await session.diff()
        assert [each.path for each in found.files or []] == ["a.txt", "b.bin", "d"]
        assert [each.name for each in found.variables or []] == ["new"]
        assert await session.diff("base") == found
        raw = server.client.get("/v1/sessions/main/diff?to=base")
        assert (raw.status_code, raw.json()["files"][0]["change"]) == (200, "changed")
        assert server.client.get("/v1/sessions/main/diff?to=none").status_code == 404
        env = {**os.environ, "INGLE_HOME": str(server.home)}
        command = [sys.executable, "-m", "ingle", "diff", "main", "base"]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
        text, binary = (found.files or [])[0].text, (found.files or [])[1]
        assert text is not None
        assert binary.before is not None
        assert binary.after is not None
        assert done.stdout == (
            f"created new: 1 (int)\n{text}"
            f"changed b.bin: 5 bytes, mode {binary.before.mode:o}, sha256 {binary.before.digest[:12]} -> "
            f"1 bytes, mode {binary.after.mode:o}, sha256 {binary.after.digest[:12]}\n"
            "created d: empty folder\n"
        )
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, env=env, check=True)
        assert json.loads(done.stdout)["to"] == "base"


async def test_the_answers_name_a_folder_whose_files_are_not_kept(service: Service, tmp_path: Path) -> None:
    """The user's own folder is neither kept nor rolled back, and the answers say so."""
    await service.create_session("s", cwd=str(tmp_path))
    await service.execute("s", "open('report.txt', 'w').write('one')")
    made = await service.checkpoint("s", "before")
    assert [notice for notice in made.notices if f"files in {tmp_path} are not kept" in notice]
    await service.execute("s", "open('report.txt', 'w').write('two')")
    differs = await service.diff("s", "before")
    assert [notice for notice in differs.notices if f"files in {tmp_path} are not compared" in notice]
    back = await service.rollback("s", "before")
    assert f"files in {tmp_path} are not rolled back" in back.notice
    assert (tmp_path / "report.txt").read_text() == "two"


# --- variables ---------------------------------------------------------------------------------------------

BEFORE = """
import numpy
same, grown, gone, again = [1], [1], 'text', [5]
array = numpy.zeros((3, 4))
shared = {'list': grown}
steps = (each for each in range(3))
next(steps)
class Point:
    x = 1
point = Point()
def function(): return 1
"""
AFTER = """
grown.append(2)
del gone
again = [5]
array[1, 1] = 1
new = (1, 2)
same = same
def function(): return 2
"""
CHANGED = {
    "again": "changed",
    "array": "changed",
    "function": "changed",
    "gone": "deleted",
    "grown": "changed",
    "new": "created",
    "shared": "changed",
}


def changes_of(found: Diff) -> dict[str, str]:
    return {each.name: each.change for each in found.variables or []}


async def test_variables_are_told_with_type_shape_and_size(service: Service) -> None:
    await service.create_session("main")
    await say(service, BEFORE)
    await service.checkpoint("main", "base")
    assert (await service.diff("main")).variables == []
    await say(service, AFTER)
    found = await service.diff("main", "base")
    assert changes_of(found) == CHANGED
    assert found.unknown == ["steps"]
    by_name = {each.name: each for each in found.variables or []}
    array = VariableState("numpy.ndarray", [3, 4], None, 96 + 128)
    assert by_name["array"].before == by_name["array"].after
    assert by_name["array"].before is not None
    assert (by_name["array"].before.type, by_name["array"].before.shape) == (array.type, array.shape)
    assert by_name["new"] == VariableDiff("new", "created", None, by_name["new"].after)
    assert by_name["grown"].before is not None
    assert by_name["grown"].after is not None
    assert (by_name["grown"].before.length, by_name["grown"].after.length) == (1, 2)
    await service.rollback("main", "base")
    assert (await service.diff("main")).variables == []


async def test_a_snapshot_is_compared_by_its_bytes(service: Service) -> None:
    await service.create_session("main")
    await say(service, BEFORE)
    await say(service, "open('a.txt', 'w').write('one\\n')")
    await service.save_session("main", "snap")
    await say(service, AFTER)
    await say(service, "open('a.txt', 'w').write('two\\n')")
    found = await service.diff("main", "snap")
    # A list that was bound again with the same content is saved as the same bytes.
    assert changes_of(found) == {name: change for name, change in CHANGED.items() if name != "again"}
    assert (found.kind, found.unknown) == ("snapshot", ["steps"])
    assert [(each.path, each.change) for each in found.files or []] == [("a.txt", "changed")]
    assert [each.session_id for each in await service.list_sessions()] == ["main"]


async def test_a_fork_is_compared_with_its_original(service: Service) -> None:
    await service.create_session("main")
    await say(service, BEFORE)
    await service.fork_session("main", "other")
    await say(service, AFTER)
    found = await service.diff("main", "other")
    assert (found.kind, changes_of(found)) == ("session", CHANGED)
    back = await service.diff("other", "main")
    swapped = {"created": "deleted", "deleted": "created", "changed": "changed"}
    assert changes_of(back) == {name: swapped[change] for name, change in CHANGED.items()}


async def test_the_kind_can_be_given_where_names_are_the_same(service: Service) -> None:
    await service.create_session("main")
    await say(service, "x = 1")
    await service.save_session("main", "same")
    await say(service, "y = 1")
    await service.checkpoint("main", "same")
    await say(service, "z = 1")
    assert changes_of(await service.diff("main", "same")) == {"z": "created"}
    assert changes_of(await service.diff("main", "checkpoint:same")) == {"z": "created"}
    assert changes_of(await service.diff("main", "snapshot:same")) == {"y": "created", "z": "created"}
    with pytest.raises(errors.SessionNotFound):
        await service.diff("main", "session:same")
    with pytest.raises(errors.SnapshotNotFound):
        await service.diff("main", "snapshot:other")
    with pytest.raises(errors.InvalidRequest):
        await service.diff("main", "cell:1")


async def test_variables_that_take_too_long_are_unknown(service: Service) -> None:
    await service.create_session("main")
    await say(service, "first = [1]; slow = bytearray(300_000_000); zero = [0]")
    await service.checkpoint("main", "base")
    await say(service, "first = [2]; new = 1")
    found = await service.diff("main", "base", compare_seconds=0.02)
    assert changes_of(found) == {"first": "changed", "new": "created"}
    assert "slow" in found.unknown
    with pytest.raises(errors.InvalidRequest):
        await service.diff("main", "base", compare_seconds=-1)


async def test_a_value_that_ends_its_copy_costs_no_answer(service: Service) -> None:
    await service.create_session("main")
    await say(
        service,
        "import os\nclass Deadly:\n    def __reduce__(self): os._exit(3)\na = [1]; b = Deadly(); c = {1: Deadly}",
    )
    await service.checkpoint("main", "base")
    await say(service, "a.append(2)")
    found = await service.diff("main")
    assert changes_of(found) == {"a": "changed"}
    # Values of builtin types and modules are told with the list.
    assert found.unknown == ["b", "c"]
    await say(service, "pass")


async def test_models_read_a_short_text(server: Server) -> None:
    from ingle.render.diff import diff_text

    async with AsyncClient(server.url, server.token) as client, client.session("main") as session:
        await session.run("x = [1]")
        await session.run("open('a.txt', 'w').write('one\\n' * 10)")
        await session.checkpoint("base")
        assert diff_text(await session.diff()) == "nothing differs from the checkpoint 'base'"
        await session.run("x.append(2); open('a.txt', 'a').write('two' * 10000)")
        text = diff_text(await session.diff())
        assert text.startswith("compared with the checkpoint 'base', now:\nchanged x: [1] -> [1, 2] (list)\n")
        assert "--- a/a.txt" in text
        assert len(text) < 10_000


async def test_a_diff_that_is_cancelled_keeps_no_files(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    await service.create_session("main")
    await service.checkpoint("main", "base")
    await say(service, "open('large', 'wb').write(bytes(500_000))")
    kept, hashing = session_of(service, "main").kept_files, asyncio.Event()

    async def never_ends(copy: Worker, seconds: float, names: Sequence[str]) -> dict[str, Fingerprint]:
        hashing.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(fingerprints, "take", never_ends)
    asked = asyncio.ensure_future(service.diff("main", "base"))
    await hashing.wait()
    asked.cancel()
    await asyncio.wait({asked})
    last = kept._last
    assert last is not None
    # Only the session itself holds them, for its next checkpoint. A thread gives them up.
    assert await until(lambda: last.holders == 1, 10)
