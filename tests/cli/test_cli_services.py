"""The verbs that reach running services: ps, logs, interrupt, stop, config, run -s."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingle.support.running_servers import Announcement, find_servers
from support.server import PATIENCE, Server

COMMAND = [sys.executable, "-m", "ingle"]

pytestmark = pytest.mark.usefixtures("in_home")


@pytest.fixture
def in_home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands use the data folder of the test's server, or one of the test's own."""
    if "server" in request.fixturenames:
        home = request.getfixturevalue("server").home
    else:
        request.getfixturevalue("mark")
        home = request.getfixturevalue("home")
    monkeypatch.setenv("INGLE_HOME", str(home))
    for name in ("INGLE_URL", "INGLE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def ingle(*args: str, input: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        input=input,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=PATIENCE,
        check=False,
        env={**os.environ, **(env or {})},
    )


def outcome(*args: str, **given: Any) -> tuple[int, str, str]:
    ended = ingle(*args, **given)
    return ended.returncode, ended.stdout, ended.stderr


# ps


def test_ps_shows_the_sessions_of_every_server(start: Callable[..., Server]) -> None:
    first, second = start(), start()
    first.make_session("main")
    first.execute("1")
    first.make_session("other")
    lines = ingle("ps").stdout.splitlines()
    assert lines[0].split() == ["SERVER", "PID", "SESSION", "STATE", "CELLS", "AGE", "MEMORY", "FOLDER"]
    pid, other = str(first.process.pid), str(second.process.pid)
    rows = [re.split(r"  +", line) for line in lines[1:]]
    assert [(*row[:5], row[-1]) for row in rows] == [
        ("serve", pid, "main", "idle", "1", "(own)"),
        ("serve", pid, "other", "idle", "0", "(own)"),
        ("serve", other, "-", "no session", "-", os.getcwd()),
    ]
    told = json.loads(ingle("ps", "--json").stdout)["servers"]
    assert [(server["pid"], [each["session_id"] for each in server["sessions"]]) for server in told] == [
        (first.process.pid, ["main", "other"]),
        (second.process.pid, []),
    ]
    [one] = json.loads(ingle("ps", "--json", "--pid", other).stdout)["servers"]
    assert (one["pid"], one["kind"], one["url"]) == (second.process.pid, "serve", second.url)


def test_ps_over_a_url_needs_a_token_that_is_on_no_command_line(server: Server, tmp_path: Path) -> None:
    server.make_session("main")
    expected = (0, [server.url, "-", "main", "idle"])

    def seen(*args: str, env: dict[str, str] | None = None) -> tuple[int, list[str]]:
        code, out, _ = outcome("ps", *args, env=env)
        return code, out.splitlines()[1].split()[:4]

    assert seen("--url", server.url, env={"INGLE_TOKEN": server.token}) == expected
    assert seen(env={"INGLE_TOKEN": server.token, "INGLE_URL": server.url}) == expected
    file = tmp_path / "token"
    file.write_text(server.token + "\n")
    file.chmod(0o600)
    assert seen("--url", server.url, "--token-file", str(file)) == expected
    file.chmod(0o644)
    code, _, said = outcome("ps", "--url", server.url, "--token-file", str(file))
    assert (code, said) == (2, f"ingle: others can read {file}; protect it with `chmod 600 {file}`\n")
    code, _, said = outcome("ps", "--url", server.url)
    assert (code, "token" in said) == (2, True)


def test_ps_without_servers_says_how_to_start_one() -> None:
    assert outcome("ps") == (0, "no server is running; start one with `ingle serve`\n", "")
    assert outcome("ps", "--json") == (0, '{"servers":[],"saved":[]}\n', "")
    code, _, said = outcome("ps", "--pid", "1")
    assert (code, "no server with the process id 1" in said) == (2, True)
    code, _, said = outcome("ps", "--url", "http://127.0.0.1:1")
    assert (code, "does not answer" in said) == (2, True)


def test_a_server_that_hangs_is_named_and_holds_nothing_up(server: Server, home: Path) -> None:
    server.make_session("main")
    silent = Announcement(home, "mcp")
    try:
        silent.announce(None)
        rows = [re.split(r"  +", line)[:4] for line in ingle("ps").stdout.splitlines()[1:]]
        assert rows == [
            ["serve", str(server.process.pid), "main", "idle"],
            ["mcp", str(os.getpid()), "-", "does not answer"],
        ]
        code, _, said = outcome("interrupt", "absent")
        assert (code, said.splitlines()[0]) == (
            2,
            "ingle: there is no session 'absent'; list the sessions with `ingle ps`",
        )
        assert "does not answer" in said
    finally:
        silent.close()


@pytest.mark.parametrize("command", [["--help"], ["ps"], ["ps", "--json"], ["interrupt", "main"], ["stop", "main"]])
def test_these_load_nothing_heavy(server: Server, command: list[str]) -> None:
    """Their start takes as long as their imports; so what they import is what is checked."""
    server.make_session("main")
    code = (
        "import sys\nfrom ingle.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    loaded = set(ended.stderr.split())
    heavy = "asyncio httpx websockets starlette uvicorn uvloop mcp rich concurrent.futures ingle.service ingle.events"
    assert loaded & {*heavy.split(), "ingle.client.aio", "ingle.client.sync", "ingle.client.decode"} == set()
    assert len([name for name in loaded if name.startswith("ingle")]) > 5


# vars


@pytest.mark.req("rich.vars")
def test_vars_lists_the_variables_and_tells_one_in_full(server: Server) -> None:
    server.make_session("main")
    assert outcome("vars", "main") == (0, "no variables\n", "")
    server.execute("numbers = [1, 2, 3]\nname = 'Ada'")
    code, said, failed = outcome("vars", "main")
    assert (code, failed) == (0, "")
    rows = [re.split(r"  +", line) for line in said.splitlines()]
    assert [row[:3] + row[4:] for row in rows] == [
        ["NAME", "TYPE", "SHAPE", "VALUE"],
        ["name", "str", "3", "'Ada'"],
        ["numbers", "list", "3", "[1, 2, 3]"],
    ]
    assert outcome("vars", "main", "numbers") == (0, "[1, 2, 3]\n", "")
    told = json.loads(ingle("vars", "--json", "main").stdout)
    assert [each["name"] for each in told["variables"]] == ["name", "numbers"]
    code, said, failed = outcome("vars", "main", "nubmers")
    assert (code, said) == (2, "")
    assert "did you mean numbers" in failed


# interrupt and stop


def test_interrupt_stops_the_cell_and_keeps_the_session(server: Server) -> None:
    server.make_session("main")
    server.execute("x = 1\nwhile True: pass", wait=0)
    assert outcome("interrupt", "main") == (0, "cell 1 is interrupted\n", "")
    assert outcome("interrupt", "main") == (0, "no cell was running, so nothing was interrupted\n", "")
    server.execute("while True: pass", wait=0)
    assert json.loads(ingle("interrupt", "--json", "main").stdout)["status"] == "interrupted"
    assert server.execute("x")["result"] == {"text/plain": "1"}


def test_stop_ends_a_session_or_a_server(start: Callable[..., Server], home: Path) -> None:
    first, second = start(), start()
    first.make_session("main")
    assert outcome("stop", "main") == (0, "session 'main' has ended\n", "")
    code, _, said = outcome("stop", "main")
    assert (code, "there is no session 'main'" in said) == (2, True)
    code, _, said = outcome("stop", "--server")
    assert (code, "2 servers are running; choose one" in said) == (2, True)
    assert f"--pid {first.process.pid}" in said
    ended = ingle("stop", "--server", "--pid", str(first.process.pid))
    assert (ended.returncode, f"pid {first.process.pid}" in ended.stdout) == (0, True)
    assert first.process.wait(PATIENCE) == 0
    assert json.loads(ingle("stop", "--server", "--json").stdout)["pid"] == second.process.pid
    assert find_servers(home) == []
    code, _, said = outcome("stop", "--server")
    assert (code, said) == (2, "ingle: no server is running, so there is none to stop\n")
    assert outcome("stop")[0] == outcome("stop", "main", "--server")[0] == 2


def test_stop_ends_several_sessions_or_none_of_them(server: Server) -> None:
    for name in ("a", "b", "c", "d"):
        server.make_session(name)
    code, out, said = outcome("stop", "a", "nosuch")
    assert (code, out, "there is no session 'nosuch'" in said) == (2, "", True)
    assert outcome("stop", "a", "b") == (0, "session 'a' has ended\nsession 'b' has ended\n", "")
    ended = [json.loads(line)["session_id"] for line in ingle("stop", "--json", "c", "d").stdout.splitlines()]
    assert ended == ["c", "d"]


def test_what_a_server_had_not_finished_when_it_was_killed_is_removed(home: Path) -> None:
    run = home / "run"
    run.mkdir(parents=True)
    for name in ("1-a.new", "1-a.draft", "2-b.new", "2-b.draft"):
        (run / name).touch()
    for name in ("1-a.new", "1-a.draft"):
        os.utime(run / name, (0, 0))
    # Those of a server that starts at this moment are left alone.
    assert find_servers(home) == []
    assert sorted(path.name for path in run.iterdir()) == ["2-b.draft", "2-b.new"]
    shutil.rmtree(run)


def test_a_name_on_two_servers_is_listed_with_how_to_choose(start: Callable[..., Server]) -> None:
    first, second = start(), start()
    for server in (first, second):
        server.make_session("main")
    for command in (["stop", "main"], ["interrupt", "main"], ["logs", "main"], ["run", "-s", "main", "1"]):
        code, _, said = outcome(*command)
        assert (code, said.splitlines()[0]) == (2, "ingle: session 'main' is on 2 servers; choose one:")
        assert [line.split()[1] for line in said.splitlines()[1:]] == [
            str(first.process.pid),
            str(second.process.pid),
        ]
    assert ingle("stop", "main", "--pid", str(second.process.pid)).returncode == 0
    assert [each["session_id"] for each in first.client.get("/v1/sessions").json()["sessions"]] == ["main"]


# run -s


def test_run_in_a_live_session_that_is_made_and_kept(
    start: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = start("--mount", os.getcwd())
    assert outcome("run", "-s", "main", "import os\nx = 20\nos.getcwd()") == (0, f"{os.getcwd()!r}\n", "")
    assert outcome("run", "-s", "main", "print('sum'); x + 22") == (0, "sum\n42\n", "")
    code, out, said = outcome("run", "-s", "main", "1/0")
    assert (code, out, said.splitlines()[-1]) == (1, "", "ZeroDivisionError: division by zero")
    assert outcome("run", "-s", "main", "print(input('? '))", input="yes\n") == (0, "? yes\n", "")
    assert outcome("run", "-s", "main", "-", input="x = 5\nx")[:2] == (0, "5\n")
    result = json.loads(ingle("run", "-s", "main", "--json", "--env", "A=1", "import os; os.environ['A']").stdout)
    assert (result["session_id"], result["result"]) == ("main", {"text/plain": "'1'"})
    assert outcome("run", "-s", "main", "--timeout", "0.2", "while True: pass")[0] == 124
    assert outcome("run", "-s", "main", "import sys; sys.exit(3)")[0] == 3
    (tmp_path / "script.py").write_text("print('from a file')")
    assert outcome("run", "-s", "main", str(tmp_path / "script.py"))[1] == "from a file\n"
    remote = ingle("run", "-s", "far", "--url", server.url, "6 * 7", env={"INGLE_TOKEN": server.token})
    assert (remote.returncode, remote.stdout) == (0, "42\n")
    names = [each["session_id"] for each in server.client.get("/v1/sessions").json()["sessions"]]
    assert sorted(names) == ["far", "main"]


def test_run_in_a_session_needs_a_service_that_stays() -> None:
    code, _, said = outcome("run", "-s", "main", "1")
    assert (code, "no service runs on" in said, "start one with `ingle serve`" in said) == (2, True, True)


NOT_UTF_8 = "\udcff"
"""A byte of an argument or of standard input as Python reads it."""


@pytest.mark.parametrize(
    ("args", "stdin"),
    [
        (["run", "-s", "main", f"'{NOT_UTF_8}'"], ""),
        (["run", "-s", "main", "-"], f"'{NOT_UTF_8}'"),
        (["run", "-s", "main", "--env", f"A={NOT_UTF_8}", "1"], ""),
        (["run", f"'{NOT_UTF_8}'"], ""),
        (["run", "-"], f"'{NOT_UTF_8}'"),
        (["sh", "-s", "main", f"echo {NOT_UTF_8}"], ""),
        (["vars", "main", f"a{NOT_UTF_8}"], ""),
        (["cp", f"main:a{NOT_UTF_8}", "."], ""),
        (["checkpoint", "main", f"a{NOT_UTF_8}"], ""),
    ],
    ids=lambda given: " ".join(given[:3]) if isinstance(given, list) else "",
)
def test_text_that_is_not_utf_8_is_refused_with_its_place(server: Server, args: list[str], stdin: str) -> None:
    server.make_session("main")
    code, out, said = outcome(*args, input=stdin)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"ingle: ['\"].*\\udcff.*['\"] is not UTF-8 at character \d+; pass text in UTF-8\n", said), said


def test_input_reaches_a_session_whole_and_with_a_sign_for_what_is_not_utf_8(server: Server) -> None:
    server.make_session("main")
    assert outcome("run", "-s", "main", "ascii(input())", input=f"a{NOT_UTF_8}\n")[:2] == (0, "\"'a\\\\ufffd'\"\n")
    # The pieces in which it is read end within a character.
    assert outcome("sh", "-s", "main", "wc -c", input="x" + "é" * 200_000) == (0, "400001\n", "")


def test_ctrl_c_interrupts_the_cell_and_a_second_leaves_it(server: Server) -> None:
    server.make_session("main")
    code = "import time\nprint('on', flush=True)\nwhile True:\n  try: time.sleep(0.01)\n  except KeyboardInterrupt: {}"
    for last, ends in (("break", True), ("print('not I', flush=True)", False)):
        with subprocess.Popen(
            [*COMMAND, "run", "-s", "main", code.format(last)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "on\n"
            process.send_signal(signal.SIGINT)
            if ends:
                assert process.wait(PATIENCE) == 0
                continue
            assert process.stdout.readline() == "not I\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
            assert process.stderr is not None
            assert process.stderr.read() == "ingle: cell 2 continues; follow it with `ingle logs -f main`\n"
    assert server.cell(2)["status"] == "running"


@pytest.mark.parametrize("options", [[], ["--durable"]])
def test_run_in_a_session_says_that_the_server_stops(start: Callable[..., Server], options: list[str]) -> None:
    server = start()
    code = "import time\nprint('on', flush=True)\ntime.sleep(1000)"
    with subprocess.Popen(
        [*COMMAND, "run", "-s", "busy", *options, code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        server.process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
    # The socket of a server that has ended by then does not answer any more.
    stops = "the server is stopping; its sessions end with it, and durable ones come back with the next server"
    ended = "does not answer any more .*durable"
    assert re.search(f"{stops}|{ended}", said), said


# new, clear, checkpoint, rollback, sh -s


def test_a_session_is_made_cleared_taken_back_and_removed(server: Server) -> None:
    assert outcome("new", "work", "--durable", "--memory", "1G", "--idle-timeout", "1h30m") == (0, "work\n", "")
    info = json.loads(ingle("ls", "--json").stdout)["servers"][0]["sessions"][0]
    assert (info["session_id"], info["durable"], info["idle_timeout"]) == ("work", True, 5400)
    assert info["limits"]["memory"] == 1024**3
    code, _, said = outcome("new", "work")
    assert (code, "exists" in said) == (2, True)
    assert outcome("checkpoint", "work") == (0, "session 'work' has no checkpoints\n", "")
    server.execute("x = 1", "work")
    code, out, said = outcome("checkpoint", "work", "before")
    assert (code, out) == (0, "checkpoint before has the state after cell 1\n")
    # Without confinement it works in the folder of the command, which is not its own.
    unkept = "are not kept: checkpoints cover the session's own folder and tracked ones"
    assert (unkept in said) == (os.environ["INGLE_ISOLATION"] == "none")
    assert re.fullmatch(r"before +\S+ \S+  after cell 1\n", ingle("checkpoint", "work").stdout)
    server.execute("x = 2", "work")
    code, out, _ = outcome("rollback", "work", "before")
    assert (code, "before" in out) == (0, True)
    assert outcome("vars", "work", "x") == (0, "1\n", "")
    assert json.loads(ingle("rollback", "work", "before", "--json").stdout)["checkpoint"]["cell"] == 1
    assert outcome("checkpoint", "work", "before", "--delete") == (0, "checkpoint before is deleted\n", "")
    assert outcome("save", "work", "kept")[1].startswith("saved 1 variable of work as kept: ")
    assert ingle("load").stdout.rstrip().endswith("1 variable of work")
    assert outcome("clear", "work") == (0, "session 'work' has no variables any more\n", "")
    assert outcome("vars", "work") == (0, "no variables\n", "")
    assert outcome("rm", "work") == (0, "session 'work' has ended\n", "")
    code, _, said = outcome("rollbak", "work")
    assert (code, "there is no command 'rollbak'; did you mean 'rollback'?" in said) == (2, True)


def test_a_shell_command_runs_in_the_folder_of_a_session(server: Server) -> None:
    server.make_session("main")
    server.execute("open('data.txt', 'w').write('from the session')")
    assert outcome("sh", "-s", "main", "cat data.txt; cat; echo bad >&2; exit 3", input="typed\n") == (
        3,
        "from the sessiontyped\n",
        "bad\n",
    )
    assert json.loads(ingle("sh", "-s", "main", "--json", "echo $A", "--env", "A=1").stdout)["stdout"] == "1\n"
    assert outcome("sh", "-s", "main", "--timeout", "300ms", "sleep 60")[0] == 124
    assert ingle("sh", "-s", "absent", "true").returncode == 2


# completion


def completions(shell: str, line: str, cwd: Path) -> list[str]:
    """Return what a real bash offers after this line."""
    words = line.split(" ")
    script = (
        'eval "$(ingle completion bash)"\n'
        f"COMP_WORDS=({' '.join(repr(word) for word in words)})\nCOMP_CWORD={len(words) - 1}\n"
        "_ingle_completion ingle\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    ended = subprocess.run([shell, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True, cwd=cwd)
    assert ended.stderr == ""
    return ended.stdout.split()


def test_bash_completes_commands_options_and_sessions(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "ingle"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ingle "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("main", "make-ready", "other"):
        server.make_session(name)
    bash = shutil.which("bash")
    assert bash is not None
    assert completions(bash, "ingle roll", tmp_path) == ["rollback"]
    assert completions(bash, "ingle vars ma", tmp_path) == ["main", "make-ready"]
    assert completions(bash, "ingle run -s o", tmp_path) == ["other"]
    assert completions(bash, "ingle logs --fol", tmp_path) == ["--follow"]


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_other_shells_can_read_their_scripts(shell: str, check: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(ingle("completion", shell).stdout)
    assert "_INGLE_COMPLETE" in script.read_text()
    if (found := shutil.which(shell)) is not None:
        subprocess.run([found, *check, str(script)], timeout=PATIENCE, check=True)


# logs


def test_logs_put_a_prompt_and_what_follows_on_lines_of_their_own(server: Server) -> None:
    server.make_session("main")
    server.execute("name = input('name? ')\nprint('hello', name)\nprint('no end', end='')", wait=PATIENCE)
    server.client.post("/v1/sessions/main/input", json={"text": "Ada"})
    lines = ingle("logs", "main").stdout.splitlines()
    assert lines[4:7] == ["name? ", "hello Ada", "no end"]
    assert lines[7].startswith("── cell 1: ok")


def test_logs_show_cells_and_their_borders(server: Server) -> None:
    server.make_session("main")
    assert outcome("logs", "main") == (0, "", "")
    server.execute("print('one')\n1")
    server.execute("import sys\nprint('two', file=sys.stderr)\n1/0")
    code, out, said = outcome("logs", "main")
    out = re.sub(r"\d\d:\d\d:\d\d", "TIME", re.sub(r"after \S+ m?s", "after T s", out))
    assert (code, out.splitlines()) == (
        0,
        [
            "── cell 1 ── TIME",
            "│ print('one')",
            "│ 1",
            "one",
            "1",
            "── cell 1: ok after T s",
            "── cell 2 ── TIME",
            "│ import sys",
            "│ print('two', file=sys.stderr)",
            "│ 1/0",
            "── cell 2: error after T s",
        ],
    )
    assert said.splitlines()[0] == "two"
    assert said.splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert ingle("logs", "-n", "1", "main").stdout.splitlines()[0].startswith("── cell 2")
    assert ingle("logs", "-n", "0", "main").stdout == ""
    events = [json.loads(line) for line in ingle("logs", "--json", "main").stdout.splitlines()]
    assert [event["type"] for event in events if event["cell"] == 1] == ["state", "stdout", "result", "done"]


def test_logs_of_a_running_cell_end_where_it_is_and_follow_goes_on(server: Server) -> None:
    server.make_session("main")
    server.execute("print('before', flush=True)\nname = input()\nprint(name)", wait=PATIENCE)
    assert ingle("logs", "main").stdout.splitlines()[-1] == "before"
    with subprocess.Popen([*COMMAND, "logs", "-f", "main"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "before\n":
            pass
        server.client.post("/v1/sessions/main/input", json={"text": "after"})
        assert process.stdout.readline() == "after\n"
        # The end of the session is the end of its log.
        server.client.delete("/v1/sessions/main")
        assert process.wait(PATIENCE) == 0


def test_ctrl_c_ends_following_and_so_does_a_reader_who_has_enough(server: Server) -> None:
    server.make_session("main")
    server.execute("for n in range(100000): print(n)")
    with subprocess.Popen([*COMMAND, "logs", "-f", "main"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("── cell 1")
        process.stdout.close()
        assert process.wait(PATIENCE) == 141
    server.execute("print('the last')")
    with subprocess.Popen([*COMMAND, "logs", "-f", "-n", "1", "main"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("── cell 2")
        while process.stdout.readline() != "the last\n":
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


# config


def test_config_tells_each_setting_and_where_it_comes_from(home: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text('pool = 5\npreload = ["numpy"]\nwait = 3.0\n')
    env = {"INGLE_WAIT": "7", "INGLE_PRELOAD": "pandas,numpy"}
    told = json.loads(ingle("config", "--json", env=env).stdout)
    assert told["data_folder"] == str(home)
    rows = {row["name"]: (row["value"], row["from"]) for row in told["settings"]}
    assert rows["pool"] == (5, str(home / "config.toml"))
    assert rows["wait"] == (7.0, "INGLE_WAIT")
    assert rows["preload"] == (["pandas", "numpy"], "INGLE_PRELOAD")
    assert rows["port"] == (8377, "default")
    shown = ingle("config", env=env).stdout.splitlines()
    assert shown[0] == f"# data folder: {home}"
    assert [line.split() for line in shown if line.startswith("wait ")] == [["wait", "=", '"7s"', "#", "INGLE_WAIT"]]
    code, _, said = outcome("config", env={"INGLE_POOL": "-1"})
    assert (code, "pool is -1" in said) == (2, True)


# Next steps


def test_refusals_name_the_command_that_helps(server: Server) -> None:
    server.make_session("main")
    for more in ([], ["--delete"]):
        assert outcome("load", "nosuch", *more) == (
            2,
            "",
            "ingle: there is no snapshot 'nosuch'; list the snapshots to see which exist "
            "(`ingle load` without a name lists them)\n",
        )
    code, _, said = outcome("load", "--delete")
    assert (code, said.splitlines()[-1]) == (
        2,
        "Error: name the saved session; `ingle load` without anything else lists them",
    )
    assert outcome("rollback", "main")[::2] == (
        2,
        "ingle: session 'main' has no checkpoint; make one first (`ingle checkpoint SESSION NAME` makes one, without a "
        "name it lists them)\n",
    )
    assert outcome("diff", "main", "nosuch")[::2] == (
        2,
        "ingle: session 'main' has no checkpoint 'nosuch': no session and no snapshot has this name either; make one "
        "first (`ingle checkpoint SESSION NAME` makes one, without a name it lists them)\n",
    )
    code, _, said = outcome("stop")
    assert (code, said.splitlines()[-1]) == (
        2,
        "Error: name a session (`ingle ps` lists them), or pass --server to end the whole server",
    )
    assert outcome("run", "-s", "main", "--environment", "data", "1") == (
        2,
        "",
        "ingle: session 'main' exists, and has no environment by name, not 'data'; leave the option out, end the "
        "session first, or use another name\n",
    )


def test_a_busy_session_is_told_with_the_commands_that_help(server: Server) -> None:
    server.make_session("main")
    server.execute("import time; time.sleep(600)", wait=0)
    code, _, said = outcome("checkpoint", "main", "c")
    assert (code, re.sub(r"[\d.]+ s", "… s", said)) == (
        2,
        "ingle: busy: cell 1 has run for … s; wait, or interrupt (`ingle logs -f SESSION` follows it, "
        "`ingle interrupt SESSION` stops it)\n",
    )
    server.client.post("/v1/sessions/main/interrupt", json={})
    network = "held" if os.environ["INGLE_ISOLATION"] == "sandbox" else "allowed"
    name = server.execute("x = 1", trial=True, network=network)["trial"]["name"]
    remedy = "commit or discard it (`ingle commit SESSION`, `ingle discard SESSION`)"
    assert outcome("checkpoint", "main", "c") == (2, "", f"ingle: busy: {name} is open; {remedy}\n")


def test_text_that_was_shown_whole_is_not_told_as_left_out(server: Server) -> None:
    code, shown, told = outcome("run", "-s", "main", "print('x' * 1_000_000)")
    assert (code, shown) == (0, "x" * 1_000_000 + "\n")
    # In a sandbox a sentence about folders stands there.
    assert "left out" not in told


def test_a_limit_that_is_too_high_is_refused_in_the_words_of_its_flag(start: Callable[..., Server]) -> None:
    start("--isolation", "limits", "--pool", "0")
    assert outcome("new", "large", "--memory", "4G")[::2] == (
        2,
        "ingle: the limit memory can only be lowered: 4G is above 2G, the limit of this server; ask for less, or ask "
        "the operator for --limit-memory 4G\n",
    )


@pytest.mark.fresh_service
def test_an_empty_list_says_how_to_fill_it(server: Server) -> None:
    assert outcome("load") == (0, "", "There is no saved session yet; save one with `ingle save SESSION NAME`\n")
    assert outcome("token", "list") == (
        0,
        "",
        "There is no token for others yet; create one with `ingle token new NAME`\n",
    )
    assert server.stop() == 0
    assert outcome("load")[::2] == (
        2,
        "ingle: no service is running; start one with `ingle serve`, or pass --url\n",
    )


def test_a_token_is_made_and_removed_by_the_verbs_of_environments(home: Path) -> None:
    assert outcome("token", "create", "ci")[0] == 0
    assert outcome("token", "ls")[1].startswith("ci ")
    assert outcome("token", "remove", "ci") == (0, "", "")
    assert outcome("token", "ls")[1] == ""
    assert outcome("token", "update")[0] == 2


@pytest.mark.parametrize(
    ("word", "command"), [("sessions", "ps"), ("remove", "stop"), ("snapshots", "load"), ("undo", "rollback")]
)
def test_a_word_that_is_no_command_is_told_the_command_that_is_meant(word: str, command: str) -> None:
    code, _, said = outcome(word)
    assert (code, said.splitlines()[-1]) == (2, f"Error: there is no command {word!r}; did you mean {command!r}?")


def test_what_was_removed_or_written_is_told_to_programs(server: Server, tmp_path: Path) -> None:
    server.make_session("work")
    server.execute("x = 1", "work")

    def told(*args: str) -> Any:
        code, said, _ = outcome(*args, "--json")
        assert code == 0
        return json.loads(said)

    file = tmp_path / "work.py"
    written = told("export", "work", "-o", str(file))
    assert written == {"file": str(file), "format": "py", "bytes": file.stat().st_size}
    code, _, said = outcome("export", "work", "--json")
    assert (code, said.splitlines()[-1]) == (2, "Error: --json tells which file was written; name the file with -o")
    told("save", "work", "calc")
    assert told("load", "calc", "--delete") == {"deleted": "calc"}
    link = told("share", "work")["share"]["share_id"]
    assert told("share", "--revoke", link) == {"deleted": link}
    told("token", "new", "ci")
    assert told("token", "revoke", "ci") == {"deleted": "ci"}


def test_tables_tell_units(server: Server) -> None:
    server.make_session("main")
    server.execute("small = 'abc'; large = bytes(3 << 20)")
    rows = {line.split()[0]: re.split(r"  +", line) for line in ingle("vars", "main").stdout.splitlines()}
    assert re.fullmatch(r"\d+ bytes", rows["small"][3])
    assert rows["large"][3] == "3.0 MiB"
    assert re.search(r"  \d+ MiB  ", ingle("ps").stdout.splitlines()[1])
    assert re.search(r"── cell 1: ok after [\d.]+ m?s$", ingle("logs", "main").stdout, re.MULTILINE)
