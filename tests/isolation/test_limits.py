"""What a session may use, with each breach named, and nobody else hurt."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Result
from ingle.isolation.limits import cgroup_mounts, cgroups, disk_usage, limits, watchdog
from ingle.isolation.limits.cgroups import Group, Groups
from ingle.requests import SessionLimits
from ingle.service import Service
from ingle.settings import Settings
from ingle.workers.launch.launcher import Launcher
from ingle.workers.worker import Worker
from support.internals import session_of, worker_of
from support.service import make_settings
from support.waiting import until

MIB = 1024**2
PLACE = cgroup_mounts.find_places(Path("/")).get(cgroup_mounts.MEMORY) if os.getuid() == 0 else None
NO_GROUPS = "no cgroup can be made here: that takes root and a memory controller"
needs_groups = pytest.mark.skipif(PLACE is None, reason=NO_GROUPS)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, isolation="limits", limit_memory=200 * MIB)


@pytest.fixture(params=["cgroup of version 2", "cgroup of version 1", "watchdog"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which memory and processes are bounded: each test runs with all that the machine has."""
    if request.param == "watchdog":
        monkeypatch.setattr(Groups, "find", classmethod(lambda cls: cls()))
        return "watchdog"
    if PLACE is None:
        pytest.skip(NO_GROUPS)
    if request.param != f"cgroup of version {PLACE.version}":
        pytest.skip(f"the memory controller of this machine is in the tree of version {PLACE.version}, and in no other")
    return "cgroup"


async def goes_on(service: Service, result: Result, named: str) -> None:
    """The cell was ended for that reason, and the session and its neighbour go on."""
    assert result.status == "exit"
    assert result.exit is not None
    assert result.exit.message == f"was killed: {named}"
    assert any(f"was killed: {named}; the session's variables" in each for each in result.notices)
    after = await service.execute(result.session_id, "2 + 2")
    assert (after.status, after.result) == ("ok", {"text/plain": "4"})
    assert any(named in each for each in after.notices)
    assert (await service.execute("neighbour", "kept")).result == {"text/plain": "1"}


@pytest.fixture
async def pair(means: str, service: Service) -> Service:
    """A session `s`, and a neighbour with something to lose."""
    await service.create_session("s")
    await service.create_session("neighbour")
    await service.execute("neighbour", "kept = 1")
    return service


@pytest.mark.req("exit.crash")
async def test_too_much_memory_ends_that_worker_and_is_named(pair: Service, means: str) -> None:
    # With the watchdog the kernel bounds a single process, and the cell gets an exception; so two of them share it.
    code = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        kept = bytearray(150 << 20)
        time.sleep(30)
        os._exit(0)
os.wait()
"""
    if means == "cgroup":
        code = "kept = bytearray(400 << 20)"
    await goes_on(pair, await pair.execute("s", code), "memory limit 200 MiB")


async def test_a_child_that_takes_too_much_costs_only_itself(pair: Service, means: str) -> None:
    code = f"""
state = "kept"
import subprocess
subprocess.run([{sys.executable!r}, "-c", "x = bytearray(400 << 20)"], stderr=subprocess.DEVNULL).returncode
"""
    result = await pair.execute("s", code)
    assert (result.status, result.result) == ("ok", {"text/plain": "-9" if means == "cgroup" else "1"})
    if means == "cgroup":
        assert any(each.startswith("memory limit 200 MiB: ") for each in result.notices)
    assert (await pair.execute("s", "state")).result == {"text/plain": "'kept'"}


async def test_what_forks_share_is_counted_once(pair: Service) -> None:
    code = """
import os, time
kept = bytearray(120 << 20)
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.5)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
"done"
"""
    result = await pair.execute("s", code)
    assert (result.status, result.result) == ("ok", {"text/plain": "'done'"})


TWO_OF_120_MIB = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        kept = bytearray(120 << 20)
        time.sleep(60)
        os._exit(0)
while True:
    more = bytearray(40 << 20)
    time.sleep(0.1)
    del more
    time.sleep(0.1)
"""
"""Each of them below the limit, and both above it. The machine's memory grows again and again: once could be missed, as
other programs free memory meanwhile."""


async def test_forks_share_the_memory_of_their_origin(pair: Service) -> None:
    await pair.execute("s", "kept = 'first'")
    await pair.fork_session("s", "t")
    assert (await pair.execute("s", "more = bytearray(80 << 20)")).status == "ok"
    result = await pair.execute("t", "more = bytearray(130 << 20); import time; time.sleep(60)")
    await goes_on(pair, result, "memory limit 200 MiB")
    # The larger of the two was ended.
    assert (await pair.execute("s", "kept, len(more)")).result == {"text/plain": "('first', 83886080)"}


@pytest.fixture
def not_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle sessions are checked when programs grow, and not because a second is over."""
    monkeypatch.setattr(watchdog, "IDLE_CHECK_SECONDS", 1e6)


@pytest.mark.usefixtures("no_groups", "not_by_the_clock")
async def test_a_command_in_an_idle_session_is_checked_when_programs_grow(service: Service) -> None:
    for name in ("s", "neighbour"):
        await service.create_session(name)
        await service.execute(name, "kept = 1")
    task = await service.shell(f"{sys.executable} -c '{TWO_OF_120_MIB}'; echo came through", session_id="s", wait=50)
    assert (task.status, task.stdout) == ("killed", "")
    assert "its sandbox was killed: memory limit 200 MiB" in task.notices
    after = await service.execute("s", "2 + 2")
    assert any("memory limit 200 MiB" in each for each in after.notices)
    assert (await service.execute("neighbour", "kept")).result == {"text/plain": "1"}


@pytest.mark.usefixtures("no_groups", "not_by_the_clock")
async def test_what_a_cell_left_running_is_checked_when_programs_grow(service: Service, tmp_path: Path) -> None:
    await service.create_session("s")
    gate = tmp_path / "gate"
    waits = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
    code = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {waits + TWO_OF_120_MIB!r}])"
    assert (await service.execute("s", code)).status == "ok"
    pid = worker_of(service, "s").pid
    gate.touch()
    assert await until(lambda: session_of(service, "s").worker is None or worker_of(service, "s").pid != pid)
    after = await service.execute("s", "2 + 2")
    assert any("memory limit 200 MiB" in each for each in after.notices)


@pytest.mark.usefixtures("no_groups", "not_by_the_clock")
async def test_commands_without_a_session_are_checked_too(service: Service) -> None:
    task = await service.shell(f"{sys.executable} -c '{TWO_OF_120_MIB}'; echo came through", wait=50)
    assert (task.status, task.stdout) == ("killed", "")
    assert "its sandbox was killed: memory limit 200 MiB" in task.notices
    assert (await service.shell("echo next")).stdout == "next\n"


async def test_too_many_processes_are_refused_or_ended_and_named(pair: Service, means: str) -> None:
    await pair.create_session("few", limits=SessionLimits(processes=20))
    code = """
import os, time
for _ in range(60):
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
time.sleep(30)
"""
    result = await pair.execute("few", code)
    if means == "cgroup":
        assert (result.status, result.error and result.error.name) == ("error", "BlockingIOError")
        assert any(each.startswith("process limit 20: ") for each in result.notices)
    else:
        await goes_on(pair, result, "process limit 20")


@pytest.mark.parametrize(
    ("code", "error", "named"),
    [
        ("kept = []\nwhile True:\n    kept.append(open('/dev/null'))", "OSError", "open file limit 1024"),
        ("open('big', 'wb').truncate(2 << 30)", "OSError", "file size limit 1 GiB"),
    ],
)
async def test_a_limit_of_a_process_is_an_exception_and_is_named(
    service: Service, code: str, error: str, named: str
) -> None:
    await service.create_session("s")
    result = await service.execute("s", code)
    assert (result.status, result.error and result.error.name) == ("error", error)
    assert result.notices == [f"{named}: reached by this cell"]


@pytest.fixture
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Groups, "find", classmethod(lambda cls: cls()))


async def test_a_single_process_gets_no_more_without_a_cgroup(no_groups: None, service: Service) -> None:
    await service.create_session("s")
    result = await service.execute("s", "kept = bytearray(400 << 20)")
    assert (result.status, result.error and result.error.name) == ("error", "MemoryError")
    assert result.notices == ["memory limit 200 MiB: reached by this cell"]


@pytest.mark.parametrize("where", ["disk", "tmp"])
async def test_a_full_disk_ends_the_worker_and_the_next_can_clean_up(service: Service, where: str) -> None:
    await service.create_session("neighbour")
    await service.execute("neighbour", "kept = 1")
    await service.create_session("s", limits=SessionLimits(**{where: 8 * MIB}))
    folder = "'.'" if where == "disk" else "__import__('tempfile').gettempdir()"
    code = f"""
import os, time
file = open(os.path.join({folder}, "big"), "wb")
while True:
    if file.tell() < 64 << 20:
        file.write(bytes(1 << 20))
        file.flush()
    time.sleep(0.01)
"""
    named = "disk limit 8 MiB" if where == "disk" else "temporary file limit 8 MiB"
    await goes_on(service, await service.execute("s", code), named)
    code = "import os, time\ntime.sleep(1.5)\nos.path.exists('big') and os.remove('big')\nos.listdir()"
    cleaned = await service.execute("s", code)
    assert (cleaned.status, cleaned.result) == ("ok", {"text/plain": "[]"})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 3 MB."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


async def test_a_full_disk_is_told_as_that_and_not_as_a_limit(service: Service, small_disk: Path) -> None:
    await service.create_session("s", cwd=str(small_disk))
    result = await service.execute("s", "open('big', 'wb').write(bytes(5 << 20))")
    assert (result.error and result.error.name, result.notices) == (
        "OSError",
        ["the disk is full, and no limit of the session was reached; free space on the disk, or use another folder"],
    )


async def test_limits_are_shown_and_a_request_can_lower_them(service: Service) -> None:
    whole = SessionLimits(200 * MIB, 256, 1024, 1024 * MIB, 512 * MIB, 10240 * MIB)
    assert (await service.create_session("s")).limits == whole
    lower = await service.create_session("lower", limits=SessionLimits(memory=100 * MIB, files=200))
    assert lower.limits == SessionLimits(100 * MIB, 256, 200, 1024 * MIB, 512 * MIB, 10240 * MIB)
    code = "import os, resource; resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)"
    assert (await service.execute("lower", code)).result == {"text/plain": "((200, 200), (0, 0))"}
    with pytest.raises(errors.NotGranted, match="--limit-memory 300M"):
        await service.create_session("more", limits=SessionLimits(memory=300 * MIB))
    with pytest.raises(errors.InvalidRequest, match="at least 128"):
        await service.create_session("none", limits=SessionLimits(files=127))


async def test_sessions_step_back_for_the_server(service: Service) -> None:
    await service.create_session("s")
    nicer = os.getpriority(os.PRIO_PROCESS, 0) + 5
    assert (await service.execute("s", "import os; os.nice(0)")).result == {"text/plain": str(min(19, nicer))}


@needs_groups
async def test_a_session_is_in_its_group_from_the_first_cell_on_and_groups_go_with_it(service: Service) -> None:
    own = f"{cgroup_mounts.PREFIX}{cgroups._own_name(Path('/'))}-"
    await service.create_session("s")
    code = "import os; os.popen('cat /proc/self/cgroup').read(), open('/proc/%d/cgroup' % os.getppid()).read()"
    shown = (await service.execute("s", code)).result
    assert shown is not None
    for controller, place in cgroup_mounts.find_places(Path("/")).items():
        names = f":{controller}:" if place.version == 1 else "0::"
        lines = [line for line in shown["text/plain"].split("\\n") if names in line]
        assert [f"/{own}" in line for line in lines] == [True, True], shown
    (folder,) = cgroup_mounts.find_places(Path("/"))[cgroup_mounts.MEMORY].folder.glob(f"{own}*")
    assert await until(lambda: len([each for each in folder.iterdir() if each.is_dir()]) == 2)  # one waits in the pool
    await service.end_session("s")
    # Its init stays for the next session, and so does its group.
    assert len([each for each in folder.iterdir() if each.is_dir()]) == 2
    await service.stop()
    assert not folder.exists()


def groups_of(worker: Worker) -> list[list[str]]:
    """For each controller, the groups of its init and of itself."""
    lines = [Path(f"/proc/{pid}/cgroup").read_text().splitlines() for pid in (worker.init_pid, worker.pid)]
    found = []
    for controller, place in cgroup_mounts.find_places(Path("/")).items():
        names = controller if place.version == 1 else ""
        found.append([line.split(":", 2)[2] for each in lines for line in each if line.split(":", 2)[1] == names])
    return found


def descriptors_of(pid: int | None) -> list[str]:
    return [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Processes that are put into a group from outside."""
    seen: list[int] = []
    attach = Group.attach

    def note(group: Group, pid: int) -> None:
        seen.append(pid)
        attach(group, pid)

    monkeypatch.setattr(Group, "attach", note)
    return seen


@needs_groups
@pytest.mark.parametrize("pool", [0, 1])
@pytest.mark.parametrize("level", ["limits", "sandbox"])
async def test_an_init_goes_into_its_group_by_itself_before_it_has_a_worker(
    mark: str, home: Path, moved: list[int], level: str, pool: int
) -> None:
    own = f"/{cgroup_mounts.PREFIX}{cgroups._own_name(Path('/'))}-"
    async with Service.local(make_settings(preload=[], pool=pool, isolation=level, network="none"), home) as service:
        await service.create_session("s")
        assert (await service.execute("s", "1 + 1")).result == {"text/plain": "2"}
        worker = worker_of(service, "s")
        for init, itself in groups_of(worker):
            assert init == itself
            assert own in init
        for pid in (worker.init_pid, worker.pid):
            assert not [each for each in descriptors_of(pid) if "cgroup" in each or "tasks" in each]
    assert moved == []


def unified_mount() -> Path | None:
    """Where groups of version 2 are, with or without controllers."""
    mounts = cgroup_mounts.read_mounts(Path("/proc/self/mountinfo").read_text())
    found = [Path(point) for version, _, top, point in mounts if version == 2 and top == "/"]
    return found[0] if found and os.getuid() == 0 else None


@pytest.fixture
def version_2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server whose groups are of version 2, and bound nothing: controllers may be elsewhere on this machine."""
    mount = unified_mount()
    if mount is None:
        pytest.skip("no groups of version 2 can be made here: that takes root, and the whole of their tree")
    folder = mount / f"{cgroup_mounts.PREFIX}test-{os.getpid()}"
    folder.mkdir()
    monkeypatch.setattr(Groups, "find", classmethod(lambda cls: cls({"any": cgroup_mounts.Place(folder, 2)})))
    yield folder
    cgroups._remove_tree(folder)
    assert not folder.exists()


def unified_group(pid: int | None) -> str:
    return next(line[3:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines() if line.startswith("0::"))


@pytest.mark.parametrize("level", ["limits", "sandbox"])
async def test_in_version_2_a_worker_is_born_into_its_group_and_its_init_goes_there_by_itself(
    mark: str, home: Path, version_2: Path, moved: list[int], level: str
) -> None:
    async with Service.local(make_settings(preload=[], pool=0, isolation=level, network="none"), home) as service:
        await service.create_session("s")
        assert (await service.execute("s", "1 + 1")).result == {"text/plain": "2"}
        worker = worker_of(service, "s")
        assert unified_group(worker.pid).startswith(f"/{version_2.name}/")
        assert unified_group(worker.init_pid) == unified_group(worker.pid)
        for pid in (worker.init_pid, worker.pid):
            assert not [each for each in descriptors_of(pid) if "cgroup" in each or version_2.name in each]
        if level == "sandbox":
            code = "[line for line in open('/proc/self/cgroup').read().split() if line.startswith('0::')]"
            assert (await service.execute("s", code)).result == {"text/plain": "['0::/']"}
            assert (await service.shell("grep ^0: /proc/self/cgroup", session_id="s")).stdout == "0::/\n"
        copy = (await service.fork_session("s"))[0].session_id
        worker = worker_of(service, copy)
        assert unified_group(worker.pid).startswith(f"/{version_2.name}/")
    assert moved == []


async def test_a_worker_that_cannot_be_born_into_its_group_is_put_there(
    mark: str, home: Path, version_2: Path, moved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Group, "open", lambda group: [os.open(home.parent, os.O_RDONLY)])
    async with Service.local(make_settings(preload=[], pool=0, isolation="limits"), home) as service:
        await service.create_session("s")
        assert (await service.execute("s", "1 + 1")).result == {"text/plain": "2"}
        worker = worker_of(service, "s")
        assert moved == [worker.init_pid, worker.pid]
        assert unified_group(worker.pid).startswith(f"/{version_2.name}/")


@needs_groups
async def test_in_a_sandbox_a_session_sees_nothing_above_its_own_group(mark: str, home: Path) -> None:
    async with Service.local(make_settings(preload=[], pool=0, isolation="sandbox", network="none"), home) as service:
        await service.create_session("s")
        code = "sorted({line.split(':', 2)[2] for line in open('/proc/self/cgroup').read().split()})"
        assert (await service.execute("s", code)).result == {"text/plain": "['/']"}
        assert (await service.shell("cut -d: -f3 /proc/self/cgroup | sort -u", session_id="s")).stdout == "/\n"


@needs_groups
async def test_who_cannot_go_into_his_group_is_put_there(
    mark: str, home: Path, moved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Group, "open", lambda group: [os.open("/dev/full", os.O_WRONLY)])
    async with Service.local(make_settings(preload=[], pool=0, isolation="limits"), home) as service:
        await service.create_session("s")
        assert (await service.execute("s", "1 + 1")).result == {"text/plain": "2"}
        worker = worker_of(service, "s")
        assert moved == [worker.init_pid, worker.pid]
        own = f"/{cgroup_mounts.PREFIX}{cgroups._own_name(Path('/'))}-"
        assert [[own in each for each in pair] for pair in groups_of(worker)] == [[True, True]] * len(groups_of(worker))


@needs_groups
@pytest.mark.parametrize("first", ["the worker is gone", "the group is made"])
async def test_a_start_that_is_given_up_while_its_group_is_made_leaves_none(
    mark: str, home: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    making, go_on = threading.Event(), threading.Event()
    invited: list[Worker] = []
    opened, invite = Group.open, Launcher._invite

    def note(launcher: Launcher, worker: Worker) -> None:
        invited.append(worker)
        invite(launcher, worker)

    def open_later(group: Group) -> list[int]:
        making.set()
        assert go_on.wait(10)
        return opened(group)

    place = cgroup_mounts.find_places(Path("/"))[cgroup_mounts.MEMORY].folder
    async with Service.local(make_settings(preload=[], pool=0, isolation="limits"), home) as service:
        await service.warm()
        await service.create_session("first")  # a zygote is there, so that the next is asked for at once
        (base,) = place.glob(f"{cgroup_mounts.PREFIX}{cgroups._own_name(Path('/'))}-*")
        before = {each for each in base.iterdir() if each.is_dir()}
        monkeypatch.setattr(Group, "open", open_later)
        monkeypatch.setattr(Launcher, "_invite", note)
        starting = asyncio.create_task(service.create_session("s"))
        assert await until(making.is_set)
        starting.cancel()
        await asyncio.wait([starting])
        if first == "the worker is gone":
            assert await until(invited[0].gone.done)
        go_on.set()
        assert await until(lambda: {each for each in base.iterdir() if each.is_dir()} <= before)
        assert (await service.execute("first", "1 + 1")).result == {"text/plain": "2"}


@needs_groups
async def test_two_servers_in_one_process_share_no_group(mark: str, apart: Path) -> None:
    one, two = (
        Service.local(make_settings(preload=[], pool=0, isolation="limits"), apart / name) for name in ("one", "two")
    )
    async with two:
        async with one:
            found = []
            for service in (one, two):
                await service.create_session("s")
                await service.execute("s", "1 + 1")
                found.append(groups_of(worker_of(service, "s"))[0][0])
            assert found[0] != found[1]
            await two.end_session("s")
        # The end of the other took nothing away that this one needs.
        await two.create_session("s", limits=SessionLimits(memory=100 * MIB))
        result = await two.execute("s", "kept = bytearray(300 << 20)")
        assert result.exit is not None
        assert result.exit.message == "was killed: memory limit 100 MiB"


@needs_groups
def test_groups_of_a_dead_server_go_with_the_next_and_those_of_a_live_one_stay() -> None:
    base = cgroup_mounts.find_places(Path("/"))[cgroup_mounts.MEMORY].folder
    with subprocess.Popen(["sleep", "60"]) as live:
        names = {
            "live": f"{cgroups._namespace(Path('/'))}-{live.pid}-{cgroups._began(Path('/'), live.pid)}",
            "dead": f"{cgroups._namespace(Path('/'))}-{live.pid}-1",
            "elsewhere": f"1-{live.pid}-1",
        }
        folders = {name: base / f"{cgroup_mounts.PREFIX}{each}" for name, each in names.items()}
        try:
            for folder in folders.values():
                (folder / "1").mkdir(parents=True)
            Groups.find().close()
            assert {name for name, folder in folders.items() if folder.exists()} == {"live", "elsewhere"}
        finally:
            live.kill()
            for folder in folders.values():
                cgroups._remove_tree(folder)


@pytest.fixture
def unified(tmp_path: Path) -> Path:
    """The files of a system with version 2 only, as systemd delegates a part of it to a user."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").touch()
    (tmp_path / "proc/self/cgroup").write_text("0::/user.slice/app.slice/term.scope\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    folder = tmp_path / "sys/fs/cgroup"
    for part, enabled in (("", "cpu memory pids"), ("user.slice", "cpu memory pids"), ("app.slice", "memory pids cpu")):
        folder = folder / part
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory pids\n")
        (folder / "cgroup.subtree_control").write_text(f"{enabled}\n")
    own = folder / "term.scope"
    own.mkdir()
    (own / "cgroup.controllers").write_text("cpu memory pids\n")
    (own / "cgroup.subtree_control").write_text("")
    (own / "cgroup.subtree_control").chmod(0o400)
    (own / "cgroup.procs").write_text("1\n2\n")
    return folder


def test_version_2_makes_groups_above_a_group_that_has_processes(
    unified: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: dict[str, str] = {}

    def write(file: Path, value: int | str) -> None:
        if file.parent.name == "term.scope":
            raise OSError(16, "Device or resource busy")
        written[str(file.relative_to(unified))] = str(value)

    for module in (cgroup_mounts, cgroups):
        monkeypatch.setattr(module, "write", write)
    groups = Groups.find(tmp_path)
    assert groups.controllers == {"memory", "pids", "cpu"}
    group = groups.make()
    assert group is not None
    group.attach(77)
    group.bound(1000, 5)
    own = next(unified.glob("ingle-*")).name
    assert {name.removeprefix(f"{own}/"): value for name, value in written.items()} == {
        "cgroup.subtree_control": "+cpu",
        "cpu.weight": str(100 * (os.cpu_count() or 1)),
        "1/cgroup.procs": "77",
        "1/memory.max": "1000",
        "1/memory.swap.max": "0",
        "1/pids.max": "5",
    }
    (unified / own / "1/memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n")
    assert (group.take_kills(), group.take_kills(), group.take_refusals()) == (True, False, False)


def test_a_container_that_sees_its_own_part_of_the_tree_is_understood(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/docker/abc/inner\n")
    (tmp_path / "proc/self/mountinfo").write_text(
        "30 23 0:26 /docker/abc /sys/fs/cgroup/memory rw shared:4 - cgroup cgroup rw,memory\n"
    )
    (tmp_path / "sys/fs/cgroup/memory/inner").mkdir(parents=True)
    bases = cgroup_mounts.find_places(tmp_path)
    assert {name: (str(place.folder.relative_to(tmp_path)), place.version) for name, place in bases.items()} == {
        "memory": ("sys/fs/cgroup/memory/inner", 1)
    }


def test_an_empty_group_tells_of_nothing() -> None:
    group = Group({})
    assert (group.memory(), group.take_kills(), group.take_refusals(), group.remove()) == (None, False, False, True)


def test_files_are_counted_however_deep_they_are(tmp_path: Path) -> None:
    depth = 0
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("d" * 200, dir_fd=fd)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd, depth = below, depth + 1
    file = os.open("big", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
    os.write(file, bytes(MIB))
    os.fsync(file)
    os.close(file)
    os.close(fd)
    assert disk_usage.size(tmp_path) == MIB + depth * disk_usage.MIN_FILE_BYTES
    subprocess.run(["rm", "-rf", str(tmp_path / ("d" * 200))], check=True)


def test_links_lead_the_count_nowhere(tmp_path: Path) -> None:
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "self").symlink_to(tmp_path)
    assert disk_usage.size(tmp_path) == 2 * disk_usage.MIN_FILE_BYTES


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("memory", 2 * 1024**3, "memory limit 2 GiB"),
        ("memory", 1536 * MIB, "memory limit 1536 MiB"),
        ("disk", 1000, "disk limit 1000 bytes"),
        ("processes", 1024, "process limit 1024"),
    ],
)
def test_a_limit_is_named_in_units_that_people_use(name: str, value: int, said: str) -> None:
    assert limits.words(name, value) == said


async def test_at_none_there_are_the_limits_asked_for_and_no_others(mark: str, home: Path) -> None:
    async with Service.local(make_settings(preload=[], pool=1, isolation="none"), home) as service:
        assert (await service.create_session("s")).limits == SessionLimits()
        info = await service.create_session("t", limits=SessionLimits(files=150))
        assert info.limits == SessionLimits(files=150)
        result = await service.execute("t", "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)")
        assert result.result == {"text/plain": "(150, 150)"}
