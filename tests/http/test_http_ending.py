"""A server that ends, in order or not, and what is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from ingle.http.server import Server as HttpServer
from ingle.http.server import listen
from support.processes import marked_processes
from support.server import PATIENCE, Server
from support.waiting import wait_until

# Starting and ending


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_in_order_and_answers_those_who_wait(
    start: Callable[..., Server], mark: str, number: signal.Signals
) -> None:
    server = start()
    server.make_session()
    server.make_session("idle")
    answers: list[dict[str, Any]] = []

    def wait_on_cell() -> None:
        with server.make_client() as client:
            code = "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nprint('on')\nchild.wait()"
            answers.append(client.post("/v1/sessions/main/execute", json={"code": code, "wait": 600}).json())

    waiting = threading.Thread(target=wait_on_cell)
    waiting.start()
    assert wait_until(lambda: server.client.get("/v1/sessions/main").json()["execution_count"] == 1)
    assert wait_until(lambda: server.cell(1)["stdout"] == "on\n")
    server.process.send_signal(number)
    assert server.process.wait(PATIENCE) == 0
    waiting.join(PATIENCE)
    assert [(answer["status"], answer["stdout"]) for answer in answers] == [("exit", "on\n")]
    assert marked_processes(mark) == []


async def test_a_closed_server_without_connections_ends_without_a_wait() -> None:
    async def answer_nothing(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("nobody asks")

    served = HttpServer(uvicorn.Config(answer_nothing, lifespan="off", log_config=None))
    serving = asyncio.create_task(served.serve(sockets=[listen("127.0.0.1", 0)]))
    await served.listening.wait()
    served.close()
    for _ in range(100):  # Turns of the event loop, in none of which a timer of 0.1 s can end.
        await asyncio.sleep(0)
    assert serving.done()
    await serving


@pytest.mark.fresh_service
def test_a_port_in_use_is_told_in_a_sentence(server: Server) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ingle", "serve", "--port", str(server.port)],
        env={**os.environ, "INGLE_HOME": str(server.home)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        f"ingle: port {server.port} of 127.0.0.1 is in use; stop what listens there, or choose another port with "
        "--port (0 takes any free one)\n"
    )


STRAYS = """
import os, subprocess, sys
subprocess.Popen(["sleep", "600"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
os.wait()
subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; sleep 600 & wait"], start_new_session=True)
print("started", flush=True)
"""


@pytest.mark.req("exit.tree")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_when_the_server_is_killed_all_that_its_sessions_started_is_gone_within_a_second(
    mark: str, apart: Path, method: str
) -> None:
    server = Server(apart, "--start-method", method)
    try:
        for name, then in (("idle", ""), ("busy", "while True: pass"), ("child", "subprocess.run(['sleep', '600'])")):
            server.make_session(name)
            server.execute(STRAYS + then, name, wait=0)
            assert wait_until(lambda name=name: server.cell(1, name)["stdout"] == "started\n")
        before = marked_processes(mark)
        assert len(before) >= 3 * 5 + 1, before
    finally:
        os.kill(server.process.pid, signal.SIGKILL)
        killed = time.monotonic()
    assert wait_until(lambda: not [pid for pid, _ in marked_processes(mark) if pid != server.process.pid], 1.0), (
        time.monotonic() - killed,
        marked_processes(mark),
    )
    assert server.stop() == -signal.SIGKILL

    # The next server on this folder clears away what the killed one left in it.
    following = Server(apart)
    assert following.stop() == 0
    assert [*(apart / "sessions").iterdir(), *(apart / "run").iterdir()] == []


@pytest.mark.req("exit.tree")
def test_nothing_is_left_of_a_killed_server_that_had_not_read_the_last_report_of_a_holder(
    mark: str, apart: Path
) -> None:
    server = Server(apart)
    try:
        server.make_session()
        server.execute("1")
        # An init that is stopped does not see by itself that the server is gone.
        for pid in processes_named(mark, "ingle-init"):
            os.kill(pid, signal.SIGSTOP)
        os.kill(server.process.pid, signal.SIGSTOP)
        for pid in processes_named(mark, "ingle-zygote"):
            # One of them is the next session's init, which ends with the zygote.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # The holder reports the death of its zygote, and sleeps again.
        assert wait_until(lambda: not processes_named(mark, "ingle-zygote"))
        holders = processes_named(mark, "ingle-holder")
        assert wait_until(lambda: {state for pid, state in marked_processes(mark) if pid in holders} == {"S"})
    finally:
        os.kill(server.process.pid, signal.SIGKILL)
    assert server.stop() == -signal.SIGKILL
    assert wait_until(lambda: not marked_processes(mark)), marked_processes(mark)


def processes_named(mark: str, name: str) -> list[int]:
    found = []
    for pid, _ in marked_processes(mark):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.append(pid)
    return found


@pytest.mark.req("exit.tree")
def test_when_a_session_is_ended_all_that_it_started_is_gone(server: Server, mark: str) -> None:
    def strays() -> list[str]:
        names = []
        for pid, _ in marked_processes(mark):
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{pid}/comm").read_text().strip())
        return sorted(name for name in names if name in ("sh", "sleep"))

    server.make_session("other")
    server.make_session("strays")
    server.execute(STRAYS, "strays")
    assert wait_until(lambda: strays() == ["sh", "sleep", "sleep", "sleep"]), strays()
    server.client.delete("/v1/sessions/strays")
    assert strays() == []
    assert server.execute("1", "other")["status"] == "ok"
