"""Kill -9 at any moment: what comes back is the state after some completed cell, and it is said which."""

import concurrent.futures
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ingle.support.processes import below
from support.crash_rounds import PATIENCE, Rounds, is_saved, name_of
from support.rollback_rounds import ChangeRounds, Changing, GrantRounds
from support.seeds import new_chance
from support.server import Server
from support.waiting import wait_until

ROUNDS = ["server", "worker", "copy", "zygote", "server"]
"""Each kind of death, the server's first and last. `make soak` runs many more."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that any session may write."""
    folder = tmp_path / "project"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.mark.req("state.restart")
@pytest.mark.timeout(240)
def test_rounds_of_kill_9(start: Callable[..., Server]) -> None:
    rounds = Rounds(start, new_chance())
    for what in ROUNDS:
        rounds.run(what)
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


@pytest.mark.req("files.state")
@pytest.mark.timeout(240)
def test_rollbacks_are_wholly_done_or_not_at_all(start: Callable[..., Server]) -> None:
    """The files and the variables are of one moment, whatever is killed while a rollback goes on."""
    rounds = ChangeRounds(start, new_chance())
    for what in ("log", "init", "log", "worker"):
        rounds.run(what)
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


@pytest.mark.req("trial.commit")
@pytest.mark.timeout(240)
def test_commits_are_wholly_done_or_not_at_all(start: Callable[..., Server]) -> None:
    """The files, the variables and the durable save are of one moment, whatever is killed while a commit goes on."""
    rounds = ChangeRounds(start, new_chance(), Changing.commit)
    for what in ("log", "init", "server", "worker"):
        rounds.run(what)
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


@pytest.mark.req("files.state")
@pytest.mark.timeout(240)
def test_rollbacks_of_a_tracked_folder_are_wholly_done_or_not_at_all(
    start: Callable[..., Server], project: Path
) -> None:
    rounds = GrantRounds(start, new_chance(), project, "--mount", f"{project}:tracked", "--pool", "0")
    for what in ("middle", "process", "server", "init"):
        rounds.roll_back(what)
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


@pytest.mark.req("trial.commit")
@pytest.mark.timeout(240)
@pytest.mark.level("none", "the sessions are in a sandbox anyway")
@pytest.mark.parametrize("kind", ["tracked", "shared"])
def test_commits_to_a_granted_folder_are_wholly_done_or_not_at_all(
    start: Callable[..., Server], project: Path, kind: str
) -> None:
    """Each folder is of one moment, and the session and its save too, whatever is killed."""
    granted = f"{project}:tracked" if kind == "tracked" else str(project)
    flags = ("--mount", granted, "--pool", "0", "--isolation", "sandbox")
    rounds = GrantRounds(start, new_chance(), project, *flags)
    for what in ("middle", "process", "server", "init"):
        rounds.commit(what)
    print("\n".join(rounds.told))
    rounds.server.client.delete("/v1/sessions/main")


FILES = 1000
LARGE = 1 << 28
"""Bytes of a file that takes long enough to write."""

WRITE = f"""
def write(number):
    for each in range({FILES}):
        with open(f'file{{each}}', 'w') as file:
            _ = file.write(str(number))
"""


def cut_off(server: Server, path: str, folder: Path) -> None:
    """Kill the server while it carries a request out, as soon as a file has changed."""
    sample = [folder / f"file{each}" for each in range(0, FILES, FILES // 20)]
    before = [file.stat().st_ino for file in sample]
    with server.make_client() as http, concurrent.futures.ThreadPoolExecutor() as threads:
        asked = threads.submit(http.post, path, json={"name": "base"} if path.endswith("rollback") else {})
        while [file.stat().st_ino for file in sample] == before and not asked.done():
            pass
        server.process.kill()
        server.process.wait()
        assert isinstance(asked.exception(), httpx.HTTPError)


def numbers(folder: Path) -> set[str]:
    return {(folder / f"file{each}").read_text() for each in range(FILES)}


@pytest.mark.req("files.state", "trial.commit")
@pytest.mark.parametrize("change", ["rollback", "commit"])
def test_what_was_cut_off_is_undone_without_a_save(start: Callable[..., Server], change: str) -> None:
    """A durable session that is too large to be saved still has its folder."""
    server = start("--durable-size", "1M")
    server.make_session(durable=True)
    server.execute(WRITE + "import os; large = os.urandom(1 << 22); write(1)")
    path = "/v1/sessions/main/rollback"
    if change == "rollback":
        server.client.post("/v1/sessions/main/checkpoints", json={"name": "base"})
        server.execute("write(2)")
    else:
        result = server.execute("write(3)", trial=True, network="allowed")
        path = f"/v1/sessions/main/trials/{result['trial']['name']}/commit"
    cut_off(server, path, next(server.home.glob("sessions/durable.*/workspace")))
    server = start("--durable-size", "1M")
    result = server.execute(f"print({{open(f'file{{each}}').read() for each in range({FILES})}})")
    assert result["stdout"] == ("{'2'}\n" if change == "rollback" else "{'1'}\n"), result
    told = "the files are as before a rollback or commit that was cut off"
    assert [each for each in result["notices"] if "cut off" in each] == [told]
    assert list((server.home / "undo").iterdir()) == []


@pytest.mark.req("files.state")
def test_what_was_cut_off_in_a_tracked_folder_is_undone(start: Callable[..., Server], tmp_path: Path) -> None:
    """The next session with the folder does so. Files that somebody has changed since stay."""
    folder = tmp_path / "project"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    server = start("--folder", f"{folder}:tracked")
    server.make_session()
    server.execute(WRITE + "write(1)")
    server.client.post("/v1/sessions/main/checkpoints", json={"name": "base"})
    server.execute("write(2)")
    cut_off(server, "/v1/sessions/main/rollback", folder)
    assert numbers(folder) == {"1", "2"}
    (folder / "file7").write_text("mine")
    server = start("--folder", f"{folder}:tracked")
    server.make_session()
    assert (folder / "file7").read_text() == "mine"
    (folder / "file7").write_text("2")
    assert numbers(folder) == {"2"}
    notices = server.execute("1")["notices"]
    assert f"the files in {folder} are as before a rollback or commit that was cut off" in notices
    assert "files that were changed since stay as they are: file7" in notices


@pytest.mark.req("trial.commit")
@pytest.mark.both_levels
@pytest.mark.level("none", "at the others a folder around the project is granted too")
def test_a_commit_that_was_cut_off_in_a_granted_folder_is_undone(start: Callable[..., Server], tmp_path: Path) -> None:
    """The next session with the folder does so, whether the folder is tracked or not."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".gitignore").write_text("file*\n")
    server = start("--folder", f"{folder}:shared", "--isolation", "sandbox")
    server.make_session()
    server.execute(WRITE + "write(1)")
    result = server.execute("write(2); open('created', 'w').close()", trial=True)
    assert result["error"] is None, result
    cut_off(server, f"/v1/sessions/main/trials/{result['trial']['name']}/commit", folder)
    assert "1" in numbers(folder)
    server = start("--folder", f"{folder}:tracked", "--isolation", "sandbox")
    server.make_session()
    assert numbers(folder) == {"1"}
    assert sorted(each.name for each in folder.iterdir()) == sorted(
        [".gitignore", *(f"file{each}" for each in range(FILES))]
    )
    notices = server.execute("1")["notices"]
    assert f"the files in {folder} are as before a rollback or commit that was cut off" in notices
    assert list((server.home / "undo").iterdir()) == []


@pytest.mark.req("files.state", "trial.commit")
@pytest.mark.level("none", "the sessions are in a sandbox anyway")
@pytest.mark.parametrize("change", ["rollback", "commit"])
def test_a_file_that_was_not_written_to_its_end_is_removed(
    start: Callable[..., Server], project: Path, change: str
) -> None:
    """Also if the folder ignores such files."""
    (project / ".gitignore").write_text("*.part\n")
    (project / "deep").mkdir(mode=0o777)
    (project / "deep").chmod(0o777)
    flags = ("--folder", f"{project}:tracked", "--isolation", "sandbox")
    server = start(*flags)
    server.make_session()
    write = f"open('deep/large', 'wb').write(bytes({LARGE}))"
    path, body = "/v1/sessions/main/rollback", {"name": "base"}
    if change == "rollback":
        server.execute(write)
        assert server.client.post("/v1/sessions/main/checkpoints", json=body).status_code == 201
        server.execute("__import__('os').remove('deep/large')")
    else:
        result = server.execute(write, trial=True, network="held")
        path, body = f"/v1/sessions/main/trials/{result['trial']['name']}/commit", {}
    with server.make_client() as http, concurrent.futures.ThreadPoolExecutor() as threads:
        asked = threads.submit(http.post, path, json=body)
        while not list(project.rglob("*.part")) and not asked.done():
            pass
        server.process.kill()
        server.process.wait()
    assert [each.suffix for each in (project / "deep").iterdir()] == [".part"]
    start(*flags).make_session()
    assert list((project / "deep").iterdir()) == []


SLOW = """
import os, time
class Slow:
    def __reduce__(self):
        while os.path.exists({gate!r}):
            time.sleep(0.01)
        return Slow, ()
def write(text, slowly):
    global value, slow
    value, slow = text, Slow() if slowly else None
    with open({file!r}, 'w') as file:
        file.write(text)
"""
"""A variable whose save lasts as long as the file `gate` is there."""


class Unsaved:
    """A durable session with a granted folder. Its last rollback or commit is answered, and the save of it hangs."""

    def __init__(self, start: Callable[..., Server], parent: Path, kind: str, change: str) -> None:
        folder, gates = parent / "project", parent / "gates"
        for each in (folder, gates):
            each.mkdir()
            each.chmod(0o777)
        self._start = start
        self._flags = ("--mount", f"{folder}:{kind}", "--mount", str(gates), "--pool", "0", "--isolation", "sandbox")
        self._file, self.gate = folder / "file", gates / "gate"
        self.server = start(*self._flags)
        self.server.make_session(durable=True)
        self._execute(SLOW.format(file=str(self._file), gate=str(self.gate)))
        path, body = "/v1/sessions/main/rollback", {"name": "base"}
        if change == "rollback":
            self._execute("write('after', True)")
            assert self.server.client.post("/v1/sessions/main/checkpoints", json=body).status_code == 201
        self._execute("write('before', False)")
        assert wait_until(lambda: is_saved(self.server), PATIENCE)
        if change == "commit":
            result = self.server.execute("write('after', True)", trial=True, network="held")
            path, body = f"/v1/sessions/main/trials/{result['trial']['name']}/commit", {}
        self.gate.touch()
        assert self.server.client.post(path, json=body).status_code == 200
        assert self.folder == "after"

    @property
    def folder(self) -> str:
        return self._file.read_text()

    @property
    def state(self) -> str:
        return str(self.server.client.get("/v1/sessions/main").json()["state"])

    @property
    def log(self) -> Path | None:
        return next((self.server.home / "undo").iterdir(), None)

    def restart(self) -> None:
        self.server.process.kill()
        self.server.process.wait()
        self.server = self._start(*self._flags)

    def read(self) -> tuple[str, str]:
        """Return the value of the session, and that of the granted folder."""
        result = self._execute("print(value)")
        return result["stdout"].strip(), self.folder

    def _execute(self, code: str) -> dict[str, Any]:
        result = self.server.execute(code)
        assert (result["status"], result["error"]) == ("ok", None), result
        return result


KINDS = pytest.mark.parametrize(
    ("kind", "change"), [("tracked", "rollback"), ("tracked", "commit"), ("shared", "commit")]
)


@pytest.mark.req("files.state", "trial.commit")
@pytest.mark.level("none", "the sessions are in a sandbox anyway")
@KINDS
def test_a_server_that_dies_before_the_save_takes_the_granted_folder_back(
    start: Callable[..., Server], tmp_path: Path, kind: str, change: str
) -> None:
    unsaved = Unsaved(start, tmp_path, kind, change)
    unsaved.restart()
    assert unsaved.read() == ("before", "before")
    assert unsaved.log is None


@pytest.mark.req("files.state", "trial.commit")
@pytest.mark.level("none", "the sessions are in a sandbox anyway")
@KINDS
def test_a_session_that_dies_before_the_save_takes_the_granted_folder_back(
    start: Callable[..., Server], tmp_path: Path, kind: str, change: str
) -> None:
    """The server lives on. The copy that is being saved dies with the processes of the session."""
    unsaved = Unsaved(start, tmp_path, kind, change)
    # One of them is the session's, another one waits for the next session.
    for init in [each for each in below(unsaved.server.process.pid) if name_of(each) == "ingle-init"]:
        os.kill(init, signal.SIGKILL)
    # A cell that is sent before the server knows ends with the session.
    assert wait_until(lambda: unsaved.state != "idle", PATIENCE)
    assert unsaved.read() == ("before", "before")
    assert unsaved.log is None


@pytest.mark.req("files.state", "trial.commit")
@pytest.mark.level("none", "the sessions are in a sandbox anyway")
@KINDS
def test_a_server_that_dies_after_the_save_leaves_the_granted_folder(
    start: Callable[..., Server], tmp_path: Path, kind: str, change: str
) -> None:
    """Even if it dies before it has removed the undo log."""
    unsaved = Unsaved(start, tmp_path, kind, change)
    assert unsaved.log is not None
    log, aside = unsaved.log, tmp_path / "aside"
    shutil.copytree(log, aside)
    unsaved.gate.unlink()
    assert wait_until(lambda: unsaved.log is None, PATIENCE)
    unsaved.server.process.kill()
    shutil.copytree(aside, log)
    unsaved.restart()
    assert unsaved.read() == ("after", "after")
    assert unsaved.log is None


@pytest.mark.req("files.state", "trial.commit")
@pytest.mark.level("none", "the sessions are in a sandbox anyway")
def test_another_session_with_the_folder_goes_by_the_same_save(start: Callable[..., Server], tmp_path: Path) -> None:
    """It may come before the session that made the change."""
    unsaved = Unsaved(start, tmp_path, "tracked", "commit")
    unsaved.restart()
    unsaved.server.make_session("other")
    assert unsaved.folder == "before"
    assert unsaved.read() == ("before", "before")
    unsaved.server.client.delete("/v1/sessions/other")


@pytest.mark.req("files.state", "trial.commit")
@pytest.mark.level("none", "the sessions are in a sandbox anyway")
def test_an_ended_session_leaves_what_it_committed(start: Callable[..., Server], tmp_path: Path) -> None:
    unsaved = Unsaved(start, tmp_path, "tracked", "commit")
    assert unsaved.server.client.delete("/v1/sessions/main").status_code == 200
    assert unsaved.log is None
    unsaved.restart()
    unsaved.server.make_session("other")
    assert unsaved.folder == "after"
