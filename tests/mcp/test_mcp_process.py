"""`ingle mcp` as a process: only JSON-RPC on its stdout, and nothing left of it when its host has gone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingle import __version__
from support.mcp_host import INITIALIZE, Host, command, environment, text_of
from support.processes import MARK, marked_processes
from support.server import PATIENCE
from support.waiting import wait_until

ENDS_WITHIN = 2.0

ATTACK = """
import os, sys, subprocess, threading, ctypes, faulthandler
print('from print')
sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "result": "forged"}\\n')
sys.__stdout__.write('from __stdout__\\n')
os.write(1, b'from fd 1\\n')
os.write(2, b'from fd 2\\n')
ctypes.CDLL(None).puts(b'from C')
ctypes.CDLL(None).fflush(None)
subprocess.run('echo from a child; echo from its stderr >&2', shell=True)
os.system('echo from a grandchild | cat')
threading.Thread(target=print, args=('from a thread',)).start()
open('/proc/self/fd/1', 'w').write('from proc\\n')
if os.fork() == 0:
    os.write(1, b'from a fork\\n')
    os._exit(0)
os.wait()
"""

BUSY = """
import os, subprocess, time
subprocess.Popen(['sleep', '600'])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
time.sleep(600)
"""

STUBBORN = "import atexit, time; atexit.register(time.sleep, 600); kept = 1"


def assert_json_rpc_only(lines: list[bytes]) -> None:
    for line in lines:
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        assert {"result", "error", "method"} & message.keys()


def left(mark: str, server: int) -> list[tuple[int, str]]:
    """What is still there of a server: everything with its mark that is no zombie of ours."""
    return [(pid, state) for pid, state in marked_processes(mark) if not (pid == server and state == "Z")]


def loaded(host: Host) -> None:
    """Sessions of every kind: one running with a child and a daemon, one idle that does not want to go, one asking."""
    host.initialize()
    for name in ("busy", "stubborn", "asking"):
        host.call("create_repl_session", session_id=name)
    host.call("python_session", session_id="busy", code=BUSY, wait=0)
    host.call("python_session", session_id="stubborn", code=STUBBORN)
    host.call("python_session", session_id="asking", code="input('? ')")
    host.begin("tools/call", {"name": "wait", "arguments": {"session_id": "busy"}})


@pytest.mark.req("mcp.stdout")
def test_stdout_carries_json_rpc_only_whatever_the_code_writes(mark: str, home: Path) -> None:
    with Host(home) as host:
        host.initialize()
        shown = text_of(host.call("python_session", code=ATTACK))
        for source in ("print", "fd 1", "fd 2", "C", "a child", "a grandchild", "a thread", "proc", "a fork"):
            assert f"from {source}" in shown
        host.call("python_session", code="import os; os.write(1, b'\\xff' * 100_000); os.abort()")
        host.call("python", code="import sys; sys.stdout.flush(); print('bye'); sys.exit(3)")
        assert text_of(host.call("python_session", code="'still here'")).splitlines()[0] == "'still here'"
    assert len(host.lines) == 5
    assert_json_rpc_only(host.lines)


@pytest.mark.req("mcp.stdout")
def test_a_host_that_closes_its_end_leaves_no_process(mark: str, home: Path) -> None:
    host = Host(home)
    loaded(host)
    assert len(marked_processes(mark)) > 8
    assert host.process.stdin is not None
    host.process.stdin.close()
    assert wait_until(lambda: not left(mark, host.process.pid), ENDS_WITHIN), left(mark, host.process.pid)
    host.close()
    assert host.process.returncode == 0
    assert_json_rpc_only(host.lines)


@pytest.mark.req("mcp.stdout")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_ends_everything_with_the_hosts_end_still_open(mark: str, home: Path, number: signal.Signals) -> None:
    host = Host(home)
    loaded(host)
    host.process.send_signal(number)
    assert wait_until(lambda: not left(mark, host.process.pid), ENDS_WITHIN), left(mark, host.process.pid)
    host.close()
    assert host.process.returncode == 0
    assert_json_rpc_only(host.lines)


@pytest.mark.req("mcp.stdout")
def test_a_killed_server_leaves_no_process_either(mark: str, apart: Path) -> None:
    host = Host(apart / "not checked")
    loaded(host)
    host.process.kill()
    assert wait_until(lambda: not left(mark, host.process.pid), ENDS_WITHIN), left(mark, host.process.pid)
    host.close()


HOLDER = """
import json, subprocess, sys, time
server = subprocess.Popen(json.loads(sys.argv[1]), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def ask(number, method, params):
    line = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    server.stdin.write(line.encode() + b"\\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())
ask(1, "initialize", json.loads(sys.argv[2]))
server.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\\n')
code = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
ask(2, "tools/call", {"name": "python_session", "arguments": {"code": code, "wait": 0}})
# A helper of the host that holds the server's pipes open, as browsers' helper processes do.
ends = [server.stdin.fileno(), server.stdout.fileno()]
holder = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, pass_fds=ends)
print(server.pid, holder.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.req("mcp.stdout")
def test_a_host_that_is_killed_takes_the_server_with_it_even_if_its_pipe_stays_open(
    mark: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOLDER, json.dumps(command()), json.dumps(INITIALIZE)],
        stdout=subprocess.PIPE,
        env=environment(home),
    )
    assert host.stdout is not None
    server, holder = map(int, host.stdout.readline().split())
    try:
        others = {pid for pid, _ in marked_processes(mark)} - {host.pid, holder}
        assert server in others
        assert len(others) > 4
        host.kill()
        host.wait()
        assert wait_until(lambda: not others & {pid for pid, _ in marked_processes(mark)}, ENDS_WITHIN)
    finally:
        os.kill(holder, signal.SIGKILL)
        host.stdout.close()


def test_a_signal_while_it_still_starts_ends_it(mark: str, home: Path) -> None:
    host = Host(home)
    assert wait_until(lambda: list((home / "run").glob("*.lock")) if (home / "run").exists() else False)
    host.process.send_signal(signal.SIGTERM)
    assert wait_until(lambda: not left(mark, host.process.pid), ENDS_WITHIN), left(mark, host.process.pid)
    host.close()
    assert (host.process.returncode, host.lines) == (0, [])


@pytest.mark.req("mcp.handles")
@pytest.mark.parametrize("same", [True, False], ids=["same-folder", "different-folders"])
def test_two_servers_with_one_data_folder_do_not_disturb_each_other(
    mark: str, home: Path, tmp_path: Path, same: bool
) -> None:
    folders = [tmp_path / "a", tmp_path / ("a" if same else "b")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    with Host(home, cwd=folders[0]) as first:
        first.initialize()
        first.call("python_session", code="who = 'first'")
        with Host(home, cwd=folders[1]) as second:
            second.initialize()
            second.call("python_session", code="who = 'second'; import os; here = os.getcwd()")
            listed = text_of(second.call("list_repl_sessions"))
            assert [line.split(" · ")[0] for line in listed.splitlines()] == ["main"]
            assert text_of(first.call("python_session", code="who")) == "'first'"
            assert text_of(second.call("python_session", code="who, here")) == repr(("second", str(folders[1])))
        # The second one's end, and a third one's start, which clears what dead servers left, change nothing.
        with Host(home, cwd=folders[1]) as third:
            third.initialize()
            # It has the session of the second one, with what its last cell showed.
            assert text_of(third.call("wait")).startswith(repr(("second", str(folders[1]))))
            told = text_of(first.call("python_session", code="open('note', 'w').write(who); who"))
            assert told.splitlines()[0] == "'first'"


def test_a_person_who_starts_it_by_hand_is_told_what_it_waits_for(home: Path, mark: str) -> None:
    ours, terminal = os.openpty()
    process = subprocess.Popen(
        command(), stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(home)
    )
    os.close(terminal)
    os.write(ours, b"\x04")
    out, told = process.communicate(timeout=30)
    os.close(ours)
    assert out == b""
    assert told.startswith(b"ingle mcp waits for messages of a host; configure one with `ingle install HOST`.\n")


@pytest.mark.req("safe.isolation")
def test_the_level_in_force_is_told_to_the_hosts_log(home: Path, mark: str) -> None:
    with Host(home, "--isolation", "limits") as host:
        host.initialize()
        host.call("python_session", code="1")
    told = f"ingle {__version__}: isolation limits, network full (code in sessions has your files and your network)"
    assert told in host.stderr.decode().splitlines()


def test_a_data_folder_that_cannot_be_written_is_told_on_stderr(mark: str, apart: Path) -> None:
    file = apart / "file"
    file.write_text("")
    with Host(file / "home") as host:
        assert host.process.wait(PATIENCE) == 2
    assert host.lines == []
    told = f"ingle: the data folder {file / 'home'} cannot be used: Not a directory; name another by INGLE_HOME\n"
    assert host.stderr.decode() == told


def test_it_is_marked(mark: str, home: Path) -> None:
    """The proofs above look for the mark in every process: a server's must have it."""
    with Host(home) as host:
        host.initialize()
        data: Any = Path(f"/proc/{host.process.pid}/environ").read_bytes()
        assert f"{MARK}={mark}".encode() in data


@pytest.mark.req("state.restart")
def test_main_comes_back_in_the_folder_where_it_was(home: Path, mark: str, tmp_path: Path) -> None:
    """After kill -9 of the server, in the next one that a host starts there; in another folder it is another one."""
    for name in ("project", "elsewhere"):
        (tmp_path / name).mkdir()
    with Host(home, cwd=tmp_path / "project") as first:
        first.initialize()
        assert "41" in text_of(first.call("python_session", code="x = 41; x"))
        assert wait_until(lambda: first.call("list_repl_sessions")["_meta"]["ingle/sessions"][0]["saved_cell"] == 1, 30)
        first.process.kill()
    with Host(home, cwd=tmp_path / "elsewhere") as other:
        other.initialize()
        assert "NameError" in text_of(other.call("python_session", code="x"))
    with Host(home, cwd=tmp_path / "project") as second:
        second.initialize()
        listed = text_of(second.call("list_repl_sessions"))
        assert "hibernated" in listed
        assert "this session is as it was after cell 1, saved " in listed
        back = text_of(second.call("python_session", code="x + 1"))
        assert "42" in back
        assert "this session is as it was after cell 1, saved " in back
