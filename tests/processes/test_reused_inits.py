"""Inits that stay: a session that ends leaves its init to the next one of its tenant, and nothing else."""

import asyncio
import os
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from ingle.callers import Caller
from ingle.events import Stdout
from ingle.requests import NewTask, SessionLimits
from ingle.service import Service
from ingle.settings import Settings
from support.cells import run, value
from support.internals import worker_of
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.fresh_service]


@pytest.fixture
def settings() -> Settings:
    # Without a pool each session shows by its init whether that was used before.
    return make_settings(pool=0, preload=[])


async def end_with(service: Service, session_id: str, code: str = "None") -> int:
    """Run code in a new session and end it. Return the process id of its init."""
    await service.create_session(session_id)
    await run(service, session_id, code)
    init = worker_of(service, session_id).init_pid
    assert init is not None
    await service.end_session(session_id)
    return init


async def test_the_init_of_an_ended_session_serves_the_next_one(service: Service) -> None:
    init = await end_with(service, "a")
    await service.create_session("b")
    assert worker_of(service, "b").init_pid == init
    await service.create_session("c")
    assert worker_of(service, "c").init_pid != init


async def test_the_inits_of_sessions_that_end_at_once_all_stay(service: Service) -> None:
    names = [f"s{number}" for number in range(12)]
    await asyncio.gather(*(service.create_session(name) for name in names))
    inits = {worker_of(service, name).init_pid for name in names}
    await asyncio.gather(*(service.end_session(name) for name in names))
    await asyncio.gather(*(service.create_session(name) for name in names))
    assert {worker_of(service, name).init_pid for name in names} == inits


async def test_an_init_removes_the_empty_folders_of_its_session(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingle.support.remove_tree.remove", remove := Mock())
    folder = Path((await service.create_session("a")).cwd).parent
    await run(service, "a", "None")
    assert folder.exists()
    await service.end_session("a")
    assert not folder.exists()
    remove.assert_not_called()


async def test_the_server_removes_the_folders_that_a_session_has_filled(service: Service) -> None:
    folder = Path((await service.create_session("a")).cwd).parent
    await run(service, "a", "import os\nos.makedirs('below/deep')\nopen('file', 'w').close()")
    await service.end_session("a")
    assert not folder.exists()


DESCRIPTORS = "sorted(int(each) for each in __import__('os').listdir('/proc/self/fd'))"


async def test_forks_leave_nothing_open_to_the_next_session(service: Service) -> None:
    """Each of them has a socket on which its init would wait for the next session."""
    await service.create_session("a")
    first, init = await value(service, "a", DESCRIPTORS), worker_of(service, "a").init_pid
    await service.fork_session("a", "copy", count=2)
    for session_id in ("copy-1", "a", "copy-2"):
        await service.end_session(session_id)
    await service.create_session("b")
    assert worker_of(service, "b").init_pid == init
    assert await value(service, "b", DESCRIPTORS) == first


@pytest.mark.req("scale.reuse")
async def test_an_init_serves_one_tenant_only(service: Service) -> None:
    init = await end_with(service, "x")
    other = service.acting_for(Caller("b", "b"))
    await other.create_session("x")
    assert worker_of(service, "b/x").init_pid != init
    await service.create_session("x")
    assert worker_of(service, "x").init_pid == init


async def test_a_session_with_limits_of_its_own_leaves_no_init(service: Service) -> None:
    await service.create_session("a", limits=SessionLimits(files=200))
    await run(service, "a", "None")
    init = worker_of(service, "a").init_pid
    await service.end_session("a")
    await service.create_session("b")
    assert worker_of(service, "b").init_pid != init


async def test_a_session_with_a_reused_init_can_do_everything(service: Service) -> None:
    init = await end_with(service, "a", "import os\nos.fork() or os._exit(0)")
    await service.create_session("b")
    assert worker_of(service, "b").init_pid == init
    # Signals reach it as any other session.
    await run(service, "b", "x = 1")
    running = await service.execute("b", "import time\ntime.sleep(60)", wait=0)
    assert running.status == "running"
    interrupted = await service.interrupt("b", wait=20)
    assert interrupted is not None
    assert interrupted.error is not None
    assert interrupted.error.name == "KeyboardInterrupt"
    # Standard input, commands, files, copies.
    asked = await service.execute("b", "input('name? ')", wait=20)
    assert asked.status == "waiting_for_input"
    answered = await service.input("b", "me", wait=20)
    assert answered.result is not None
    assert answered.result["text/plain"] == "'me'"
    assert await value(service, "b", "import subprocess\nsubprocess.run('true').returncode") == "0"
    task = await service.run_task(NewTask("echo $((6 * 7))", session_id="b"), wait=20)
    assert task.stdout.strip() == "42"
    await service.fork_session("b", "c")
    assert await value(service, "c", "x") == "1"
    # The collector works, as it does in the first session of an init.
    assert await value(service, "b", "import gc\ngc.isenabled()") == "True"
    # An end in the middle is told, and the session goes on with another process.
    gone = await service.execute("b", "import os; os.kill(os.getpid(), 9)")
    assert gone.status == "exit"
    assert await value(service, "b", "'x' in globals()") == "False"


AWAITS = """
import asyncio
async def count():
    global steps
    while True:
        steps += 1
        await asyncio.sleep(0)
steps = 0
counting = asyncio.create_task(count())
print("awaits")
await asyncio.sleep(600)
"""


@pytest.mark.req("int.cell", "int.handler")
async def test_signals_are_handled_in_a_session_with_a_reused_init_as_in_any_other(service: Service) -> None:
    code = """
import signal
[signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == [
    signal.default_int_handler, signal.SIG_DFL, signal.SIG_DFL
]
"""
    init = await end_with(service, "a", code)
    for name in ("b", "c"):
        await service.create_session(name)
        assert worker_of(service, name).init_pid == init
        assert await value(service, name, code) == "True"
        # An interrupt ends the cell that awaits, and no other task.
        cell = await service.begin(name, AWAITS)
        async for event in service.events(name):
            if isinstance(event, Stdout) and event.cell == cell:
                break
        interrupted = await service.interrupt(name, wait=20)
        assert interrupted is not None
        assert interrupted.error is not None
        assert f'File "<cell {cell}>", line' in interrupted.error.traceback
        more = "before = steps\nawait asyncio.sleep(0.01)\nsteps > before, counting.done()"
        assert await value(service, name, more) == "(True, False)"
        await service.end_session(name)


async def test_random_numbers_differ_from_those_of_the_session_before(service: Service) -> None:
    code = "import random, uuid\n(random.random(), uuid.uuid4().hex)"
    init = await end_with(service, "a")
    await service.create_session("b")
    first = await value(service, "b", code)
    await service.end_session("b")
    await service.create_session("c")
    assert worker_of(service, "c").init_pid == init
    assert await value(service, "c", code) != first


LEAVE = """
import ctypes, os, socket, subprocess, sys, threading
os.environ["LEFT"] = "1"
sys.left = 1
left = 1
open("left.txt", "w").write("1")
daemon = subprocess.Popen(
    [sys.executable, "-c", "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(600)"]
)
daemon.wait()
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
threading.Thread(target=listener.accept, daemon=True).start()
ctypes.CDLL(None).shmget(0x1717, 4096, 0o1666)
if SANDBOX:
    for folder in ("/tmp", "/dev/shm", "/var/tmp", os.path.expanduser("~")):
        open(f"{folder}/left", "w").write("1")
port
"""

LOOK = """
import ctypes, os, socket, sys
found = [name for name in ("LEFT",) if name in os.environ]
found += [name for name in ("left",) if hasattr(sys, name) or name in globals()]
found += [name for name in os.listdir(".")]
try:
    socket.create_connection(("127.0.0.1", PORT), 1).close()
    found.append("listener")
except OSError:
    pass
if SANDBOX:
    places = ("/tmp", "/dev/shm", "/var/tmp", os.path.expanduser("~"))
    found += [path for path in places if os.path.exists(f"{path}/left")]
    found += [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]
    if ctypes.CDLL(None).shmget(0x1717, 4096, 0o666) != -1:
        found.append("shared memory")
found
"""


@pytest.mark.req("scale.reuse")
async def test_nothing_of_the_session_before_is_left(service: Service) -> None:
    sandbox = f"SANDBOX = {service.settings.isolation == 'sandbox'}\n"
    await service.create_session("a")
    port = await value(service, "a", sandbox + LEAVE)
    init = worker_of(service, "a").init_pid
    await service.end_session("a")
    await service.create_session("b")
    assert worker_of(service, "b").init_pid == init
    assert await value(service, "b", f"{sandbox}PORT = {port}\n{LOOK}") == "[]"


async def test_an_idle_init_that_was_killed_is_replaced(service: Service) -> None:
    init = await end_with(service, "a")
    os.kill(init, signal.SIGKILL)
    await service.create_session("b")
    assert worker_of(service, "b").init_pid != init
    assert await value(service, "b", "1 + 1") == "2"


async def test_an_idle_init_that_is_stopped_ends_with_the_service(service: Service) -> None:
    init = await end_with(service, "a")
    os.kill(init, signal.SIGSTOP)
    await service.stop()
    assert await until(lambda: not Path(f"/proc/{init}").exists(), 10)
