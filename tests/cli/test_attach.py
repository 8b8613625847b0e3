"""`ingle attach` in a terminal: a person at the keys, and an agent in the same session."""

import base64
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingle.cli.live.code_entry import help_wanted, is_whole, next_indent
from ingle.cli.live.pictures import Pictures, way_to_show
from ingle.cli.live.screen import Screen
from ingle.events import Done, ErrorRaised, Result, StateChanged, Stdout, Truncated
from ingle.requests import Author
from support.server import Server
from support.tmux import MISSING, Tmux, has_tmux

pytestmark = pytest.mark.req("term.attach")

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

in_tmux = pytest.mark.skipif(not has_tmux(), reason=MISSING)


def attached(server: Server, *args: str) -> Tmux:
    command = (sys.executable, "-m", "ingle", "attach", *args)
    return Tmux(*command, env={"INGLE_HOME": str(server.home)})


@pytest.fixture
def terminal(server: Server) -> Iterator[Tmux]:
    server.make_session()
    with attached(server) as terminal:
        terminal.wait_for("In [1]:")
        yield terminal


@in_tmux
def test_a_person_edits_runs_completes_asks_and_is_asked(terminal: Tmux, server: Server) -> None:
    terminal.type("x = 41")
    terminal.wait_for("In [2]:")
    terminal.type("x + 1")
    terminal.wait_for("\n42\n")
    # A block goes on after Enter with its indentation, and ends with a blank line.
    terminal.type("for i in range(2):")
    terminal.type("print('line', i)")
    terminal.keys("Enter")
    terminal.wait_for("line 1")
    # Editing: the cursor goes back, and a letter is put in.
    terminal.keys("-l", "prin('edited')")
    terminal.keys("Home", "Right", "Right", "Right", "Right")
    terminal.keys("-l", "t")
    terminal.keys("End", "Enter")
    terminal.wait_for("\nedited\n")
    terminal.type("import string")
    terminal.wait_for("In [6]:")
    terminal.keys("-l", "string.ascii_lower")
    terminal.keys("Tab")
    terminal.wait_for("string.ascii_lowercase")
    terminal.keys("Enter")
    terminal.wait_for("'abcdefghijklmnopqrstuvwxyz'")
    terminal.type("string.capwords?")
    terminal.wait_for("Split the argument into words")
    terminal.type("name = input('who? ')")
    terminal.wait_for("\nwho?")
    terminal.type("Ada")
    terminal.wait_for("In [8]:")
    terminal.type("import getpass; secret = getpass.getpass('key: ')")
    terminal.wait_for("\nkey:")
    terminal.type("hidden")
    terminal.wait_for("In [9]:")
    terminal.type("print(name, len(secret))")
    shown = terminal.wait_for("\nAda 6\n")
    assert "hidden" not in shown
    history = (server.home / "attach_history").read_text()
    assert "import string" in history
    assert "hidden" not in history
    assert "+Ada" not in history
    terminal.keys("Up")
    terminal.wait_for("In [10]: print(name, len(secret))")
    # The terminal is named as the author.
    cells = server.client.get("/v1/sessions/main/cells").json()["cells"]
    assert {cell["author"]["client"] for cell in cells} == {"ingle attach"}


@in_tmux
def test_a_cell_is_interrupted_and_debugged_and_pasted_code_waits_for_enter(terminal: Tmux) -> None:
    terminal.type("import time; print('begun'); time.sleep(600)")
    terminal.wait_for("\nbegun\n")
    terminal.wait_for("[cell 1 runs]")
    terminal.keys("C-c")
    terminal.wait_for("KeyboardInterrupt")
    terminal.wait_for("In [2]:")
    terminal.type("import pdb; y = 5; pdb.set_trace()")
    terminal.wait_for("(Pdb)")
    terminal.type("p y * 100")
    terminal.wait_for("\n500\n")
    terminal.type("c")
    terminal.wait_for("In [3]:")
    terminal.paste("def f():\n    return 'pasted'\n\nf()")
    terminal.wait_for("f()")
    terminal.keys("Enter")
    terminal.wait_for("\n'pasted'\n")
    terminal.type("1 / 0")
    terminal.wait_for("ZeroDivisionError: division by zero")
    # Ctrl-C at an idle prompt clears the line.
    terminal.keys("-l", "never sent")
    terminal.wait_for("never sent")
    terminal.keys("C-c")
    terminal.type("'alive'")
    assert "never sent" not in terminal.wait_for("\n'alive'\n")


@in_tmux
def test_cells_of_an_agent_appear_dimmed_and_the_session_outlives_its_terminal(server: Server) -> None:
    server.make_session()
    with attached(server, "main") as terminal:
        terminal.wait_for("In [1]:")
        server.client.post(
            "/v1/sessions/main/execute", json={"code": "print('from afar')\n6 * 7"}, headers={"User-Agent": "robot/1"}
        )
        shown = terminal.wait_for("── cell 1: ok")
        assert "── cell 1 ── robot (owner over http)\n│ print('from afar')\n│ 6 * 7\nfrom afar\n42\n" in shown
        before = terminal.screen(escapes=True).partition("│ 6")[0]
        assert "2" in re.findall(r"\x1b\[([\d;]*)m", before)[-1].split(";")
        terminal.type("import time; time.sleep(600)")
        terminal.wait_for("[cell 2 runs]")
        terminal.keys("C-d")
        terminal.wait_for("detached from main; cell 2 continues; come back with `ingle attach main`")
    assert server.cell(2)["status"] == "running"
    with attached(server) as terminal:
        # What ran before is shown again, and the running cell can be interrupted.
        terminal.wait_for("from afar")
        terminal.wait_for("[cell 2 runs]")
        terminal.keys("C-c")
        terminal.wait_for("In [3]:")
        server.client.delete("/v1/sessions/main")
        terminal.wait_for("session main has ended")


@in_tmux
@pytest.mark.parametrize("line", ["exit", "quit", "exit()", " quit() "])
def test_exit_and_quit_detach_and_the_session_lives_on(terminal: Tmux, server: Server, line: str) -> None:
    terminal.type("x = 1")
    terminal.wait_for("In [2]:")
    terminal.type(line)
    terminal.wait_for("detached from main, which goes on; come back with `ingle attach main`")
    assert server.execute("print(x)")["stdout"] == "1\n"


@in_tmux
def test_a_plot_is_a_saved_file_where_the_terminal_shows_none(terminal: Tmux) -> None:
    terminal.type(f"import base64; from IPython.display import Image; Image(base64.b64decode('{PNG}'))")
    shown = terminal.wait_for(".png]").replace("\n", "")
    path = Path(shown.rpartition("[image/png")[2].partition(": ")[2].partition("]")[0])
    assert path.read_bytes() == base64.b64decode(PNG)
    path.unlink()
    path.parent.rmdir()


def test_without_a_terminal_it_names_other_commands(server: Server) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", "attach"],
        env={**os.environ, "INGLE_HOME": str(server.home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "ingle run -s NAME" in ended.stderr


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("1 + 1", True),
        ("for i in x:", False),
        ("for i in x:\n    print(i)", False),
        ("for i in x:\n    print(i)\n", True),
        ("f(1,", False),
        ("'''text", False),
        ("async with x as y:", False),
        ("await x", True),
        ("%pip install x", True),
        ("!ls", True),
        ("%%bash", False),
        ("%%bash\nls\n", True),
        ("1 +* 2", True),
        ("def f():\n    return 1\n\nf()", True),
    ],
)
def test_enter_sends_code_that_is_whole(text: str, whole: bool) -> None:
    assert is_whole(text) is whole


def test_lines_are_indented_and_questions_are_told_from_code() -> None:
    assert [next_indent(line) for line in ("x", "if x:", "  y", "  for z in y:")] == ["", "    ", "  ", "      "]
    assert help_wanted("a.b?") == ("a.b", False)
    assert help_wanted("?len ") == ("len", False)
    assert help_wanted("len??") == ("len", True)
    assert help_wanted("len") is None
    assert help_wanted("x = 1 # why?") is None


def test_pictures_are_inline_where_the_terminal_can() -> None:
    assert way_to_show({"TERM": "xterm-256color"}) is None
    assert way_to_show({"TERM": "xterm-kitty"}) == "kitty"
    assert way_to_show({"TERM": "xterm-kitty", "TMUX": "/tmp/x"}) is None
    assert way_to_show({"TERM_PROGRAM": "iTerm.app"}) == "iterm2"
    assert Pictures("kitty").show({"image/png": PNG}) == f"\x1b_Gf=100,a=T,m=0;{PNG}\x1b\\\n"
    assert Pictures("iterm2").show({"image/png": PNG}) == f"\x1b]1337;File=inline=1;size=72:{PNG}\x07\n"
    assert Pictures("kitty").show({"text/plain": "x"}) is None


async def test_a_session_cannot_give_orders_to_the_terminal() -> None:
    """Titles, clipboards and moves of the cursor are left out, also in code, names and errors of others."""
    screen = Screen(Pictures(None))
    order = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[31mred"
    shown = [
        await screen.text(event, own=own)
        for own in (True, False)
        for event in (
            StateChanged(1, 0.0, "s", 1, "running", order, Author("owner", "mcp", order)),
            Stdout(2, 0.0, "s", 1, order + "\n"),
            Stdout(2, 0.0, "s", 1, order),
            ErrorRaised(3, 0.0, "s", 1, order, order, order),
            Done(4, 0.0, "s", 1, Result("s", 1, "ok", notices=[order]), Truncated()),
        )
    ]
    text = "".join(shown) + screen.open_line
    assert "\x1b]" not in text
    assert "\x1b[2J" not in text
    assert "\x1b[31mred" in text


async def test_a_progress_bar_is_one_line() -> None:
    screen = Screen(Pictures(None))
    printed = ""
    for percent in range(0, 101, 10):
        printed += await screen.text(Stdout(1, 0.0, "s", 1, f"\r{percent} %"), own=True)
        assert screen.open_line == f"{percent} %"
    printed += await screen.text(Stdout(1, 0.0, "s", 1, "\n"), own=True)
    assert (printed, screen.open_line) == ("100 %\n", "")
