"""How a session's process ends, by its own will or not: what is said about it, and that nothing of it lives on."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Done, Exit, Stderr, Stdout
from ingle.service import Service
from ingle.sessions import data_folder, upkeep
from ingle.sessions.session import Session
from ingle.settings import Settings
from ingle.workers import init_link
from support.cells import run
from support.internals import on_host, session_folders, session_of, worker_of, worker_pid
from support.processes import marked_processes
from support.service import make_settings
from support.waiting import until, wait_until

pytestmark = pytest.mark.both_levels


@pytest.fixture
async def sid(service: Service) -> str:
    return (await service.create_session()).session_id


def is_alive(pid: int) -> bool:
    """Whether a process of this number runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def subject(ended: str, process: str) -> str:
    """The sentence of an end, which names the process unless the end itself does."""
    return ended if ended.startswith("the session's") else f"{process} {ended}"


def fresh(ended: str, cell: int) -> str:
    return (
        f"this is a new process: {subject(ended, 'the one before')} after cell {cell}, "
        "and its variables, functions and imports are gone"
    )


async def check_fresh(service: Service, sid: str, ended: str, cell: int) -> None:
    """The next cell runs in a new worker, which is said once, and has none of the old one's names."""
    result = await run(service, sid, "print('x' in globals())")
    assert (result.cell, result.stdout, result.notices) == (cell + 1, "False\n", [fresh(ended, cell)])
    assert (await run(service, sid, "2 + 2")).notices == []


# --- exit.clean ---


@pytest.mark.req("exit.clean")
@pytest.mark.parametrize(
    ("code", "exit", "stderr"),
    [
        ("exit()", Exit(0, None, "exit(0)"), ""),
        ("quit()", Exit(0, None, "exit(0)"), ""),
        ("exit(4)", Exit(4, None, "exit(4)"), ""),
        ("import sys\nsys.exit(3)", Exit(3, None, "exit(3)"), ""),
        ("import sys\nsys.exit()", Exit(0, None, "exit(0)"), ""),
        ("import sys\nsys.exit(-1)", Exit(255, None, "exit(255)"), ""),
        ("raise SystemExit('msg')", Exit(1, None, "msg"), "msg\n"),
        ("raise SystemExit(None)", Exit(0, None, "exit(0)"), ""),
        ("raise SystemExit", Exit(0, None, "exit(0)"), ""),
        ("raise SystemExit(['a', 1])", Exit(1, None, "['a', 1]"), "['a', 1]\n"),
        ("class Mine(SystemExit): pass\nraise Mine(5)", Exit(5, None, "exit(5)"), ""),
        ("import asyncio, sys\nawait asyncio.sleep(0)\nsys.exit(6)", Exit(6, None, "exit(6)"), ""),
        (
            "def f():\n    try:\n        exit(7)\n    finally:\n        print('finally')\nf()",
            Exit(7, None, "exit(7)"),
            "",
        ),
    ],
)
async def test_an_exit_is_told_with_its_code_and_message(
    code: str, exit: Exit, stderr: str, service: Service, sid: str
) -> None:
    await run(service, sid, "x = 1")
    result = await service.execute(sid, "print('before')\n" + code + "\nprint('never')")
    assert (result.status, result.success, result.exit, result.error) == ("exit", False, exit, None)
    assert result.stdout.removesuffix("finally\n") == "before\n"
    assert (result.stderr, result.timed_out, result.result) == (stderr, False, None)
    await check_fresh(service, sid, f"ended with exit code {exit.code}", 2)


@pytest.mark.req("exit.clean")
async def test_threads_are_joined_handlers_and_finalizers_run_and_what_they_print_is_in_the_answer(
    service: Service, sid: str
) -> None:
    code = """
import atexit, sys, threading, time
def work():
    time.sleep(0.2)
    print('thread done')
class Thing:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print('finalizer of', self.name)
threading.Thread(target=work).start()
atexit.register(print, 'handler one')
atexit.register(print, 'handler two', file=sys.stderr)
thing = Thing('a global')
cycle = Thing('a cycle')
cycle.me = cycle
print('leaving')
exit(2)
"""
    result = await service.execute(sid, code)
    assert (result.status, result.exit, result.notices) == ("exit", Exit(2, None, "exit(2)"), [])
    assert result.stdout == "leaving\nthread done\nhandler one\nfinalizer of a global\nfinalizer of a cycle\n"
    assert result.stderr == "handler two\n"
    # All of it is the cell's own: nothing comes after its done, nothing is marked as background.
    late = []
    async for event in service.events(sid):
        if isinstance(event, Stdout | Stderr) and (event.background or event.cell != 1):
            late.append(event)
        if isinstance(event, Done):
            break
    assert late == []


@pytest.mark.req("exit.clean")
async def test_a_handler_that_fails_is_shown_and_the_others_run(service: Service, sid: str) -> None:
    code = """
import atexit
atexit.register(print, 'still here')
atexit.register(lambda: 1 / 0)
exit()
"""
    result = await service.execute(sid, code)
    assert (result.status, result.exit, result.stdout) == ("exit", Exit(0, None, "exit(0)"), "still here\n")
    assert "ZeroDivisionError: division by zero" in result.stderr


@pytest.mark.req("exit.clean")
async def test_tasks_of_the_loop_are_cancelled_at_an_exit(service: Service, sid: str) -> None:
    code = """
import asyncio
async def stay():
    try:
        await asyncio.sleep(100)
    finally:
        print('cancelled')
task = asyncio.ensure_future(stay())
await asyncio.sleep(0)
exit()
"""
    result = await service.execute(sid, code)
    assert (result.status, result.stdout, result.stderr) == ("exit", "cancelled\n", "")


@pytest.mark.req("exit.clean")
async def test_a_caught_exit_ends_nothing_and_input_works_after_it(service: Service, sid: str) -> None:
    code = (
        "try:\n    exit()\nexcept SystemExit as error:\n    print('caught', error.code)\nx = input('and? ')\nprint(x)"
    )
    waiting = await service.execute(sid, code)
    assert (waiting.status, waiting.prompt) == ("waiting_for_input", "and? ")
    result = await service.input(sid, "on")
    assert (result.status, result.stdout, result.notices) == ("ok", "caught None\nand? on\n", [])
    after = await run(service, sid, "x")
    assert (after.result, after.notices) == ({"text/plain": "'on'"}, [])


@pytest.mark.req("exit.clean")
async def test_an_exit_in_a_thread_or_a_forked_child_does_not_end_the_session(service: Service, sid: str) -> None:
    code = """
import os, sys, threading
x = 1
thread = threading.Thread(target=sys.exit, args=(3,))
thread.start()
thread.join()
pid = os.fork()
if pid == 0:
    sys.exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.fork()
if pid == 0:
    sys.exit('a message')
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
pid = os.fork()
if pid == 0:
    1 / 0
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    result = await run(service, sid, code)
    assert result.stdout == "4\n1\n1\n"
    assert result.stderr.startswith("a message\nTraceback (most recent call last):\n")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert (await run(service, sid, "x")).result == {"text/plain": "1"}


@pytest.mark.req("exit.clean")
async def test_a_fresh_worker_is_in_the_same_folder_and_the_session_goes_on_counting(
    service: Service, sid: str
) -> None:
    before = await run(service, sid, "import os\nopen('kept.txt', 'w').write('kept')\nprint(os.getcwd())")
    pid = worker_pid(service, sid)
    assert (await service.execute(sid, "exit()")).cell == 2
    after = await run(service, sid, "import os\nprint(os.getcwd(), open('kept.txt').read())")
    assert (after.stdout.split(), after.cell) == ([before.stdout.strip(), "kept"], 3)
    assert worker_pid(service, sid) != pid
    info = await service.get_session(sid)
    assert (info.execution_count, info.state, info.variables) == (3, "idle", ["os"])


# --- exit.crash ---

WIRE = """
import os, stat
wires = [int(name) for name in os.listdir('/proc/self/fd')
         if os.path.exists('/proc/self/fd/' + name) and stat.S_ISSOCK(os.stat('/proc/self/fd/' + name).st_mode)]
"""

KILLED = "was killed by SIGKILL (by its own code or from outside; the system does this when memory runs out)"
CLOSED = "the session's process closed its control channel"
TORN = "the session's process tree was killed from within"


@pytest.mark.req("exit.crash")
@pytest.mark.parametrize(
    ("code", "code_or_signal", "message"),
    [
        ("import os\nos._exit(7)", 7, "ended with exit code 7"),
        ("import os\nos._exit(0)", 0, "ended with exit code 0"),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV", "was killed by SIGSEGV (segmentation fault)"),
        ("import os\nos.abort()", "SIGABRT", "was killed by SIGABRT (aborted)"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", KILLED),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)", "SIGTERM", "was killed by SIGTERM"),
        ("import os, signal\nos.killpg(0, signal.SIGKILL)", "SIGKILL", KILLED),
        ("import os\nos.execvp('sh', ['sh', '-c', 'exit 9'])", 9, "ended with exit code 9"),
        (
            "import os, threading, time\nthreading.Thread(target=lambda: os._exit(8)).start()\ntime.sleep(99)",
            8,
            "ended with exit code 8",
        ),
        pytest.param(
            "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nimport time\ntime.sleep(99)",
            None,
            TORN,
            marks=pytest.mark.level("none", "nothing in a room can hurt its init"),
        ),
        ("import os\nos.closerange(3, 4096)", 70, CLOSED),
        ("import os\nos.closerange(3, 4096)\nimport time\ntime.sleep(99)", "SIGKILL", CLOSED),
        (WIRE + "for wire in wires: os.dup2(1, wire)", 70, CLOSED),
        (WIRE + "for wire in wires: os.dup2(1, wire)\nimport time\ntime.sleep(99)", "SIGKILL", CLOSED),
    ],
)
async def test_a_crash_is_named_with_the_last_output_and_the_next_call_works(
    code: str, code_or_signal: int | str | None, message: str, service: Service, sid: str
) -> None:
    await run(service, sid, "x = 1")
    result = await service.execute(sid, "import sys\nprint('last words', end='')\nprint('!', file=sys.stderr)\n" + code)
    number = code_or_signal if isinstance(code_or_signal, int) else None
    signal = code_or_signal if isinstance(code_or_signal, str) else None
    assert (result.status, result.success, result.error) == ("exit", False, None)
    assert result.exit == Exit(number, signal, message)
    assert result.stdout == "last words"
    assert result.stderr.startswith("!\n")
    if signal in ("SIGSEGV", "SIGABRT"):
        assert "Fatal Python error: " + {"SIGSEGV": "Segmentation fault", "SIGABRT": "Aborted"}[signal] in result.stderr
        assert '"<cell 2>", line 5' in result.stderr
    else:
        assert result.stderr == "!\n"
    assert result.notices == [
        subject(message, "the session's process") + "; the session's variables, functions and imports are lost, "
        "and a new process takes its place"
    ]
    await check_fresh(service, sid, message, 2)


@pytest.mark.req("exit.crash")
@pytest.mark.parametrize("garbage", ["b'\\xff' * 100", "b'\\0' * 100", "b'\\0\\0\\0\\2\\0\\0\\0\\2\\x49{}' * 50"])
async def test_garbage_on_the_wire_costs_that_worker_only(garbage: str, service: Service, sid: str) -> None:
    other = (await service.create_session()).session_id
    await run(service, other, "x = 1")
    code = WIRE + f"print('last words')\nfor wire in wires: os.write(wire, {garbage})\nimport time\ntime.sleep(99)"
    result = await service.execute(sid, code)
    assert (result.status, result.stdout) == ("exit", "last words\n")
    assert result.exit is not None
    assert (result.exit.code, result.exit.signal) == (None, "SIGKILL")
    assert result.exit.message is not None
    assert result.exit.message.startswith("the session's process broke the protocol (")
    await check_fresh(service, sid, result.exit.message, 1)
    assert (await run(service, other, "x")).result == {"text/plain": "1"}


@pytest.mark.req("exit.crash")
async def test_a_worker_that_dies_between_cells_is_replaced_and_said(service: Service, sid: str) -> None:
    code = "import os, threading\nx = 1\nthreading.Timer(0.05, os._exit, (5,)).start()"
    pid = worker_pid(service, sid)
    await run(service, sid, code)
    session = session_of(service, sid)
    assert await until(lambda: session.worker is None or session.worker.pid != pid)
    result = await run(service, sid, "print('x' in globals())")
    assert (result.stdout, result.notices) == (
        "False\n",
        [fresh("ended with exit code 5", 1).replace("cell 1", "the last cell")],
    )


@pytest.mark.req("exit.crash")
async def test_a_death_is_named_as_it_was_however_late_its_init_tells_it(
    service: Service, sid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session's wire is lost with its process: that is no reason of its own."""
    monkeypatch.setattr(init_link, "KILL_PATIENCE_SECONDS", 60.0)
    worker = worker_of(service, sid)
    os.kill(worker.init_pid, signal.SIGSTOP)
    os.kill(worker.pid, signal.SIGKILL)
    # The host has waited for init's word as long as it does, and has begun to end what is left.
    assert await until(lambda: worker.init.phase is init_link.Phase.KILLING)
    os.kill(worker.init_pid, signal.SIGCONT)
    assert (await worker.gone) == Exit(None, "SIGKILL", KILLED)


@pytest.mark.req("exit.crash")
async def test_running_out_of_an_own_limit_is_an_error_that_the_session_survives(service: Service, sid: str) -> None:
    code = """
import resource
x = 1
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
big = bytearray(4 << 30)
"""
    result = await service.execute(sid, code)
    assert result.status == "error"
    assert result.error is not None
    assert result.error.name == "MemoryError"
    assert (await run(service, sid, "x")).result == {"text/plain": "1"}


# --- exit.linger ---


@pytest.mark.req("exit.linger", "exit.clean")
@pytest.mark.parametrize(
    "code",
    [
        "import atexit, time\natexit.register(time.sleep, 99)",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()",
        "import time\nclass Slow:\n    def __del__(self, sleep=time.sleep):\n        sleep(99)\nslow = Slow()",
    ],
)
async def test_a_worker_that_does_not_go_is_killed_within_2_s(code: str, service: Service, sid: str) -> None:
    await run(service, sid, code)
    pid = worker_pid(service, sid)
    began = time.monotonic()
    result = await service.execute(sid, "print('bye')\nexit(3)")
    took = time.monotonic() - began
    assert (result.status, result.exit, result.stdout) == ("exit", Exit(3, None, "exit(3)"), "bye\n")
    assert result.notices == ["exit handlers, threads or finalizers did not end within 2 s; the process was killed"]
    assert took < 2.5
    assert not is_alive(pid)
    assert (await run(service, sid, "1")).status == "ok"


@pytest.mark.req("exit.linger")
@pytest.mark.parametrize("end", ["exit()", "import os\nos._exit(1)", "import ctypes\nctypes.string_at(0)"])
async def test_late_output_never_reaches_the_new_worker(end: str, service: Service, sid: str) -> None:
    code = """
import os, time
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(w, str(os.getpid()).encode())
        while True:
            os.write(1, b'late\\n')
            os.write(2, b'late\\n')
            time.sleep(0.001)
    os._exit(0)
os.wait()
print('pid', os.read(r, 20).decode())
"""
    started = await run(service, sid, code)
    (pid,) = on_host(service, sid, int(started.stdout.replace("late\n", "").split()[1]))
    ended = await service.execute(sid, end)
    assert ended.status == "exit"
    assert not is_alive(pid)
    results = [await run(service, sid, "import time\ntime.sleep(0.02)\nprint('clean')") for _ in range(3)]
    assert [(result.stdout, result.stderr) for result in results] == [("clean\n", "")] * 3
    texts = []
    async for event in service.events(sid, ended.next_event):
        if isinstance(event, Stdout | Stderr):
            texts.append(event.text)
            assert not event.background
        if isinstance(event, Done) and event.cell == results[-1].cell:
            break
    assert "".join(texts) == "clean\n" * 3


@pytest.mark.req("exit.linger")
@pytest.mark.level("none", "a room has a /tmp of its own, which is fresh with each worker")
async def test_a_new_worker_has_a_temp_folder_of_its_own(service: Service, sid: str) -> None:
    code = """
import os, subprocess, tempfile
folder = tempfile.gettempdir()
with tempfile.NamedTemporaryFile(delete=False) as file:
    pass
print(folder, os.path.dirname(file.name), subprocess.getoutput('echo $TMPDIR'))
"""
    folders = []
    for _ in range(3):
        one, two, three = (await run(service, sid, code)).stdout.split()
        assert one == two == three
        folders.append(Path(one))
        assert (await service.execute(sid, "exit()")).status == "exit"
    assert len(set(folders)) == 3
    for folder in folders:
        assert await until(lambda folder=folder: not folder.exists())
    last = Path((await run(service, sid, code)).stdout.split()[0])
    assert last.is_dir()
    await service.end_session(sid)
    assert not last.exists()


# --- exit.tree ---

STRAYS = """
import os, signal, subprocess, sys, time

def stray(prepare):
    # A grandchild in a session of its own, adopted by whoever adopts orphans.
    r, w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            prepare()
            os.write(w, str(os.getpid()).encode())
            while True:
                time.sleep(99)
        os._exit(0)
    os.wait()
    return int(os.read(r, 20))

def stubborn():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

def breeding():
    # Leaves a child behind, which does the same, for ever.
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            time.sleep(0.001)

def bare():
    os.chdir('/')
    os.closerange(3, w) if (w := 90) else None
    for fd in (0, 1, 2):
        os.close(fd)

def stopped():
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)

pids = [stray(lambda: None), stray(stubborn), stray(stopped), stray(breeding)]
pids.append(subprocess.Popen(['sleep', '999'], start_new_session=True).pid)
pids.append(subprocess.Popen(['nohup', 'sleep', '999'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
pids.append(subprocess.Popen(['env', '-i', 'sleep', '999'], start_new_session=True).pid)
shell = 'setsid nohup sleep 999 >/dev/null 2>&1 & echo $!'
pids.append(int(subprocess.run(['sh', '-c', shell], capture_output=True).stdout))
print(*pids, os.getpid())
"""


async def start_strays(service: Service, sid: str) -> list[int]:
    pids = on_host(service, sid, *map(int, (await run(service, sid, STRAYS)).stdout.split()))
    assert len(pids) == 9
    assert [pid for pid in pids if not is_alive(pid)] == []
    return pids


def living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


@pytest.mark.req("exit.tree")
async def test_nothing_a_session_started_outlives_it(service: Service, sid: str, mark: str) -> None:
    other = (await service.create_session()).session_id
    kept = await start_strays(service, other)
    count = len(marked_processes(mark))
    pids = await start_strays(service, sid)
    await service.end_session(sid)
    assert living(pids) == []
    # The neighbour and its strays are none of that session's.
    assert living(kept) == kept
    assert await until(lambda: len(marked_processes(mark)) <= count)


@pytest.mark.req("exit.tree")
@pytest.mark.parametrize(
    "end",
    [
        "exit()",
        "import os\nos._exit(1)",
        pytest.param(
            "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nimport time\ntime.sleep(99)",
            marks=pytest.mark.level("none", "nothing in a room can hurt its init"),
        ),
    ],
)
async def test_nothing_a_worker_started_outlives_it(end: str, service: Service, sid: str) -> None:
    init = worker_of(service, sid).init_pid
    assert init is not None
    pids = [*await start_strays(service, sid), init]
    assert (await service.execute(sid, end)).status == "exit"
    assert await until(lambda: not living(pids)), living(pids)
    assert (await run(service, sid, "1 + 1")).result == {"text/plain": "2"}


@pytest.mark.req("exit.tree")
async def test_ending_a_session_ends_its_running_cell(service: Service, sid: str) -> None:
    pids = await start_strays(service, sid)
    cell = await service.begin(sid, "print('on')\ntime.sleep(99)")
    seen: list[Done] = []
    prints = False
    async for event in service.events(sid):
        if isinstance(event, Stdout) and event.cell == cell and not prints:
            prints = True
            await service.end_session(sid)
        if isinstance(event, Done) and event.cell == cell:
            seen.append(event)
    assert [(event.result.status, event.result.exit) for event in seen] == [
        ("exit", Exit(None, "SIGKILL", "the session was ended"))
    ]
    assert living(pids) == []
    with pytest.raises(errors.SessionNotFound):
        await service.wait(sid, cell)


@pytest.mark.req("exit.tree")
async def test_nothing_outlives_a_stopped_service(mark: str, home: Path, settings: Settings) -> None:
    async with Service.local(settings, home) as service:
        pids = []
        for number in range(3):
            name = f"s{number}"
            await service.create_session(name)
            pids += await start_strays(service, name)
        await service.begin("s1", "time.sleep(99)")
        assert (await service.execute("s2", "input()")).status == "waiting_for_input"
    assert living(pids) == []
    assert marked_processes(mark) == []


SERVER = """
import asyncio, sys
from pathlib import Path
from ingle.service import Service
from ingle.settings import load

async def main():
    async with Service.local(load({'preload': [], 'pool': 1}), Path(sys.argv[1])) as service:
        sid = (await service.create_session()).session_id
        result = await service.execute(sid, sys.stdin.read())
        await service.begin(sid, "while True: pass")
        print(result.stdout, flush=True)
        await asyncio.sleep(999)

asyncio.run(main())
"""


@pytest.mark.req("exit.tree")
@pytest.mark.level("none", "the numbers are those of a room elsewhere; test_http_ending shows it at every level")
async def test_all_is_gone_within_1_s_of_a_kill_of_the_server(mark: str, home: Path, settings: Settings) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with server.stdin, server.stdout:
        server.stdin.write(STRAYS)
        server.stdin.close()
        pids = [int(word) for word in server.stdout.readline().split()]
        assert len(pids) == 9
        assert living(pids) == pids
        server.kill()
        server.wait()
        assert wait_until(lambda: not living(pids) and not marked_processes(mark), 1), (
            living(pids),
            marked_processes(mark),
        )
    # What it left on disk is cleared by the next one.
    assert list((home / "sessions").iterdir()) != []
    async with Service.local(settings, home) as service:
        assert await service.list_sessions() == []
        assert [path.name for path in (home / "sessions").iterdir()] == []


# --- idle.expire ---


async def names(service: Service) -> list[str]:
    return sorted(info.session_id for info in await service.list_sessions())


async def wait_for_names(service: Service, *expected: str) -> None:
    for _ in range(1000):
        if await names(service) == sorted(expected):
            return
        await until(lambda: False, 0.005)
    raise AssertionError(f"{await names(service)} never become {sorted(expected)}")


class TestPolicyEnd:
    @pytest.fixture
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> Settings:
        monkeypatch.setattr(upkeep, "EXPIRE_INTERVAL_SECONDS", 0.02)
        return make_settings(preload=[], pool=1, idle_policy="end")

    @pytest.mark.req("idle.expire")
    async def test_an_idle_session_is_ended_and_no_other(self, service: Service) -> None:
        assert (await service.create_session("default")).idle_timeout == 300.0
        assert (await service.create_session("idle", idle_timeout=0.2)).idle_timeout == 0.2
        pid = worker_pid(service, "idle")
        await wait_for_names(service, "default")
        assert await until(lambda: not is_alive(pid))
        with pytest.raises(errors.SessionNotFound):
            await service.execute("idle", "1")

    @pytest.mark.req("idle.expire")
    async def test_a_session_whose_cell_runs_or_waits_for_input_is_not_idle(self, service: Service) -> None:
        await service.create_session("runs", idle_timeout=0.3)
        await service.begin("runs", "import time\nwhile True: time.sleep(0.01)")
        await service.create_session("waits", idle_timeout=0.3)
        assert (await service.execute("waits", "input()")).status == "waiting_for_input"
        # Three sessions, one after the other, come and go in that time.
        for number in range(3):
            await service.create_session(f"idle{number}", idle_timeout=0.3)
            await wait_for_names(service, "runs", "waits")
        assert (await service.input("waits", "now")).status == "ok"
        await wait_for_names(service, "runs")
        stopped = await service.interrupt("runs")
        assert stopped is not None
        assert stopped.status == "interrupted"
        await wait_for_names(service)

    @pytest.mark.req("idle.expire")
    async def test_every_use_begins_the_time_anew(self, service: Service) -> None:
        await service.create_session("used", idle_timeout=1.5)
        await service.create_session("unused", idle_timeout=1.5)
        while "unused" in await names(service):
            await run(service, "used", "1")
        assert await names(service) == ["used"]


class TestPolicyKeep:
    @pytest.fixture
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> Settings:
        monkeypatch.setattr(upkeep, "EXPIRE_INTERVAL_SECONDS", 0.02)
        return make_settings(preload=[], pool=1, idle_timeout=0.2)

    @pytest.mark.req("idle.expire", "cell.one-off")
    async def test_an_idle_session_is_kept_while_a_one_off_nobody_read_is_ended(self, service: Service) -> None:
        assert service.settings.idle_policy == "keep"
        await service.create_session("kept")
        await run(service, "kept", "x = 1")
        running = await service.execute_once("import time\ntime.sleep(0.3)", wait=0)
        assert running.status == "running"
        assert await names(service) == sorted(["kept", running.session_id])
        await wait_for_names(service, "kept")
        with pytest.raises(errors.SessionNotFound):
            await service.wait(running.session_id)
        assert (await run(service, "kept", "x")).result == {"text/plain": "1"}


@pytest.mark.req("idle.expire")
def test_the_default_is_five_minutes_and_to_keep() -> None:
    assert (make_settings().idle_timeout, make_settings().idle_policy) == (300.0, "keep")


@pytest.mark.req("exit.tree")
async def test_a_session_that_is_still_being_made_ends_with_the_service(
    mark: str, home: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Session.start
    started = asyncio.Event()

    async def slow_start(session: Session) -> None:
        await start(session)
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Session, "start", slow_start)
    service = Service.local(settings, home)
    await service.start()
    making = asyncio.create_task(service.create_session(cwd=str(tmp_path)))
    await started.wait()
    assert len(session_folders(service, home)) == 1
    await service.stop()
    # At once: whoever stopped the service may be gone before anybody could clean up after it.
    assert list((home / "sessions").glob("*")) == []
    making.cancel()
    with pytest.raises(errors.Unavailable):
        await making


async def test_a_start_that_is_called_off_midway_keeps_no_lock(
    home: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, go_on = threading.Event(), threading.Event()
    lock = data_folder._lock

    def lock_slowly(path: Path) -> int:
        fd = lock(path)
        taken.set()
        assert go_on.wait(10)
        return fd

    monkeypatch.setattr(data_folder, "_lock", lock_slowly)
    service = Service.local(settings, home)
    starting = asyncio.create_task(service.start())
    await asyncio.to_thread(taken.wait, 10)
    starting.cancel()
    stopping = asyncio.create_task(service.stop())
    await asyncio.wait([starting, stopping], timeout=0.05)
    go_on.set()
    await stopping
    assert list((home / "run").iterdir()) == []


@pytest.mark.parametrize("one_off", [False, True])
async def test_an_ended_session_is_freed_without_the_garbage_collector(service: Service, one_off: bool) -> None:
    if one_off:
        running = await service.execute_once("input()", wait=0)
        sid = running.session_id
    else:
        sid = (await service.create_session()).session_id
        await run(service, sid, "print(1)")
    held = [weakref.ref(session_of(service, sid)), weakref.ref(worker_of(service, sid))]
    gc.collect()
    gc.disable()
    try:
        await service.end_session(sid)
        assert await until(lambda: all(each() is None for each in held))
    finally:
        gc.enable()
