"""Waiting for a cell, bounding it, interrupting it: what a caller does never costs the session more than it must."""

import asyncio
import statistics
import time
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Done, InputWanted, Result, Stdout
from ingle.service import Service
from ingle.settings import Settings
from support.internals import on_host, session_of, worker_pid
from support.service import make_settings
from support.waiting import until

pytestmark = pytest.mark.both_levels


@pytest.fixture
async def sid(service: Service) -> str:
    return (await service.create_session()).session_id


async def run(service: Service, sid: str, code: str) -> Result:
    """A cell that must end well, and without a remark."""
    result = await service.execute(sid, code)
    assert (result.status, result.error, result.notices) == ("ok", None, []), result
    return result


async def wait_for_text(service: Service, sid: str, cell: int, text: str) -> None:
    """Until a cell has printed this."""
    seen = ""
    async for event in service.events(sid):
        if event.cell == cell and isinstance(event, Stdout):
            seen += event.text
            if text in seen:
                return
        assert not (event.cell == cell and isinstance(event, Done)), f"the cell ended without printing {text!r}"


async def begin(service: Service, sid: str, code: str, **options: float) -> int:
    """Start a cell that prints `ready` when it is where it should be; its number, once it has."""
    cell = await service.begin(sid, code, **options)
    await wait_for_text(service, sid, cell, "ready\n")
    return cell


async def interrupt(service: Service, sid: str) -> Result:
    result = await service.interrupt(sid)
    assert result is not None
    return result


# --- wait.budget ---

GATED = """
import os, time
print('one', flush=True)
while not os.path.exists({gate!r}):
    time.sleep(0.001)
print('two')
"""


@pytest.mark.req("wait.budget")
async def test_past_its_wait_a_call_answers_running_with_what_has_come_and_how_to_go_on(
    service: Service, sid: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    cell = await service.begin(sid, GATED.format(gate=str(gate)))
    await wait_for_text(service, sid, cell, "one")
    running = await service.wait(sid, cell, wait=0.05)
    assert (running.session_id, running.cell, running.status) == (sid, cell, "running")
    assert (running.success, running.stdout, running.error, running.exit) == (False, "one\n", None, None)
    assert (await service.get_session(sid)).state == "running"
    gate.touch()
    # Going on: the rest by the number of the next event, all of it without.
    rest = await service.wait(sid, cell, from_event=running.next_event)
    whole = await service.wait(sid, cell)
    assert (rest.status, rest.stdout) == ("ok", "two\n")
    assert (whole.status, whole.stdout) == ("ok", "one\ntwo\n")


@pytest.mark.req("wait.budget")
async def test_every_call_that_waits_is_bounded_and_leaves_the_cell_running(service: Service, sid: str) -> None:
    result = await service.execute(sid, "x = input()\nimport time\nwhile True: time.sleep(0.01)", wait=0)
    assert result.status in ("running", "waiting_for_input")
    assert (await service.wait(sid)).status == "waiting_for_input"
    assert (await service.input(sid, "text", wait=0.05)).status == "running"
    assert (await service.wait(sid, wait=0)).status == "running"
    deaf = "import signal\nsignal.signal(signal.SIGINT, lambda *a: print('heard'))\nprint('ready')\nwhile True: pass"
    assert (await interrupt(service, sid)).status == "interrupted"
    cell = await begin(service, sid, deaf)
    unheard = await service.interrupt(sid, wait=0.1)
    assert unheard is not None
    assert (unheard.cell, unheard.status) == (cell, "running")
    await wait_for_text(service, sid, cell, "heard")


@pytest.mark.req("wait.budget")
async def test_the_default_wait_is_45_s_and_waits_must_be_numbers_of_seconds(service: Service, sid: str) -> None:
    assert make_settings().wait == 45.0
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(errors.InvalidRequest):
            await service.execute(sid, "x = 1", wait=bad)
    assert (await run(service, sid, "'x' in globals()")).result == {"text/plain": "False"}


@pytest.mark.req("wait.budget")
async def test_a_caller_who_goes_away_leaves_the_cell_running(service: Service, sid: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    calls = [asyncio.create_task(service.execute(sid, GATED.format(gate=str(gate))))]
    assert await until(lambda: calls[0].done() or session_of(service, sid).last_cell == 1)
    await wait_for_text(service, sid, 1, "one")
    calls += [asyncio.create_task(service.wait(sid, 1)) for _ in range(5)]
    await asyncio.sleep(0)
    for call in calls[:4]:
        call.cancel()
    await asyncio.wait(calls[:4])
    assert [call.cancelled() for call in calls[:4]] == [True] * 4
    assert (await service.get_session(sid)).state == "running"
    gate.touch()
    # Those who stayed, and one who comes now, all get the whole of it.
    results = [await call for call in calls[4:]] + [await service.wait(sid, 1)]
    assert [(result.status, result.stdout) for result in results] == [("ok", "one\ntwo\n")] * 3
    assert (await run(service, sid, "1 + 1")).cell == 2


@pytest.mark.req("wait.budget")
async def test_a_reader_of_the_events_who_goes_away_leaves_the_cell_running(service: Service, sid: str) -> None:
    cell = await begin(service, sid, "print('ready')\nx = input()\nprint('got', x)")

    async def watch() -> None:
        async for _ in service.events(sid):
            pass

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0)
    watcher.cancel()
    await asyncio.wait({watcher})
    assert (await service.wait(sid, cell)).status == "waiting_for_input"
    result = await service.input(sid, "it")
    assert (result.status, result.stdout) == ("ok", "ready\ngot it\n")


# --- wait.cursor ---


@pytest.mark.req("wait.cursor")
async def test_polling_reads_from_an_offset_and_deletes_nothing(service: Service, sid: str) -> None:
    code = "for i in range(5):\n    input()\n    print('line', i)"
    result = await service.execute(sid, code)
    offsets = [(0, "")]
    for i in range(5):
        assert result.status == "waiting_for_input"
        offsets.append((result.next_event, "".join(f"line {n}\n" for n in range(i))))
        result = await service.input(sid, "")
    whole = "".join(f"line {n}\n" for n in range(5))
    assert (result.status, result.stdout) == ("ok", whole)
    for _ in range(3):
        for offset, before in offsets:
            again = await service.wait(sid, 1, from_event=offset)
            assert (again.status, before + again.stdout) == ("ok", whole)
            assert again.next_event == result.next_event
    # Past the end there is nothing, and that is no error.
    assert (await service.wait(sid, 1, from_event=result.next_event)).stdout == ""
    assert await service.wait(sid, 1) == result


@pytest.mark.req("wait.cursor")
async def test_polls_of_a_running_cell_together_give_its_output_once(service: Service, sid: str) -> None:
    code = "import sys\nfor i in range(2000):\n    print(i)\n    print(-i, file=sys.stderr)"
    cell = await service.begin(sid, code)
    stdout, stderr, seq, polls = "", "", 0, 0
    while True:
        part = await service.wait(sid, cell, wait=0.001, from_event=seq)
        stdout, stderr, seq, polls = stdout + part.stdout, stderr + part.stderr, part.next_event, polls + 1
        if part.status != "running":
            break
    assert part.status == "ok"
    assert stdout == "".join(f"{i}\n" for i in range(2000))
    assert stderr == "".join(f"{-i}\n" for i in range(2000))
    assert polls > 1


class TestSmallMemory:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, timeline_memory=20_000)

    @pytest.mark.req("wait.cursor")
    async def test_finished_cells_stay_readable_from_disk_until_the_session_ends(
        self, service: Service, home: Path
    ) -> None:
        sid = (await service.create_session()).session_id
        first = []
        for number in range(1, 41):
            code = f"import sys\nprint('{number} ' * 500)\nprint('err {number}', file=sys.stderr)\n{number}"
            first.append(await service.execute(sid, code))
            if number % 4 == 0:
                failed = await service.execute(sid, f"raise ValueError({number})")
                assert failed.status == "error"
                first.append(failed)
        session = session_of(service, sid)
        assert session.journal.timeline.in_memory(1, 1) is None, "nothing was spilled"
        assert [result.status for result in first].count("error") == 10
        for _ in range(2):
            again = [await service.wait(sid, result.cell) for result in first]
            assert again == first
        assert first[0].stdout == "1 " * 500 + "\n"
        assert [info.status for info in await service.cells(sid)] == [result.status for result in first]
        await service.end_session(sid)
        with pytest.raises(errors.SessionNotFound):
            await service.wait(sid, 1)


@pytest.mark.req("wait.cursor")
async def test_a_cell_that_never_was_is_refused(service: Service, sid: str) -> None:
    with pytest.raises(errors.CellNotFound, match="it has run no cell yet"):
        await service.wait(sid)
    await run(service, sid, "1")
    for cell in (0, 2, -1):
        with pytest.raises(errors.CellNotFound, match="its cells are 1 to 1"):
            await service.wait(sid, cell)


# --- limit.timeout ---


def check_interrupted(result: Result, *, timed_out: bool = False) -> None:
    assert (result.status, result.success, result.timed_out, result.exit) == ("interrupted", False, timed_out, None)
    assert result.error is not None
    assert result.error.name == "KeyboardInterrupt"
    # It may come behind the last statement and before the expression that follows: then no line of the cell is running.
    traceback = result.error.traceback
    assert f'File "<cell {result.cell}>"' in traceback or traceback == "KeyboardInterrupt\n", traceback


@pytest.mark.req("limit.timeout")
@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(99)",
        "import asyncio\nawait asyncio.sleep(99)",
        "import subprocess\nsubprocess.run(['sleep', '99'])",
        "x = input()",
        "import threading\nthreading.Event().wait()",
    ],
)
async def test_a_cell_past_its_timeout_is_interrupted_and_the_state_kept(code: str, service: Service, sid: str) -> None:
    await run(service, sid, "kept = 1")
    result = await service.execute(sid, "print('begun')\n" + code, timeout=0.3)
    if result.status == "waiting_for_input":
        async for event in service.events(sid):
            if isinstance(event, Done) and event.cell == result.cell:
                break
        result = await service.wait(sid, result.cell)
    check_interrupted(result, timed_out=True)
    assert (result.stdout, result.notices) == ("begun\n", [])
    after = await run(service, sid, "kept")
    assert (after.result, after.timed_out) == ({"text/plain": "1"}, False)


@pytest.mark.req("limit.timeout")
async def test_the_timeout_is_kept_to_within_a_quarter_of_a_second(service: Service, sid: str) -> None:
    late = []
    for timeout in (0.1, 0.2, 0.3, 0.2, 0.1):
        began = time.monotonic()
        result = await service.execute(sid, "while True: pass", timeout=timeout)
        took = time.monotonic() - began
        check_interrupted(result, timed_out=True)
        # Time passes from the call on. The code begins a little later.
        assert took >= timeout
        late.append(max(took, result.execution_time) - timeout)
    assert statistics.median(late) < 0.25, late


LOST = (
    "the session's process did not stop within 1 s of its timeout of 0.2 s, and was killed; "
    "the session's variables, functions and imports are lost, and a new process takes its place"
)
FRESH = (
    "this is a new process: the one before did not stop within 1 s of its timeout of 0.2 s, and was killed "
    "after cell 2, and its variables, functions and imports are gone"
)


@pytest.mark.req("limit.timeout")
@pytest.mark.parametrize(
    "code",
    [
        "from time import sleep\nwhile True:\n    try: sleep(99)\n    except KeyboardInterrupt: print('no')",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('no')\nwhile True: pass",
        "import signal\nsignal.signal(signal.SIGINT, lambda *a: print('no'))\nwhile True: pass",
        "import os\nos.system(\"trap '' INT; echo no; while :; do sleep 0.1; done\")",
        "print('no')\nsum(range(10**13))",
    ],
)
async def test_what_does_not_stop_is_killed_after_the_grace_and_the_loss_is_named(
    code: str, service: Service, sid: str
) -> None:
    own = int((await run(service, sid, "import os\nkept = 1\nprint(os.getpid())")).stdout)
    (pid,) = on_host(service, sid, own)
    began = time.monotonic()
    result = await service.execute(sid, code, timeout=0.2)
    took = time.monotonic() - began
    assert (result.status, result.success, result.timed_out) == ("interrupted", False, True)
    assert (result.stdout, result.notices) == ("no\n", [LOST])
    assert result.exit is not None
    assert (result.exit.code, result.exit.signal) == (None, "SIGKILL")
    assert 1.2 <= took < 1.2 + 0.5
    assert not Path(f"/proc/{pid}").exists()
    # Usable at once, and the loss is said again with the first cell of the new worker.
    after = await service.execute(sid, "'kept' in globals()")
    assert (after.status, after.result, after.notices) == ("ok", {"text/plain": "False"}, [FRESH])
    assert (await run(service, sid, "1 + 1")).result == {"text/plain": "2"}


@pytest.mark.req("limit.timeout")
async def test_the_signal_goes_to_the_whole_foreground_group(service: Service, sid: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    child = f"trap 'echo INT >> {trace}; exit 5' INT; echo up; while :; do sleep 0.01; done"
    code = f"""
import subprocess
kept = 1
children = [subprocess.Popen(['sh', '-c', {child!r}], stdout=subprocess.PIPE) for _ in range(2)]
for each in children:
    each.stdout.readline()
import time
time.sleep(99)
"""
    result = await service.execute(sid, code, timeout=1.0)
    check_interrupted(result, timed_out=True)
    ended = await run(service, sid, "print([each.wait() for each in children], kept)")
    assert ended.stdout == "[5, 5] 1\n"
    assert trace.read_text() == "INT\nINT\n"


@pytest.mark.req("limit.timeout")
async def test_a_child_that_ignores_the_signal_costs_the_child_not_the_state(service: Service, sid: str) -> None:
    await run(service, sid, "kept = 1")
    code = "import subprocess\nsubprocess.run(['sh', '-c', \"trap '' INT; sleep 99; true\"])"
    result = await service.execute(sid, code, timeout=0.2)
    check_interrupted(result, timed_out=True)
    assert result.notices == []
    assert (await run(service, sid, "kept")).result == {"text/plain": "1"}


@pytest.mark.req("limit.timeout")
async def test_a_cell_within_its_timeout_is_left_alone(service: Service, sid: str) -> None:
    result = await service.execute(sid, "1 + 1", timeout=0.2)
    assert (result.status, result.timed_out, result.result) == ("ok", False, {"text/plain": "2"})
    # The time that is over belonged to that cell: the next one may take longer.
    result = await service.execute(sid, "import time\ntime.sleep(0.4)\n'slept'")
    assert (result.status, result.timed_out, result.result) == ("ok", False, {"text/plain": "'slept'"})


@pytest.mark.req("limit.timeout")
async def test_a_timeout_ends_a_cell_nobody_waits_for(service: Service, sid: str) -> None:
    result = await service.execute(sid, "while True: pass", timeout=0.1, wait=0)
    assert result.status == "running"
    check_interrupted(await service.wait(sid, result.cell), timed_out=True)


@pytest.mark.req("limit.timeout")
async def test_a_timeout_shorter_than_it_takes_to_begin_still_ends_the_cell(service: Service, sid: str) -> None:
    await run(service, sid, "kept = 1")
    for timeout in (0.0, 0.0001, 0.0005, 0.001) * 5:
        result = await service.execute(sid, "import time\ntime.sleep(99)", timeout=timeout)
        assert (result.status, result.timed_out, result.notices) == ("interrupted", True, [])
    assert (await run(service, sid, "kept")).result == {"text/plain": "1"}


# --- int.cell ---

BUSY_WITH = {
    "pure Python": "print('ready')\nwhile True: pass",
    "time.sleep": "import time\nprint('ready')\ntime.sleep(99)",
    "a child": "import subprocess\nsubprocess.run(['sh', '-c', 'echo ready; exec sleep 99'])",
    "a child by Popen": "import subprocess\nsubprocess.Popen(['sh', '-c', 'echo ready; exec sleep 99']).wait()",
    "os.system": "import os\nos.system('echo ready; exec sleep 99')",
    "os.system and more": "import os\nos.system('echo ready; exec sleep 99')\nprint('after')",
    "os.system in a loop": "import os\nwhile True:\n    os.system('echo ready; exec sleep 99')",
    "await": "import asyncio\nprint('ready')\nawait asyncio.sleep(99)",
    "await in asyncio.run": "import asyncio\nprint('ready')\nasyncio.run(asyncio.sleep(99))",
    "a busy coroutine": "import asyncio\nprint('ready')\nawait asyncio.sleep(0)\nwhile True: pass",
    "a thread's join": "import threading, time\nt = threading.Thread(target=time.sleep, args=(99,), daemon=True)\n"
    "t.start()\nprint('ready')\nt.join()",
    "a lock": "import threading\nlock = threading.Lock()\nlock.acquire()\nprint('ready')\nlock.acquire()",
    "a queue": "import queue\nprint('ready')\nqueue.Queue().get()",
    "an event": "import threading\nprint('ready')\nthreading.Event().wait()",
    "a socket": "import socket\na, b = socket.socketpair()\nprint('ready')\na.recv(1)",
    "a pipe": "import os\nr, w = os.pipe()\nprint('ready')\nos.read(r, 1)",
    "select": "import select\nprint('ready')\nselect.select([], [], [])",
    "a function": "def f():\n    print('ready')\n    while True: pass\nf()",
    "a finally": "import time\ntry:\n    print('ready')\n    time.sleep(99)\nfinally:\n    kept += 0",
    "finalizers": "class Thing:\n    def __del__(self):\n        sum(range(2000))\nprint('ready')\n"
    "while True:\n    Thing()\n    sum(range(20_000))",
    "weak references": "import weakref\nclass Thing: pass\nnames = weakref.WeakValueDictionary()\nprint('ready')\n"
    "while True: names[1] = Thing()",
    "a display": "class Slow:\n    def __repr__(self):\n        print('ready')\n        while True: pass\nSlow()",
}


@pytest.mark.req("int.cell")
@pytest.mark.parametrize("name", BUSY_WITH)
async def test_an_interrupt_stops_the_cell_and_keeps_the_state(name: str, service: Service, sid: str) -> None:
    await run(service, sid, "kept = 1")
    cell = await begin(service, sid, BUSY_WITH[name])
    result = await interrupt(service, sid)
    assert result.cell == cell
    check_interrupted(result)
    assert (result.stdout, result.stderr, result.notices) == ("ready\n", "", [])
    # Ready at once; nothing of the interrupt is left for the next cell.
    after = await run(service, sid, "kept")
    assert (after.cell, after.result, after.stdout, after.stderr) == (cell + 1, {"text/plain": "1"}, "", "")


@pytest.mark.req("int.cell")
@pytest.mark.parametrize(
    ("code", "prompt"),
    [
        ("x = input('name? ')", "name? "),
        ("import sys\nx = sys.stdin.read()", ""),
        ("import getpass\nx = getpass.getpass('pin? ')", "pin? "),
        ("import os\nx = os.read(0, 9)", ""),
        ("import subprocess\nx = subprocess.run(['cat'])", ""),
        ("import threading\nt = threading.Thread(target=input, daemon=True)\nt.start()\nt.join()", ""),
    ],
)
async def test_an_interrupt_stops_a_cell_that_waits_for_input(
    code: str, prompt: str, service: Service, sid: str
) -> None:
    waiting = await service.execute(sid, "kept = 1\n" + code)
    assert (waiting.status, waiting.prompt) == ("waiting_for_input", prompt)
    # The answer is that of a cell that has ended, not of one that still waits.
    result = await interrupt(service, sid)
    check_interrupted(result)
    assert (result.prompt, result.prompt_secret) == (None, False)
    assert (await run(service, sid, "kept, 'x' in globals()")).result == {"text/plain": "(1, False)"}
    if "threading" not in code:
        with pytest.raises(errors.NotWaiting):
            await service.input(sid, "too late")
        again = await service.execute(sid, "print(repr(input('again? ')))")
        assert (again.status, again.prompt) == ("waiting_for_input", "again? ")
        assert (await service.input(sid, "yes")).stdout == "again? 'yes'\n"


@pytest.mark.req("int.cell")
async def test_the_traceback_is_in_this_answer_and_not_in_the_next(service: Service, sid: str) -> None:
    cell = await begin(
        service, sid, "def outer():\n    inner()\ndef inner():\n    print('ready')\n    while True: pass\nouter()"
    )
    result = await interrupt(service, sid)
    assert result.error is not None
    assert (result.error.name, result.error.value) == ("KeyboardInterrupt", "")
    # Some versions of Python underline the calls too.
    lines = [line for line in result.error.traceback.splitlines() if line.strip("~^ ")]
    assert lines[:5] == [
        "Traceback (most recent call last):",
        f'  File "<cell {cell}>", line 6, in <module>',
        "    outer()",
        f'  File "<cell {cell}>", line 2, in outer',
        "    inner()",
    ]
    assert lines[-1] == "KeyboardInterrupt"
    after = await run(service, sid, "1 + 1")
    assert (after.result, after.stderr) == ({"text/plain": "2"}, "")
    assert await service.wait(sid, cell) == result


@pytest.mark.req("int.cell")
async def test_an_interrupt_right_after_the_start_is_not_lost(service: Service, sid: str) -> None:
    await run(service, sid, "import time\nkept = 1")
    for number in range(100):
        cell = await service.begin(sid, f"kept = {number}\ntime.sleep(99)")
        result = await service.interrupt(sid, wait=10)
        assert result is not None
        assert (result.cell, result.status) == (cell, "interrupted")
    # An interrupt may come before the first line of a cell, so which of them set it is open.
    assert (await run(service, sid, "kept in range(100)")).result == {"text/plain": "True"}


@pytest.mark.req("int.cell")
async def test_an_endless_finalizer_is_interrupted_too(service: Service, sid: str) -> None:
    code = "class Slow:\n    def __del__(self):\n        print('ready')\n        while True: pass\nSlow();\nkept = 1"
    await begin(service, sid, code)
    result = await interrupt(service, sid)
    # Where Python drops the exception, it says so, and goes on behind the finalizer.
    assert (result.status, result.stdout) == ("ok", "ready\n")
    assert result.stderr.startswith("Exception ignored in: <function Slow.__del__ at ")
    assert (await run(service, sid, "kept")).result == {"text/plain": "1"}


@pytest.mark.req("int.cell")
async def test_a_cell_may_catch_the_interrupt_and_end_well(service: Service, sid: str) -> None:
    code = (
        "import time\ntry:\n    print('ready')\n    time.sleep(99)\nexcept KeyboardInterrupt:\n    print('caught')\n5"
    )
    await begin(service, sid, code)
    result = await interrupt(service, sid)
    assert (result.status, result.stdout, result.result) == ("ok", "ready\ncaught\n", {"text/plain": "5"})


@pytest.mark.req("int.cell")
async def test_a_command_under_os_system_gets_one_signal_and_time_to_clean_up(
    service: Service, sid: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    shell = f"trap 'echo INT >> {trace}; sleep 0.3; echo cleaned; exit 3' INT; echo ready; while :; do sleep 0.01; done"
    await begin(service, sid, f"import os\nkept = 1\nos.system({shell!r})\nkept = 2")
    result = await interrupt(service, sid)
    check_interrupted(result)
    assert result.stdout == "ready\ncleaned\n"
    assert trace.read_text() == "INT\n"
    assert (await run(service, sid, "kept")).result == {"text/plain": "1"}


@pytest.mark.req("int.cell")
async def test_a_stopped_cell_is_woken_and_interrupted(service: Service, sid: str) -> None:
    await begin(
        service,
        sid,
        "import os, signal\nkept = 1\nprint('ready')\nos.kill(os.getpid(), signal.SIGSTOP)\nwhile True: pass",
    )
    check_interrupted(await interrupt(service, sid))
    assert (await run(service, sid, "kept")).result == {"text/plain": "1"}


@pytest.mark.req("int.cell")
async def test_a_cell_that_stops_in_the_moment_of_an_interrupt_is_woken_too(service: Service, sid: str) -> None:
    code = (
        "import os, signal\nkept = 1\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\nprint('ready')\n"
        "while signal.SIGINT not in signal.sigpending(): pass\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})\nwhile True: pass"
    )
    await begin(service, sid, code)
    check_interrupted(await interrupt(service, sid))
    assert (await run(service, sid, "kept")).result == {"text/plain": "1"}


@pytest.mark.req("int.cell")
async def test_an_interrupt_after_a_debugger_went_on_stops_the_cell(service: Service, sid: str) -> None:
    waiting = await service.execute(sid, "kept = 1\nbreakpoint()\nkept = 2")
    assert waiting.prompt == "(Pdb) "
    assert (await service.input(sid, "c")).status == "ok"
    await begin(service, sid, "import time\nprint('ready')\ntime.sleep(99)")
    check_interrupted(await interrupt(service, sid))
    assert (await run(service, sid, "kept")).result == {"text/plain": "2"}


# --- int.idle ---


@pytest.mark.req("int.idle")
async def test_an_interrupt_while_idle_is_consumed(service: Service, sid: str) -> None:
    assert await service.interrupt(sid) is None
    await run(service, sid, "kept = 1")
    for _ in range(20):
        assert await service.interrupt(sid) is None
        assert (await run(service, sid, "kept")).result == {"text/plain": "1"}
    assert (await service.get_session(sid)).state == "idle"
    with pytest.raises(errors.SessionNotFound):
        await service.interrupt("nowhere")


@pytest.mark.req("int.idle")
@pytest.mark.parametrize("before", ["pass", "import asyncio\nawait asyncio.sleep(0)"])
async def test_a_signal_that_comes_while_idle_is_consumed(before: str, service: Service, sid: str) -> None:
    await run(service, sid, before + "\nimport os, signal, subprocess, sys\nkept = 1")
    pid = worker_pid(service, sid)
    for _ in range(20):
        # From outside of the session, as a terminal or a user would.
        await asyncio.to_thread(_send_sigint, pid)
        after = await run(service, sid, "kept")
        assert (after.result, after.stderr) == ({"text/plain": "1"}, "")


def _send_sigint(pid: int) -> None:
    import os
    import signal

    os.kill(pid, signal.SIGINT)
    # It has landed once it is no longer pending.
    for _ in range(1000):
        status = Path(f"/proc/{pid}/status").read_text()
        if all(int(line.split()[1], 16) == 0 for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))):
            return
        time.sleep(0.001)


# --- int.handler ---

HANDLER = """
import signal
calls = []
def handler(number, frame):
    calls.append(number)
before = signal.signal(signal.SIGINT, handler)
print(before is signal.default_int_handler)
"""


@pytest.mark.req("int.handler")
async def test_a_users_own_handler_is_called_once_and_kept_over_cells(service: Service, sid: str) -> None:
    assert (await run(service, sid, HANDLER)).stdout == "True\n"
    for number in range(1, 4):
        code = "import time\nprint('ready')\nwhile len(calls) < %d: time.sleep(0.001)\ntime.sleep(0.2)\nprint(calls)"
        await begin(service, sid, code % number)
        result = await interrupt(service, sid)
        # The handler did not raise, so the cell went on to its end.
        assert (result.status, result.stdout) == ("ok", f"ready\n{[2] * number}\n")
    assert (await run(service, sid, "signal.getsignal(signal.SIGINT) is handler")).result == {"text/plain": "True"}


@pytest.mark.req("int.handler", "int.idle")
async def test_a_users_own_handler_is_not_called_while_idle(service: Service, sid: str) -> None:
    await run(service, sid, HANDLER)
    pid = worker_pid(service, sid)
    assert await service.interrupt(sid) is None
    await asyncio.to_thread(_send_sigint, pid)
    assert (await run(service, sid, "calls")).result == {"text/plain": "[]"}


@pytest.mark.req("int.handler")
async def test_a_users_own_handler_that_raises_ends_the_cell_with_that(service: Service, sid: str) -> None:
    code = """
import signal, time
class Stop(Exception): pass
calls = []
def handler(number, frame):
    calls.append(number)
    raise Stop('stopped')
signal.signal(signal.SIGINT, handler)
print('ready')
time.sleep(99)
"""
    await begin(service, sid, code)
    result = await interrupt(service, sid)
    assert result.status == "error"
    assert result.error is not None
    assert (result.error.name, result.error.value) == ("Stop", "stopped")
    assert (await run(service, sid, "calls")).result == {"text/plain": "[2]"}


@pytest.mark.req("int.handler")
async def test_a_handler_given_back_is_ours_again(service: Service, sid: str) -> None:
    await run(service, sid, HANDLER)
    await run(service, sid, "signal.signal(signal.SIGINT, signal.default_int_handler);")
    await begin(service, sid, "import time\nprint('ready')\ntime.sleep(99)")
    check_interrupted(await interrupt(service, sid))
    assert (await run(service, sid, "calls")).result == {"text/plain": "[]"}


@pytest.mark.req("int.handler")
async def test_a_handler_of_the_loop_is_called_once(service: Service, sid: str) -> None:
    code = """
import asyncio, signal
calls = []
loop = asyncio.get_running_loop()
loop.add_signal_handler(signal.SIGINT, calls.append, 'called')
print('ready')
while not calls:
    await asyncio.sleep(0.001)
await asyncio.sleep(0.2)
loop.remove_signal_handler(signal.SIGINT)
print(calls)
"""
    await begin(service, sid, code)
    result = await interrupt(service, sid)
    assert (result.status, result.stdout) == ("ok", "ready\n['called']\n")
    await begin(service, sid, "import time\nprint('ready')\ntime.sleep(99)")
    check_interrupted(await interrupt(service, sid))


@pytest.mark.req("int.cell")
async def test_an_interrupt_shows_no_wait_that_was_not_there(service: Service, sid: str) -> None:
    cell = await begin(service, sid, "import time\nprint('ready')\ntime.sleep(99)")
    await interrupt(service, sid)
    async for event in service.events(sid):
        assert not isinstance(event, InputWanted)
        if isinstance(event, Done) and event.cell == cell:
            break
