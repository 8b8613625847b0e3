"""Folders and hosts that sessions are granted: at the start of a server, and by its owner while sessions live."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingle import Client, errors
from support.mcp_host import INITIALIZE, Host, text_of
from support.mcp_model import over_http
from support.server import PATIENCE, Server
from support.tokens import ingle_token
from support.waiting import wait_until

pytestmark = pytest.mark.req("grant.live")

SANDBOX = ("--isolation", "sandbox")


@pytest.fixture
def project(apart: Path) -> Path:
    """A folder with a file, which no server is granted by itself."""
    # One below: a temporary folder is closed to the users that sandboxed sessions are.
    folder = apart / "project"
    folder.mkdir()
    (folder / "data.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.fixture
def in_home(home: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of the test's own, for clients and commands, with sessions in a sandbox."""
    monkeypatch.setenv("INGLE_HOME", str(home))
    monkeypatch.setenv("INGLE_PRELOAD", "")
    monkeypatch.setenv("INGLE_ISOLATION", "sandbox")
    for name in ("INGLE_URL", "INGLE_TOKEN", "INGLE_MOUNT"):
        monkeypatch.delenv(name, raising=False)
    return home


def ingle(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ingle", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=cwd, check=False)


def seen(server: Server, name: str, path: Path) -> Any:
    """Return what a session reads, or the name of its error."""
    result = server.execute(f"open({str(path)!r}).read()", name)
    return result["error"]["name"] if result.get("error") else result["result"]["text/plain"]


HELD = repr("a,b\n1,2\n")


def test_a_client_with_a_folder_starts_a_service_whose_sessions_use_it(in_home: Path, project: Path) -> None:
    with Client(folder=project) as client, client.session() as session:
        assert session.run("open('data.csv').read()").text == HELD
        assert session.run("open('made', 'w').write('by the session')").success
    assert (project / "made").read_text() == "by the session"


def test_a_relative_cwd_is_one_of_the_client(in_home: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "sub").mkdir()
    monkeypatch.chdir(project)
    with Client(folder=".:ro") as client:
        with client.session(cwd="sub") as session:
            assert session.run("import os; os.getcwd()").text == repr(str(project / "sub"))
            assert not session.run("open('made', 'w')").success
        with pytest.raises(errors.InvalidRequest, match="there is no folder"):
            Client(folder="no such folder")


def test_a_client_with_a_folder_has_it_granted_by_the_service_that_runs(
    in_home: Path, project: Path, start: Callable[..., Server]
) -> None:
    start(*SANDBOX)
    with Client(folder=project) as client, client.session() as session:
        assert session.run("open('data.csv').read()").text == HELD
    with Client() as client, client.session() as session:
        assert session.run("import os; os.getcwd()").text != repr(str(project)), "others start where they did"


def test_sessions_of_the_owner_start_in_the_first_folder(
    in_home: Path, project: Path, start: Callable[..., Server]
) -> None:
    (project / "more").mkdir()
    tenant = ingle_token(in_home, "new", "ci")
    server = start(*SANDBOX, "--folder", str(project), "--folder", f"{project}/more:ro")
    assert f"  files   of your folders, sessions read and write {project} and only read {project}/more; " in "".join(
        server.said
    )
    assert server.make_session()["cwd"] == str(project)
    assert server.execute("open('more/x', 'w')")["error"]["name"] == "OSError"
    with Client(server.url, tenant) as other, other.session() as session:
        assert session.run(f"import os; os.path.exists({str(project)!r})").text == "False", "it is the owner's"


def test_a_grant_is_added_and_removed_while_sessions_live(
    in_home: Path, project: Path, start: Callable[..., Server]
) -> None:
    server = start(*SANDBOX)
    data = project / "data.csv"
    server.make_session("before")
    server.execute("kept = 1", "before")
    told = ingle("grant", str(project))
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [
        f"{project} is granted. New sessions follow that.",
        "  have it from their next process on: before",
        "It lasts until this server ends; --save keeps it.",
    ]
    server.make_session("after")
    assert seen(server, "after", data) == HELD
    assert seen(server, "before", data) == "FileNotFoundError"
    assert server.execute(f"open({str(data)!r})", "before")["notices"] == [
        f"{str(data)!r} was granted after this session's process had started; new sessions have it, and this one from "
        "its next process on, which `exit()` starts, without the variables"
    ]
    assert server.execute("kept", "before")["result"]["text/plain"] == "1", "it lives on"
    server.execute("exit()", "before")
    assert seen(server, "before", data) == HELD, "its next process has it"

    again = ingle("grant", str(project))
    assert "  have it now: before, after" in again.stdout
    listed = ingle("grant", "--list")
    assert str(project) in listed.stdout
    gone = ingle("grant", "--remove", str(project))
    assert gone.stdout.splitlines() == [
        f"{project} is no longer granted. New sessions follow that.",
        "  keep it until their next process: before, after",
    ]
    server.make_session("last")
    assert seen(server, "last", data) == "FileNotFoundError"
    assert seen(server, "after", data) == HELD
    server.execute("exit()", "after")
    assert seen(server, "after", data) == "FileNotFoundError"
    assert ingle("grant", "--remove", str(project)).returncode == 2


def test_a_fork_and_a_rollback_have_what_their_process_had(
    in_home: Path, project: Path, start: Callable[..., Server]
) -> None:
    server = start(*SANDBOX)
    data = project / "data.csv"
    server.make_session("s")
    server.execute("x = 1", "s")
    assert server.client.post("/v1/sessions/s/checkpoints", json={"name": "c"}).is_success
    server.client.post("/v1/grants", json={"folder": str(project)})
    assert server.client.post("/v1/sessions/s/fork", json={"session_id": "f"}).is_success
    assert seen(server, "f", data) == "FileNotFoundError"
    server.execute("import os; os._exit(1)", "s")
    assert seen(server, "s", data) == HELD
    back = server.client.post("/v1/sessions/s/rollback", json={"name": "c"})
    assert back.is_success, back.text
    assert seen(server, "s", data) == "FileNotFoundError"
    effects = server.client.post("/v1/grants", json={"folder": str(project)}).json()["sessions"]
    assert {each["session_id"]: each["when"] for each in effects} == {"s": "next_process", "f": "next_process"}
    for name in ("s", "f"):
        server.execute("exit()", name)
        assert seen(server, name, data) == HELD, name


def test_options_without_an_effect_on_a_live_session_are_told(
    in_home: Path, project: Path, start: Callable[..., Server]
) -> None:
    server = start(*SANDBOX)
    server.make_session("s")
    done = ingle("run", "-s", "s", "--folder", str(project), "--python", sys.executable, "open('data.csv')")
    assert (done.returncode, done.stderr.splitlines()[:2]) == (
        1,
        [
            f"ingle: session s is confined, and has {project} from its next process on, not now; exit() in a cell "
            "starts one, without the variables",
            f"ingle: session s exists and keeps its Python {platform.python_version()}; --python has no effect",
        ],
    )


def test_a_host_is_granted_to_live_sessions_at_once(in_home: Path, start: Callable[..., Server]) -> None:
    server = start(*SANDBOX, "--allow-host", "none")
    server.make_session("s")
    ask = "import urllib.request, urllib.error\ntry: urllib.request.urlopen('http://nowhere.invalid/')\n"
    ask += "except urllib.error.HTTPError as error: print(error.code)"
    assert server.execute(ask, "s")["stdout"] == "403\n"
    added = server.client.post("/v1/grants", json={"host": "nowhere.invalid"}).json()
    assert added["sessions"] == [{"session_id": "s", "tenant": "", "when": "now"}]
    assert server.execute(ask, "s")["stdout"] == "502\n", "it is asked for, and not there"
    removed = server.client.delete(f"/v1/grants/{added['grant']['id']}").json()
    assert removed["sessions"] == [{"session_id": "s", "tenant": "", "when": "now"}]
    assert server.execute(ask, "s")["stdout"] == "403\n"


def test_only_the_owner_sees_and_changes_grants(in_home: Path, project: Path, start: Callable[..., Server]) -> None:
    token = ingle_token(in_home, "new", "other", "--scope", "admin")
    server = start(*SANDBOX)
    with server.make_client() as client:
        client.headers["Authorization"] = f"Bearer {token}"
        assert client.get("/v1/grants").status_code == 403
        assert client.post("/v1/grants", json={"folder": str(project)}).status_code == 403
        assert client.delete("/v1/grants/0").status_code == 403
        for cwd in (str(project), str(project / "no such folder")):
            refused = client.post("/v1/sessions", json={"cwd": cwd})
            assert (refused.status_code, refused.json()["code"]) == (403, "not_granted"), "existence is not told"
    server.client.post("/v1/grants", json={"folder": str(project), "tenants": "all"})
    with Client(server.url, token) as other, other.session(cwd=str(project)) as session:
        assert session.run("open('data.csv').read()").text == HELD


def test_a_grant_that_would_not_be_safe_is_refused(in_home: Path, start: Callable[..., Server]) -> None:
    server = start(*SANDBOX)
    before = server.client.get("/v1/grants").json()
    cases: list[tuple[dict[str, object], str]] = [
        ({"folder": "/"}, "whole file system"),
        ({"folder": str(server.home)}, "the server's own data"),
        ({"folder": str(server.home.parent)}, "the server's own data"),
        ({"folder": "relative"}, "absolute path"),
        ({"folder": "/no/such/folder"}, "there is no folder"),
        ({"host": "not a host"}, "give HOST or HOST:PORT"),
        ({}, "either a folder or a host"),
    ]
    for wanted, why in cases:
        refused = server.client.post("/v1/grants", json=wanted)
        assert refused.status_code == 422, (wanted, refused.text)
        assert why in refused.json()["detail"]
    assert server.client.delete("/v1/grants/none").status_code == 404
    assert server.client.get("/v1/grants").json() == before
    server.make_session()


def test_a_saved_grant_holds_at_the_next_start(in_home: Path, project: Path, start: Callable[..., Server]) -> None:
    in_home.mkdir(exist_ok=True)
    (in_home / "config.toml").write_text("# mine\nport = 1\n")
    server = start(*SANDBOX)
    assert ingle("grant", "--save", f"{project}:ro").returncode == 0
    assert server.stop() == 0
    server = start(*SANDBOX)
    server.make_session()
    assert seen(server, "main", project / "data.csv") == HELD
    assert ingle("grant", "--save", "--remove", str(project)).returncode == 0
    assert "# mine\nport = 1\n" in (in_home / "config.toml").read_text()
    assert str(project) not in (in_home / "config.toml").read_text()


def test_mcp_sessions_start_in_the_folder_that_is_named(in_home: Path, project: Path) -> None:
    with Host(in_home, "--folder", str(project), cwd=Path("/")) as host:
        host.initialize()
        assert HELD in text_of(host.call("python_session", code="open('data.csv').read()"))


def test_run_uses_the_folders_that_are_named(in_home: Path, project: Path) -> None:
    ran = ingle("run", "--folder", str(project), "print(open('data.csv').read(), end='')", cwd=Path("/"))
    assert (ran.stdout, ran.returncode) == ("a,b\n1,2\n", 0), ran.stderr
    assert ran.stderr == "", "a person at a terminal is told"


@pytest.mark.level("none", "at the others a folder around the project is granted to all")
def test_the_instructions_for_models_follow_a_grant(project: Path, start: Callable[..., Server]) -> None:
    server = start(*SANDBOX)
    request = over_http(server.client)

    def told() -> str:
        text: str = request("initialize", INITIALIZE)["result"]["instructions"]
        return text

    assert str(project) not in told()
    grant = server.client.post("/v1/grants", json={"folder": str(project)}).json()["grant"]
    assert wait_until(lambda: f"These folders can be used too: {project}." in told())
    server.client.delete(f"/v1/grants/{grant['id']}").raise_for_status()
    assert wait_until(lambda: str(project) not in told())
