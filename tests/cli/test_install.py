"""`ingle install`: one entry more in a file that is someone else's, and not a byte besides."""

import importlib.util
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingle import __version__
from ingle.errors import InvalidRequest
from ingle.install import edit_config, programs
from ingle.install.programs import BY_NAME, Command, Place
from ingle.mcp.tools import TABLE as TOOLS
from support.checkout import beside

COMMAND = Command("/opt/ingle/bin/ingle", ("mcp",))
ENTRY = COMMAND.entry()
PATH = ("mcpServers", "ingle")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "home", tmp_path / "project", {}, "linux", tmp_path / "c")


def run(*args: str, home: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "HOME": str(home)}
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "WSL_DISTRO_NAME"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-m", "ingle", *args], env=environment, capture_output=True, text=True, cwd=home, timeout=60
    )


# --- JSON ---


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "mcpServers": {\n    "ingle": ENTRY2\n  }\n}\n'),
        ("{}", '{\n  "mcpServers": {\n    "ingle": ENTRY2\n  }\n}'),
        ("{\n}\n", '{\n  "mcpServers": {\n    "ingle": ENTRY2\n  }\n}\n'),
        (
            '{\n    "theme": "dark"\n}\n',
            '{\n    "theme": "dark",\n    "mcpServers": {\n        "ingle": ENTRY4\n    }\n}\n',
        ),
        (
            '{\n  // mine\n  "mcpServers": {\n    "other": {"command": "x"}, // keep me\n  },\n  /* and me */\n}\n',
            '{\n  // mine\n  "mcpServers": {\n    "other": {"command": "x"}, // keep me\n    "ingle": ENTRY2\n  },\n'
            "  /* and me */\n}\n",
        ),
        (
            '{\n  "mcpServers": {\n    "other": {"command": "x"} // no comma\n  }\n}\n',
            '{\n  "mcpServers": {\n    "other": {"command": "x"}, // no comma\n    "ingle": ENTRY2\n  }\n}\n',
        ),
        (
            '{"mcpServers": {"a // b, }": "/* \\" // */", /* , */}}',
            '{"mcpServers": {"a // b, }": "/* \\" // */", /* , */\n    "ingle": ENTRY2\n  }}',
        ),
        ("// {mine}\n{}", '// {mine}\n{\n  "mcpServers": {\n    "ingle": ENTRY2\n  }\n}'),
        ('/* } */ {"mcpServers": {}}', '/* } */ {"mcpServers": {\n    "ingle": ENTRY2\n  }}'),
        ('{"mcpServers": null}', '{"mcpServers": {\n    "ingle": ENTRY2\n  }}'),
        (
            '{"mcpServers": {"other": {"command": "x"}}, "n": 1.50}',
            '{"mcpServers": {"other": {"command": "x"},\n    "ingle": ENTRY2\n  }, "n": 1.50}',
        ),
    ],
    ids=[
        "empty",
        "braces",
        "braces-on-lines",
        "indent-of-four",
        "comments-and-commas",
        "comment-last",
        "strings",
        "comment-first",
        "comment-before-braces",
        "null",
        "one-line",
    ],
)
def test_an_entry_is_added_and_every_other_byte_of_json_stays(before: str, after: str) -> None:
    for unit in (2, 4):
        dumped = json.dumps(ENTRY, indent=unit)
        after = after.replace(f"ENTRY{unit}", dumped.replace("\n", "\n" + " " * unit * 2))
    assert edit_config.put_json(before, PATH, ENTRY) == after
    assert edit_config.put_json(after, PATH, ENTRY) == after


def test_ends_of_lines_tabs_and_the_byte_order_mark_are_those_of_the_file() -> None:
    before = '\ufeff{\r\n\t"a": "ü"\r\n}\r\n'
    assert edit_config.put_json(before, ("servers", "ingle"), {"command": "c"}) == (
        '\ufeff{\r\n\t"a": "ü",\r\n\t"servers": {\r\n\t\t"ingle": {\r\n\t\t\t"command": "c"\r\n\t\t}\r\n\t}\r\n}\r\n'
    )


def test_an_entry_that_is_there_gets_the_new_command_and_keeps_the_users_own_keys() -> None:
    before = (
        '{\n  "mcpServers": {\n    "ingle": {"command": "old", "args": [], "env": {"A": "1"}},\n    "z": 1\n  }\n}\n'
    )
    after = edit_config.put_json(before, PATH, ENTRY)
    assert json.loads(after)["mcpServers"] == {"ingle": {**ENTRY, "env": {"A": "1"}}, "z": 1}
    assert after.endswith('},\n    "z": 1\n  }\n}\n')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": }', "line 1, column 7: expecting value"),
        ('{\n  "a": 1\n  "b": 2\n}', "line 3, column 3: expecting ',' delimiter"),
        ("{'a': 1}", "line 1, column 2: expecting property name enclosed in double quotes"),
        ('{"a": "unfinished', "line 1, column 7: unterminated string"),
        ('{"a": 1} trailing', "line 1, column 10: extra data"),
        ("{ /* no end", "line 1, column 3: a comment does not end"),
        ("[" * 200_000, "it is nested too deeply"),
        ('{"a": NaN}', "NaN is not a value of JSON"),
        ("{,}", "line 1, column 2: expecting property name"),
        ("[1, 2]", "the file should be an object in braces, and is not"),
        ('{"mcpServers": []}', "mcpServers should be an object in braces, and is not"),
    ],
)
def test_broken_json_is_refused_with_the_place_of_the_trouble(text: str, said: str) -> None:
    with pytest.raises(edit_config.BrokenFile) as refused:
        edit_config.put_json(text, PATH, ENTRY)
    assert said in str(refused.value)


# --- TOML ---

TABLE = ("mcp_servers", "ingle")


def test_a_table_is_added_to_toml_and_the_rest_stays() -> None:
    before = '# mine\nmodel = "o9" # best\n\n[mcp_servers.other]\ncommand = "x"'
    after = edit_config.put_toml(before, TABLE, ENTRY)
    assert after == before + '\n\n[mcp_servers.ingle]\ncommand = "/opt/ingle/bin/ingle"\nargs = ["mcp"]\n'
    assert edit_config.put_toml(after, TABLE, ENTRY) == after
    assert edit_config.put_toml("", TABLE, ENTRY).startswith("[mcp_servers.ingle]\n")


def test_a_table_that_is_there_gets_the_new_command_and_keeps_its_other_keys() -> None:
    before = (
        "[mcp_servers.ingle] # ours\ncommand = 'old' # mine\nstartup_timeout_sec = 20\n"
        "\n[mcp_servers.ingle.env]\nA = '1'\n\n[other]\ncommand = 'untouched'\n"
    )
    after = before.replace("'old'", '"/opt/ingle/bin/ingle"').replace("= 20\n", '= 20\nargs = ["mcp"]\n')
    assert edit_config.put_toml(before, TABLE, ENTRY) == after
    assert edit_config.put_toml(before.replace("\n", "\r\n"), TABLE, ENTRY) == after.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("mcp_servers = {a = {b = 1}} # mine\n", 'mcp_servers = {a = {b = 1},ingle = {command = "c"}} # mine\n'),
        ("mcp_servers.ingle.command = 'x'\n\n[z]\n", 'mcp_servers.ingle.command = "c"\n\n[z]\n'),
        ("[mcp_servers.ingle]\ncommand = [\n  1,\n]\nmore = 1\n", '[mcp_servers.ingle]\ncommand = "c"\nmore = 1\n'),
        (
            "[mcp_servers]\n  ingle = {k=1 , command = 'x'} # y\n",
            '[mcp_servers]\n  ingle = {k=1 , command = "c"} # y\n',
        ),
    ],
    ids=["inline", "dotted", "value-on-lines", "entry-inline"],
)
def test_toml_in_other_layouts_is_edited_in_place(before: str, after: str) -> None:
    assert edit_config.put_toml(before, TABLE, {"command": "c"}) == after


def test_toml_that_is_broken_is_refused() -> None:
    with pytest.raises(edit_config.BrokenFile, match="line 1"):
        edit_config.put_toml("a = \n", TABLE, ENTRY)
    with pytest.raises(edit_config.BrokenFile, match="mcp_servers should be a table, and is not"):
        edit_config.put_toml("mcp_servers = 1\n", TABLE, ENTRY)


def test_an_edit_that_would_change_more_than_the_entry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_config, "_edited_toml", lambda text, path, entry: "")
    with pytest.raises(edit_config.CannotEdit, match=r"put these lines in:\n\[mcp_servers.ingle\]"):
        edit_config.put_toml("[mcp_servers.ingle]\ncommand = 'x'\n", TABLE, ENTRY)


# --- YAML ---

GOOSE = """\
# my goose
GOOSE_PROVIDER: "x"
extensions:
  developer:
    enabled: true
    args: []
    available_tools:
    - one
  # the next
  memory:
    enabled: false

GOOSE_MODE: auto
"""
EXTENSION = ("extensions", "ingle")


def test_an_entry_is_added_to_yaml_and_the_rest_stays() -> None:
    entry = {"cmd": "/a b", "args": ["mcp"]}
    after = edit_config.put_yaml(GOOSE, EXTENSION, entry)
    made = '  ingle:\n    cmd: "/a b"\n    args: ["mcp"]\n'
    assert after == GOOSE.replace("    enabled: false\n", "    enabled: false\n" + made)
    assert edit_config.put_yaml(after, EXTENSION, entry) == after
    assert edit_config.put_yaml(after, EXTENSION, {**entry, "cmd": "/new"}) == after.replace('"/a b"', '"/new"')
    for start in ("", "other: 1\n", "extensions: {}\n", "extensions:\n"):
        made = edit_config.put_yaml(start, EXTENSION, {"cmd": "c"})
        assert made.endswith('extensions:\n  ingle:\n    cmd: "c"\n')


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("---\na:   1 # x\nextensions: ~ # y\nb: [1,2]\n", "---\na:   1 # x\nextensions: # y\nNEWb: [1,2]\n"),
        ("extensions:\n  a:\n  # tail\nz: 1\n", "extensions:\n  a:\nNEW  # tail\nz: 1\n"),
        ("extensions:\n  a: &a {x: 1} # t\n  b: *a\nz: 1\n", "extensions:\n  a: &a {x: 1} # t\n  b: *a\nNEWz: 1\n"),
        ("extensions:\n  a: |\n    text\n\n  # c\nz: 1", "extensions:\n  a: |\n    text\n\nNEW  # c\nz: 1"),
        (
            "extensions:\n  a:\n    - one\n    - k: 1\n      l: 'x\n        y'",
            "extensions:\n  a:\n    - one\n    - k: 1\n      l: 'x\n        y'\nNEW",
        ),
        (
            "extensions:\n  ingle:\n    cmd: old\n    # mine\n  z: 1 # stays\n",
            "extensions:\nNEW    # mine\n  z: 1 # stays\n",
        ),
        ("extensions:\n  'ingle': {cmd: old}\n\n# end\n", "extensions:\nNEW\n# end\n"),
        ("extensions:\n  a: [\n    1\n  ]\n# end\n", "extensions:\n  a: [\n    1\n  ]\nNEW# end\n"),
        ("extensions:\n  a: [\n  ]\n# end\n", "extensions:\n  a: [\n  ]\nNEW# end\n"),
        (
            "extensions:\n  a:\n  - k:\n      l: 1\n\n# end\nz: 1\n",
            "extensions:\n  a:\n  - k:\n      l: 1\nNEW\n# end\nz: 1\n",
        ),
        ("a: 1\nextensions:\n  ingle:\n", "a: 1\nextensions:\nNEW"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_yaml_in_other_layouts_keeps_every_other_byte(before: str, after: str, newline: str) -> None:
    after = after.replace("NEW", '  ingle:\n    cmd: "c"\n').replace("\n", newline)
    assert edit_config.put_yaml(before.replace("\n", newline), EXTENSION, {"cmd": "c"}) == after
    assert edit_config.put_yaml(after, EXTENSION, {"cmd": "c"}) == after


def test_an_entry_of_yaml_keeps_the_users_own_keys() -> None:
    before = "extensions:\n    ingle:\n        cmd: old\n        bundled: no way\n"
    after = 'extensions:\n    ingle:\n        cmd: "c"\n        bundled: "no way"\n'
    assert edit_config.put_yaml(before, EXTENSION, {"cmd": "c"}) == after


def test_yaml_that_is_broken_or_on_one_line_is_refused() -> None:
    with pytest.raises(edit_config.BrokenFile, match="line 2: found character"):
        edit_config.put_yaml("a:\n\tb: 1\n", EXTENSION, {})
    with pytest.raises(edit_config.BrokenFile, match="line 1: a key with a colon is expected"):
        edit_config.put_yaml("just words\n", EXTENSION, {})
    with pytest.raises(edit_config.BrokenFile, match="line 2: found duplicate key"):
        edit_config.put_yaml("a: 1\na: 2\n", EXTENSION, {})
    with pytest.raises(edit_config.BrokenFile, match="extensions should be a mapping, and is not"):
        edit_config.put_yaml("extensions: 5\n", EXTENSION, {})
    with pytest.raises(edit_config.CannotEdit, match="written on one line"):
        edit_config.put_yaml("extensions: {a: {b: 1}}\n", EXTENSION, {"cmd": "c"})


# --- hosts ---


@pytest.mark.parametrize(
    ("name", "project", "file", "read"),
    [
        ("claude-code", False, "home/.claude.json", PATH),
        ("claude-code", True, "project/.mcp.json", PATH),
        ("claude-desktop", False, "home/.config/Claude/claude_desktop_config.json", PATH),
        ("cursor", False, "home/.cursor/mcp.json", PATH),
        ("cursor", True, "project/.cursor/mcp.json", PATH),
        ("vscode", False, "home/.config/Code/User/mcp.json", ("servers", "ingle")),
        ("vscode", True, "project/.vscode/mcp.json", ("servers", "ingle")),
        ("codex", False, "home/.codex/config.toml", TABLE),
        ("codex", True, "project/.codex/config.toml", TABLE),
        ("gemini", False, "home/.gemini/settings.json", PATH),
        ("gemini", True, "project/.gemini/settings.json", PATH),
        ("goose", False, "home/.config/goose/config.yaml", EXTENSION),
    ],
)
def test_each_host_gets_its_entry_where_it_looks_for_it(
    tmp_path: Path, place: Place, name: str, project: bool, file: str, read: tuple[str, str]
) -> None:
    host = BY_NAME[name]
    path = programs.file_of(host, place, project)
    assert path == tmp_path / file
    assert programs.configured(host, path) is None
    assert programs.plan(host, path, COMMAND).write() is None
    assert programs.plan(host, path, COMMAND).needed is False
    entry = programs.configured(host, path)
    assert entry is not None
    assert entry["command"] == COMMAND.program
    if host.kind == "json":
        found: Any = json.loads(path.read_text())
        for key in read:
            found = found[key]
        assert found["args"] == ["mcp"]
        assert found.get("type") == ("stdio" if name in ("vscode", "claude-code") else None)


def test_a_host_without_project_settings_says_so(place: Place) -> None:
    with pytest.raises(InvalidRequest, match="Claude Desktop has no settings for a project"):
        programs.file_of(BY_NAME["claude-desktop"], place, True)


def test_from_inside_of_wsl_the_claude_of_windows_is_told_to_come_through_wsl(tmp_path: Path) -> None:
    roaming = tmp_path / "c" / "Users" / "ada" / "AppData" / "Roaming"
    (roaming / "Claude").mkdir(parents=True)
    place = Place(tmp_path / "home", tmp_path, {"WSL_DISTRO_NAME": "Debian"}, "linux", tmp_path / "c")
    host = BY_NAME["claude-desktop"]
    assert programs.file_of(host, place, False) == roaming / "Claude" / "claude_desktop_config.json"
    ours = Command.ours()
    entry = programs.command_for(host, place).entry()
    assert entry == {"command": "wsl.exe", "args": ["-d", "Debian", "--exec", ours.program, *ours.args]}
    assert programs.command_for(BY_NAME["cursor"], place) == ours


def test_on_a_mac_desktop_programs_keep_their_settings_elsewhere(tmp_path: Path) -> None:
    file = programs.file_of(BY_NAME["claude-desktop"], Place(tmp_path, tmp_path, {}, "darwin"), False)
    assert file == tmp_path / "Library" / "Application Support" / "Claude" / "claude_desktop_config.json"


# --- the command ---


def test_it_shows_the_change_writes_it_keeps_a_copy_and_does_nothing_the_second_time(tmp_path: Path) -> None:
    file = tmp_path / ".cursor" / "mcp.json"
    file.parent.mkdir()
    before = '{\n  "mcpServers": {} // mine\n}\n'
    file.write_text(before)
    file.chmod(0o640)
    dry = run("install", "cursor", "--dry-run", home=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert '+    "ingle": {' in dry.stdout
    assert dry.stdout.endswith("Nothing was written.\n")
    assert file.read_text() == before
    done = run("install", "cursor", home=tmp_path)
    assert done.returncode == 0, done.stderr
    entry = edit_config.read_json(file.read_text())["mcpServers"]["ingle"]
    assert os.path.isabs(entry["command"])
    assert os.access(entry["command"], os.X_OK)
    assert "// mine" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    (backup,) = file.parent.glob("mcp.json.*.bak")
    assert backup.read_text() == before
    assert "has ingle already" in run("install", "cursor", home=tmp_path).stdout
    assert sorted(each.name for each in file.parent.iterdir()) == sorted([file.name, backup.name])


def test_a_broken_file_is_left_as_it_is_and_the_trouble_is_named(tmp_path: Path) -> None:
    file = tmp_path / ".claude.json"
    file.write_bytes(b'{"mcpServers": {')
    refused = run("install", "claude-code", home=tmp_path)
    assert refused.returncode == 2
    assert f"{file} cannot be read: line 1, column 17" in refused.stderr
    assert "repair it first" in refused.stderr
    assert file.read_bytes() == b'{"mcpServers": {'
    file.write_bytes(b"\xff\xfe{}")
    assert "is not UTF-8" in run("install", "claude-code", home=tmp_path).stderr
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == [".claude.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    (tmp_path / ".claude.json").symlink_to(real)
    assert run("install", "claude-code", home=tmp_path).returncode == 0
    assert (tmp_path / ".claude.json").is_symlink()
    assert "ingle" in json.loads(real.read_text())["mcpServers"]


@pytest.mark.parametrize("link", ["file", "folder", "dangling"])
def test_a_link_in_a_project_is_refused_and_nothing_behind_it_changes(tmp_path: Path, link: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mcp.json").write_text("{}")
    folder = tmp_path / "project" / ".cursor"
    folder.parent.mkdir()
    if link == "folder":
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir()
        (folder / "mcp.json").symlink_to(elsewhere / ("mcp.json" if link == "file" else "new.json"))
    planted = folder if link == "folder" else folder / "mcp.json"
    for more in ([], ["--dry-run"]):
        refused = run("install", "cursor", "--project", *more, home=folder.parent)
        assert refused.returncode == 2
        assert refused.stderr.count("\n") == 1
        assert f"{planted} is a link" in refused.stderr
        assert "put a real file or folder in its place" in refused.stderr
    assert {each.name: each.read_text() for each in elsewhere.iterdir()} == {"mcp.json": "{}"}


def test_a_folder_of_a_project_that_becomes_a_link_after_the_look_is_not_followed(tmp_path: Path, place: Place) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = place.folder / ".cursor"
    folder.mkdir(parents=True)
    change = programs.plan(BY_NAME["cursor"], folder / "mcp.json", COMMAND, place.folder)
    folder.rmdir()
    folder.symlink_to(elsewhere)
    with pytest.raises(InvalidRequest, match="is a link"):
        change.write()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("project", [False, True], ids=["user", "project"])
def test_a_backup_is_never_written_through_a_planted_link(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch, project: bool
) -> None:
    monkeypatch.setattr("ingle.install.programs.time.strftime", lambda pattern: "20300101-000000")
    host = BY_NAME["cursor"]
    file = programs.file_of(host, place, project)
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    backup = file.with_name("mcp.json.20300101-000000.bak")
    backup.symlink_to(victim)
    change = programs.plan(host, file, COMMAND, place.folder if project else None)
    with pytest.raises(
        InvalidRequest, match=r"mcp\.json\.20300101-000000\.bak exists already; .* run the command again"
    ):
        change.write()
    assert (victim.read_text(), file.read_text(), backup.is_symlink()) == ("precious", "{}", True)
    backup.unlink()
    file.chmod(0o640)
    assert change.write() == backup
    assert (backup.read_text(), backup.stat().st_mode & 0o777) == ("{}", 0o640)


def test_a_file_that_changes_under_its_hands_is_not_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text("{}")
    change = programs.plan(BY_NAME["cursor"], file, COMMAND)
    file.write_text('{"new": 1}')
    with pytest.raises(InvalidRequest, match="was changed by another program just now"):
        change.write()
    assert file.read_text() == '{"new": 1}'


def test_json_prints_the_entry_for_any_other_host(tmp_path: Path) -> None:
    printed = run("install", "json", home=tmp_path)
    assert json.loads(printed.stdout)["mcpServers"]["ingle"]["args"][-1] == "mcp"
    refused = run("install", "emacs", home=tmp_path)
    assert refused.returncode == 2
    assert "claude-code" in refused.stderr


# --- packages ---


def test_the_bundle_and_the_registrys_entry_are_of_one_version_and_name_every_tool() -> None:
    path = beside("packaging/dist.py")
    spec = importlib.util.spec_from_file_location("dist", path)
    assert spec is not None
    assert spec.loader is not None
    dist = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dist)
    manifest = dist.manifest(__version__)
    assert [tool["name"] for tool in manifest["tools"]] == [tool.name for tool in TOOLS]
    entry = dist.registry_entry(__version__)
    assert len(entry["description"]) <= 100
    assert entry["packages"][0]["version"] == entry["version"] == manifest["version"] == __version__
    assert f"mcp-name: {entry['name']}" in (path.parent.parent / "README.md").read_text()


# --- folders ---


def configured_args(home: Path) -> list[str]:
    entry = programs.configured(BY_NAME["claude-desktop"], home / ".config/Claude/claude_desktop_config.json")
    assert entry is not None
    args: list[str] = entry["args"]
    return args[args.index("mcp") :]


def test_install_writes_the_folders_that_sessions_may_use(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "work").mkdir()
    done = run("install", "claude-desktop", "--folder", "work", "--folder", "data:ro", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert configured_args(tmp_path) == ["mcp", "--folder", f"{tmp_path}/work", "--folder", f"{tmp_path}/data:ro"]
    for wrong, why in (("nothing there", "there is no folder"), (".", "is your home"), ("/", "is your home")):
        refused = run("install", "claude-desktop", "--folder", wrong, home=tmp_path)
        assert (refused.returncode, why in refused.stderr) == (2, True), refused.stderr


def test_install_asks_for_a_folder_at_a_terminal_where_the_host_has_no_project(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    done = run("install", "claude-desktop", home=tmp_path)
    assert "sees no file of yours; share one with --folder DIR" in done.stderr, "nobody can be asked"
    assert configured_args(tmp_path) == ["mcp"]
    mine, its = pty.openpty()
    try:
        os.write(mine, b"work\n")
        environment = {**os.environ, "HOME": str(tmp_path)}
        command = [sys.executable, "-m", "ingle", "install", "claude-desktop"]
        asked = subprocess.run(command, env=environment, stdin=its, capture_output=True, cwd=tmp_path, timeout=60)
    finally:
        os.close(mine)
        os.close(its)
    assert asked.returncode == 0, asked.stderr
    assert configured_args(tmp_path) == ["mcp", "--folder", f"{tmp_path}/work"]


@pytest.mark.req("env.named")
def test_the_interpreter_of_a_project_is_written_with_its_absolute_path(tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    shown = run("install", "json", "--python", ".venv/bin/python", home=tmp_path)
    entry = json.loads(shown.stdout)["mcpServers"]["ingle"]
    assert entry["args"] == [*Command.ours().args, "--python", f"{tmp_path}/.venv/bin/python"]
    refused = run("install", "json", "--python", ".venv/bin/nothing", home=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == ("ingle: there is no interpreter .venv/bin/nothing; name one, such as .venv/bin/python\n")
