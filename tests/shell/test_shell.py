"""Shell tasks: what runs, how it is answered, watched, fed, paused and ended."""

import asyncio
import time
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import LeftRunning, Task, TaskOutput, Truncated, Usage
from ingle.output.pages import Line
from ingle.requests import Limits
from ingle.service import Service
from ingle.settings import Settings
from support.processes import MARK, marked_processes
from support.service import make_settings
from support.shell_commands import WAIT, names, until_text
from support.waiting import until, wait_until

pytestmark = pytest.mark.both_levels


def plain(task: Task) -> Task:
    """A task without what differs from run to run."""
    task.task_id, task.execution_time, task.usage, task.created_at = "", 0.0, Usage(), 0.0
    return task


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A command waits for this file with WAIT."""
    return tmp_path / "gate"


# --- answers -----------------------------------------------------------------------------------------------


@pytest.mark.req("shell.fallback", "shell.bounds")
async def test_a_quick_command_answers_with_everything(service: Service) -> None:
    task = await service.shell("echo out; echo err >&2; exit 3")
    assert task.task_id
    assert task.usage.cpu_seconds > 0
    assert 0 < task.execution_time < 60
    assert abs(task.created_at - time.time()) < 60
    assert plain(task) == Task(
        "",
        "echo out; echo err >&2; exit 3",
        "done",
        stdout="out\n",
        stderr="err\n",
        exit_code=3,
        next_event=5,
        next_line=3,
    )


@pytest.mark.req("shell.fallback", "shell.status")
async def test_a_longer_one_goes_on_under_its_id_and_was_started_once(
    service: Service, gate: Path, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    task = await service.shell(f"echo x >> {counter}; echo begun; {WAIT.format(gate=gate)}; echo ended", wait=0.5)
    assert (task.status, task.stdout, task.exit_code) == ("running", "begun\n", None)
    again = await service.shell_status(task.task_id, wait=0)
    assert (again.status, again.stdout, again.next_event) == ("running", "begun\n", task.next_event)
    gate.touch()
    ended = await service.shell_status(task.task_id)
    assert (ended.status, ended.stdout, ended.exit_code) == ("done", "begun\nended\n", 0)
    assert await service.shell_status(task.task_id) == await service.shell_status(task.task_id)
    assert counter.read_text() == "x\n"


@pytest.mark.req("shell.fallback")
async def test_with_no_wait_the_answer_does_not_wait(service: Service, gate: Path) -> None:
    task = await service.shell(WAIT.format(gate=gate), wait=0)
    assert task.status == "running"
    gate.touch()
    assert (await service.shell_status(task.task_id)).status == "done"


@pytest.mark.req("shell.fallback", "cell.once")
async def test_a_caller_that_goes_away_ends_nothing_and_a_retry_runs_nothing_twice(
    service: Service, gate: Path, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    command = f"echo x >> {counter}; {WAIT.format(gate=gate)}; echo ended"
    caller = asyncio.create_task(service.shell(command, request_key="k1"))
    assert await until(counter.exists)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    retries = [asyncio.create_task(service.shell(command, request_key="k1", wait=10)) for _ in range(3)]
    timed_out = await service.shell(command, request_key="k1", wait=0)
    gate.touch()
    answers = [await retry for retry in retries]
    assert {answer.task_id for answer in answers} == {timed_out.task_id}
    assert [(answer.status, answer.stdout) for answer in answers] == [("done", "ended\n")] * 3
    assert counter.read_text() == "x\n"


@pytest.mark.one_machine("counts all tasks, and those of earlier tests are on the agents")
async def test_a_caller_that_goes_away_before_the_start_starts_it_once(service: Service, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    command = f"echo x >> {counter}"
    caller = asyncio.create_task(service.shell(command, request_key="early"))
    await asyncio.sleep(0)
    caller.cancel()
    task = await service.shell(command, request_key="early")
    assert (task.status, counter.read_text()) == ("done", "x\n")
    assert len(await service.shell_tasks()) == 1


async def test_a_key_stands_for_one_request(service: Service) -> None:
    first = await service.shell("echo 1", request_key="k")
    with pytest.raises(errors.KeyReused, match="use a new key"):
        await service.shell("echo 2", request_key="k")
    assert (await service.shell("echo 1", request_key="k")).task_id == first.task_id
    for key in ("", "k" * 256, "\n"):
        with pytest.raises(errors.InvalidRequest, match="1 to 255 printable ASCII characters"):
            await service.shell("echo 1", request_key=key)


async def test_a_key_whose_request_failed_is_free_again(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with pytest.raises(errors.InvalidRequest, match="no folder"):
        await service.shell("pwd", cwd=str(folder), request_key="k")
    folder.mkdir()
    assert (await service.shell("pwd", cwd=str(folder), request_key="k")).stdout == f"{folder}\n"


# --- what is left running ----------------------------------------------------------------------------------


@pytest.mark.req("shell.bounds")
async def test_what_runs_in_the_background_does_not_hold_the_answer_and_is_named(service: Service, gate: Path) -> None:
    task = await service.shell(f"({WAIT.format(gate=gate)}; echo late) & echo begun; exit 4", wait=60)
    assert (task.status, task.stdout, task.exit_code) == ("running", "begun\n", 4)
    assert task.left_running
    listed = {each.task_id: each for each in await service.shell_tasks()}
    assert listed[task.task_id].status == "running"
    gate.touch()
    over = await service.shell_status(task.task_id, wait=60)
    assert (over.status, over.stdout, over.exit_code, over.left_running) == ("done", "begun\nlate\n", 4, [])


async def test_output_of_children_that_end_soon_after_the_shell_is_in_the_answer(service: Service) -> None:
    task = await service.shell("(sleep 0.02; echo soon) & echo begun")
    assert task.stdout == "begun\nsoon\n"


@pytest.mark.req("shell.manage", "exit.tree")
async def test_cancelling_ends_the_whole_tree_with_daemons_that_got_away(service: Service, mark: str) -> None:
    task = await service.shell(
        "setsid sh -c 'trap \"\" HUP; sleep 601 & sleep 602' & nohup sleep 603 >/dev/null 2>&1 & echo begun; wait",
        wait=0,
    )
    assert await until(lambda: names(mark).count("sleep") == 3)
    over = await service.shell_cancel(task.task_id)
    assert (over.status, over.exit_code, over.signal, over.timed_out) == ("cancelled", None, "SIGTERM", False)
    assert names(mark) == []
    assert await service.shell_cancel(task.task_id) == over


async def test_what_was_left_running_can_be_cancelled_after_the_shell_has_ended(service: Service, mark: str) -> None:
    task = await service.shell("sleep 601 & exit 5")
    assert (task.status, task.exit_code) == ("running", 5)
    assert len(task.left_running) == 1
    over = await service.shell_cancel(task.task_id)
    assert (over.status, over.exit_code, over.signal) == ("cancelled", 5, None)
    assert names(mark) == []


# --- ends told apart ---------------------------------------------------------------------------------------


@pytest.mark.req("shell.bounds")
@pytest.mark.parametrize(
    ("command", "timeout", "end"),
    [
        ("exit 7", None, ("done", 7, None, False, [])),
        ("kill -9 $$", None, ("done", None, "SIGKILL", False, [])),
        ("exec sleep 60", 0.2, ("killed", None, "SIGTERM", True, ["stopped at its timeout of 0.2 s"])),
        ("trap 'exit 9' TERM; sleep 60 & wait", 0.2, ("killed", 9, None, True, ["stopped at its timeout of 0.2 s"])),
    ],
)
async def test_exit_codes_signals_and_timeouts_are_told_apart(
    service: Service, command: str, timeout: float | None, end: tuple[object, ...]
) -> None:
    task = await service.shell(command, timeout=timeout, wait=60)
    assert (task.status, task.exit_code, task.signal, task.timed_out, task.notices) == end


class TestStubborn:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, task_grace=0.3)

    @pytest.mark.req("shell.bounds", "shell.manage")
    @pytest.mark.parametrize("how", ["timeout", "cancel"])
    async def test_what_ignores_sigterm_is_killed_after_the_grace(self, service: Service, mark: str, how: str) -> None:
        command = "trap '' TERM; echo begun; sleep 600 & sleep 601"
        if how == "timeout":
            task = await service.shell(command, timeout=0.3, wait=60)
        else:
            task = await service.shell(command, wait=0)
            assert await until(lambda: names(mark).count("sleep") == 2)
            task = await service.shell_cancel(task.task_id)
        first = ["stopped at its timeout of 0.3 s"] if how == "timeout" else []
        assert (task.status, task.signal, task.timed_out, task.notices) == (
            "killed" if how == "timeout" else "cancelled",
            "SIGKILL",
            how == "timeout",
            [*first, "it did not end within 0.3 s of being told to, and was killed"],
        )
        assert names(mark) == []

    async def test_a_stray_that_ignores_sigterm_is_killed_after_its_shell_has_gone(
        self, service: Service, mark: str
    ) -> None:
        task = await service.shell("(trap '' TERM; sleep 600 & wait) & sleep 601", timeout=0.3, wait=60)
        assert (task.status, task.signal, task.timed_out) == ("killed", "SIGTERM", True)
        assert names(mark) == []


# --- pausing, input, terminals -----------------------------------------------------------------------------


def states(mark: str) -> set[str]:
    own = {pid for pid, _ in marked_processes(mark) if not Path(f"/proc/{pid}/comm").read_text().startswith("ingle-")}
    return {state for pid, state in marked_processes(mark) if pid in own}


@pytest.mark.req("shell.manage")
async def test_a_paused_task_stands_still_and_goes_on_when_resumed(service: Service, mark: str, gate: Path) -> None:
    task = await service.shell(f"({WAIT.format(gate=gate)}; echo done) & wait", wait=0)
    assert await until(lambda: "sleep" in names(mark))
    assert (await service.shell_pause(task.task_id)).status == "paused"
    assert await until(lambda: states(mark) == {"T"})
    gate.touch()
    paused = await service.shell_status(task.task_id, wait=0.2)
    assert (paused.status, paused.stdout, states(mark)) == ("paused", "", {"T"})
    assert (await service.shell_resume(task.task_id, wait=10)).stdout == "done\n"
    with pytest.raises(errors.TaskOver, match="has ended"):
        await service.shell_pause(task.task_id)


@pytest.mark.req("shell.manage")
async def test_a_paused_task_can_be_cancelled(service: Service, mark: str) -> None:
    task = await service.shell("sleep 600", wait=0)
    assert await until(lambda: "sleep" in names(mark))
    await service.shell_pause(task.task_id)
    assert await until(lambda: states(mark) == {"T"})
    over = await service.shell_cancel(task.task_id)
    assert (over.status, over.signal, over.notices) == ("cancelled", "SIGTERM", [])


@pytest.mark.req("shell.bounds")
async def test_standard_input_is_empty_unless_it_is_given(service: Service) -> None:
    assert (await service.shell("cat; echo $?")).stdout == "0\n"
    assert (await service.shell("cat; echo .", stdin="α\nβ")).stdout == "α\nβ.\n"
    big = "x" * 5_000_000
    assert (await service.shell("wc -c", stdin=big, wait=60)).stdout.strip() == "5000000"
    assert (await service.shell("true", stdin=big)).exit_code == 0


@pytest.mark.req("shell.manage")
async def test_a_task_with_an_open_input_takes_lines_until_its_end(service: Service) -> None:
    task = await service.shell("while read x; do echo got $x; done; echo end", interactive=True, wait=0)
    await service.shell_input(task.task_id, "one\ntwo\n")
    assert await until_text(service, task.task_id, "got one\ngot two\n")
    over = await service.shell_input(task.task_id, "three\n", eof=True, wait=10)
    assert (over.status, over.stdout) == ("done", "got one\ngot two\ngot three\nend\n")
    with pytest.raises(errors.TaskOver):
        await service.shell_input(task.task_id, "more\n")


async def test_input_for_a_task_without_one_is_refused_in_words(service: Service, gate: Path) -> None:
    task = await service.shell(WAIT.format(gate=gate), wait=0)
    with pytest.raises(errors.InputClosed, match="set interactive or pty at its start"):
        await service.shell_input(task.task_id, "x\n")
    gate.touch()


@pytest.mark.req("shell.manage")
async def test_a_terminal_has_a_size_colour_and_ctrl_c(service: Service) -> None:
    task = await service.shell(
        "test -t 0 -a -t 1 -a -t 2 && echo tty $TERM; stty size; trap 'echo caught; exit 3' INT; "
        "read -p 'size? ' x; stty size; read y; sleep 600 & wait",
        pty=True,
        size=(30, 100),
        wait=0,
    )
    assert await until_text(service, task.task_id, "tty xterm-256color\r\n30 100\r\nsize? ")
    await service.shell_resize(task.task_id, 40, 120)
    await service.shell_input(task.task_id, "go\n")
    assert await until_text(service, task.task_id, "tty xterm-256color\r\n30 100\r\nsize? go\r\n40 120\r\n")
    over = await service.shell_input(task.task_id, "\x03", wait=10)
    assert (over.exit_code, over.stderr) == (3, "")
    assert over.stdout.endswith("^Ccaught\r\n")
    assert (await service.shell_cancel(task.task_id)).left_running == []
    with pytest.raises(errors.TaskOver):
        await service.shell_resize(task.task_id, 1, 1)


async def test_the_end_of_input_on_a_terminal_is_a_key(service: Service) -> None:
    task = await service.shell("cat; echo end", pty=True, wait=0)
    over = await service.shell_input(task.task_id, "line\n", eof=True, wait=10)
    assert over.stdout == "line\r\nline\r\nend\r\n"


# --- usage and limits --------------------------------------------------------------------------------------


@pytest.mark.req("shell.manage")
async def test_usage_is_told_while_it_runs_and_after(service: Service, gate: Path) -> None:
    burn = (
        "b = bytearray(60_000_000); from time import process_time as now; t = now()\n"
        "while now() - t < 0.3: pass\ninput()"
    )
    task = await service.shell(f"python3 -c '{burn}'", interactive=True, wait=0)
    seen = Usage()
    for _ in range(1000):
        seen = (await service.shell_status(task.task_id, wait=0)).usage
        if seen.cpu_seconds >= 0.3:
            break
        await asyncio.sleep(0.02)
    assert seen.cpu_seconds >= 0.3
    assert seen.memory >= 60_000_000
    over = await service.shell_input(task.task_id, "\n", wait=10)
    assert over.usage.cpu_seconds >= seen.cpu_seconds
    assert over.usage.memory >= 60_000_000
    # The next task, below the same init, begins with nothing used.
    following = await service.shell("read x", interactive=True, wait=0)
    assert (await service.shell_status(following.task_id, wait=0.1)).usage.cpu_seconds < 0.3
    assert (await service.shell_input(following.task_id, "\n", wait=10)).usage.cpu_seconds < 0.3


@pytest.mark.req("shell.bounds")
@pytest.mark.parametrize(
    ("command", "limits", "notice"),
    [
        (
            "python3 -c 'b = bytearray(300_000_000); input()'; true",
            Limits(memory=100_000_000),
            "killed: its memory of ",
        ),
        ("while :; do :; done", Limits(cpu_seconds=0.2), "killed: its CPU time of "),
        ("for i in 1 2 3 4 5 6 7 8; do sleep 600 & done; wait", Limits(processes=5), "killed: it had more than 5 proc"),
        ("yes", Limits(output=100_000), "killed: its output passed the limit of 100000 bytes"),
    ],
)
async def test_a_limit_that_is_passed_is_named_and_ends_it(
    service: Service, mark: str, command: str, limits: Limits, notice: str
) -> None:
    task = await service.shell(command, limits=limits, interactive=True, wait=60)
    assert (task.status, task.signal, task.exit_code) == ("killed", "SIGKILL", None)
    assert [text[: len(notice)] for text in task.notices[:1]] == [notice]
    assert names(mark) == []
    if limits.output:
        assert len(task.stdout) == 100_000


@pytest.mark.req("shell.bounds")
async def test_limits_on_files_are_the_programs_own_errors(service: Service, tmp_path: Path) -> None:
    task = await service.shell("ulimit -n; ulimit -f", limits=Limits(files=50, file_size=10240))
    assert task.stdout == "50\n10\n"
    big = await service.shell(f"exec head -c 20000 /dev/zero > {tmp_path}/big", limits=Limits(file_size=10240))
    assert (big.status, big.signal, big.notices) == (
        "done",
        "SIGXFSZ",
        ["a file it wrote passed the limit of 10240 bytes"],
    )
    # They do not hold for the next one.
    assert (await service.shell("ulimit -n")).stdout != "50\n"


@pytest.mark.parametrize("limits", [Limits(memory=0), Limits(processes=-1), Limits(cpu_seconds=float("nan"))])
async def test_a_limit_that_cannot_be_is_refused(service: Service, limits: Limits) -> None:
    with pytest.raises(errors.InvalidRequest, match="must be more than 0"):
        await service.shell("true", limits=limits)


# --- reading -----------------------------------------------------------------------------------------------


@pytest.mark.req("shell.status", "wait.cursor")
async def test_reading_from_an_event_or_a_line_takes_up_where_it_was_and_changes_nothing(service: Service) -> None:
    command = "printf 'a\\nb\\nhal'; read x; printf 'f\\nc\\n'; echo err >&2; read x; echo last"
    task = await service.shell(command, interactive=True, wait=0)
    assert await until_text(service, task.task_id, "a\nb\nhal")
    first = await service.shell_status(task.task_id, wait=0)
    assert first.next_line == 3
    await service.shell_input(task.task_id, "\n")
    assert await until_text(service, task.task_id, "a\nb\nhalf\nc\n")
    for _ in range(2):
        by_event = await service.shell_status(task.task_id, wait=0, from_event=first.next_event)
        by_line = await service.shell_status(task.task_id, wait=0, from_line=first.next_line)
        assert (by_event.stdout, by_line.stdout) == ("f\nc\n", "half\nc\n")
    await service.shell_input(task.task_id, "\n", wait=10)
    for _ in range(2):
        rest = await service.shell_status(task.task_id, from_line=by_line.next_line, from_event=by_event.next_event)
        assert rest.stdout == "last\n"
    whole = await service.shell_status(task.task_id, from_line=1)
    assert (whole.stdout, whole.stderr, whole.next_line) == ("a\nb\nhalf\nc\nlast\n", "err\n", 7)
    beyond = await service.shell_status(task.task_id, from_line=99)
    assert (beyond.stdout, beyond.stderr, beyond.next_line) == ("", "", 7)


@pytest.mark.req("shell.status")
async def test_any_line_of_a_long_output_can_be_begun_with(service: Service) -> None:
    task = await service.shell("seq 1 200000", wait=60)
    assert task.next_line == 200_001
    for line in (2, 777, 100_000, 199_999, 200_000):
        got = await service.shell_status(task.task_id, from_line=line)
        assert got.stdout.startswith(f"{line}\n{line + 1}\n" if line < 200_000 else "200000\n")
        assert len(got.stdout) + got.truncated.stdout == sum(len(str(n)) + 1 for n in range(line, 200_001))


@pytest.mark.req("shell.bounds", "out.bounded")
async def test_long_output_is_answered_with_head_and_tail_and_read_by_line(service: Service) -> None:
    task = await service.shell("seq 1 300000", wait=60)
    total = sum(len(str(n)) + 1 for n in range(1, 300_001))
    assert task.truncated == Truncated(total - 200_000, 0)
    assert (task.stdout[:4], task.stdout[-14:]) == ("1\n2\n", "299999\n300000\n")
    assert task.notices == [
        f"{total - 200_000} characters of stdout were left out after the first 70000; "
        f"read them by line number or by grep in the output of task {task.task_id}"
    ]
    page = await service.shell_output(task.task_id, from_line=150_000, lines=2)
    assert page == TaskOutput(task.task_id, "stdout", [Line(150_000, "150000"), Line(150_001, "150001")], 150_002)
    found = await service.shell_output(task.task_id, grep="^29999[89]$")
    assert [line.number for line in found.lines] == [299_998, 299_999]


async def test_the_events_of_a_task_come_as_they_happen_and_end_with_it(service: Service, gate: Path) -> None:
    task = await service.shell(f"echo one; {WAIT.format(gate=gate)}; echo two >&2", wait=0)
    seen = []
    async for event in service.shell_events(task.task_id):
        seen.append((type(event).__name__, getattr(event, "text", getattr(event, "state", None))))
        if seen[-1] == ("Stdout", "one\n"):
            gate.touch()
    assert seen == [
        ("StateChanged", "running"),
        ("Stdout", "one\n"),
        ("Stderr", "two\n"),
        ("StateChanged", "done"),
    ]


class TestKept:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, tasks_kept=3, max_tasks=2)

    @pytest.mark.req("shell.status", "shell.manage")
    async def test_tasks_that_ended_are_kept_up_to_a_number(self, service: Service, gate: Path) -> None:
        running = await service.shell(WAIT.format(gate=gate), wait=0)
        ids = [(await service.shell(f"echo {n}")).task_id for n in range(5)]
        assert [task.task_id for task in await service.shell_tasks()] == [running.task_id, *ids[2:]]
        assert (await service.shell_status(ids[2])).stdout == "2\n"
        with pytest.raises(errors.TaskNotFound, match="removed"):
            await service.shell_status(ids[1])
        gate.touch()

    async def test_more_tasks_at_once_than_allowed_are_refused(self, service: Service, gate: Path) -> None:
        for _ in range(2):
            await service.shell(WAIT.format(gate=gate), wait=0)
        with pytest.raises(errors.TooManyTasks, match="raise max_tasks"):
            await service.shell("true")
        gate.touch()


class TestAged:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, task_age=0.5)

    @pytest.mark.req("shell.status")
    async def test_tasks_that_ended_long_ago_are_forgotten(self, service: Service) -> None:
        task = await service.shell("echo 1")
        assert (await service.shell_status(task.task_id)).stdout == "1\n"
        for _ in range(1000):
            if not await service.shell_tasks():
                break
            await asyncio.sleep(0.02)
        with pytest.raises(errors.TaskNotFound):
            await service.shell_status(task.task_id)


# --- where it runs -----------------------------------------------------------------------------------------


@pytest.mark.req("shell.session")
async def test_without_a_session_it_runs_in_the_shell_folder_with_the_servers_environment_but_no_secrets(
    service: Service, home: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGLE_TOKEN", "secret")
    task = await service.shell(f"pwd; echo $PWD; echo ${MARK} $ONE; env | grep -c ^INGLE_", env={"ONE": "1 'two'"})
    assert task.stdout == f"{home}/shell\n{home}/shell\n{mark} 1 'two'\n0\n"


@pytest.mark.req("shell.session")
async def test_in_a_session_it_runs_in_its_present_folder_and_environment(service: Service, tmp_path: Path) -> None:
    await service.create_session("s", env={"FROM": "session", "OVER": "session"})
    info = await service.get_session("s")
    task = await service.shell("pwd; echo $FROM $OVER", session_id="s", env={"OVER": "call"})
    assert (task.stdout, task.session_id) == (f"{info.cwd}\nsession call\n", "s")
    await service.execute("s", "import os; os.mkdir('sub'); os.chdir('sub')")
    assert (await service.shell("pwd", session_id="s")).stdout == f"{info.cwd}/sub\n"
    assert (await service.shell("pwd", session_id="s", cwd="..")).stdout == f"{info.cwd}\n"
    with pytest.raises(errors.SessionNotFound):
        await service.shell("pwd", session_id="nobody")


@pytest.mark.req("shell.session", "exit.tree")
async def test_a_sessions_tasks_end_with_it(service: Service, mark: str) -> None:
    await service.create_session("s")
    task = await service.shell("sleep 600 & sleep 601", session_id="s", wait=0)
    other = await service.shell("sleep 602", wait=0)
    assert await until(lambda: names(mark).count("sleep") == 3)
    await service.end_session("s")
    over = await service.shell_status(task.task_id)
    assert (over.status, over.notices) == ("killed", ["killed: its session was ended"])
    assert (await service.shell_status(other.task_id, wait=0)).status == "running"
    assert names(mark).count("sleep") == 1


@pytest.mark.req("exit.tree")
async def test_tasks_end_with_the_service(mark: str, home: Path, settings: Settings) -> None:
    async with Service.local(settings, home) as service:
        task = await service.shell("setsid sleep 600 & sleep 601", wait=0)
        assert await until(lambda: names(mark).count("sleep") == 2)
        waiting = asyncio.create_task(service.shell_status(task.task_id, wait=60))
        await asyncio.sleep(0)
    assert (await waiting).status == "killed"
    assert wait_until(lambda: not marked_processes(mark))


async def test_left_running_names_processes_with_their_commands(service: Service) -> None:
    task = await service.shell("sleep 600 & echo $!")
    left = task.left_running
    for _ in range(500):
        # Between fork and exec it still has the shell's name.
        if left and left[0].command == "sleep 600":
            break
        left = (await service.shell_status(task.task_id, wait=0)).left_running
        await asyncio.sleep(0.01)
    assert left == [LeftRunning(int(task.stdout), "sleep 600")]
