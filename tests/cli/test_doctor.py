"""`ingle doctor` and the tour: what a person tries first, run for real."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingle import doctor
from ingle.install.programs import Place
from ingle.isolation import capabilities
from support.checkout import beside

pytestmark = pytest.mark.usefixtures("mark")


def run(*args: str, home: Path, cwd: Path | None = None, **settings: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "INGLE_HOME": str(home), "HOME": str(home), "INGLE_PRELOAD": "", **settings}
    return subprocess.run(
        [sys.executable, *args], env=environment, capture_output=True, text=True, cwd=cwd or home.parent, timeout=100
    )


def test_a_healthy_installation_is_told_so_in_plain_words(home: Path) -> None:
    told = run("-m", "ingle", "doctor", home=home, INGLE_ISOLATION="none")
    assert told.returncode == 0, told.stdout + told.stderr
    signs = {line[6:].partition(":")[0]: line[:4] for line in told.stdout.splitlines()[:-1]}
    tried = ["Level sandbox", "Level restricted", "Level limits", doctor.KERNEL, *capabilities.TITLES.values()]
    fixed = {name: sign for name, sign in signs.items() if name not in tried}
    listed = [name for name in signs if name in tried]
    assert list(signs) == [*list(fixed)[:6], *listed, *list(fixed)[6:]]
    [working] = [line for line in told.stdout.splitlines() if line.startswith(f"ok    {doctor.KERNEL}: ")]
    assert [name for name in capabilities.TITLES.values() if name not in working and name not in listed] == []
    assert fixed == {
        "Python": "ok  ",
        "Data folder": "ok  ",
        "Session": "ok  ",
        "GPU": "ok  ",
        "Isolation": "note",
        "Sessions": "ok  ",
        "MCP round trip": "ok  ",
        "Hosts": "note",
    }
    assert {signs[name] for name in listed} <= {"ok  ", "note"}
    assert "Isolation: none: code in sessions has your files" in told.stdout
    assert "ran a cell" in told.stdout
    assert told.stdout.endswith("Everything needed works.\n")


def test_programs_get_the_findings_as_json_with_the_hosts_that_know_ingle(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text('{"mcpServers": {"ingle": {"command": "/nowhere/ingle"}}}')
    told = run("-m", "ingle", "doctor", "--json", home=home)
    found: dict[str, Any] = json.loads(told.stdout)
    assert found["healthy"] is True
    (cursor,) = [each for each in found["findings"] if each["about"] == "Cursor"]
    assert cursor["state"] == "warning"
    assert cursor["text"].startswith("would start /nowhere/ingle, which does not exist; run `ingle install cursor`")


def test_what_is_broken_is_named_with_a_remedy_and_the_exit_code_says_so(home: Path) -> None:
    told = run("-m", "ingle", "doctor", home=home, INGLE_PYTHON="/no/such/python")
    assert told.returncode == 1
    (line,) = [line for line in told.stdout.splitlines() if line.startswith("FAIL  Session")]
    assert "/no/such/python" in line
    assert told.stdout.endswith("Something needed does not work; see FAIL above.\n")


def test_a_data_folder_that_cannot_be_used_ends_the_look(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    finding = doctor.data_folder(tmp_path / "file" / "home")
    assert finding.state == "broken"
    assert "set INGLE_HOME to another folder" in finding.text


@pytest.mark.parametrize(
    ("mode", "state"), [(0o700, "fine"), (0o711, "fine"), (0o750, "warning"), (0o702, "warning"), (0o755, "warning")]
)
def test_a_data_folder_that_others_use_is_told_and_one_that_they_pass_through_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, state: str
) -> None:
    monkeypatch.setattr(doctor, "LOW_DISK_BYTES", 0)
    monkeypatch.setattr(doctor, "FULL_DISK_BYTES", 0)
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    finding = doctor.data_folder(home)
    assert (finding.state, f"run `chmod 700 {home}`" in finding.text) == (state, state == "warning")


@pytest.mark.parametrize(("free", "state"), [(49_000_000, "broken"), (400_000_000, "warning"), (10**9, "fine")])
def test_a_full_disk_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, state: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12 - free, free))
    tmp_path.chmod(0o700)
    finding = doctor.data_folder(tmp_path)
    assert (finding.state, "free some" in finding.text) == (state, state != "fine")


def test_settings_that_cannot_be_read_are_named_and_what_needs_none_is_checked(home: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text("isolation = \n")
    told = run("-m", "ingle", "doctor", home=home)
    assert (told.returncode, told.stderr) == (1, "")
    lines = told.stdout.splitlines()
    [line] = [line for line in lines if line.startswith("FAIL")]
    assert line.startswith(f"FAIL  Settings: {home / 'config.toml'} cannot be read: ")
    assert {"Python", "Data folder", "Level limits", "Hosts"} < {line[6:].partition(":")[0] for line in lines}


@pytest.mark.parametrize(
    ("data", "said"), [(b'{"mcpServers": {', "cannot be read: line 1, column 17"), (b"\xff", "is not UTF-8")]
)
def test_a_file_of_a_host_that_cannot_be_read_is_named(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / ".claude.json"
    file.write_bytes(data)
    [only] = doctor.hosts(Place(tmp_path, tmp_path, {}))
    assert (only.about, only.state) == ("Claude Code", "warning")
    assert only.text.startswith(f"{file} {said}")


def test_without_hosts_the_first_step_is_named(tmp_path: Path) -> None:
    (only,) = doctor.hosts(Place(tmp_path, tmp_path, {}))
    assert "`ingle install claude-code`" in only.text


@pytest.mark.req("mcp.handles")
def test_the_tour_is_a_readable_conversation(home: Path) -> None:
    pytest.importorskip("pandas")
    home.mkdir(mode=0o700)
    folder = home.parent / "project"
    folder.mkdir()
    told = run(str(beside("examples/tour.py")), home=home, cwd=folder)
    assert told.returncode == 0, told.stderr
    shown = told.stdout
    marks = [
        "→ add_to_stdlib()",
        "· added: share",
        "· share(part, whole): A part of a whole, in per cent.",
        "→ create_repl_session(session_id='calc')",
        "· session calc is ready",
        "  │ import pandas as pd",
        "· 3  Bern      13",
        "· Oslo: 11",
        "· 18",
        "· 38",
        "NameError: name 'city' is not defined",
        "→ list_repl_sessions()",
        "· calc · idle",
        "→ get_session_namespace(session_id='calc')",
        "sales: ",
        "waiting for input: 'Who are you?'",
        "→ send_input(session_id='calc', text='Ada')",
        "· Hello Ada",
        "running",
        "· rested",
        "· from the shell",
        "exit code 3",
        "→ save_repl_session(session_id='calc', filepath='private/sessions/calc.pkl')",
        "· session calc is saved as private/sessions/calc.pkl.ingle",
        "→ load_repl_session(session_id='again', filepath='private/sessions/calc.pkl')",
        "· session again is ready with 5 variables",
        "· 18",
        "· a copy of again as of cell 1: what-if",
        "· 36",
        "· stored as 'good'",
        "rolled back to checkpoint 'good' of cell 1",
        "· 18",
        "· False",
        "· 45",
        "· session calc is cleared",
        "· ended: calc · dead",
    ]
    at = 0
    for mark in marks:
        found = shown.find(mark, at)
        assert found >= 0, f"{mark!r} is not where it should be:\n{shown}"
        at = found
    # It has folders of its own: those of whoever tries it out are as they were.
    assert list(folder.iterdir()) == []
    assert list(home.iterdir()) == []
