"""`ingle install HOST --wrap`: the host's other servers move behind ingle, and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ingle.install import remove_entry
from ingle.install.edit_config import CannotEdit, read_yaml
from ingle.tools.config import read_file

pytestmark = pytest.mark.req("tools.find")

BEFORE = """{
  // servers of mine
  "mcpServers": {
    "files": {"command": "npx", "args": ["-y", "files", "/home/ada"], "env": {"KEY": "a secret"}},
    "issues": {
      "url": "https://example.org/mcp", // remote
      "headers": {"Authorization": "Bearer ${TOKEN}"}
    },
    "asks": {"command": "x", "args": ["${input:token}"]},
    "old": {"type": "sse", "url": "https://example.org/sse"}
  },
  "theme": "dark"
}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text(BEFORE)
    return tmp_path


def install(home: Path, *args: str) -> str:
    environment = {**os.environ, "HOME": str(home), "INGLE_HOME": str(home / "ingle")}
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "WSL_DISTRO_NAME"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "ingle", "install", *args]
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=home, check=True
    )
    return done.stdout


def servers(text: str) -> dict[str, object]:
    """Return the servers of a file with comments."""
    lines = "\n".join(line.partition(" //")[0] for line in text.splitlines())
    found: dict[str, object] = json.loads(lines)["mcpServers"]
    return found


def test_servers_move_behind_ingle_and_back(home: Path) -> None:
    file = home / ".cursor" / "mcp.json"
    proposed = install(home, "cursor", "--wrap")
    assert "asks stays where it is: it has variables that only the host knows." in proposed
    assert "old stays where it is: it speaks SSE, which ingle does not." in proposed
    assert '-    "files":' in proposed
    assert "Nothing was written. Repeat with --yes to do it." in proposed
    assert file.read_text() == BEFORE
    assert "Nothing was written." in install(home, "cursor", "--wrap", "--yes", "--dry-run")
    assert file.read_text() == BEFORE

    done = install(home, "cursor", "--wrap", "--yes")
    assert "`ingle install cursor --unwrap` undoes it." in done
    (backup,) = file.parent.glob("mcp.json.*.bak")
    assert backup.read_text() == BEFORE
    (kept,) = (home / "ingle" / "wrapped").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert {name: each.url or each.command for name, each in read_file(kept).items()} == {
        "files": "npx",
        "issues": "https://example.org/mcp",
    }
    after = file.read_text()
    assert "// servers of mine" in after
    assert set(servers(after)) == {"asks", "old", "ingle"}
    assert json.dumps(["--servers", str(kept)])[1:-1].split(", ")[1] in after

    assert "has no servers to move" in install(home, "cursor", "--wrap", "--yes")
    backup.unlink()
    install(home, "cursor", "--unwrap", "--yes")
    assert not kept.exists()
    back = servers(file.read_text())
    assert {name: back[name] for name in back if name != "ingle"} == servers(BEFORE)
    assert "--servers" not in file.read_text()


def test_tables_of_toml_move_and_come_back(home: Path) -> None:
    file = home / ".codex" / "config.toml"
    file.parent.mkdir()
    table = '[mcp_servers.files]\ncommand = "npx"\n\n[mcp_servers.files.env]\nKEY = "1"\n\n'
    before = f'# mine\nmodel = "o9"\n\n{table}[other]\nx = 1\n'
    file.write_text(before)
    install(home, "codex", "--wrap", "--yes")
    after = tomllib.loads(file.read_text())
    assert (set(after["mcp_servers"]), after["model"], after["other"]) == ({"ingle"}, "o9", {"x": 1})
    next(file.parent.glob("*.bak")).unlink()
    install(home, "codex", "--unwrap", "--yes")
    back = tomllib.loads(file.read_text())
    del back["mcp_servers"]["ingle"]
    assert back == tomllib.loads(before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"s": {"a": 1, "b": 2}}', '{"s": { "b": 2}}'),
        ('{"s": {"b": 2, "a": 1}}', '{"s": {"b": 2}}'),
        ('{"s": {"a": {"x": "}, \\"a\\": 3"}}}', '{"s": {}}'),
        ('{\n  "s": {\n    "a": 1, // one\n    "b": 2\n  }\n}', '{\n  "s": { // one\n    "b": 2\n  }\n}'),
        ('{\r\n\t"s": {\r\n\t\t"b": 2,\r\n\t\t"a": 1,\r\n\t}\r\n}', '{\r\n\t"s": {\r\n\t\t"b": 2,\r\n\t}\r\n}'),
    ],
)
def test_one_entry_is_taken_out_and_every_other_byte_stays(before: str, after: str) -> None:
    assert remove_entry.remove_json(before, ("s", "a")) == after


EXTENSIONS = """\
# mine
GOOSE_MODEL: o9
extensions:
  developer:  # goose's own
    type: builtin
    enabled: true
  # files of mine
  files:
    type: stdio
    enabled: true
    cmd: npx
    args:
    - -y
    - files
    envs: {KEY: a secret}
    timeout: 300
  off: {type: stdio, enabled: false, cmd: x}
  keyring:
    type: stdio
    cmd: x
    env_keys: [TOKEN]
  "two words":
    type: stdio
    cmd: x
  remote:
    type: streamable_http
    uri: https://example.org/mcp
    headers:
      Authorization: Bearer ${TOKEN}

theme: dark
"""


def test_extensions_of_goose_move_and_come_back(home: Path) -> None:
    file = home / ".config" / "goose" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(EXTENSIONS)
    done = install(home, "goose", "--wrap", "--yes")
    for text in (
        "developer stays where it is: it is no server that ingle could start.",
        "off stays where it is: it is switched off.",
        "keyring stays where it is: its secrets are in the key store of goose.",
        "two words stays where it is: 'two words' is not a name for a server of tools",
    ):
        assert text in done
    (kept,) = (home / "ingle" / "wrapped").iterdir()
    found = read_file(kept)
    assert (found["files"].command, found["files"].args, found["files"].env) == (
        "npx",
        ["-y", "files"],
        {"KEY": "a secret"},
    )
    assert (found["remote"].url, found["remote"].headers) == (
        "https://example.org/mcp",
        {"Authorization": "Bearer ${TOKEN}"},
    )
    after = read_yaml(file.read_text())
    assert set(after["extensions"]) == {"developer", "off", "keyring", "two words", "ingle"}
    assert after["extensions"]["ingle"]["args"][-2:] == ["--servers", str(kept)]
    taken = EXTENSIONS[EXTENSIONS.index("  files:") : EXTENSIONS.index("  off:")]
    assert file.read_text().startswith(EXTENSIONS[: EXTENSIONS.index("  remote:")].replace(taken, ""))
    next(file.parent.glob("*.bak")).unlink()
    install(home, "goose", "--unwrap", "--yes")
    back = read_yaml(file.read_text())
    del back["extensions"]["ingle"]
    assert back == read_yaml(EXTENSIONS)


@pytest.mark.parametrize(
    ("host", "name", "before"),
    [
        ("cursor", ".cursor/mcp.json", BEFORE),
        ("codex", ".codex/config.toml", '# mine\nmodel = "o9"\n\n[mcp_servers.files]\ncommand = "npx"\n'),
        ("goose", ".config/goose/config.yaml", EXTENSIONS),
    ],
)
def test_ingle_is_taken_out_of_a_host_again(home: Path, host: str, name: str, before: str) -> None:
    file = home / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before)
    assert f"has no entry for ingle in {file}; nothing was changed." in install(home, host, "--remove")
    install(home, host)
    added = file.read_text()
    next(file.parent.glob("*.bak")).unlink()
    assert "Nothing was written." in install(home, host, "--remove", "--dry-run")
    assert file.read_text() == added
    assert f"Written to {file}. The old file is " in install(home, host, "--remove")
    # An empty line before the table of a TOML file stays at its end.
    assert file.read_text().rstrip("\n") == before.rstrip("\n")
    (backup,) = file.parent.glob("*.bak")
    assert backup.read_text() == added


def test_ingle_stays_in_a_host_whose_servers_are_behind_it(home: Path) -> None:
    install(home, "cursor", "--wrap", "--yes")
    file = home / ".cursor" / "mcp.json"
    wrapped = file.read_text()
    with pytest.raises(subprocess.CalledProcessError) as refused:
        install(home, "cursor", "--remove")
    assert "`ingle install cursor --unwrap`" in refused.value.stderr
    assert file.read_text() == wrapped


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("s:\n  a: {x: 1}\n", "s:\n"),
        ("s:\n  b: 1\n  # of a\n  a:\n    - 1\nt: 2\n", "s:\n  b: 1\n  # of a\nt: 2\n"),
        ("s:\r\n    a: |\r\n        text\r\n    b: 2\r\n", "s:\r\n    b: 2\r\n"),
    ],
)
def test_one_entry_of_yaml_is_taken_out_and_every_other_byte_stays(before: str, after: str) -> None:
    assert remove_entry.remove_yaml(before, ("s", "a")) == after


@pytest.mark.parametrize("text", ["s: {a: 1, b: 2}\n", "s:\n  a: &x {y: 1}\n  b: *x\n"])
def test_yaml_that_cannot_be_taken_out_safely_is_refused(text: str) -> None:
    with pytest.raises(CannotEdit, match="move it by hand"):
        remove_entry.remove_yaml(text, ("s", "a"))
