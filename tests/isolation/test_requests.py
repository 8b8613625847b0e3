"""Attacks by a request: what a caller names is a path, a program or a command on the host, and is held all the same."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ingle.callers import Limits
from ingle.grants import OPEN_LEVELS
from ingle.http.auth import tokens_file
from ingle.requests import Bounds
from support.attack_runner import AS_ROOT
from support.attacked_server import LIMITS, Fort

pytestmark = [AS_ROOT, pytest.mark.req("safe.isolation")]

PLANT = """
import os
os.makedirs("env/bin")
open("env/pyvenv.cfg", "w").write("home = /usr/bin\\n")
with open("env/bin/python", "w") as file:
    file.write("#!/bin/sh\\necho " + {mark!r} + " > " + {path!r} + "\\n")
os.chmod("env/bin/python", 0o755)
print(os.path.abspath("env/bin/python"))
"""


@pytest.fixture(scope="module", params=["none", "limits", "restricted", "sandbox"])
def fort(request: pytest.FixtureRequest) -> Iterator[Fort]:
    made = Fort(request.param, "root")
    yield made
    made.close()


def shell(fort: Fort, command: str, **options: Any) -> dict[str, Any]:
    answer = fort.client.post("/v1/shell", json={"command": command, "wait": 20, **options})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_a_planted_interpreter_that_the_next_request_names_is_not_started(fort: Fort) -> None:
    proof = fort.user_home / "planted"
    made = fort.client.post("/v1/sessions", json={}).json()["session_id"]
    code = PLANT.format(mark=fort.mark, path=str(proof))
    planted = fort.execute(made, code)["stdout"].strip()
    answer = fort.client.post("/v1/sessions", json={"python": planted})
    worked = fort.mark in fort.read_as_the_server(str(proof))
    fort.client.delete(f"/v1/sessions/{made}")
    if fort.level in OPEN_LEVELS:
        assert worked, answer.text
    else:
        assert not worked
        assert answer.status_code == 403
        assert "--pythons" in answer.json()["detail"]


@pytest.mark.parametrize("folder", ["/", "/etc", "HOME", "VICTIM", "/proc/self/root", "/proc/1/cwd"])
def test_a_session_does_not_start_where_it_was_not_granted(fort: Fort, folder: str) -> None:
    folder = {"HOME": str(fort.home), "VICTIM": fort.victim_folder}.get(folder, folder)
    answer = fort.client.post("/v1/sessions", json={"session_id": "elsewhere", "cwd": folder})
    if fort.level in OPEN_LEVELS:
        assert answer.status_code in (201, 422)
        fort.client.delete("/v1/sessions/elsewhere")
    else:
        assert answer.status_code == 403, answer.text


def test_a_command_without_a_session_sees_no_more_than_a_session(fort: Fort) -> None:
    secrets = [fort.home / "token", fort.host_file, Path(fort.victim_folder) / "secret.txt"]
    seen = shell(fort, f"cat {' '.join(map(str, secrets))} /proc/{fort.victim}/environ 2>/dev/null; true")["stdout"]
    assert fort.secret_in([seen]) == (fort.level in OPEN_LEVELS), seen[:500]


@pytest.mark.parametrize("cwd", ["HOME", "VICTIM"])
def test_a_command_does_not_run_where_it_was_not_granted(fort: Fort, cwd: str) -> None:
    folder = {"HOME": str(fort.home), "VICTIM": fort.victim_folder}[cwd]
    answer = fort.client.post("/v1/shell", json={"command": "cat token secret.txt", "cwd": folder, "wait": 20})
    assert fort.secret_in([answer.text]) == (fort.level in OPEN_LEVELS), answer.text[:500]


def test_a_command_in_the_session_of_the_victim_needs_its_name_and_not_its_pid(fort: Fort) -> None:
    answer = fort.client.post("/v1/shell", json={"command": "id", "session_id": str(fort.victim), "wait": 5})
    assert answer.status_code == 404


def test_what_a_command_takes_is_bounded_too(fort: Fort) -> None:
    size = LIMITS["memory"] + (100 << 20)
    code = f"x = bytearray({size}); print('got it')"
    task = shell(fort, f"exec {fort.environment}/bin/python -c {json.dumps(code)}")
    assert ("got it" in task["stdout"]) == (fort.level == "none"), task
    assert any("memory limit 200 MiB" in each for each in task["notices"]) == (fort.level != "none"), str(task)
    assert fort.unharmed()


@pytest.mark.parametrize("name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "BASH_ENV", "PATH"])
def test_variables_of_a_request_are_for_the_session_only(fort: Fort, name: str) -> None:
    """None of them is in the environment of a process that the server runs outside of the session."""
    given = f"/nowhere/{fort.mark}"
    made = fort.client.post("/v1/sessions", json={"env": {name: given}})
    session = made.json()["session_id"]
    seen = fort.execute(session, f"import os; print(os.environ[{name!r}])")["stdout"].strip()
    # The session's own python and packages are on these two paths as well.
    assert given in seen.split(":") if name in ("PATH", "PYTHONPATH") else seen == given
    fort.client.delete(f"/v1/sessions/{session}")
    assert fort.unharmed()
    assert fort.mark not in "".join(fort.environments_outside())


def test_a_tokens_bounds_hold_for_its_commands_too(fort: Fort) -> None:
    """However little the server holds: a token for a sandbox gets one, also for a command without a session."""
    bounds = Bounds(isolation="sandbox", network="none")
    name = f"bounded-{fort.level}"
    token, _ = tokens_file.add(fort.home, name, name, "execute", Limits(), bounds)
    headers = {"Authorization": f"Bearer {token}"}
    body = {"command": f"cat {fort.host_file} {fort.home}/token; ls -d /proc/[0-9]* | wc -l", "wait": 20}
    answer = fort.client.post("/v1/shell", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert not fort.secret_in([answer.text]), answer.text
    assert int(answer.json()["stdout"].split()[-1]) < 10


def test_a_tokens_bounds_hold_for_what_it_adds_to_its_library(fort: Fort) -> None:
    """What is added is run once, to see that it loads: not more freely than a session of the same token."""
    proof = fort.user_home / "added"
    name = f"adding-{fort.level}"
    token, _ = tokens_file.add(fort.home, name, name, "execute", Limits(), Bounds(isolation="sandbox"))
    headers = {"Authorization": f"Bearer {token}"}
    body = {"function_code": f"open({str(proof)!r}, 'w').write('x')\ndef added():\n    return 1\n"}
    answer = fort.client.post("/v1/stdlib", json=body, headers=headers)
    assert answer.status_code in (200, 201, 422), answer.text
    assert not proof.exists()


def test_a_caller_writes_nothing_where_its_session_may_only_read(fort: Fort) -> None:
    if fort.level in OPEN_LEVELS:
        pytest.skip("the session itself may write there")
    fort.client.post("/v1/sessions", json={"session_id": "shown", "cwd": str(fort.shown)}).raise_for_status()
    files = "/v1/sessions/shown/files"
    try:
        assert fort.client.get(f"{files}/file").text == "as it was"
        for name in ("file", "new", "folder/new"):
            assert fort.client.put(f"{files}/{name}", content=b"changed").status_code in (403, 422)
        assert fort.client.delete(f"{files}/file").status_code in (403, 422)
        saved = fort.client.post("/v1/sessions/shown/save", json={"name": "./state"})
        assert saved.status_code in (403, 422), saved.text
        assert [(each.name, each.read_text()) for each in fort.shown.iterdir()] == [("file", "as it was")]
    finally:
        fort.client.delete("/v1/sessions/shown")
