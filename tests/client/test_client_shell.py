"""Shell commands through the Python client, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ingle import AsyncClient, Client, errors
from ingle.events import Line, Task
from ingle.requests import Limits
from support.cutting_proxy import Cutter
from support.server import Server
from support.waiting import wait_until

pytestmark = pytest.mark.req("shell.fallback")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, server.token) as made:
        yield made


def test_a_command_answers_with_all_it_printed(client: Client) -> None:
    task = client.shell("echo out; echo err >&2; exit 3", env={"A": "1"})
    assert (task.status, task.exit_code, task.stdout, task.stderr) == ("done", 3, "out\n", "err\n")
    assert client.shell("echo $A; cat", env={"A": "1"}, stdin="given").stdout == "1\ngiven"
    assert client.shell("kill -9 $$").signal == "SIGKILL"


def test_a_call_waits_for_the_end_or_as_long_as_it_is_told(client: Client, tmp_path: Path) -> None:
    command = f"echo begun; while ! [ -e {tmp_path}/go ]; do sleep 0.01; done; echo over"
    task = client.shell(command, wait=0)
    assert (task.status, task.exit_code) == ("running", None)
    assert wait_until(lambda: client.shell_status(task.task_id).stdout == "begun\n")
    assert client.shell_status(task.task_id, wait=0.05).status == "running"
    seen = client.shell_status(task.task_id)
    (tmp_path / "go").touch()
    ended = client.shell_status(task.task_id, wait=None, from_event=seen.next_event)
    assert (ended.status, ended.exit_code, ended.stdout) == ("done", 0, "over\n")
    # All of it can be read again.
    assert client.shell_status(task.task_id).stdout == "begun\nover\n"
    assert client.shell_output(task.task_id, grep="ov").lines == [Line(2, "over")]


def test_it_asks_as_often_as_it_takes(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the server would have been asked to wait for longer than proxies let it."""
    turns: list[float] = []
    status = type(client)._status

    def counted(self: Client, task_id: str, turn: float, query: dict[str, str | int | float]) -> Task:
        turns.append(turn)
        if len(turns) == 3:
            (tmp_path / "go").touch()
        return status(self, task_id, turn, query)

    monkeypatch.setattr("ingle.client.address.POLL_SECONDS", 0.05)
    monkeypatch.setattr(type(client), "_status", counted)
    task = client.shell(f"while ! [ -e {tmp_path}/go ]; do sleep 0.01; done; echo over")
    assert (task.stdout, task.status) == ("over\n", "done")
    assert len(turns) >= 3
    assert set(turns) == {0.05}


@pytest.mark.req("shell.manage")
@pytest.mark.fresh_service
def test_tasks_are_managed(client: Client) -> None:
    task = client.shell("cat", interactive=True, wait=0)
    assert client.shell_input(task.task_id, "one\n").status == "running"
    assert wait_until(lambda: client.shell_status(task.task_id).stdout == "one\n")
    assert client.shell_pause(task.task_id).status == "paused"
    assert client.shell_resume(task.task_id).status == "running"
    assert [(each.task_id, each.stdout) for each in client.shell_tasks()] == [(task.task_id, "")]
    client.shell_input(task.task_id, "two\n", eof=True)
    assert client.shell_status(task.task_id, wait=None).stdout == "one\ntwo\n"
    with pytest.raises(errors.TaskOver):
        client.shell_input(task.task_id, "three\n")
    long = client.shell("sleep 600 & sleep 600", wait=0)
    cancelled = client.shell_cancel(long.task_id)
    assert (cancelled.status, cancelled.left_running) == ("cancelled", [])
    stubborn = client.shell("trap 'echo caught; exit 7' INT; while :; do sleep 0.01; done", wait=0.2)
    interrupted = client.shell_interrupt(stubborn.task_id)
    assert (interrupted.stdout, interrupted.exit_code) == ("caught\n", 7)


@pytest.mark.req("shell.bounds")
def test_limits_and_refusals_are_those_of_the_server(client: Client) -> None:
    task = client.shell("head -c 100000 /dev/zero", limits=Limits(output=1000))
    assert task.status == "killed"
    assert "output" in task.notices[0]
    assert client.shell("sleep 600", timeout=0.1).timed_out
    with pytest.raises(errors.TaskNotFound):
        client.shell_status("t000000000000")
    with pytest.raises(errors.InvalidName, match="cannot name a task"):
        client.shell_cancel("../sessions")


@pytest.mark.req("shell.session")
def test_a_command_runs_where_its_session_is(client: Client) -> None:
    with client.session("main") as session:
        session.run("import os; os.mkdir('deep'); os.chdir('deep'); open('file', 'w').close()")
        task = session.shell("ls; basename $PWD")
        assert (task.stdout, task.session_id) == ("file\ndeep\n", "main")
        session.shell("cd /; x=5", shell_session="kept")
        assert session.shell("echo $PWD $x", shell_session="kept").stdout == "/ 5\n"


@pytest.mark.req("cell.once")
def test_a_command_whose_answer_is_lost_is_started_once(mark: str, server: Server, tmp_path: Path) -> None:
    budgets = iter([0, 0, 20])
    with Cutter(server.port, lambda: next(budgets, None)) as cutter, Client(cutter.url, server.token) as client:
        assert client.shell(f"echo ran | tee -a {tmp_path}/runs").stdout == "ran\n"
        assert cutter.cuts == 3
    assert (tmp_path / "runs").read_text() == "ran\n"


async def test_it_is_the_same_with_await(mark: str, server: Server) -> None:
    async with AsyncClient(server.url, server.token) as client, client.session("main") as session:
        assert (await client.shell("echo $((6 * 7))")).stdout == "42\n"
        task = await session.shell("cat", interactive=True, wait=0)
        await client.shell_input(task.task_id, "text", eof=True)
        assert (await client.shell_status(task.task_id, wait=None)).stdout == "text"
        assert [each.status for each in await client.shell_tasks()] == ["done", "done"]
