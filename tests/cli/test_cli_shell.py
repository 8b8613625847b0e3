"""`ingle sh`, as a process of its own, on pipes and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_cli import COMMAND, in_home, ingle, outcome  # noqa: F401

from shell.test_shell import names
from support.processes import marked_processes
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("mark", "in_home")


def started(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, "sh", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_streams_input_folder_and_exit_code_are_passed_on(tmp_path: Path) -> None:
    ended = ingle("sh", "cat; pwd; echo err >&2; echo $A; exit 3", "--env", "A=1 2", input="given\n", cwd=tmp_path)
    assert outcome(ended) == (3, f"given\n{tmp_path}\n1 2\n", "err\n")


def test_bytes_of_input_are_passed_on_as_they_are() -> None:
    ended = subprocess.run([*COMMAND, "sh", "od -An -tx1"], input=b"\xff\x00\n", capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, b" ff 00 0a\n")


@pytest.mark.parametrize(
    ("args", "code", "remark"),
    [
        (["kill -9 $$"], 137, ""),
        (["sleep 60", "--timeout", "0.3"], 124, "ingle: stopped at its timeout of 0.3 s\n"),
    ],
)
def test_ends_are_told_as_a_shell_tells_them(args: list[str], code: int, remark: str) -> None:
    assert outcome(ingle("sh", *args)) == (code, "", remark)


def test_json_prints_the_task_alone() -> None:
    ended = ingle("sh", "--json", "echo hi; exit 4")
    task = json.loads(ended.stdout)
    assert (ended.returncode, ended.stderr) == (4, "")
    assert (task["status"], task["stdout"], task["exit_code"]) == ("done", "hi\n", 4)


def test_output_comes_while_the_command_runs_and_what_it_leaves_ends_with_it(mark: str) -> None:
    process = started("echo begun; read x < /dev/null; sleep 600 & exit 5")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    _, remark = process.communicate(timeout=60)
    assert process.returncode == 5
    assert remark.startswith("ingle: ended with the command: ")
    assert wait_until(lambda: not marked_processes(mark))


def test_ctrl_c_interrupts_the_command_and_a_second_one_ends_it(mark: str) -> None:
    process = started("trap 'echo caught' INT; echo begun; while :; do sleep 0.05; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "caught\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert wait_until(lambda: not marked_processes(mark))


def test_a_reader_that_goes_away_ends_the_command(mark: str) -> None:
    process = started("yes")
    assert process.stdout is not None
    assert process.stdout.readline() == "y\n"
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    process.stderr.close()
    assert wait_until(lambda: not marked_processes(mark))


def test_kill_9_leaves_nothing(mark: str, home: Path) -> None:
    process = started("setsid sleep 600 & sleep 601")
    assert wait_until(lambda: names(mark).count("sleep") == 2)
    process.kill()
    process.communicate()
    assert wait_until(lambda: not marked_processes(mark))
    # The next one clears away what the dead one has left.
    assert ingle("sh", "true").returncode == 0


def test_with_a_terminal_keys_colour_and_ctrl_c_reach_the_command() -> None:
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(COMMAND[0], [*COMMAND, "sh", "--pty", "tty -s && echo tty; trap 'echo caught; exit 6' INT; read x"])
    seen = b""
    end = time.monotonic() + 60
    sent = False
    while time.monotonic() < end:
        if not select.select([fd], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(fd, 4096)
        except OSError:
            break
        if not data:
            break
        seen += data
        if b"tty\r\n" in seen and not sent:
            sent = True
            time.sleep(0.2)
            os.write(fd, b"\x03")
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    assert seen.endswith(b"caught\r\n")
