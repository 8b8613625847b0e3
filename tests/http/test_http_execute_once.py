"""The endpoint that runs code in an interpreter of its own, and the requests that were written for it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.processes import marked_processes
from support.server import PATIENCE, Server, problem
from support.waiting import wait_until

PATH = "/process/interpreter/execute"


def interpret(server: Server, code: str, **more: Any) -> dict[str, Any]:
    answer = server.client.post(PATH, json={"code": code, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.req("http.seed")
def test_code_runs_isolated_in_the_workspace_and_is_cleaned_up_after(server: Server, mark: str) -> None:
    first = interpret(server, "import os, sys\nx = 5\nprint(x)\nprint('oops', file=sys.stderr)\nopen('kept', 'w')")
    assert (first["status"], first["stdout"], first["stderr"]) == ("ok", "5\n", "oops\n")
    assert set(first) == {"status", "stdout", "stderr", "sessionId"}
    second = interpret(server, "import os\nprint(os.getcwd(), 'x' in globals(), os.path.exists('kept'))")
    folder = server.home / "workspace"
    assert second["stdout"] == f"{folder / '.owner'} False True\n"
    assert second["sessionId"] != first["sessionId"]
    assert wait_until(lambda: server.client.get("/v1/sessions").json() == {"sessions": []})
    interpret(server, "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)")
    assert wait_until(lambda: not [1 for pid, _ in marked_processes(mark) if comm(pid) == "sleep"])


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@pytest.mark.req("http.seed")
def test_every_end_has_its_status(server: Server) -> None:
    failed = interpret(server, "print('before')\n1/0")
    assert (failed["status"], failed["stdout"], failed["error"]["name"]) == ("error", "before\n", "ZeroDivisionError")
    assert "Traceback" in failed["error"]["traceback"]
    stopped = interpret(server, "import time\nprint('on', flush=True)\ntime.sleep(600)", timeout=0.5)
    assert (stopped["status"], stopped["timed_out"], stopped["stdout"]) == ("interrupted", True, "on\n")
    left = interpret(server, "import sys\nsys.exit(3)")
    assert (left["status"], left["exit"]["code"]) == ("exit", 3)
    crashed = interpret(server, "import os\nos.kill(os.getpid(), 9)")
    assert (crashed["status"], crashed["exit"]["signal"]) == ("exit", "SIGKILL")
    assert interpret(server, "def f(:")["error"]["name"] == "SyntaxError"


@pytest.mark.req("http.seed")
def test_variables_are_given_and_nobody_is_waited_for_who_could_answer(server: Server) -> None:
    given = interpret(server, "import os\nprint(os.environ['A'], os.environ['B'])", envs={"A": "1", "B": "two 'words'"})
    assert given["stdout"] == "1 two 'words'\n"
    assert interpret(server, "input('name? ')")["error"]["name"] == "EOFError"
    assert interpret(server, "import os\nprint(os.read(0, 10))")["stdout"] == "b''\n"


@pytest.mark.req("http.seed", "http.problems")
def test_a_bad_request_runs_nothing(server: Server) -> None:
    for body, status, code in (
        ({}, 422, "invalid_request"),
        ({"code": 5}, 422, "invalid_request"),
        ({"code": "1", "timeout": -1}, 422, "invalid_request"),
        ({"code": "1", "language": "R"}, 422, "invalid_request"),
        ({"code": "1", "envs": {"A=": ""}}, 422, "invalid_request"),
    ):
        problem(server.client.post(PATH, json=body), status, code)


EXAMPLES = [
    (
        """curl -X POST 'http://localhost:8000/process/interpreter/execute' -H 'Content-Type: application/json' """
        """-d '{"code": "print(\\"Hello, World!\\")"}'""",
        {"status": "ok", "stdout": "Hello, World!\n", "stderr": ""},
    ),
    (
        """curl -X POST http://localhost:8000/process/interpreter/execute -H "Content-Type: application/json" """
        """-d '{"code": "import os\\nprint(os.environ[\\"API_KEY\\"])", "timeout": 30, "envs": {"API_KEY": "abc"}}'""",
        {"status": "ok", "stdout": "abc\n", "stderr": ""},
    ),
    (
        """curl -X POST http://localhost:8000/process/interpreter/execute -H "Content-Type: application/json" """
        """-d '{"code": "while True: pass", "timeout": 1}'""",
        {"status": "interrupted", "stdout": "", "stderr": ""},
    ),
]


@pytest.mark.req("http.seed")
@pytest.mark.parametrize(("command", "expected"), EXAMPLES)
def test_the_examples_work_with_token_and_port_added(server: Server, command: str, expected: dict[str, str]) -> None:
    command = command.replace("localhost:8000", f"localhost:{server.port}")
    check(f"{command} -s -H 'Authorization: Bearer {server.token}'", expected)


@pytest.mark.req("http.seed")
def test_the_examples_work_as_they_stand_without_a_token_on_port_8000(
    start: Callable[..., Server],
) -> None:
    with socket.socket() as trying:
        trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trying.bind(("127.0.0.1", 8000))
        except OSError:
            pytest.skip("port 8000 is taken on this machine")
    server = start("--no-auth", "--port", "8000")
    for command, expected in EXAMPLES:
        check(f"{command} -s", expected)
    # Whoever needs no token still needs to be no page of another site.
    refused = server.client.post(PATH, json={"code": "1"}, headers={"Origin": "http://evil.example"})
    problem(refused, 403, "forbidden")
    assert not (server.home / "token").exists()


def check(command: str, expected: dict[str, str]) -> None:
    answer = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=True, timeout=PATIENCE, env={**os.environ}
    )
    body = json.loads(answer.stdout)
    assert {key: body[key] for key in expected} == expected


@pytest.mark.req("safe.token")
def test_without_a_token_only_loopback_is_listened_on(tmp_path: Path) -> None:
    import sys

    ended = subprocess.run(
        [sys.executable, "-m", "ingle", "serve", "--no-auth", "--host", "0.0.0.0", "--allowed-hosts", "box.example"],
        env={**os.environ, "INGLE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 2
    assert "must need a token" in ended.stderr
