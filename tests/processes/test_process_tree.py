"""Holder, zygote, init, worker: any of them may die, and what lives goes on while what should end, ends.

holder ── zygote ── init ── worker
"""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ingle import events
from ingle.callers import Caller
from ingle.errors import CellNotFound, StartFailed
from ingle.events import Exit, Result
from ingle.requests import NewSession
from ingle.service import Service
from ingle.sessions.process.prepared_workers import PreparedWorkers
from ingle.sessions.session import Session
from ingle.settings import Settings
from ingle.workers.init_link import InitLink
from ingle.workers.launch.launcher import Launcher
from ingle.workers.launch.zygote import Zygote
from ingle.workers.launch.zygote_supervisor import ZygoteSupervisor
from ingle.workers.worker import Worker
from ingle_worker.wire import messages
from support.cells import value
from support.internals import launchers_of, manager_of, on_host, own_processes, session_of, worker_of
from support.processes import marked_processes
from support.service import make_settings
from support.waiting import until, wait_until

pytestmark = [pytest.mark.both_levels, pytest.mark.fresh_service]

WORKER_NOTICE = "the session's variables, functions and imports are lost, and a new process takes its place"


def launcher_of(service: Service) -> Launcher:
    (launcher,) = launchers_of(service)
    return launcher


def folder_of(service: Service, worker: Worker) -> str:
    """Return the name of the folder that a worker of the pool was given."""
    return manager_of(service).prepared._prepared[worker].workspace.folders.name


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_there(pid: int) -> bool:
    """Whether a process runs; one that has ended and only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children_of(pid: int) -> list[int]:
    return [
        int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if is_there(int(child))
    ]


def zygote_of(service: Service) -> int:
    pid = launcher_of(service).zygote_pid
    assert pid is not None
    return pid


async def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert await until(lambda: not is_there(pid))


DAEMONS = """
import os, sys, time
read, write = os.pipe()
def daemons(count):
    for _ in range(count):
        if os.fork() == 0:
            os.setsid()
            pid = os.fork()
            if pid == 0:
                os.closerange(0, 3)
                time.sleep(600)
            os.write(write, b"%d " % pid)
            os._exit(0)
        os.wait()
    return [int(pid) for pid in os.read(read, 4096).split()]
"""


async def daemons(service: Service, session_id: str, count: int) -> list[int]:
    """Processes in sessions of their own whose parents are gone."""
    await service.execute(session_id, DAEMONS)
    own = [int(pid) for pid in (await value(service, session_id, f"daemons({count})")).strip("[]").split(",")]
    pids = on_host(service, session_id, *own)
    assert len(pids) == count
    assert all(map(is_there, pids))
    return pids


# --- deaths above a session --------------------------------------------------------------------------------


async def test_live_sessions_go_on_without_their_zygote_and_the_next_comes_from_a_new_one(service: Service) -> None:
    await service.create_session("old")
    await service.execute("old", "x = 41")
    first = zygote_of(service)
    assert parent_of(worker_of(service, "old").init_pid or 0) == first
    assert await until(lambda: launcher_of(service).prepared == 1)
    await kill(first)
    assert await value(service, "old", "x + 1") == "42"
    # The prepared worker outlives its zygote, too.
    prepared = launcher_of(service)._pool[0].pid
    await service.create_session("prepared")
    assert worker_of(service, "prepared").pid == prepared
    assert await value(service, "prepared", "1 + 1") == "2"
    await service.create_session("new")
    assert await value(service, "new", "1 + 1") == "2"
    second = zygote_of(service)
    assert second != first
    assert parent_of(worker_of(service, "new").init_pid or 0) == second
    assert await value(service, "old", "x + 2") == "43"


class TestNothingPrepared:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(pool=0, preload=[], exit_grace=0.5)

    async def test_the_process_that_waits_for_the_next_session_can_be_killed(self, service: Service) -> None:
        await service.create_session("old")
        zygote = zygote_of(service)
        inits = [worker_of(service, "old").init_pid]
        for name in ("one", "two"):
            assert await until(lambda: len(children_of(zygote)) == len(inits) + 1)
            (waiting,) = (pid for pid in children_of(zygote) if pid not in inits)
            await kill(waiting)
            # Nobody takes its place before there is a session to start: what kills it might kill the next one, too.
            assert children_of(zygote) == inits
            await service.create_session(name)
            assert await value(service, name, "1 + 1") == "2"
            inits.append(worker_of(service, name).init_pid)
        assert zygote_of(service) == zygote

    async def test_the_process_that_waits_goes_with_its_zygote(self, service: Service) -> None:
        await service.create_session("old")
        zygote = zygote_of(service)
        init = worker_of(service, "old").init_pid
        assert await until(lambda: len(children_of(zygote)) == 2)
        (waiting,) = (pid for pid in children_of(zygote) if pid != init)
        await kill(zygote)
        assert await until(lambda: not is_there(waiting))
        await service.create_session("new")
        assert await value(service, "new", "1 + 1") == "2"


async def test_a_worker_that_goes_with_its_zygote_is_asked_for_again_of_the_next(
    mark: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, killed = ZygoteSupervisor.get, []

    async def get_doomed(zygotes: ZygoteSupervisor) -> Zygote:
        zygote = await get(zygotes)
        if len(killed) < 5:
            assert zygote.pid is not None
            os.kill(zygote.pid, signal.SIGKILL)
            killed.append(zygote.pid)
            # The loop does not run meanwhile, so it is not known to be dead when it is asked.
            assert wait_until(lambda: not is_there(killed[-1]))
        return zygote

    monkeypatch.setattr(ZygoteSupervisor, "get", get_doomed)
    async with Service.local(make_settings(preload=[], pool=0), home) as service:
        await service.create_session("main")
        assert len(killed) == 5
        assert await value(service, "main", "1 + 1") == "2"


@pytest.mark.req("exit.tree")
async def test_strays_end_with_their_session_when_the_zygote_is_gone(service: Service) -> None:
    await service.create_session("one")
    await service.create_session("two")
    strays = await daemons(service, "one", 3)
    kept = await daemons(service, "two", 2)
    await kill(zygote_of(service))
    await service.end_session("one")
    assert await until(lambda: not any(map(is_there, strays)))
    assert all(map(is_there, kept))
    assert await value(service, "two", "len('alive')") == "5"


@pytest.mark.req("exit.tree", "exit.crash")
@pytest.mark.level("none", "nothing in a room can hurt its init")
async def test_strays_end_with_a_killed_init_when_the_zygote_is_gone(service: Service) -> None:
    await service.create_session("one")
    await service.create_session("two")
    strays = await daemons(service, "one", 3)
    kept = await daemons(service, "two", 2)
    await kill(zygote_of(service))
    result = await service.execute("one", "os.kill(os.getppid(), 9); time.sleep(600)")
    assert (result.status, result.exit) == ("exit", killed_from_within())
    assert not any(map(is_there, strays))
    assert all(map(is_there, kept))
    assert await value(service, "one", "1 + 1") == "2"


@pytest.mark.level("none", "the holder of rooms is the first process of their namespace: they end with it")
async def test_live_sessions_go_on_without_their_holder_and_nothing_is_left_at_the_end(
    service: Service, mark: str
) -> None:
    await service.create_session("old")
    await service.execute("old", "x = 41")
    strays = await daemons(service, "old", 2)
    await kill(parent_of(zygote_of(service)))
    assert await value(service, "old", "x + 1") == "42"
    await service.create_session("new")
    assert await value(service, "new", "1 + 1") == "2"
    await service.end_session("old")
    assert await until(lambda: not any(map(is_there, strays)))
    assert await value(service, "new", "2 + 2") == "4"
    await service.stop()
    assert await until(lambda: not marked_processes(mark))


@pytest.mark.level("none", "the holder of rooms is the first process of their namespace: they end with it")
async def test_nothing_is_left_after_holder_and_zygote_were_killed_at_once(service: Service, mark: str) -> None:
    await service.create_session("old")
    await daemons(service, "old", 2)
    zygote = zygote_of(service)
    holder = parent_of(zygote)
    await kill(holder)
    await kill(zygote)
    assert await value(service, "old", "1 + 1") == "2"
    await service.create_session("new")
    await service.create_session("newer")
    assert await value(service, "newer", "1 + 1") == "2"
    await service.stop()
    assert await until(lambda: not marked_processes(mark))


@pytest.mark.req("exit.tree")
async def test_nothing_is_left_when_the_server_ends(service: Service, mark: str) -> None:
    for name in ("one", "two"):
        await service.create_session(name)
        await daemons(service, name, 2)
    await service.begin("two", "while True: pass")
    assert len(marked_processes(mark)) > 8
    await service.stop()
    assert await until(lambda: not marked_processes(mark))


# --- a session's init --------------------------------------------------------------------------------------


def killed_from_within() -> Exit:
    return Exit(message="the session's process tree was killed from within")


@pytest.mark.req("exit.tree", "exit.crash")
@pytest.mark.level("none", "nothing in a room can hurt its init")
async def test_a_cell_that_kills_its_init_takes_all_below_with_it_and_is_told_so(service: Service) -> None:
    await service.create_session("main")
    await service.create_session("neighbour")
    strays = await daemons(service, "main", 4)
    kept = await daemons(service, "neighbour", 1)
    result = await service.execute("main", "print('last words')\nos.kill(os.getppid(), 9)\ntime.sleep(600)")
    assert (result.status, result.stdout, result.exit) == ("exit", "last words\n", killed_from_within())
    assert result.notices == [f"the session's process tree was killed from within; {WORKER_NOTICE}"]
    # When the end is told, nothing is left, though others had to see to it.
    assert not any(map(is_there, strays))
    assert all(map(is_there, kept))
    after = await service.execute("main", "'strays' in globals()")
    assert (after.status, after.result) == ("ok", {"text/plain": "False"})


@pytest.mark.req("exit.tree")
async def test_all_forks_below_an_init_that_is_killed_are_over_when_nothing_is_left(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await service.create_session("main")
    strays = await daemons(service, "main", 3)
    await service.fork_session("main", "fork")
    workers = [worker_of(service, name) for name in ("main", "fork")]
    os.kill(workers[0].init_pid or 0, signal.SIGKILL)
    for worker in workers:
        await worker.gone
        assert not any(map(is_there, strays))
    # Not because somebody lost patience: one word is enough for all of them.
    assert "does not go" not in caplog.text


class TestImpatient:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=1, exit_grace=0.2)

    @pytest.mark.req("exit.tree")
    async def test_a_session_whose_init_is_stopped_can_still_be_ended(self, service: Service) -> None:
        await service.create_session("main")
        strays = await daemons(service, "main", 2)
        worker = worker_of(service, "main")
        await worker.init_up
        assert worker.init_pid is not None
        os.kill(worker.init_pid, signal.SIGSTOP)
        await service.end_session("main")
        assert not any(map(is_there, [*strays, worker.pid or 0, worker.init_pid or 0]))

    @pytest.mark.req("exit.tree")
    async def test_an_end_is_told_when_init_itself_is_gone(self, service: Service) -> None:
        """It closes its socket before that. Here it does so long before, so that the moment between can be seen."""
        await service.create_session("main")
        worker = worker_of(service, "main")
        await worker.init_up
        init = worker.init_pid
        assert init is not None
        os.kill(init, signal.SIGSTOP)
        worker.init.swept = True
        worker.init.see_off()
        await asyncio.sleep(0)
        assert is_there(init)
        assert (worker.gone.done(), worker.alive) == (False, False)
        os.kill(init, signal.SIGKILL)
        await worker.gone
        assert not is_there(init)
        await service.end_session("main")

    async def test_no_code_runs_before_the_number_of_init_is_known(
        self, home: Path, mark: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else it could stop its init, and the host would have nobody to kill."""
        handle, held = InitLink._handle, []

        def hold(init: InitLink, message: Any) -> None:
            held.append((init, message))

        monkeypatch.setattr(InitLink, "_handle", hold)
        async with Service.local(make_settings(preload=[], pool=0), home) as service:
            making = asyncio.create_task(service.create_session("main"))
            assert await until(lambda: held and held[0][0].child_pid)
            await asyncio.wait([making], timeout=0.2)
            assert not making.done()
            monkeypatch.setattr(InitLink, "_handle", handle)
            for init, message in held:
                init._handle(message)
            assert (await making).state == "idle"

    @pytest.mark.level("none", "nothing in a room can hurt its init")
    async def test_a_running_cell_whose_init_is_stopped_can_still_be_ended(self, service: Service) -> None:
        await service.create_session("main")
        await service.begin("main", "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)")
        worker = worker_of(service, "main")
        await worker.init_up
        stat = Path(f"/proc/{worker.init_pid}/stat")
        assert await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        await service.end_session("main")
        assert not any(map(is_there, [worker.pid or 0, worker.init_pid or 0]))


# --- exit statuses -----------------------------------------------------------------------------------------


@pytest.mark.req("exit.crash")
async def test_every_exit_code_arrives(service: Service) -> None:
    await service.create_session("main")
    for code in (0, 1, 2, 3, 7, 41, 70, 71, 126, 127, 128, 130, 137, 200, 254, 255):
        result = await service.execute("main", f"import os; os._exit({code})")
        assert result.exit is not None
        assert (result.status, result.exit.code, result.exit.signal) == ("exit", code, None)
    assert await value(service, "main", "1 + 1") == "2"


SIGNALS = {
    "SIGKILL": " (by its own code or from outside; the system does this when memory runs out)",
    "SIGTERM": "",
    "SIGSEGV": " (segmentation fault)",
    "SIGABRT": " (aborted)",
    "SIGBUS": " (bus error)",
    "SIGFPE": " (arithmetic fault)",
    "SIGILL": " (illegal instruction)",
    "SIGHUP": "",
    "SIGUSR1": "",
    "SIGRTMIN": "",
}


@pytest.mark.req("exit.crash")
async def test_every_deadly_signal_arrives_by_name(service: Service) -> None:
    await service.create_session("main")
    for name, meaning in SIGNALS.items():
        result = await service.execute("main", f"import os, signal; os.kill(os.getpid(), signal.{name})")
        message = f"was killed by {name}{meaning}"
        assert (result.status, result.exit) == ("exit", Exit(signal=name, message=message))
        assert result.notices[-1] == f"the session's process {message}; {WORKER_NOTICE}"
    result = await service.execute("main", "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)")
    number = signal.SIGRTMIN + 3
    assert result.exit == Exit(signal=f"signal {number}", message=f"was killed by signal {number}")


async def test_what_the_server_ignores_is_not_ignored_in_its_sessions(home: Path, mark: str) -> None:
    """As when it is started by `nohup`."""
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        async with Service.local(make_settings(preload=[], pool=0), home) as service:
            await service.create_session("main")
            for name in ("SIGHUP", "SIGUSR2"):
                result = await service.execute("main", f"import os, signal; os.kill(os.getpid(), signal.{name})")
                assert result.exit == Exit(signal=name, message=f"was killed by {name}")
            code = "import signal; signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN"
            assert await value(service, "main", code) == "True"
    finally:
        signal.signal(signal.SIGHUP, ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


# --- a session's own children ------------------------------------------------------------------------------


async def test_wait_sees_only_the_users_own_children(service: Service) -> None:
    await service.create_session("main")
    none = await service.execute("main", "import os\nos.wait()")
    assert none.error is not None
    assert none.error.name == "ChildProcessError"
    code = """
pid = os.fork()
if pid == 0:
    os._exit(9)
waited, status = os.wait()
waited == pid, os.waitstatus_to_exitcode(status)
"""
    assert await value(service, "main", code) == "(True, 9)"
    again = await service.execute("main", "os.wait()")
    assert again.error is not None
    assert again.error.name == "ChildProcessError"


async def test_a_handler_for_ended_children_hears_of_the_users_own_only(service: Service) -> None:
    await service.create_session("main")
    code = """
import os, signal, subprocess, time
heard = []
def on_child(number, frame):
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            heard.append((found[0], os.waitstatus_to_exitcode(found[1])))
    except ChildProcessError:
        heard.append("no child")
signal.signal(signal.SIGCHLD, on_child)
pids = []
for number in range(3):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    pids.append(os.fork())
    if pids[-1] == 0:
        # A double fork: the grandchild ends as a stray of init's, long after its parent.
        if os.fork() == 0:
            time.sleep(0.05)
            os._exit(99)
        os._exit(number)
    signal.sigwait([signal.SIGCHLD])
    signal.raise_signal(signal.SIGCHLD)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
[each for each in heard if each != "no child"] == list(zip(pids, range(3)))
"""
    assert await value(service, "main", code) == "True"
    # Ends of strays and of other sessions are none of its business.
    await service.create_session("other")
    await service.end_session("other")
    assert await value(service, "main", "heard.clear(); time.sleep(0.2); heard") == "[]"


OPEN = """
import os
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
[fd for fd in map(int, os.listdir("/proc/self/fd")) if is_open(fd)]
"""


async def test_a_worker_has_its_three_streams_and_private_descriptors_high_up(service: Service) -> None:
    await service.create_session("main")
    text = await value(service, "main", OPEN)
    numbers = [int(number) for number in text.strip("[]").split(",")]
    assert [number for number in numbers if number < 100] == [0, 1, 2]
    assert len(numbers) < 12
    assert await value(service, "main", "f = open('/dev/null'); f.fileno()") == "3"


async def test_the_private_descriptors_lead_to_this_sessions_pipes_and_nowhere_else(service: Service) -> None:
    links = {}
    for name in ("main", "other"):
        await service.create_session(name)
        await service.execute(name, OPEN)
        result = await service.execute(name, "for fd in _: print(os.readlink(f'/proc/self/fd/{fd}'))")
        links[name] = set(result.stdout.split())
    assert {link.partition(":")[0] for link in links["main"] | links["other"]} == {"pipe", "socket"}
    assert links["main"] & links["other"] == set()


async def test_children_inherit_three_streams_only(service: Service) -> None:
    await service.create_session("main")
    code = (
        """
import subprocess, sys
program = """
        + repr(OPEN.replace("[fd for", "found = [fd for") + "print(found)")
        + """
subprocess.run([sys.executable, "-c", program], close_fds=False).returncode
"""
    )
    result = await service.execute("main", code)
    assert (result.stdout, result.result) == ("[0, 1, 2]\n", {"text/plain": "0"})


# --- what a session starts with ----------------------------------------------------------------------------


class TestPreloading:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=["no_such_module_anywhere", "xml.dom.minidom"], pool=1)

    async def test_preloaded_modules_are_there_and_missing_ones_cost_nothing(self, service: Service) -> None:
        info = await service.create_session("main")
        assert (info.state, info.notices) == ("idle", [])
        code = "import sys; [name in sys.modules for name in ('xml.dom.minidom', 'no_such_module_anywhere')]"
        assert await value(service, "main", code) == "[True, False]"
        result = await service.execute("main", "xml")
        assert result.error is not None
        assert result.error.name == "NameError"

    async def test_what_was_loaded_is_known(self, service: Service) -> None:
        await service.create_session("main")
        zygote = launcher_of(service)._zygotes.last
        assert zygote is not None
        ready = zygote.ready.result()
        assert (ready.preloaded, ready.missing) == (["xml.dom.minidom"], ["no_such_module_anywhere"])


# --- begun ahead --------------------------------------------------------------------------------------------

AROUND = "import os, sys; os.getcwd(), os.environ.get('GIVEN'), sys.path.count(''), os.environ['TMPDIR'], os.listdir()"


@pytest.mark.level("none", "in a room, what is begun ahead has the folders of that room, and a /tmp of its own")
async def test_a_prepared_worker_is_the_session_that_is_asked_for(service: Service, home: Path) -> None:
    """It was begun ahead, for one that asks for nothing."""
    asked: dict[str, dict[str, Any]] = {
        "plain": {},
        "elsewhere": {"cwd": str(home)},
        "given": {"env": {"GIVEN": "yes"}},
        "durable": {"durable": True},
    }
    for name, options in asked.items():
        await service.warm()
        prepared = launcher_of(service)._pool[0].pid
        await service.create_session(name, **options)
        session = session_of(service, name)
        assert worker_of(service, name).pid == prepared
        where, given, count, tmp, files = eval(await value(service, name, AROUND))
        assert where == str(home) if "cwd" in options else where == session.folders.workspace == session.cwd
        assert given == ("yes" if "env" in options else None)
        assert count == 1
        assert Path(tmp).parent == session.folders.folder
        assert "cwd" in options or files == []


async def test_a_session_made_ahead_is_told_only_what_is_different(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And who it is, nothing says but what was asked for."""
    started = []
    send = Worker.send

    def note(self: Worker, message: Any) -> None:
        if isinstance(message, messages.Start):
            started.append((self, message.env.get("GIVEN")))
        send(self, message)

    owner, tenant = service, service.acting_for(Caller("token", "tenant"))
    for service, name, env, told in (
        (owner, "plain", {}, []),
        (owner, "given", {"GIVEN": "yes"}, ["yes"]),
        (tenant, "theirs", {}, []),
    ):
        await owner.warm()
        key = f"{service.caller.tenant}/{name}".lstrip("/")
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "send", note)
            began = time.time()
            info = await service.create_session(name, env=env)
            assert [given for worker, given in started if worker is session_of(owner, key).worker] == told
        assert (info.session_id, info.state) == (name, "idle")
        assert info.created_at >= began
        assert await value(service, name, "1 + 1") == "2"
        seen = []
        async for event in service.events(name):
            seen.append(event)
            if isinstance(event, events.Done):
                break
        assert {each.session_id for each in seen} == {name}
        assert min(each.time for each in seen) >= began
        with pytest.raises(CellNotFound, match=name):
            await service.read_output(name, 9)


async def test_one_that_ends_while_it_is_made_ahead_holds_up_nobody(
    service: Service, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []
    prepare = PreparedWorkers.prepare

    async def end(self: PreparedWorkers, *about: Any) -> None:
        worker = about[-1]
        ended.append(worker)
        worker.kill()
        await worker.gone
        await prepare(self, *about)

    with monkeypatch.context() as patch:
        patch.setattr(PreparedWorkers, "prepare", end)
        await service.warm()
    assert len(ended) == 1
    assert launcher_of(service).prepared == 0
    assert await until(lambda: not list((home / "sessions").iterdir()))
    await service.create_session("s")
    assert await value(service, "s", "1 + 1") == "2"
    assert await until(lambda: launcher_of(service).prepared == 1)


async def test_one_that_ends_in_the_moment_it_is_asked_for_is_replaced(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdlibs = manager_of(service).libraries
    read = stdlibs.read
    await service.warm()
    (prepared,) = launcher_of(service)._pool
    finish = Worker._finish
    late = asyncio.Event()

    def finish_late(self: Worker) -> None:
        """Its end is known, and what it means for its session not yet."""
        if self is not prepared or late.is_set():
            finish(self)

    async def end_first(tenant: str) -> None:
        assert prepared.pid is not None
        os.kill(prepared.pid, signal.SIGKILL)
        assert await until(lambda: not prepared.alive)

    monkeypatch.setattr(Worker, "_finish", finish_late)
    stdlibs.read = end_first  # type: ignore[assignment, method-assign]
    await service.create_session("s")
    stdlibs.read = read  # type: ignore[method-assign]
    worker = worker_of(service, "s")
    assert worker is not prepared
    late.set()
    finish(prepared)
    result = await service.execute("s", "1 + 1")
    assert (result.result, result.notices) == ({"text/plain": "2"}, [])
    assert worker_of(service, "s") is worker


async def test_one_that_is_taken_while_the_pool_is_filled_is_followed_by_another(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    prepare = PreparedWorkers.prepare

    async def wait(self: PreparedWorkers, *about: Any) -> None:
        begun.set()
        await go_on.wait()
        await prepare(self, *about)

    async with Service.local(make_settings(preload=[], pool=2, exit_grace=0.5), home) as service:
        await service.warm()
        with monkeypatch.context() as patch:
            patch.setattr(PreparedWorkers, "prepare", wait)
            patch.setattr("ingle.workers.launch.launcher.REFILL_DELAY", 0.0)
            await service.create_session("a")
            await begun.wait()
            await service.create_session("b")
            for _ in range(10):
                await asyncio.sleep(0)
            go_on.set()
            assert await until(lambda: launcher_of(service).prepared == 2)


async def test_a_server_that_stops_prepares_no_more_workers_while_it_ends_its_sessions(
    mark: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, filled = Session.end, []
    async with Service.local(make_settings(preload=[], pool=1, exit_grace=0.5), home) as service:
        await service.create_session("s")
        launcher = launcher_of(service)
        await until(lambda: launcher.prepared == 1)

        async def end_after_filling(self: Session, *, keep: bool = False) -> None:
            launcher._pool.pop().kill()
            await launcher.warm()
            filled.append(launcher.prepared)
            await end(self, keep=keep)

        monkeypatch.setattr(Session, "end", end_after_filling)
    assert filled == [0]


@pytest.mark.level("none", "in a room, what is begun ahead has the folders of that room, and a /tmp of its own")
async def test_folders_that_came_to_no_session_go_with_their_worker(service: Service, home: Path) -> None:
    await service.warm()
    laid = folder_of(service, launcher_of(service)._pool[0])
    await service.create_session("durable", durable=True)
    assert await until(lambda: launcher_of(service).prepared == 1)
    assert (home / "sessions" / laid).is_dir()
    await kill(worker_of(service, "durable").pid or 0)
    assert await until(lambda: not (home / "sessions" / laid).exists())
    await service.end_session("durable")


async def test_a_prepared_worker_that_dies_leaves_the_pool_with_its_folders(service: Service, home: Path) -> None:
    await service.warm()
    launcher = launcher_of(service)
    for number in range(3):
        (dead,) = launcher._pool
        laid = folder_of(service, dead)
        assert await until((home / "sessions" / laid).is_dir)
        await kill((dead.init_pid if number == 1 else dead.pid) or 0)
        assert await until(lambda: launcher.prepared == 0)
        assert await until(lambda laid=laid: not (home / "sessions" / laid).exists())
        # It holds up nobody, and the next one is prepared after the next session.
        await service.create_session(f"s{number}")
        assert await value(service, f"s{number}", "1 + 1") == "2"
        assert await until(lambda: launcher.prepared == 1)


async def test_folders_of_a_session_that_was_not_made_go_with_the_worker_that_was_for_it(
    service: Service, home: Path
) -> None:
    await service.warm()
    (prepared,) = launcher_of(service)._pool
    laid = folder_of(service, prepared)
    assert await until((home / "sessions" / laid).is_dir)

    async def fail(session: Session) -> None:
        raise StartFailed("for this test")

    with pytest.raises(StartFailed):
        await manager_of(service).create(NewSession(), fail)
    assert await until(lambda: not (home / "sessions" / laid).exists())
    assert prepared.gone.done()
    await service.create_session("s")
    assert await value(service, "s", "1 + 1") == "2"


async def test_a_start_that_fails_leaves_no_process_behind(home: Path, mark: str) -> None:
    async with Service.local(make_settings(pool=0, preload=[], exit_grace=0.5), home) as service:
        await service.create_session("first")
        before = own_processes(service, 1)
        assert await until(lambda: len(marked_processes(mark)) == before)
        manager = manager_of(service)

        async def fail(tenant: str) -> None:
            raise StartFailed("for this test")

        manager.libraries.read = fail  # type: ignore[assignment, method-assign]
        with pytest.raises(StartFailed):
            await service.create_session("second")
        # Less, where the init that waited was to have been that of the session: another is made with the next one.
        assert await until(lambda: len(marked_processes(mark)) <= before)


async def test_without_preloading_the_module_is_not_there(service: Service) -> None:
    await service.create_session("main")
    assert await value(service, "main", "import sys; 'xml.dom.minidom' in sys.modules") == "False"


async def test_random_numbers_differ_between_sessions(service: Service) -> None:
    drawn = set()
    for number in range(4):
        await service.create_session(f"session-{number}")
        code = (
            "import random, uuid, tempfile; (random.random(), uuid.uuid4().hex, next(tempfile._RandomNameSequence()))"
        )
        drawn.update((await value(service, f"session-{number}", code)).strip("()").split(", "))
    assert len(drawn) == 12


# --- a fresh interpreter for each session ------------------------------------------------------------------


@pytest.mark.level("none", "an interpreter that is spawned cannot confine itself, so elsewhere there is a zygote")
class TestSpawned:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(start_method="spawn", preload=[], pool=1, exit_grace=0.5)

    async def test_cells_share_a_namespace_and_both_streams_are_kept(self, service: Service) -> None:
        await service.create_session("main")
        assert launcher_of(service).zygote_pid is None
        await service.execute("main", "x = 20")
        result = await service.execute("main", "import sys; print('out'); print('err', file=sys.stderr); x + 22")
        assert (result.status, result.stdout, result.stderr, result.result) == (
            "ok",
            "out\n",
            "err\n",
            {"text/plain": "42"},
        )

    async def test_input_is_asked_and_answered(self, service: Service) -> None:
        await service.create_session("main")
        waiting = await service.execute("main", "input('name? ')")
        assert (waiting.status, waiting.prompt) == ("waiting_for_input", "name? ")
        answered = await service.input("main", "ada")
        assert (answered.status, answered.result) == ("ok", {"text/plain": "'ada'"})

    async def test_an_interrupt_ends_the_cell_and_keeps_the_variables(self, service: Service) -> None:
        await service.create_session("main")
        await service.execute("main", "import time; x = 5")
        await service.begin("main", "print('begun')\ntime.sleep(600)")
        assert await until_async(service, "begun\n")
        result = await service.interrupt("main")
        assert isinstance(result, Result)
        assert (result.status, result.error and result.error.name) == ("interrupted", "KeyboardInterrupt")
        assert await value(service, "main", "x") == "5"

    @pytest.mark.req("exit.crash")
    async def test_exit_statuses_arrive_and_a_fresh_worker_follows(self, service: Service) -> None:
        await service.create_session("main")
        first = worker_of(service, "main").pid
        result = await service.execute("main", "import os; os._exit(3)")
        assert result.exit == Exit(code=3, message="ended with exit code 3")
        result = await service.execute("main", "import os; os.kill(os.getpid(), 15)")
        assert result.exit == Exit(signal="SIGTERM", message="was killed by SIGTERM")
        assert await value(service, "main", "'x' in globals()") == "False"
        assert worker_of(service, "main").pid != first

    @pytest.mark.req("exit.tree")
    async def test_strays_end_with_their_session(self, service: Service) -> None:
        await service.create_session("main")
        strays = await daemons(service, "main", 3)
        await service.end_session("main")
        assert await until(lambda: not any(map(is_there, strays)))

    async def test_descriptors_and_children_are_the_users_own(self, service: Service) -> None:
        await service.create_session("main")
        text = await value(service, "main", OPEN)
        assert [number for number in map(int, text.strip("[]").split(",")) if number < 100] == [0, 1, 2]
        result = await service.execute("main", "os.wait()")
        assert result.error is not None
        assert result.error.name == "ChildProcessError"


async def until_async(service: Service, text: str) -> bool:
    """Until the running cell has written this."""
    for _ in range(2000):
        if (await service.wait("main", wait=0)).stdout == text:
            return True
        await asyncio.sleep(0.005)
    return False


@pytest.mark.req("exit.tree")
@pytest.mark.level("none", "nothing in a room can hurt its init")
async def test_a_spawned_session_whose_init_is_killed_leaves_no_daemon(mark: str, home: Path) -> None:
    settings = make_settings(preload=[], pool=0, start_method="spawn")
    async with Service.local(settings, home) as service:
        await service.create_session("s")
        result = await service.execute(
            "s",
            "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
            "    os._exit(0)\ntime.sleep(0.1)\nos.kill(os.getppid(), 9)\ntime.sleep(600)",
        )
        assert result.status == "exit"
        assert (await service.execute("s", "1 + 1")).result == {"text/plain": "2"}
        assert len(marked_processes(mark)) == 3  # the new holder, init and worker


async def test_a_folder_that_cannot_be_made_is_told_and_tried_no_more_than_asked(service: Service, home: Path) -> None:
    await service.warm()
    sessions = home / "sessions"
    sessions.rename(home / "aside")
    sessions.write_text("in the way")

    async def use() -> None:
        # The one that was made ahead has its folders. The next is refused, or its first cell is: nothing runs, and
        # nothing is tried over and over.
        await service.create_session("ahead")
        await service.create_session("s")
        await service.execute("s", "1")
        await service.execute("s", "1")

    try:
        with pytest.raises(StartFailed):
            await use()
    finally:
        sessions.unlink()
        (home / "aside").rename(sessions)
    await service.create_session("t")
    assert (await service.execute("t", "1 + 1")).result == {"text/plain": "2"}


async def test_a_session_waits_for_a_core_and_pushes_nobody_aside(service: Service) -> None:
    await service.create_session("a")
    code = "import os\nprint(os.sched_getscheduler(0) == os.SCHED_BATCH, os.getpriority(os.PRIO_PROCESS, 0))"
    # Confined code has the nice value of the settings.
    nice = os.getpriority(os.PRIO_PROCESS, 0) + (service.settings.nice if service.settings.isolation != "none" else 0)
    assert (await service.execute("a", code)).stdout == f"True {nice}\n"
