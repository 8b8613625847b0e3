"""What sessions write cannot give orders to the terminal of a person who looks at it: colours pass, nothing else."""

from __future__ import annotations

import ast
import logging
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingle import cli
from ingle.cli.echo import TextPieces, colours_only
from ingle.support.logs import logging_to
from support.server import PATIENCE, Server
from support.service import make_settings
from support.terminal import COMMAND, Terminal

ORDERS = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x1b\\\\",
    "clear": "\x1b[2J\x1b[H",
    "cursor": "\x1b[5A",
    "report": "\x1b[6n",
    "screen": "\x1b[?1049h",
    "keys": "\x1b[>4;1m",
    "reset": "\x1bc",
    "string": "\x1bP1$r0m\x1b\\\\",
    "8 bits": "\x9b2J",
    "8-bit title": "\x9d0;owned\x9c",
    "bell": "\x07",
}
HOSTILE = "red: \x1b[31mred\x1b[0m " + "".join(f"<{name}>{text}" for name, text in ORDERS.items()) + " end"
CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


@pytest.fixture
def hostile(start: Callable[..., Server], home: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server with a session whose variables, output, errors, files and folder are hostile text."""
    monkeypatch.setenv("INGLE_HOME", str(home))
    for name in ("INGLE_URL", "INGLE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    server = start()
    server.make_session("main")
    server.execute(f"text = {HOSTILE!r}\nclass Thing:\n    def __repr__(self): return text\nthing = Thing()")
    server.execute("import sys; print(text); print(text, file=sys.stderr)")
    server.execute("thing")
    server.execute("raise RuntimeError(text)")
    server.execute("Thing.__name__ = text; several = [Thing()]; open('file', 'w').write(text)")
    server.execute("import os; os.mkdir(text.replace('/', '')); os.chdir(text.replace('/', ''))")
    return server


def check(shown: str) -> None:
    """Check that no order is left in what a terminal got."""
    assert CONTROL.findall(COLOUR.sub("", shown)) == []


CODE = f"print({HOSTILE!r}); raise ValueError({HOSTILE!r})"

COMMANDS: list[tuple[list[str], bool]] = [
    (["vars", "main"], False),
    (["vars", "main", "text"], True),
    (["vars", "main", "thing"], True),
    (["logs", "main"], True),
    (["logs", "main", "--json"], False),
    (["ps"], False),
    (["ps", "--json"], False),
    (["run", "-s", "main", CODE], True),
    (["run", CODE], True),
    (["run", "--json", CODE], False),
    (["sh", "cat file"], True),
    (["sh", "-s", "main", "cat ../file; cat ../file >&2"], True),
    (["cp", "main:file", "-"], True),
    (["save", "main", "kept"], False),
    (["fork", "main", "copy"], False),
    (["checkpoint", "main", "here"], False),
    (["interrupt", "main"], False),
    (["stop", "main"], False),
]
"""Commands that show what a session has written, and whether its colours are in it."""


@pytest.mark.req("safe.input")
def test_no_command_passes_orders_of_a_session_to_the_terminal(
    hostile: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text(HOSTILE)
    seen = {}
    for arguments, _ in COMMANDS:
        terminal = Terminal(*arguments)
        terminal.ended()
        terminal.close()
        seen[" ".join(arguments)] = terminal.shown
    orders = {command: CONTROL.findall(COLOUR.sub("", shown)) for command, shown in seen.items()}
    assert {command: found for command, found in orders.items() if found} == {}
    coloured = {command: "red: \x1b[31mred\x1b[0m" in shown for command, shown in seen.items()}
    assert coloured == {" ".join(arguments): expected for arguments, expected in COMMANDS}, seen


def test_files_and_pipes_get_the_text_as_it_is(hostile: Server) -> None:
    ended = subprocess.run([*COMMAND, "sh", "-s", "main", "cat ../file"], capture_output=True, timeout=PATIENCE)
    assert ended.stdout.decode() == HOSTILE


def test_a_command_with_a_terminal_of_its_own_has_all_of_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLE_HOME", str(home))
    terminal = Terminal("sh", "--pty", "printf '\\033[2J'")
    terminal.ended()
    terminal.close()
    assert "\x1b[2J" in terminal.shown


def test_every_command_prints_through_the_one_function() -> None:
    others = {"click.echo", "click.secho", "print", "sys.stdout.write", "sys.stderr.write"}
    found = [
        f"{path.name}:{node.lineno}"
        for path in Path(cli.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in others and path.name != "echo.py"
    ]
    assert found == []


def test_a_line_of_the_log_holds_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_to(make_settings(log_level="warning")):
        logging.getLogger("ingle").warning("%s failed", f"/v1/{HOSTILE}\nforged")
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert CONTROL.findall(line) == []
    assert "\\x1b]0;owned\\x07" in line


PARTS = st.sampled_from(["\x1b", *"[]031;mJ\\Pca\n", "\x07", "\x9b", "\x9d", "\x9c"])


@given(st.lists(PARTS, max_size=20))
def test_nothing_that_is_left_makes_an_order_with_what_is_beside_it(parts: list[str]) -> None:
    shown = colours_only("".join(parts))
    check(shown)
    assert colours_only(shown) == shown


@given(st.lists(st.lists(PARTS, max_size=6).map("".join), max_size=6))
def test_pieces_make_no_order_and_keep_colours_that_are_cut(pieces: list[str]) -> None:
    stream = TextPieces(-1)
    stream._terminal = True
    check("".join(stream.encode(piece).decode() for piece in pieces))
    stream = TextPieces(-1)
    stream._terminal = True
    assert b"".join(map(stream.encode, ["a\x1b", "[3", "1", "mb"])) == b"a\x1b[31mb"
