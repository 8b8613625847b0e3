"""`ingle batch`: inputs from a file, results as text or JSON, and the exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.server import Server
from support.waiting import wait_until

pytestmark = [pytest.mark.req("batch.map"), pytest.mark.usefixtures("mark")]

PATIENCE = 100


def ingle(*args: str, home: Path, cwd: Path, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ingle", *args],
        env={**os.environ, "INGLE_HOME": str(home), "INGLE_PRELOAD": ""},
        capture_output=True,
        input=stdin,
        text=True,
        errors="surrogateescape",
        cwd=cwd,
        timeout=PATIENCE,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text("print('got', item)\n10 // item\n")
    (tmp_path / "inputs.jsonl").write_text("1\n2\n\n0\n")
    return tmp_path


def test_results_are_shown_in_order_in_a_service_of_the_command(folder: Path, home: Path) -> None:
    told = ingle("batch", "code.py", "--inputs", "inputs.jsonl", home=home, cwd=folder)
    shown = [line for line in told.stdout.splitlines() if not line.startswith("      ")]
    assert shown == [
        "0  ok  got 1",
        "    10",
        "1  ok  got 2",
        "    5",
        "2  error  got 0",
        "    Traceback (most recent call last):",
        "    ZeroDivisionError: integer division or modulo by zero",
    ]
    assert told.stderr.startswith("3 items: 1 error, 2 ok in ")
    assert told.returncode == 1


def test_whole_items_and_results_as_json(folder: Path, home: Path, server: Server) -> None:
    items = '{"id": "a", "input": [1], "stdin": "x", "files": {"f": "y"}, "env": {"E": "z"}}\n'
    code = "import os; [item, input(), open('f').read(), os.environ['E']]"
    told = ingle("batch", code, "--items", "-", "--json", home=home, cwd=folder, stdin=items)
    (line,) = told.stdout.splitlines()
    result = json.loads(line)
    assert (result["id"], result["limit"]) == ("a", None)
    assert result["result"] == {"text/plain": "[[1], 'x', 'y', 'z']"}
    assert (told.returncode, told.stderr.startswith("1 item: 1 ok in ")) == (0, True)


def test_limits_are_given_as_people_write_them(folder: Path, home: Path, server: Server) -> None:
    code = "if item: x = b'1' * (400 << 20)\nwhile True: pass"
    told = ingle(
        *("batch", code, "--inputs", "-", "--timeout", "3s", "--memory", "128M", "--concurrency", "2"),
        home=home,
        cwd=folder,
        stdin="0\n1\n",
    )
    assert [line.split()[:2] for line in told.stdout.splitlines() if line[0] != " "] == [["0", "time"], ["1", "memory"]]


@pytest.mark.parametrize(
    ("args", "stdin", "said"),
    [
        (("1",), "", "name the inputs with --inputs FILE, or whole items with --items FILE"),
        (("1", "--inputs", "-"), "1\n{", "line 2 of <stdin> is not JSON"),
        (("1", "--inputs", "-"), '1\n"\udcff"', "line 2 of <stdin> is not JSON: 'utf-8' codec can't decode byte 0xff"),
        (("1\udcff", "--inputs", "-"), "1\n", r"'1\udcff' is not UTF-8 at character 2; pass text in UTF-8"),
        (("absent.py", "--inputs", "-"), "1\n", "there is no file absent.py; name an existing one"),
        ((".", "--inputs", "-"), "1\n", ". is a folder; name a file in it"),
        (("1", "--items", "-"), "7\n", "line 1 of <stdin> is not an item"),
        (("1", "--inputs", "-", "--token-file", "x"), "1\n", "--token-file needs --url"),
    ],
)
def test_what_cannot_be_read_is_told(
    folder: Path, home: Path, server: Server, args: tuple[str, ...], stdin: str, said: str
) -> None:
    told = ingle("batch", *args, home=home, cwd=folder, stdin=stdin)
    assert told.returncode == 2
    assert said in told.stderr


def test_ctrl_c_ends_all_items(folder: Path, home: Path, server: Server) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ingle", "batch", "import time; time.sleep(1000)", "--inputs", "-"],
        env={**os.environ, "INGLE_HOME": str(home)},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("1\n2\n")
    process.stdin.close()
    process.stdin = None
    assert wait_until(lambda: len(server.client.get("/v1/sessions").json()["sessions"]) == 2, 60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert (process.returncode, said.startswith("0 of 2 items, interrupted after ")) == (130, True), said
    assert wait_until(lambda: server.client.get("/v1/sessions").json() == {"sessions": []}, 30)
