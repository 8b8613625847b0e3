"""The command line, as a process of its own, on pipes and on a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ingle import __version__
from ingle.cli import COMMANDS, GROUPS, main
from support.checkout import beside
from support.processes import marked_processes
from support.terminal import Terminal
from support.waiting import wait_until

PATIENCE = 60.0
COMMAND = [sys.executable, "-m", "ingle"]

pytestmark = pytest.mark.usefixtures("mark", "in_home")


@pytest.fixture
def in_home(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGLE_HOME", str(home))
    # A checkout may have more files than are watched, and that is told.
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def ingle(*args: str, input: str | None = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args], input=input, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=cwd
    )


def outcome(ended: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return ended.returncode, ended.stdout, ended.stderr


# What is shown


def test_streams_and_the_last_value_are_passed_on() -> None:
    ended = ingle("run", "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert outcome(ended) == (0, "out\n42\n", "err\n")


def test_a_folder_that_is_too_large_to_name_changes_is_told_to_programs_only(tmp_path: Path) -> None:
    for number in range(1100):
        (tmp_path / "here" / f"{number}").mkdir()
    # It takes longer than the folder's list.
    code = "sum(range(10**7)) > 0"
    assert outcome(ingle("run", code)) == (0, "True\n", "")
    result = json.loads(ingle("run", "--json", code).stdout)
    (notice,) = result["notices"]
    assert result["files"] is None
    assert notice.startswith("results of this session do not name the files that cells change: ")


def test_a_cell_that_raises_shows_its_traceback_and_exits_with_1() -> None:
    ended = ingle("run", "print('before')\n1/0")
    assert (ended.returncode, ended.stdout) == (1, "before\n")
    assert ended.stderr.startswith("Traceback (most recent call last):\n")
    assert ended.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_output_comes_while_the_code_runs() -> None:
    code = "import os, sys\nprint('first')\nprint(input())"
    with subprocess.Popen([*COMMAND, "run", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # Only after its first line was seen is the code given what it waits for.
        assert process.stdout.readline() == "first\n"
        process.stdin.write("second\n")
        process.stdin.flush()
        assert process.stdout.readline() == "second\n"
        assert process.wait(PATIENCE) == 0


def test_bytes_that_are_no_text_and_a_megabyte_come_through() -> None:
    ended = ingle("run", "import os\nos.write(1, 'grün ☃\\n'.encode())\nprint('x' * 10**6)")
    assert (ended.returncode, ended.stdout) == (0, "grün ☃\n" + "x" * 10**6 + "\n")


def test_exit_handlers_and_threads_are_still_heard() -> None:
    code = (
        "import atexit, threading, time\natexit.register(print, 'bye')\n"
        "def late():\n    time.sleep(0.1)\n    print('late')\nthreading.Thread(target=late).start()"
    )
    assert outcome(ingle("run", code)) == (0, "late\nbye\n", "")


def test_json_is_the_whole_result_in_one_document() -> None:
    ended = ingle(
        "run", "--json", "import sys\nprint(input('? '))\nprint('err', file=sys.stderr)\n[1]", input="hello\n"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    result = json.loads(ended.stdout)
    assert ended.stdout.count("\n") == 1
    assert (result["status"], result["success"], result["cell"]) == ("ok", True, 1)
    assert (result["stdout"], result["stderr"], result["result"]) == ("? hello\n", "err\n", {"text/plain": "[1]"})
    failed = ingle("run", "--json", "nonsense")
    assert (failed.returncode, json.loads(failed.stdout)["error"]["name"]) == (1, "NameError")


# Where code comes from


def test_a_file_is_run_and_a_dash_reads_standard_input(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_bytes("# coding: latin-1\nprint('gr\xfcn', __name__)\n".encode("latin-1"))
    assert outcome(ingle("run", "script.py", cwd=tmp_path)) == (0, "grün __main__\n", "")
    assert outcome(ingle("run", "-", input="print('from stdin')\n5")) == (0, "from stdin\n5\n", "")
    nobody = ingle("run", "-", input="input()")
    assert (nobody.returncode, nobody.stderr.splitlines()[-1]) == (1, "EOFError: EOF when reading a line")


def test_the_session_starts_in_this_folder_with_the_environment_given(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("VALUE = 3")
    code = "import os, helper\nprint(os.getcwd(), helper.VALUE, os.environ['A'], os.environ['B'])"
    ended = ingle("run", "--env", "A=1=2", "--env", "B=", code, cwd=tmp_path)
    assert outcome(ended) == (0, f"{tmp_path} 3 1=2 \n", "")


def test_another_interpreter_can_be_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexport CHOSEN=yes\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert outcome(ingle("run", "--python", str(python), "import os; os.environ['CHOSEN']")) == (0, "'yes'\n", "")


# Input


def test_input_is_answered_from_standard_input_line_by_line() -> None:
    ended = ingle("run", "print([input('a? '), input('b? ')])\nimport sys\nsys.stdin.read()", input="1\n2\n3\n4")
    assert outcome(ended) == (0, "a? b? ['1', '2']\n'3\\n4'\n", "")


def test_the_end_of_standard_input_is_the_end_of_the_cells_input() -> None:
    ended = ingle("run", "input()\ninput()", input="only one\n")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "EOFError: EOF when reading a line")


def test_a_child_that_reads_gets_its_line() -> None:
    ended = ingle("run", "import subprocess\nsubprocess.run(['head', '-n1']);", input="for the child\n")
    assert outcome(ended) == (0, "for the child\n", "")


# Exit codes


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("exit()", 0),
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit(-1)", 255),
        ("import os; os._exit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 5)", 128 + signal.SIGRTMIN + 5),
        ("raise KeyboardInterrupt", 130),
        ("def broken(:", 1),
    ],
)
def test_the_exit_code_is_that_of_the_code(code: str, exit_code: int) -> None:
    assert ingle("run", code).returncode == exit_code


def test_an_exit_message_and_a_crash_are_told() -> None:
    assert outcome(ingle("run", "raise SystemExit('no more')")) == (1, "", "no more\n")
    crashed = ingle("run", "print('last')\nimport os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert crashed.stdout == "last\n"
    assert crashed.stderr.startswith("ingle: the session's process was killed by SIGKILL")


def test_a_timeout_stops_the_code() -> None:
    ended = ingle("run", "--timeout", "0.2", "print('on')\nimport time\ntime.sleep(600)")
    assert (ended.returncode, ended.stdout) == (124, "on\n")
    assert ended.stderr.splitlines()[-2:] == ["KeyboardInterrupt", "ingle: stopped at its timeout of 0.2 s"]
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: time.sleep(1)"
    assert ingle("run", "--timeout", "0.2", stubborn).returncode == 124


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--python", "/no/such/python", "1"], "there is no interpreter at /no/such/python"),
        (["--env", "=1", "1"], "'=1' is not NAME=VALUE"),
        (["--timeout", "-1", "1"], "'-1' is not a time such as 90s, 5m or 1h30m, or a number of seconds"),
        (["bad.py"], "bad.py cannot be read as Python"),
    ],
)
def test_what_cannot_be_run_is_told_in_a_sentence(args: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"# coding: no-such-coding\n")
    ended = ingle("run", *args, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_folder_that_cannot_be_used_is_told_in_a_sentence(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (apart / "file").touch()
    monkeypatch.setenv("INGLE_HOME", str(apart / "file" / "home"))
    for command in (["run", "1"], ["serve", "--port", "0"]):
        ended = ingle(*command)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.startswith("ingle: ")
        assert str(apart / "file") in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_reader_that_has_enough_ends_the_code(mark: str) -> None:
    code = "while True: print('y')"
    with subprocess.Popen([*COMMAND, "run", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(PATIENCE) == 128 + signal.SIGPIPE
    assert marked_processes(mark) == []


@pytest.mark.parametrize(
    ("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["SIGTERM", "SIGHUP"]
)
def test_a_signal_ends_everything(mark: str, number: int, exit_code: int) -> None:
    code = (
        "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\nprint('on')\nwhile True: pass"
    )
    with subprocess.Popen([*COMMAND, "run", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(number)
        assert process.wait(PATIENCE) == exit_code
    assert marked_processes(mark) == []


# On a terminal


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*args: str) -> Terminal:
        made.append(Terminal(*args))
        return made[-1]

    yield make
    for each in made:
        each.close()


CTRL_C = "\x03"
CTRL_D = "\x04"


@pytest.mark.level("none", "elsewhere the terminal first says which folders code may use")
def test_a_terminal_answers_input_and_hides_a_secret(terminal: Callable[..., Terminal]) -> None:
    code = "import getpass\nname = input('name? ')\nword = getpass.getpass('word? ')\nprint(name, len(word))"
    screen = terminal("run", code)
    assert screen.shows("name? ")
    screen.type("ada\n")
    assert screen.shows("word? ")
    assert wait_until(lambda: not screen.echoes)
    screen.type("sesame\n")
    assert screen.ended() == 0
    assert "sesame" not in screen.shown
    assert screen.shown.replace("\r", "") == "name? ada\nword? \nada 6\n"
    assert screen.echoes


def test_the_echo_comes_back_when_a_secret_is_interrupted(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("run", "import getpass\ngetpass.getpass('word? ')")
    assert screen.shows("word? ")
    assert wait_until(lambda: not screen.echoes)
    screen.type(CTRL_C)
    assert screen.ended() == 130
    assert screen.echoes


def test_ctrl_d_is_the_end_of_input(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("run", "input('more? ')")
    assert screen.shows("more? ")
    screen.type(CTRL_D)
    assert screen.ended() == 1
    assert "EOFError" in screen.shown


def test_code_typed_on_the_terminal_cannot_also_read_it(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("run", "-")
    screen.type("input()\n" + CTRL_D)
    assert screen.ended() == 1
    assert "EOFError" in screen.shown


def test_ctrl_c_interrupts_the_code(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("run", "import time\nprint('it runs')\nwhile True: time.sleep(1)")
    assert screen.shows("it runs")
    screen.type(CTRL_C)
    assert screen.ended() == 130
    assert "KeyboardInterrupt" in screen.shown


def test_code_may_survive_a_ctrl_c(terminal: Callable[..., Terminal]) -> None:
    code = (
        "import time\ntry:\n    print('it runs')\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    print('survived')"
    )
    screen = terminal("run", code)
    assert screen.shows("it runs")
    screen.type(CTRL_C)
    assert screen.ended() == 0
    assert "survived" in screen.shown


def test_a_second_ctrl_c_ends_code_that_minds_none(terminal: Callable[..., Terminal], mark: str) -> None:
    code = (
        "import time\nwhile True:\n    try:\n        print('it runs')\n        time.sleep(600)\n"
        "    except KeyboardInterrupt:\n        print('never mind')"
    )
    screen = terminal("run", code)
    assert screen.shows("it runs")
    screen.type(CTRL_C)
    assert screen.shows("never mind")
    screen.type(CTRL_C)
    assert screen.ended() == 130
    assert marked_processes(mark) == []


EARLY = """
import asyncio, signal
from ingle.cli import main
from ingle.service import Service

begin_cell = Service.begin_cell
async def pressed(*args):
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(0)
    return await begin_cell(*args)

Service.begin_cell = pressed
main(["run", "import time; time.sleep(600)"])
"""


def test_a_ctrl_c_before_the_cell_begins_is_not_lost() -> None:
    ended = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 130, ended.stderr


AT_IMPORT = """
import signal, sys
from ingle.cli import main

class Pressed:
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Pressed())
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("ingle.cli.commands.run", ["run", "1"]),
        ("ingle.service", ["run", "1"]),
        ("ingle.cli.job", ["run", "-"]),
        ("ingle.client", ["run", "-s", "main", "1"]),
        ("ingle.doctor", ["doctor"]),
        ("ingle.cli.services", ["ps"]),
    ],
)
def test_a_ctrl_c_while_a_command_starts_ends_it_with_one_line(module: str, args: list[str]) -> None:
    command = [sys.executable, "-c", AT_IMPORT, module, *args]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert outcome(ended) == (130, "", "ingle: interrupted\n")


# Help


def test_the_version_is_printed() -> None:
    assert outcome(ingle("--version")) == (0, f"ingle {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["help"], ["--help"]),
        (["help", "run"], ["run", "--help"]),
        (["help", "env", "create"], ["env", "create", "--help"]),
        (["version"], ["--version"]),
    ],
)
def test_help_and_version_are_words_too(words: list[str], options: list[str]) -> None:
    told = CliRunner().invoke(main, words)
    assert (told.exit_code, told.output) == (0, CliRunner().invoke(main, options).output)


@pytest.mark.parametrize("args", [["--help"], ["serve", "--help"], ["run", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    heavy = {"starlette", "uvicorn", "httpx", "uvloop", "msgspec", "asyncio"}
    watch = (
        f"import sys; sys.argv[1:] = {args!r}\nfrom ingle.cli import main\n"
        f"try: main()\nfinally: print(sorted({heavy!r} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", watch], capture_output=True, text=True, check=False)
    assert ended.stdout.splitlines()[-1] == "[]"


def help_of(*command: str) -> str:
    shown = CliRunner().invoke(main, [*command, "--help"], prog_name="ingle", terminal_width=78)
    assert shown.exit_code == 0
    return shown.output


@pytest.mark.parametrize("command", [[], *([name] for name in sorted(COMMANDS))], ids=" ".join)
def test_help_gives_an_example_and_stands_in_the_docs(command: list[str]) -> None:
    text = help_of(*command)
    assert re.search(r"Example: ingle \w+", text)
    page = beside("docs/reference/cli.md").read_text()
    assert f"```\n$ {' '.join(['ingle', *command, '--help'])}\n{text}```" in page


@pytest.mark.parametrize(("group", "makes", "removes"), [("token", "new", "revoke"), ("env", "create", "remove")])
def test_the_verbs_of_one_group_are_understood_by_the_other(group: str, makes: str, removes: str) -> None:
    same = {makes: ("new", "create"), "list": ("list", "ls"), removes: ("remove", "rm", "delete", "revoke")}
    told = {verb: {help_of(group, word) for word in words} for verb, words in same.items()}
    assert told == {verb: {help_of(group, verb)} for verb in same}


@pytest.mark.parametrize(
    ("command", "option", "same"),
    [
        ("checkpoint", "--delete", "--remove"),
        ("load", "--delete", "--remove"),
        ("grant", "--remove", "--delete"),
        ("share", "--revoke", "--remove"),
    ],
)
def test_options_that_remove_are_understood_by_the_same_words(command: str, option: str, same: str) -> None:
    assert f"{option}, {same} " in help_of(command)


def test_a_file_that_is_not_there_is_not_taken_for_code() -> None:
    ended = ingle("run", "nosuch.py")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "ingle: there is no file nosuch.py; name an existing one, or pass the code itself\n"


@pytest.mark.parametrize("verb", ["run", "sh"])
def test_where_its_code_is_held_it_has_the_folder_it_was_started_in_unless_that_is_too_much(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    monkeypatch.setenv("INGLE_ISOLATION", "sandbox")
    (tmp_path / "data").write_text("kept")
    code = "print(open('data').read())" if verb == "run" else "cat data; echo"
    assert outcome(ingle(verb, code, cwd=tmp_path)) == (0, "kept\n", "")
    code = "import os; print(os.getcwd() == '/')" if verb == "run" else "[ $PWD = / ] && echo True || echo False"
    elsewhere = ingle(verb, code, cwd=Path("/"))
    assert (elsewhere.returncode, elsewhere.stdout) == (0, "False\n")
    assert elsewhere.stderr.startswith("ingle: the code runs in its own folder, because the current one cannot be")


@pytest.mark.level("none", "at the others a folder around the test's own is granted")
@pytest.mark.parametrize("verb", ["run", "sh"])
def test_a_person_is_told_which_folders_confined_code_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, terminal: Callable[..., Terminal], verb: str
) -> None:
    monkeypatch.setenv("INGLE_ISOLATION", "sandbox")
    monkeypatch.chdir(tmp_path)
    screen = terminal(verb, "print(6 * 7)" if verb == "run" else "echo 42")
    assert screen.ended() == 0
    told = f"ingle: of your folders, sessions read and write {tmp_path}; they start in {tmp_path}"
    assert screen.shown.splitlines() == [told, "42"]


@pytest.mark.level("none", "at the others a folder around the test's own is granted")
def test_run_confines_code_on_request(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("told")
    (tmp_path / "project").mkdir()
    code = f"open({str(secret)!r}).read()"
    assert outcome(ingle("run", code, cwd=tmp_path / "project")) == (0, "'told'\n", "")
    confined = ingle("run", "--isolation", "sandbox", code, cwd=tmp_path / "project")
    assert (confined.returncode, confined.stdout) == (1, "")
    assert "FileNotFoundError" in confined.stderr


def test_the_list_of_commands_is_in_groups_and_cuts_no_sentence() -> None:
    text = help_of()
    assert sorted(re.findall(r"^  ([a-z]+)  +[A-Z]", text, re.MULTILINE)) == sorted(COMMANDS)
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == ["Options", *GROUPS]
    assert "..." not in text.replace("[ARGS]...", "")


def test_modules_in_the_folder_where_it_is_started_are_not_its_own(tmp_path: Path) -> None:
    """Sessions of `ingle mcp` write there."""
    for name in ("click", "msgspec", "uvloop"):
        (tmp_path / f"{name}.py").write_text("open('proof', 'w').close()\n")
    done = ingle("run", "print(6 * 7)", cwd=tmp_path)
    assert (done.stdout, (tmp_path / "proof").exists()) == ("42\n", False), done.stderr


@pytest.mark.parametrize("verb", [["serve", "--port", "0"], ["mcp"], ["run", "print(1)"]], ids=lambda verb: verb[0])
def test_a_data_folder_that_cannot_be_used_is_named_in_one_line(apart: Path, verb: list[str]) -> None:
    (apart / "file").touch()
    home = apart / "file" / "home"
    done = subprocess.run(
        [sys.executable, "-m", "ingle", *verb],
        env={**os.environ, "INGLE_HOME": str(home), "INGLE_TOKEN": "t" * 40},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert done.stdout == ""
    assert f"the data folder {home} cannot be used: Not a directory; name another by INGLE_HOME" in done.stderr
    assert "Traceback" not in done.stderr
