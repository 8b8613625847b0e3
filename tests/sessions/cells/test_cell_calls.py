"""Calling cells: environment for one, busy sessions, queues, one-off code; and nothing ever runs twice."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import pytest

from ingle import errors
from ingle.service import Service
from ingle.sessions.cells.runner import CellRunner
from ingle.sessions.process.exclusive import ExclusiveWorker
from ingle.settings import Settings
from ingle.workers.worker import Worker
from support.internals import session_folders, session_of
from support.service import make_settings
from support.waiting import until

pytestmark = pytest.mark.both_levels


class Gate:
    """Code that waits for the test, and says when it does."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self.reached, self.opened = folder / f"{name} reached", folder / f"{name} opened"
        self.code = (
            f"import os, time\nopen({str(self.reached)!r}, 'w').close()\n"
            f"while not os.path.exists({str(self.opened)!r}): time.sleep(0.002)\n"
        )

    async def wait(self) -> None:
        assert await until(self.reached.exists)

    def open(self) -> None:
        self.opened.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


class Counter:
    """A file that gets a line whenever the code runs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def code(self, word: str = "ran") -> str:
        return f"with open({str(self.path)!r}, 'a') as f: f.write({word + chr(10)!r})\n"

    @property
    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(tmp_path / "count")


# --- environment of one cell ---

VALUES = {
    "GIVEN_LINES": "one\ntwo\r\n\n  three\n",
    "GIVEN_QUOTES": "'\"\"\"'''\\ \\n $HOME `id` %s {x} # ; '",
    "GIVEN_UNICODE": "größe 中 \U0001f600 \u202e",
    "GIVEN_CONTROL": "\x01\x1b[31m\x7f",
    "GIVEN_EMPTY": "",
    "GIVEN_LONG": "x" * 50_000,
    "GIVEN weird-näme.1": "weird",
}


@pytest.mark.req("cell.envs")
async def test_variables_of_a_cell_have_any_characters_and_reach_children(run) -> None:
    code = """
import json, os, subprocess, sys
show = "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('GIVEN')}))"
exec(show)
print(subprocess.run([sys.executable, "-c", show], capture_output=True, text=True).stdout, end="")
"""
    result = await run(code, envs=VALUES)
    assert (result.status, result.stderr) == ("ok", "")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [VALUES, VALUES]
    result = await run("exec(show)")
    assert result.stdout == "{}\n"


@pytest.mark.req("cell.envs")
async def test_what_was_set_before_comes_back_after_the_cell(run) -> None:
    await run("import os; os.environ['KEEP'] = 'before'")
    result = await run("print(os.environ['KEEP']); os.environ['NEW'] = 'stays'", envs={"KEEP": "during", "PATH": "/x"})
    assert result.stdout == "during\n"
    assert (await run("print(os.environ['KEEP'], os.environ['NEW'], os.environ['PATH'] != '/x')")).stdout == (
        "before stays True\n"
    )


@pytest.mark.req("cell.envs")
@pytest.mark.parametrize(
    "code",
    [
        "1 / 0",
        "1 +",
        "os.environ.clear()",
        "del os.environ['ONLY']",
        "import asyncio; await asyncio.sleep(0)",
        "raise KeyboardInterrupt",
    ],
)
async def test_variables_of_a_cell_are_undone_however_it_ends(run, code: str) -> None:
    await run("import os; os.environ['SET'] = 'before'")
    await run(code, envs={"ONLY": "here", "SET": "during"})
    assert (await run("print(os.environ.get('ONLY'), os.environ.get('SET'))")).stdout == "None before\n"


@pytest.mark.req("cell.envs")
async def test_variables_of_a_cell_are_undone_after_an_interrupt_and_a_timeout(
    service: Service, run, gate: Gate
) -> None:
    await service.begin("s", gate.code, envs={"ONLY": "here"})
    await gate.wait()
    assert (await service.interrupt("s")).status == "interrupted"
    assert (await run("print(os.environ.get('ONLY'))")).stdout == "None\n"
    assert (await run("time.sleep(3600)", envs={"ONLY": "here"}, timeout=0.05)).timed_out
    assert (await run("print(os.environ.get('ONLY'))")).stdout == "None\n"


@pytest.mark.req("cell.envs")
async def test_variables_shift_no_line_number_and_never_show(service: Service, run) -> None:
    result = await run("\n\n1 / 0", envs=VALUES)
    assert '  File "<cell 1>", line 3, in <module>\n    1 / 0\n' in result.error.traceback
    assert "GIVEN" not in result.error.traceback
    result = await run("print(sorted(globals()))\ndef f(): pass\nimport inspect; inspect.getsource(f)", envs=VALUES)
    assert "GIVEN" not in result.stdout
    assert result.result == {"text/plain": "'def f(): pass\\n'"}
    assert [info.code for info in await service.cells("s", first=1, count=1)] == ["\n\n1 / 0"]


@pytest.mark.req("cell.envs")
@pytest.mark.parametrize("envs", [{"": "x"}, {"A=B": "x"}, {"A\0": "x"}, {"A": "x\0y"}])
async def test_a_variable_no_system_could_hold_is_refused_before_anything_runs(
    run, envs: dict[str, str], counter: Counter
) -> None:
    with pytest.raises(errors.InvalidRequest, match="cannot be set"):
        await run(counter.code(), envs=envs)
    assert counter.lines == []


# --- busy ---


@pytest.mark.req("cell.busy")
async def test_a_second_cell_is_answered_at_once_as_busy_runs_nothing_and_loses_nothing(
    service: Service, run, gate: Gate, counter: Counter
) -> None:
    await run("kept = 'state'")
    await service.begin("s", gate.code + "print('first is done')")
    await gate.wait()
    # The first cell ends only when the gate opens, which is after all these answers.
    for _ in range(3):
        with pytest.raises(errors.Busy) as busy:
            await run(counter.code())
        assert re.fullmatch(r"busy: cell 2 has run for \d+\.\d s; wait, or interrupt", busy.value.message)
        assert (busy.value.code, busy.value.status, busy.value.cell) == ("busy", 409, 2)
    gate.open()
    result = await service.wait("s", 2)
    assert (result.status, result.stdout) == ("ok", "first is done\n")
    assert counter.lines == []
    result = await run("print(kept)")
    assert (result.cell, result.stdout) == (3, "state\n")


@pytest.mark.req("cell.busy")
async def test_a_session_that_waits_for_input_is_busy_too(service: Service, run) -> None:
    assert (await run("x = input('? ')")).status == "waiting_for_input"
    with pytest.raises(errors.Busy, match=r"busy: cell 1 waits for input; answer it, or interrupt"):
        await run("1")
    assert (await service.input("s", "answer")).status == "ok"
    assert (await run("x")).result == {"text/plain": "'answer'"}


@pytest.mark.req("cell.busy")
async def test_queued_cells_run_in_the_order_they_came(service: Service, run, gate: Gate, counter: Counter) -> None:
    first = asyncio.ensure_future(run(gate.code + counter.code("first")))
    await gate.wait()
    queued = []
    for number in range(10):
        queued.append(asyncio.ensure_future(run(counter.code(f"queued {number}") + f"print({number})", queue=True)))
        await asyncio.sleep(0)
    # While others wait for their turn, one that does not want to wait is refused.
    with pytest.raises(errors.Busy):
        await run(counter.code("refused"))
    assert counter.lines == []
    gate.open()
    results = await asyncio.gather(first, *queued)
    assert [(r.cell, r.status, r.stdout) for r in results[1:]] == [(n + 2, "ok", f"{n}\n") for n in range(10)]
    assert counter.lines == ["first", *(f"queued {number}" for number in range(10))]


@pytest.mark.req("cell.busy", "cell.once")
async def test_a_queued_cell_whose_caller_leaves_never_runs_and_the_rest_keeps_its_order(
    service: Service, run, gate: Gate, counter: Counter
) -> None:
    first = asyncio.ensure_future(run(gate.code))
    await gate.wait()
    queued = []
    for number in range(4):
        queued.append(asyncio.ensure_future(run(counter.code(f"queued {number}"), queue=True)))
        await asyncio.sleep(0)
    queued[0].cancel()
    queued[2].cancel()
    await asyncio.wait({queued[0], queued[2]})
    gate.open()
    assert [r.status for r in await asyncio.gather(first, queued[1], queued[3])] == ["ok", "ok", "ok"]
    assert counter.lines == ["queued 1", "queued 3"]


@pytest.mark.req("cell.busy")
async def test_a_caller_who_leaves_in_the_moment_of_his_turn_gives_it_to_the_next(
    service: Service, run, gate: Gate, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asyncio.ensure_future(run(gate.code))
    await gate.wait()
    queued = [asyncio.ensure_future(run(counter.code(f"queued {number}"), queue=True)) for number in range(2)]
    session = session_of(service, "s")
    assert await until(lambda: len(session.turns.queue) == 2)
    finish, complaints = CellRunner.end, []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))

    def leave(self: CellRunner, *args: object) -> None:
        queued[0].cancel()
        finish(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(CellRunner, "end", leave)
    gate.open()
    assert [r.status for r in await asyncio.gather(first, queued[1])] == ["ok", "ok"]
    assert (queued[0].cancelled(), counter.lines, complaints) == (True, ["queued 1"], [])


@pytest.mark.req("cell.busy")
async def test_a_caller_who_leaves_when_it_is_his_turn_gives_it_to_the_next(
    service: Service, run, gate: Gate, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asyncio.ensure_future(run(gate.code))
    await gate.wait()
    queued = [asyncio.ensure_future(run(counter.code(f"queued {number}"), queue=True)) for number in range(2)]
    turns = session_of(service, "s").turns
    assert await until(lambda: len(turns.queue) == 2)
    # Something that has to be over before a cell may begin.
    under_way: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    ready = ExclusiveWorker.ready

    async def ready_later(self: ExclusiveWorker) -> Worker:
        await asyncio.shield(under_way)
        return await ready(self)

    monkeypatch.setattr(ExclusiveWorker, "ready", ready_later)
    gate.open()
    assert (await first).status == "ok"
    assert await until(lambda: len(turns.queue) == 1)
    queued[0].cancel()
    under_way.set_result(None)
    assert (await queued[1]).status == "ok"
    assert (await run(counter.code("after"))).status == "ok"
    assert counter.lines == ["queued 1", "after"]


@pytest.mark.req("cell.busy")
async def test_the_queue_goes_on_after_an_error_an_interrupt_and_the_workers_death(
    service: Service, run, gate: Gate, counter: Counter
) -> None:
    first = asyncio.ensure_future(run(gate.code))
    await gate.wait()
    codes = ["1 / 0", "import os; os._exit(3)", "raise SystemExit", counter.code("last")]
    queued = []
    for code in codes:
        queued.append(asyncio.ensure_future(run(counter.code("step") + code, queue=True)))
        await asyncio.sleep(0)
    await service.interrupt("s")
    results = await asyncio.gather(first, *queued)
    assert [r.status for r in results] == ["interrupted", "error", "exit", "exit", "ok"]
    assert counter.lines == ["step", "step", "step", "step", "last"]


@pytest.mark.req("cell.busy")
async def test_the_variables_of_a_busy_session_are_those_of_the_last_finished_cell(
    service: Service, run, gate: Gate
) -> None:
    await run("done = 1")
    await service.begin("s", "coming = 2\n" + gate.code)
    await gate.wait()
    info = await service.get_session("s")
    assert (info.state, info.variables, info.variable_count) == ("running", ["done"], 1)
    assert info.notices == ["a cell is running; variables are those of the last finished cell"]
    gate.open()
    await service.wait("s")
    info = await service.get_session("s")
    assert (info.state, info.variables, info.notices) == ("idle", ["coming", "done", "os", "time"], [])


# --- one-off code ---


async def ids(service: Service) -> list[str]:
    return [info.session_id for info in await service.list_sessions()]


@pytest.mark.req("cell.one-off")
async def test_one_off_code_has_a_fresh_session_that_is_gone_after_the_answer(service: Service, home: Path) -> None:
    result = await service.execute_once(
        "import os\nx = 6\nprint(os.environ['GIVEN'], 'x' in globals())\nx * 7", envs={"GIVEN": "yes"}
    )
    assert (result.status, result.cell, result.stdout, result.result) == ("ok", 1, "yes True\n", {"text/plain": "42"})
    assert await ids(service) == []
    with pytest.raises(errors.SessionNotFound):
        await service.wait(result.session_id)
    again = await service.execute_once("'x' in globals()")
    assert again.result == {"text/plain": "False"}
    assert again.session_id != result.session_id
    gone = await until(lambda: session_folders(service, home) == [])
    assert gone, session_folders(service, home)


@pytest.mark.req("cell.one-off")
@pytest.mark.parametrize(
    ("code", "status"), [("1 / 0", "error"), ("1 +", "error"), ("exit(3)", "exit"), ("import os; os._exit(1)", "exit")]
)
async def test_one_off_code_that_fails_leaves_no_session_either(service: Service, code: str, status: str) -> None:
    assert (await service.execute_once(code)).status == status
    assert await ids(service) == []


@pytest.mark.req("cell.one-off")
async def test_one_off_code_that_still_runs_is_waited_for_by_its_id(service: Service, gate: Gate) -> None:
    result = await service.execute_once("print('begun')\n" + gate.code + "print('end')", wait=0)
    assert (result.status, result.cell, result.result) == ("running", 1, None)
    assert await ids(service) == [result.session_id]
    await gate.wait()
    async with asyncio.timeout(10):
        while not (early := await service.wait(result.session_id, wait=0)).stdout:
            await asyncio.sleep(0.01)
    assert (early.status, early.stdout) == ("running", "begun\n")
    # Reading an unfinished one ends nothing.
    assert await ids(service) == [result.session_id]
    gate.open()
    last = await service.wait(result.session_id)
    assert (last.status, last.stdout) == ("ok", "begun\nend\n")
    assert await ids(service) == []


@pytest.mark.req("cell.one-off")
async def test_one_off_code_that_asks_is_answered_by_its_id(service: Service) -> None:
    result = await service.execute_once("print('hello', input('who? '))")
    assert (result.status, result.prompt) == ("waiting_for_input", "who? ")
    result = await service.input(result.session_id, "you")
    assert (result.status, result.stdout) == ("ok", "who? hello you\n")
    assert await ids(service) == []


@pytest.mark.req("cell.one-off")
async def test_one_off_code_that_is_refused_leaves_no_session(service: Service, tmp_path: Path) -> None:
    for refused in (
        service.execute_once("#" * (service.settings.max_code + 1)),
        service.execute_once("1", envs={"A=": ""}),
        service.execute_once("1", timeout=-1),
        service.execute_once("1", cwd=str(tmp_path / "not there")),
    ):
        with pytest.raises(errors.InvalidRequest):
            await refused
    assert await ids(service) == []


class TestUnread:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, idle_timeout=0.2)

    @pytest.mark.req("cell.one-off")
    async def test_one_off_code_that_nobody_reads_is_ended_after_idle_timeout_but_not_while_it_runs(
        self, service: Service, gate: Gate
    ) -> None:
        result = await service.execute_once(gate.code, wait=0)
        await gate.wait()
        other = await service.execute_once("1", wait=0)
        # The other one goes first, though it began later: a running cell is not idle.
        assert other.status != "running" or await _gone(service, other.session_id)
        assert result.session_id in await ids(service)
        gate.open()
        assert await _gone(service, result.session_id)


async def _gone(service: Service, session_id: str) -> bool:
    for _ in range(2000):
        if session_id not in await ids(service):
            return True
        await asyncio.sleep(0.005)
    return False


# --- once ---


@pytest.mark.req("cell.once")
async def test_calls_that_give_up_waiting_and_ask_again_run_nothing_twice(
    service: Service, run, gate: Gate, counter: Counter
) -> None:
    result = await run(counter.code() + gate.code + "print('end')", wait=0)
    assert result.status == "running"
    await gate.wait()
    for _ in range(3):
        assert (await service.wait("s", 1, wait=0.01)).status == "running"
    gate.open()
    for _ in range(3):
        result = await service.wait("s", 1)
        assert (result.status, result.stdout) == ("ok", "end\n")
    assert counter.lines == ["ran"]
    assert (await service.get_session("s")).execution_count == 1


@pytest.mark.req("cell.once")
async def test_a_cell_whose_caller_is_cut_off_goes_on_and_runs_once(
    service: Service, run, gate: Gate, counter: Counter
) -> None:
    call = asyncio.ensure_future(run(counter.code() + gate.code + "print('end')"))
    await gate.wait()
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    gate.open()
    result = await service.wait("s", 1)
    assert (result.status, result.stdout, counter.lines) == ("ok", "end\n", ["ran"])


@pytest.mark.req("cell.once")
async def test_a_one_off_call_that_is_cut_off_runs_once(service: Service, gate: Gate, counter: Counter) -> None:
    call = asyncio.ensure_future(service.execute_once(counter.code() + gate.code))
    await gate.wait()
    (session_id,) = await ids(service)
    call.cancel()
    await asyncio.wait({call})
    gate.open()
    assert (await service.wait(session_id)).status == "ok"
    assert counter.lines == ["ran"]


@pytest.mark.req("cell.once")
@pytest.mark.parametrize(
    "death",
    [
        "import os; os._exit(1)",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.closerange(3, 4096)",
        "raise SystemExit",
    ],
)
async def test_a_cell_that_takes_its_worker_down_is_not_run_again_by_the_next_worker(
    run, counter: Counter, death: str
) -> None:
    result = await run(counter.code() + death)
    assert result.status == "exit"
    assert (await run("print('fresh')")).stdout == "fresh\n"
    assert counter.lines == ["ran"]


@pytest.mark.req("cell.once")
async def test_a_cell_killed_at_its_timeout_is_not_run_again(run, counter: Counter) -> None:
    code = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + counter.code()
    result = await run(code + "while True: time.sleep(1)", timeout=0.1)
    assert (result.status, result.timed_out) == ("interrupted", True)
    assert (await run("print('fresh')")).stdout == "fresh\n"
    assert counter.lines == ["ran"]


@pytest.mark.req("cell.once")
async def test_cells_sent_while_workers_are_being_killed_run_once_or_not_at_all(run, counter: Counter) -> None:
    told = []
    for number in range(15):
        # A signal may have landed after the last answer, and then it is this cell that ends with its worker.
        while (result := await run("import os; print(os.getpid())")).status != "ok":
            pass
        pid = int(result.stdout)
        killing = asyncio.get_running_loop().run_in_executor(None, os.kill, pid, signal.SIGKILL)
        if number % 3:
            await killing
        result = await run(counter.code(str(number)))
        await killing
        told.append((str(number), result.status))
    lines = counter.lines
    assert len(lines) == len(set(lines))
    # What was told as done was done.
    assert {number for number, status in told if status == "ok"} <= set(lines)
