"""Live copies of a worker: one more process below the same init, with everything a fork copies and streams of its own.

These tests talk to workers themselves, to see the process tree; what sessions make of copies is tested elsewhere.
"""

import asyncio
import os
import resource
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from test_process_tree import is_there

from ingle.errors import StartFailed
from ingle.events import Exit
from ingle.requests import NewCell
from ingle.workers.copies import Copies
from ingle.workers.launch.launcher import Launcher
from ingle.workers.worker import Worker
from ingle_worker.processes.linux import parent_of
from ingle_worker.wire import messages
from support.service import make_settings
from support.waiting import until

KILLED = "was killed by SIGKILL (by its own code or from outside; the system does this when memory runs out)"
pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.fork")]


STRAY = """
import os, subprocess, time

def daemon():
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, b"%d" % os.getpid())
            os.closerange(0, 90)
            time.sleep(600)
        os._exit(0)
    os.wait()
    return int(os.read(read, 20))

def program():
    done = subprocess.run(["sh", "-c", "env -i setsid sleep 600 >/dev/null 2>&1 & echo $!"], capture_output=True)
    return int(done.stdout)
"""


class Talk:
    """A worker's owner, who asks for one cell after another."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        worker.owner = self
        self.output = ""
        self.gone: Exit | None = None
        self._cell = 0
        self._done: dict[int, asyncio.Future[messages.Done]] = {}
        self.started = asyncio.get_running_loop().create_future()

    def on_output(self, stream: int, data: bytes, background: bool) -> None:
        self.output += data.decode()

    def on_message(self, message: Any) -> None:
        if isinstance(message, messages.Done):
            self._done[message.cell].set_result(message)
        elif isinstance(message, messages.Started):
            self.started.set_result(message)

    def on_gone(self, exit: Exit) -> None:
        self.gone = exit
        for done in self._done.values():
            if not done.done():
                done.set_exception(RuntimeError(exit.message))
                done.exception()

    def begin(self, code: str) -> int:
        self._cell += 1
        self._done[self._cell] = asyncio.get_running_loop().create_future()
        self.worker.execute(self._cell, NewCell(code), crowded=False)
        return self._cell

    async def end_of(self, cell: int) -> messages.Done:
        return await asyncio.wait_for(asyncio.shield(self._done[cell]), 20)

    async def run(self, code: str) -> str:
        """What the cell prints."""
        self.output = ""
        done = await self.end_of(self.begin(code))
        assert (done.status, done.error) == ("ok", None), done
        return self.output

    async def ask(self, code: str) -> Any:
        return eval(await self.run(f"print(ascii({code}))"))

    async def fork(self, count: int = 1) -> "list[Talk]":
        return [Talk(each) for each in await (await self.worker.fork(count)).up()]

    async def end(self) -> Exit:
        self.worker.kill()
        return await asyncio.wait_for(self.worker.gone, 10)


Start = Callable[..., Awaitable[Talk]]


@pytest.fixture(params=["fork", "spawn"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def launcher(mark: str, method: str) -> AsyncIterator[Launcher]:
    made = Launcher(
        asyncio.get_running_loop(), os.sys.executable, make_settings(preload=[], pool=0, start_method=method)
    )
    yield made
    await made.stop()


@pytest.fixture
async def start(launcher: Launcher, tmp_path: Path) -> AsyncIterator[Start]:
    made: list[Talk] = []

    async def take() -> Talk:
        def begin(worker: Worker) -> None:
            made.append(Talk(worker))
            worker.send(messages.Start(str(tmp_path), str(tmp_path)))

        await launcher.take(begin)
        await made[-1].started
        return made[-1]

    yield take
    for talk in made:
        for each in list(talk.worker.siblings.members):
            each.kill()
            await each.gone


forks_only = pytest.mark.parametrize("method", ["fork"], indirect=True)


async def test_a_copy_has_all_there_was_and_goes_its_own_way(start: Start, tmp_path: Path) -> None:
    original = await start()
    await original.run(
        "import os, random, threading, sys\nrandom.seed(7)\nlines = ['a']; again = lines; lock = threading.Lock()\n"
        "os.environ['KEPT'] = 'yes'\nfile = open('data', 'w+'); _ = file.write('hello'); file.flush()\n"
        "g = (i for i in range(9)); next(g)\nsaved = os.dup(1)"
    )
    (copy,) = await original.fork()
    seen = "(lines is again, os.environ['KEPT'], os.getcwd(), next(g), random.random(), file.tell())"
    both = [await copy.ask(seen), await original.ask(seen)]
    assert both[0] == both[1] == (True, "yes", str(tmp_path), 1, both[0][4], 5)
    await copy.run("lines.append('b')")
    assert (await copy.ask("lines"), await original.ask("lines")) == (["a", "b"], ["a"])
    # Whatever was a stream of the session's is one of the copy's.
    assert await copy.run("os.write(saved, b'one '); os.system('echo two'); print('three', file=sys.stderr)") == (
        "one two\nthree\n"
    )
    assert original.output == "['a']\n"
    # Its number is the kernel's word.
    assert await copy.ask("(os.getpid(), os.getppid())") == (copy.worker.pid, original.worker.init_pid)


async def test_copies_of_copies_outlive_their_originals(start: Start) -> None:
    first = await start()
    await first.run("x = [1]")
    (second,) = await first.fork()
    await second.run("x.append(2)")
    third, fourth = await second.fork(2)
    for each in (first, second):
        assert await each.end() == Exit(signal="SIGKILL", message=KILLED)
    assert (await third.ask("x"), await fourth.ask("x")) == ([1, 2], [1, 2])


async def test_each_of_a_family_is_interrupted_alone(start: Start) -> None:
    original = await start()
    await original.run("import time")
    family = [original, *await original.fork(3)]
    for talk in family:
        talk._cell = 1
    for hit in family:
        cells = [talk.begin("print('on'); time.sleep(600)") for talk in family]
        assert await until(lambda: all("on" in talk.output for talk in family))
        for talk, cell in zip(family, cells, strict=True):
            if talk is hit:
                assert await talk.worker.interrupt(cell) is False
                done = await talk.end_of(cell)
                assert done.status == "interrupted"
        others = [talk for talk in family if talk is not hit]
        assert not any(talk._done[cells[0]].done() for talk in others)
        for talk in others:
            await talk.worker.interrupt(cells[0])
            assert (await talk.end_of(cells[0])).status == "interrupted"
        for talk in family:
            talk.output = ""
            # What comes outside of a cell is consumed, and hurts nobody.
            assert await talk.worker.interrupt(cells[0]) is True
            assert await talk.run("print(1)") == "1\n"


@pytest.mark.req("exit.crash")
async def test_the_end_of_each_is_told_and_touches_no_other(start: Start) -> None:
    original = await start()
    await original.run("import os, signal")
    copies = await original.fork(4)
    copies[0].begin("os._exit(7)")
    copies[1].begin("os.kill(os.getpid(), signal.SIGSEGV)")
    copies[2].worker.send(messages.Shutdown())
    ends = [await asyncio.wait_for(talk.worker.gone, 10) for talk in copies[:3]]
    assert [(end.code, end.signal) for end in ends] == [(7, None), (None, "SIGSEGV"), (0, None)]
    assert await copies[3].run("print(2)") == "2\n"
    original.begin("os._exit(8)")
    assert (await asyncio.wait_for(original.worker.gone, 10)).code == 8
    assert await copies[3].run("print(3)") == "3\n"
    # Their places are free again, and used again.
    again = await copies[3].fork(2)
    assert {talk.worker.slot for talk in again} <= {talk.worker.slot for talk in copies[:3]}


@pytest.mark.req("exit.tree")
async def test_strays_end_with_their_own_worker(start: Start) -> None:
    original = await start()
    await original.run(STRAY)
    family = [original, *await original.fork(2)]
    # A daemon; and a program that has a session of its own and an empty environment.
    strays = [[await talk.ask("daemon()"), await talk.ask("program()")] for talk in family]
    assert all(is_there(pid) for pids in strays for pid in pids)
    for number in (1, 0, 2):
        assert await family[number].end() == Exit(signal="SIGKILL", message=KILLED)
        ended, strays[number] = strays[number], []
        assert not any(map(is_there, ended))
        assert all(is_there(pid) for pids in strays for pid in pids)


@pytest.mark.req("exit.tree")
async def test_a_family_ends_with_its_init(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    original = await start()
    family = [original, *await original.fork(3)]
    pids = [talk.worker.pid for talk in family]
    assert original.worker.init_pid is not None
    os.kill(original.worker.init_pid, signal.SIGKILL)
    ends = {await asyncio.wait_for(talk.worker.gone, 10) for talk in family}
    assert ends == {Exit(message="the session's process tree was killed from within")}
    # All are told by the word that it is over, and none because it was waited for too long.
    assert caplog.messages == []
    assert await until(lambda: not any(is_there(pid) for pid in pids if pid is not None))


@forks_only
async def test_an_init_that_was_stopped_is_woken_before_it_is_killed(start: Start) -> None:
    original = await start()
    (copy,) = await original.fork()
    assert original.worker.init_pid is not None
    os.kill(original.worker.init_pid, signal.SIGSTOP)
    assert await copy.end() == Exit(signal="SIGKILL", message=KILLED)
    assert await original.run("print(1)") == "1\n"


@forks_only
async def test_what_a_fork_does_not_copy_is_named(start: Start) -> None:
    original = await start()
    await original.run(
        "import asyncio, subprocess, threading, time\nstop = threading.Event()\n"
        "for name in ('one', 'two'): threading.Thread(target=stop.wait, name=name).start()\n"
        "p = subprocess.Popen(['sleep', '600'])\n"
        "async def tick():\n    while True: await asyncio.sleep(0.001)\n"
        "task = asyncio.ensure_future(tick()); await asyncio.sleep(0)"
    )
    copies: Copies = await original.worker.fork()
    assert copies.notices == [
        "not copied: 2 threads of the original: one, two",
        "not copied: 1 task of the original's event loop",
        f"not copied: 1 child process of the original: sleep (pid {await original.ask('p.pid')})",
    ]
    copy = Talk(copies.workers[0])
    assert await copy.ask("[each.name for each in threading.enumerate()]") == ["MainThread"]
    assert (await copy.worker.fork()).notices == []
    assert await original.ask("p.poll()") is None
    await original.run("stop.set(); p.kill()")


@forks_only
@pytest.mark.req("cell.await")
async def test_a_copy_has_a_loop_of_its_own_and_leaves_the_old_one_alone(start: Start) -> None:
    original = await start()
    await original.run(
        "import asyncio, gc, os, select, socket\nticks = 0\na, b = socket.socketpair(); a.setblocking(False)\n"
        "async def tick():\n    global ticks\n    while True:\n        await asyncio.sleep(0.001); ticks += 1\n"
        "async def echo():\n    while True:\n        data = await loop.sock_recv(a, 100); print('got', data)\n"
        "loop = asyncio.get_running_loop()\ntasks = [asyncio.ensure_future(tick()), asyncio.ensure_future(echo())]\n"
        "await asyncio.sleep(0.01)\npoll = select.epoll(); poll.register(b.fileno(), select.EPOLLIN)"
    )
    (copy,) = await original.fork()
    # The worst it can do: close the loop that it inherited, and take its own descriptors out of every poll.
    await copy.run(
        "old = loop; loop.remove_reader(a.fileno()); loop.close(); poll.unregister(b.fileno())\n"
        "del loop, tasks; gc.collect()"
    )
    assert await copy.run("await asyncio.sleep(0.001); print(asyncio.get_running_loop() is not old)") == "True\n"
    before = await original.ask("ticks")
    await original.run("b.send(b'x')")
    assert await until(lambda: "got b'x'" in original.output)
    assert await original.ask("ticks") > before
    assert await original.ask("(a.send(b'y'), poll.poll(1) == [(b.fileno(), 1)])") == (1, True)


WITH_A_THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
both_ways = pytest.mark.parametrize("first", ["", WITH_A_THREAD], ids=["alone", "with a thread"])
"""With other threads a copy is made in another way."""


@forks_only
@both_ways
async def test_neither_wait_nor_sigchld_sees_a_copy_being_made(start: Start, first: str) -> None:
    original = await start()
    await original.run(first)
    await original.run(
        "import os, signal\nseen = []\n_ = signal.signal(signal.SIGCHLD, lambda number, frame: seen.append(number))\n"
        "_ = signal.signal(signal.SIGALRM, lambda number, frame: seen.append('alarm'))"
    )
    (copy,) = await original.fork()
    for talk in (original, copy):
        assert await talk.ask("(seen, signal.getsignal(signal.SIGCHLD) != 0, signal.pthread_sigmask(0, []))") == (
            [],
            True,
            set(),
        )
        assert (
            await talk.run(
                "try: print(os.wait())\nexcept ChildProcessError: print('none')\n"
                # Not by os.fork(), which warns from Python 3.12 on where there are threads.
                "pid = os.posix_spawn('/bin/sh', ['sh', '-c', 'exit 3'], {})\nprint(os.waitpid(pid, 0)[1] >> 8)\n"
                "print(seen)"
            )
            == "none\n3\n[17]\n"
        )
        assert await talk.run("signal.raise_signal(signal.SIGALRM); print(seen)") == "[17, 'alarm']\n"


@forks_only
@both_ways
async def test_the_original_goes_on_before_its_copies_are_there(start: Start, tmp_path: Path, first: str) -> None:
    original = await start()
    await original.run(first)
    await original.run(
        "import os, time\ndef wait():\n    while not os.path.exists('go'): time.sleep(0.001)\n"
        "os.register_at_fork(after_in_child=wait)\nx = 1"
    )
    for count in (1, 3):
        copies = await original.worker.fork(count)
        assert await original.run("x += 1; print(x)") == f"{count + 1}\n"
        assert not any(each.ready.done() for each in copies.workers)
        (tmp_path / "go").touch()
        assert [await Talk(each).ask("x") for each in await copies.up()] == [count] * count
        (tmp_path / "go").unlink()
        await original.run("x += 1")


@forks_only
@both_ways
async def test_a_copy_that_is_ended_before_it_is_there_takes_nobody_along(
    start: Start, tmp_path: Path, first: str
) -> None:
    original = await start()
    await original.run(first)
    await original.run(
        "import os, time\ndef wait():\n    while not os.path.exists('go'): time.sleep(0.001)\n"
        "os.register_at_fork(after_in_child=wait)\nx = 1"
    )
    for _ in range(3):
        copies = await original.worker.fork()
        copies.kill()
        await copies.workers[0].gone
        assert await original.run("x += 1; print(x > 1)") == "True\n"
    # Nor is it taken along when its original ends.
    for number in range(4, 10):
        copies = await original.worker.fork()
        await original.end()
        (tmp_path / "go").touch()
        original = Talk((await copies.up())[0])
        original._cell = number
        assert await original.run(f"{first}\nx += 1\nprint(x)") == f"{number + 1}\n"
        (tmp_path / "go").unlink()


@forks_only
@both_ways
async def test_a_copy_is_a_child_of_init_and_knows_its_own_thread(start: Start, first: str) -> None:
    original = await start()
    await original.run(first)
    await original.run("import os, threading, time")
    for talk in await original.fork() + await original.fork(2):
        assert await until(lambda pid=talk.worker.pid: parent_of(pid) == original.worker.init_pid)
        assert await talk.ask("threading.get_native_id() == threading.main_thread().native_id == os.getpid()") is True
        # libc finds the clock of a thread by the number that it has noted for it.
        clock = "time.clock_gettime(time.pthread_getcpuclockid(threading.get_ident()))"
        assert await talk.ask(f"time.thread_time() <= {clock} <= time.thread_time()") is True


ATFORK = """
import ctypes, os
seen = []
def note():
    seen.append(os.getpid())
    for each in then: each()
then = []
note = ctypes.PYFUNCTYPE(None)(note)
_ = ctypes.PyDLL(None)["__register_atfork"](None, None, note, None)
"""
"""What a library written in C does with pthread_atfork()."""

CLONING = """
import gc, types
gc.unfreeze()
(cloning,) = [
    each for each in gc.get_objects() if type(each) is types.ModuleType
    and each.__name__ == "ingle_worker.processes.clone"
]
"""
"""The guest's own module, which code has no other way to."""


@forks_only
async def test_with_other_threads_libc_forks_twice(start: Start) -> None:
    original = await start()
    await original.run(WITH_A_THREAD + ATFORK)
    (copy,) = await original.fork()
    assert await copy.ask("(len(seen), seen.index(os.getpid()))") == (2, 1)
    for copy in await original.fork(3):
        assert await copy.ask("(len(seen), os.getpid() in seen)") == (2, False), "the kernel forks what the maker makes"
    assert await original.ask("seen") == []


@forks_only
@pytest.mark.parametrize("end", ["abort", "kill"])
async def test_a_library_that_ends_the_new_process_costs_only_that_fork(start: Start, end: str) -> None:
    original = await start()
    await original.run(WITH_A_THREAD + ATFORK)
    how = {
        "abort": ("os.abort", "no process could be forked: what a library does after a fork was ended by signal 6"),
        "kill": ("lambda: os.kill(os.getpid(), 9)", "a library does after a fork was ended by signal 9"),
    }
    code, message = how[end]
    await original.run(f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); then = [{code}]")
    for count in (1, 2):
        with pytest.raises(StartFailed, match=message):
            await original.fork(count)
    await original.run("then = []")
    (copy,) = await original.fork()
    assert await copy.ask("then") == []
    assert await until(lambda: len(original.worker.siblings.members) == 2)


@forks_only
async def test_where_the_kernel_cannot_be_asked_libc_forks_each_copy(start: Start) -> None:
    """As on a kernel that does not say where libc keeps its things."""
    original = await start()
    await original.run(WITH_A_THREAD + ATFORK + CLONING + "cloning._tid_address = lambda: 0")
    for copy in await original.fork() + await original.fork(2):
        assert await copy.ask("len(seen) >= 2") is True
        assert await until(lambda pid=copy.worker.pid: parent_of(pid) == original.worker.init_pid)


@forks_only
async def test_no_process_to_be_had_is_said_by_its_name(start: Start) -> None:
    original = await start()
    await original.run(
        WITH_A_THREAD
        + ATFORK
        + CLONING
        + "fork, original = cloning.fork_bare, os.getpid()\n"
        + "def fail(): raise OSError(11, 'none')\n"
        + "cloning.fork_bare = lambda: fork() if os.getpid() == original else fail()"
    )
    with pytest.raises(StartFailed, match="no process could be forked: Resource temporarily unavailable"):
        await original.fork()
    await original.run("cloning.fork_bare = fork")
    (copy,) = await original.fork()
    assert await copy.run("print(1)") == "1\n"


@forks_only
@both_ways
async def test_libc_and_the_kernel_agree_on_a_copy(start: Start, first: str) -> None:
    """What libc registers for a thread with the kernel: its number, its locks, where it is told the core it runs on."""
    original = await start()
    await original.run(first)
    await original.run("import ctypes, os, threading, time\nlibc = ctypes.CDLL(None)")
    (copy,) = await original.fork()
    (second,) = await copy.fork()
    for talk in (original, copy, second):
        await talk.run(
            "cores = []\nall = os.sched_getaffinity(0)\n"
            "for each in all:\n    os.sched_setaffinity(0, {each}); cores.append(libc.sched_getcpu() == each)\n"
            "os.sched_setaffinity(0, all)\n"
            "head, size = ctypes.c_long(), ctypes.c_long()\n"
            "number = {'x86_64': 274, 'aarch64': 100}[os.uname().machine]\n"
            "robust = libc.syscall(number, 0, ctypes.byref(head), ctypes.byref(size))"
        )
        assert await talk.ask("(set(cores), robust, head.value != 0, size.value)") == ({True}, 0, True, 24)
        # And it can begin threads of its own.
        assert (
            await talk.run("t = threading.Thread(target=print, args=['in a thread']); t.start(); t.join()")
            == "in a thread\n"
        )


@forks_only
async def test_blas_goes_on_on_both_sides(start: Start) -> None:
    pytest.importorskip("numpy")
    original = await start()
    product = "import numpy, os\nm = numpy.ones((900, 900)); p = m @ m"
    await original.run(product)
    assert await original.ask("len(os.listdir('/proc/self/task')) > 1 or os.cpu_count() == 1") is True
    (copy,) = await original.fork()
    for talk in (copy, original, *await original.fork(2)):
        await talk.run(product)
        assert await talk.ask("float(p.sum())") == 900.0**3


@forks_only
async def test_a_hook_that_hangs_after_a_fork_costs_only_that_fork(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = "import os, time\nhang = True\nos.register_at_fork(after_in_child=lambda: hang and time.sleep(600))"

    async def hang(original: Talk, count: int, first: str) -> None:
        await original.run(first)
        await original.run(hook)
        # Of several, the first that is missed is named, and the others are told to end.
        reason = "was killed by SIGALRM" if count == 1 else ""
        with pytest.raises(StartFailed, match=f"a copy ended before it was ready: {reason}"):
            await original.fork(count)
        await original.run("hang = False")
        (copy,) = await original.fork()
        assert await copy.ask("hang") is False
        assert len(original.worker.siblings.members) == 2

    # At once: each waits for the alarm.
    one, two, three = [await start() for _ in range(3)]
    await asyncio.gather(hang(one, 1, ""), hang(two, 2, ""), hang(three, 1, WITH_A_THREAD))


@forks_only
async def test_a_worker_without_descriptors_says_so(start: Start) -> None:
    original = await start()
    await original.run(
        "import os, resource\nlimits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (110, limits[1]))\nfiles = []\n"
        "try:\n    while True: files.append(os.open('/dev/null', os.O_RDONLY))\nexcept OSError: pass"
    )
    with pytest.raises(StartFailed, match="no descriptors are left in the session"):
        await original.worker.fork()
    await original.run("for each in files: os.close(each)")
    (copy,) = await original.fork()
    assert await copy.ask("len(files) > 50") is True


@forks_only
async def test_a_host_without_descriptors_says_so_and_leaks_none(start: Start) -> None:
    original = await start()
    # Numbers are given from the lowest on: with all of them in use, the limit is what is left.
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers = [os.open("/dev/null", os.O_RDONLY)]
    while fillers[-1] < highest:
        fillers.append(os.open("/dev/null", os.O_RDONLY))
    open_before = len(os.listdir("/proc/self/fd"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(highest, fillers[-1])
    for room in range(14):
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + room, limits[1]))
        try:
            with pytest.raises(StartFailed, match="no pipe could be made"):
                await original.worker.fork(2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert await until(lambda: len(os.listdir("/proc/self/fd")) == open_before), room
        assert await until(lambda: original.worker.siblings.members == {original.worker}), room
    for fd in fillers:
        os.close(fd)
    (copy,) = await original.fork()
    assert await copy.run("print(1)") == "1\n"
