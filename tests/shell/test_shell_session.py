"""Persistent shells: `cd`, variables and functions last; the end of each command is known exactly, whatever it does."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from ingle import errors
from ingle.events import Task
from ingle.requests import Limits
from ingle.service import Service
from ingle.settings import Settings
from ingle.shell.persistent_shell import PersistentShell
from ingle.shell.task_process import TaskProcess
from ingle.shell.turn import State
from ingle.workers.io.descriptors import unread
from ingle_worker.wire import messages
from support.internals import persistent_shells, until_prepared
from support.service import make_settings
from support.shell_commands import WAIT, names, until_text
from support.waiting import until

pytestmark = pytest.mark.both_levels


async def run(service: Service, command: str, **how: object) -> Task:
    return await service.shell(command, **{"shell_session": "main", "wait": 60, **how})  # type: ignore[arg-type]


def outcome(task: Task) -> tuple[str, str, str, int | None]:
    return task.status, task.stdout, task.stderr, task.exit_code


FRESH = "and its folder, variables and functions are gone"


def told_fresh(task: Task) -> bool:
    return any(notice.startswith("this is a fresh shell") and notice.endswith(FRESH) for notice in task.notices)


async def test_folder_variables_functions_and_options_last(service: Service, tmp_path: Path) -> None:
    first = await run(
        service, f"cd {tmp_path}; export A='1  2'; b=3; f() {{ echo f $1; }}; shopt -s extglob; echo made"
    )
    assert (first.shell_session, outcome(first)) == ("main", ("done", "made\n", "", 0))
    assert outcome(await run(service, 'pwd; echo "$A"; echo $b; f x; env | grep ^A=; shopt extglob')) == (
        "done",
        f"{tmp_path}\n1  2\n3\nf x\nA=1  2\nextglob        \ton\n",
        "",
        0,
    )
    other = await service.shell("pwd; echo $b", shell_session="other")
    assert other.stdout != first.stdout
    assert other.stdout.endswith("/shell\n\n")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("true", ("", "", 0)),
        ("false", ("", "", 1)),
        ("(exit 42)", ("", "", 42)),
        ("echo a; echo b >&2; echo c", ("a\nc\n", "b\n", 0)),
        ("echo 'unbalanced", ("", "bash: unexpected EOF while looking for matching `''\n", 2)),
        ("for i in 1 2; do\n echo $i\ndone\n\n# comment", ("1\n2\n", "", 0)),
        ("cat <<X\n$((1 + 1))\nX", ("2\n", "", 0)),
        ("cat; read x; echo read $?", ("read 1\n", "", 0)),
        ("exec >/dev/null; echo hidden", ("", "", 0)),
        ("exec 2>/dev/null; nosuch; exec 3>&1; echo shown", ("shown\n", "", 0)),
        ("trap 'echo dbg' DEBUG; :; trap - DEBUG", ("dbg\ndbg\n", "", 0)),
        ("trap 'echo failed' ERR; false; trap - ERR", ("failed\n", "", 0)),
        ("echo no newline at the end | tr -d '\\n'", ("no newline at the end", "", 0)),
        ("printf '\\xff\\xfe\\x00'", ("\\xff\\xfe␀", "", 0)),
        ("echo \"wait!now\" '!!'", ("wait!now !!\n", "", 0)),
        ("set -u; echo $nothing; echo not reached", ("", "bash: nothing: unbound variable\n", 1)),
        ("echo ${nothing:?is not set}; echo not reached", ("", "bash: nothing: is not set\n", 1)),
        ("set -x; echo traced", ("traced\n", "++ echo traced\n", 0)),
        ("set -v; echo x", ("x\n", "", 0)),
        ("kill -INT $$; echo not reached", ("", "", 130)),
        ("IFS=,; x=a,b; echo $x", ("a b\n", "", 0)),
        ("alias hello='echo aliased'\nhello", ("aliased\n", "", 0)),
        ("x='" + "y" * 300_000 + "'; echo ${#x}", ("300000\n", "", 0)),
        ("echo 'quote'\"'\"'s' \\\\ `echo tick` $(echo sub)", ("quote's \\ tick sub\n", "", 0)),
    ],
)
async def test_a_command_is_answered_exactly_and_leaves_the_shell_usable(
    service: Service, command: str, expected: tuple[str, str, int]
) -> None:
    await run(service, "kept=yes")
    assert outcome(await run(service, command)) == ("done", *expected)
    after = await run(service, "set +xvu; echo $kept; echo to stderr >&2")
    assert (after.status, after.stdout, after.exit_code, after.notices) == ("done", "yes\n", 0, [])
    assert after.stderr.endswith("to stderr\n")


@pytest.mark.parametrize(
    ("command", "end"),
    [
        ("exit 7", (7, None)),
        ("set -e; false; echo not reached", (1, None)),
        ("kill -9 $$", (None, "SIGKILL")),
        ("exec true", (0, None)),
        ("exec sh -c 'exit 9'", (9, None)),
    ],
)
async def test_a_command_that_ends_the_shell_is_told_and_the_next_begins_in_a_fresh_one(
    service: Service, command: str, end: tuple[int | None, str | None]
) -> None:
    await run(service, "kept=yes; cd /")
    task = await run(service, f"echo before; {command}")
    assert (task.status, task.stdout, task.exit_code, task.signal) == ("done", "before\n", *end)
    assert task.notices == ["the shell 'main' ended with this command; the next one begins in a fresh shell"]
    fresh = await run(service, "echo $kept; pwd")
    assert fresh.stdout.startswith("\n")
    assert fresh.stdout.endswith("/shell\n")
    assert told_fresh(fresh)
    assert not told_fresh(await run(service, "true"))


async def test_input_can_be_given_and_is_never_the_control_channel(service: Service) -> None:
    assert outcome(await run(service, "cat; echo .", stdin="given\ntext")) == ("done", "given\ntext.\n", "", 0)
    assert outcome(await run(service, "cat <&0; bash -c 'cat; echo child'")) == ("done", "child\n", "", 0)
    with pytest.raises(errors.InvalidRequest, match="no open input"):
        await run(service, "cat", interactive=True)


async def test_a_second_command_while_one_runs_is_refused_and_runs_nothing(service: Service, tmp_path: Path) -> None:
    gate, counter = tmp_path / "gate", tmp_path / "counter"
    task = await run(service, f"echo x >> {counter}; {WAIT.format(gate=gate)}; echo ended", wait=0)
    for _ in range(3):
        with pytest.raises(errors.Busy, match=f"busy: task {task.task_id} has run in the shell 'main' for .* s; wait"):
            await run(service, f"echo x >> {counter}")
    gate.touch()
    assert outcome(await service.shell_status(task.task_id, wait=60)) == ("done", "ended\n", "", 0)
    assert counter.read_text() == "x\n"
    assert (await run(service, "echo free")).stdout == "free\n"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 600; echo not reached",
        "while :; do :; done; echo not reached",
        "sleep 600 | sleep 600; echo not reached",
        "(sleep 600; echo not reached); echo not reached",
        "read x < <(sleep 600); echo not reached",
    ],
)
@pytest.mark.parametrize("how", ["interrupt", "timeout", "cancel"])
async def test_one_command_is_stopped_and_the_shell_lives(service: Service, mark: str, command: str, how: str) -> None:
    await run(service, "kept=yes; cd /")
    task = await run(service, f"echo begun; {command}", wait=0, timeout=0.3 if how == "timeout" else None)
    assert await until_text(service, task.task_id, "begun\n")
    # All of it is there: bash that is hit while it makes a pipeline gives up that pipeline only.
    assert how == "timeout" or await until(lambda: names(mark).count("sleep") == command.count("sleep"))
    if how == "interrupt":
        over = await service.shell_interrupt(task.task_id, wait=60)
    elif how == "cancel":
        over = await service.shell_cancel(task.task_id, wait=60)
    else:
        over = await service.shell_status(task.task_id, wait=60)
    status = {"interrupt": "done", "timeout": "killed", "cancel": "cancelled"}[how]
    assert (over.status, over.stdout, over.exit_code) == (status, "begun\n", 130)
    assert over.timed_out == (how == "timeout")
    after = await run(service, "echo $kept; pwd")
    assert (after.stdout, after.notices) == ("yes\n/\n", [])


async def test_an_interrupt_at_any_moment_stops_its_command_and_no_other(service: Service) -> None:
    await run(service, "kept=yes")
    for n in range(60):
        task = await run(service, "echo begun; sleep 600; echo not reached", wait=0)
        await asyncio.sleep(0.0003 * (n % 15))
        for _ in range(n % 3 + 1):
            await service.shell_interrupt(task.task_id, wait=0)
        over = await service.shell_status(task.task_id, wait=60)
        if over.status == "running":
            over = await service.shell_status(task.task_id, wait=60)
        assert (over.status, over.exit_code, over.stdout in ("", "begun\n")) == ("done", 130, True), (n, over)
        after = await run(service, "echo $kept")
        assert outcome(after) == ("done", "yes\n", "", 0), (n, after)


async def test_an_interrupt_reaches_a_program_that_was_slow_in_the_making(service: Service, tmp_path: Path) -> None:
    """What bash has forked is bash until it becomes a program: it catches SIGINT, and the program learns nothing."""
    gate = tmp_path / "gate"
    await run(service, "kept=yes")
    making = f"trap : INT; echo begun; until [ -e {gate} ]; do :; done; exec sleep 600"
    task = await run(service, f"({making}); echo not reached", wait=0)
    assert await until_text(service, task.task_id, "begun\n")
    await service.shell_interrupt(task.task_id, wait=0)
    (shell,) = persistent_shells(service)
    # All that was sent has landed, by init's word.
    assert await until(lambda: shell.bash is None or not shell.bash.signals)
    gate.touch()
    over = await service.shell_status(task.task_id, wait=20)
    assert outcome(over) == ("done", "begun\n", "", 130)
    assert outcome(await run(service, "echo $kept")) == ("done", "yes\n", "", 0)


async def test_an_interrupt_that_comes_too_late_hurts_nothing(service: Service) -> None:
    await run(service, "kept=yes")
    for n in range(30):
        task = await run(service, f"sleep 0.00{n % 10}; echo {n}", wait=0)
        for _ in range(n % 4 + 1):
            await service.shell_interrupt(task.task_id, wait=0)
            await asyncio.sleep(0.002 * (n % 3))
        over = await service.shell_status(task.task_id, wait=60)
        assert (over.status, over.exit_code in (0, 130)) == ("done", True), over
        assert outcome(await run(service, "echo $kept")) == ("done", "yes\n", "", 0)


class TestStubborn:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, task_grace=0.3)

    async def test_one_that_does_not_stop_costs_the_shell_and_says_so(self, service: Service, mark: str) -> None:
        await run(service, "kept=yes")
        task = await run(service, "trap '' INT; while :; do sleep 0.1; done", timeout=0.3)
        assert (task.status, task.timed_out) == ("killed", True)
        assert task.notices == [
            "stopped at its timeout of 0.3 s",
            "it did not end within 0.3 s of being told to, and was killed",
            "the shell 'main' ended with this command; the next one begins in a fresh shell",
        ]
        assert names(mark) == []
        assert told_fresh(await run(service, "true"))


@pytest.mark.req("shell.bounds")
async def test_a_limit_that_a_persistent_shell_cannot_keep_is_refused(service: Service) -> None:
    for limits in (Limits(memory=10**9), Limits(processes=5, output=10), Limits(cpu_seconds=1.0)):
        with pytest.raises(errors.InvalidRequest, match="can be limited in its output only"):
            await service.shell("true", shell_session="s", limits=limits)
    task = await service.shell("true", shell_session="s", limits=Limits(output=1000))
    assert (task.status, task.exit_code) == ("done", 0)


async def test_background_jobs_write_to_their_own_task_and_belong_to_the_shell(
    service: Service, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = await run(service, f"({WAIT.format(gate=gate)}; echo late; echo err >&2) & job=$!")
    assert (first.status, first.exit_code, bool(first.left_running)) == ("running", 0, True)
    second = await run(service, "sleep 600 >/dev/null 2>&1 & echo $!")
    pid = int(second.stdout)
    assert (second.status, [left.pid for left in second.left_running]) == ("done", [pid])
    gate.touch()
    waited = await run(service, "wait $job; echo waited; kill %2 2>/dev/null; kill $! ; wait 2>/dev/null")
    assert waited.stdout == "waited\n"
    over = await service.shell_status(first.task_id, wait=60)
    assert (over.status, over.stdout, over.stderr.splitlines()[-1]) == ("done", "late\n", "err")


@pytest.mark.level("none", "elsewhere the shell's init is waited for before anything is sent to the shell")
async def test_what_a_first_command_leaves_is_known_though_bash_is_quicker_than_its_init(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = TaskProcess._on_init
    told: list[asyncio.Task[None]] = []

    def handle_late(process: TaskProcess, message: object) -> None:
        if isinstance(message, messages.InitUp) and message.worker:
            told.append(asyncio.create_task(tell(process, message)))
        else:
            handle(process, message)

    async def tell(process: TaskProcess, message: messages.InitUp) -> None:
        """Once bash has said that the command began and that it ended."""
        shell = process.owner
        assert isinstance(shell, PersistentShell)
        bash = shell.bash
        assert bash is not None
        begun = len(f"{bash.token} 1 begun\n")
        assert await until(lambda: shell.turn and (shell.turn.state is State.REPORTED or unread(bash.reports) > begun))
        handle(process, message)

    monkeypatch.setattr(TaskProcess, "_on_init", handle_late)
    first = await run(service, "sleep 600 &")
    assert (first.status, len(first.left_running)) == ("running", 1)
    assert len(told) == 1


async def test_cancelling_what_a_command_left_spares_the_shell_and_later_commands(
    service: Service, mark: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    first = await run(service, "kept=yes; sleep 600 &")
    assert first.status == "running"
    second = await run(service, f"echo begun; {WAIT.format(gate=gate)}; echo ended", wait=0)
    assert await until_text(service, second.task_id, "begun\n")
    over = await service.shell_cancel(first.task_id, wait=60)
    assert (over.status, over.exit_code) == ("cancelled", 0)
    gate.touch()
    assert (await service.shell_status(second.task_id, wait=60)).stdout == "begun\nended\n"
    assert (await run(service, "echo $kept")).stdout == "yes\n"
    assert await until(lambda: names(mark) == ["bash"])


@pytest.mark.req("out.bounded")
async def test_much_output_comes_whole_through_a_persistent_shell(service: Service) -> None:
    task = await run(service, "seq 1 500000; echo end >&2")
    assert (task.status, task.stderr, task.next_line) == ("done", "end\n", 500_002)
    assert len(task.stdout) + task.truncated.stdout == sum(len(str(n)) + 1 for n in range(1, 500_001))


@pytest.mark.req("shell.session")
async def test_a_persistent_shell_of_a_session_lives_in_its_folder_and_ends_with_it(
    service: Service, mark: str
) -> None:
    await service.create_session("s", env={"FROM": "session"})
    cwd = (await service.get_session("s")).cwd
    task = await service.shell("pwd; echo $FROM; sleep 600 >/dev/null & mine=1", session_id="s", shell_session="main")
    assert task.stdout == f"{cwd}\nsession\n"
    assert outcome(await run(service, "echo $mine"))[:2] == ("done", "\n")
    await service.end_session("s")
    assert await until(lambda: names(mark) == ["bash"])


async def test_a_persistent_shell_can_be_ended(service: Service, mark: str) -> None:
    task = await run(service, "sleep 600", wait=0)
    assert await until(lambda: "sleep" in names(mark))
    assert await service.shell_end("main") is True
    assert (await service.shell_status(task.task_id)).status == "killed"
    assert (await service.shell_end("main"), names(mark)) == (False, [])
    assert (await run(service, "echo again")).stdout == "again\n"


async def test_a_shell_that_is_killed_between_commands_is_replaced_and_nothing_runs_twice(
    service: Service, mark: str, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    pid = int((await run(service, f"echo x >> {counter}; echo $$")).stdout)
    # By a command beside it, which calls it by the same number.
    assert (await service.shell(f"kill -9 {pid}")).exit_code == 0
    assert await until(lambda: "bash" not in names(mark))
    after = await run(service, f"echo x >> {counter}; echo $$")
    if (after.status, after.signal) == ("done", None):
        assert told_fresh(after)
        assert counter.read_text() == "x\nx\n"
    else:
        # It died in the very moment, as far as the host could see: told, not tried again.
        assert "killed" in after.status or after.signal == "SIGKILL"
        assert counter.read_text() == "x\n"
    assert (await run(service, "echo fine")).stdout == "fine\n"


COUNT_OWN = "set -- /proc/$$/fd/*; echo $#"
"""By bash itself: a pipeline's first program may look before bash has let go of the pipe, or after it."""


async def test_descriptors_and_files_do_not_grow_with_commands(service: Service, home: Path) -> None:
    await run(service, "true")
    await until_prepared(service)

    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), sum(1 for _ in home.rglob("sessions/*/shell-*/*"))

    assert await until(lambda: held()[1] == 0)
    before = held()
    inside = (await run(service, COUNT_OWN)).stdout
    for n in range(50):
        assert (await run(service, f"echo {n} >&2")).stderr == f"{n}\n"
    assert await until(lambda: held() <= before)
    assert (await run(service, COUNT_OWN)).stdout == inside


@pytest.mark.parametrize("what", ["pipe", "open"])
async def test_where_descriptors_run_out_it_is_said_and_none_is_lost(
    service: Service, home: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(service, "true", shell_session="other")  # what is made once
    await until_prepared(service)
    assert await until(lambda: not list(home.rglob("sessions/*/shell-*/*")))
    before, calls, real = len(os.listdir("/proc/self/fd")), 0, getattr(os, what)

    def run_out(*args: Any, **more: Any) -> Any:
        nonlocal calls
        if what == "open" and not str(args[0]).endswith(("/out", "/err")):
            return real(*args, **more)
        calls += 1
        if calls == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, what, run_out)
        with pytest.raises(errors.StartFailed, match="Too many open files; raise the limit of open files"):
            await run(service, "echo never", shell_session="main" if what == "pipe" else "other")
    assert await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert await until(lambda: not list(home.rglob("sessions/*/shell-*/*")))
    assert (await run(service, "echo fine", shell_session="other")).stdout == "fine\n"


@pytest.mark.req("cell.once")
async def test_no_command_of_a_persistent_shell_runs_twice(service: Service, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    for n in range(5):
        command = f"echo {n} >> {counter}; sleep 0.05"
        answers = [run(service, command, request_key=f"k{n}", wait=0.01 * i) for i in range(4)]
        tasks = await asyncio.gather(*answers)
        assert len({task.task_id for task in tasks}) == 1
        assert (await service.shell_status(tasks[0].task_id, wait=60)).status == "done"
    assert counter.read_text().split() == ["0", "1", "2", "3", "4"]
