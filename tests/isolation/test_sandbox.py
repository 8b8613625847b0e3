"""The sandbox from the outside: what a session in it is, and what becomes of it."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from ingle.errors import InterpreterRefused, IsolationUnavailable, StartFailed
from ingle.isolation import self_test
from ingle.service import Service
from ingle.sessions.process import session_folders
from ingle.settings import Settings
from ingle.workers.launch import zygote
from support.cells import shown
from support.internals import session_of, worker_of
from support.service import make_settings
from support.waiting import until


@pytest.fixture(scope="module")
def settings() -> Settings:
    # Nothing of the host is granted, as it is to sessions of other tests.
    return make_settings(preload=[], pool=1, isolation="sandbox", network="none", mount=[])


@pytest.fixture
async def session(service: Service) -> str:
    info = await service.create_session()
    assert (info.isolation, info.network) == ("sandbox", "none")
    return info.session_id


async def test_a_session_is_alone_with_its_init_and_is_nobody_on_the_host(service: Service, session: str) -> None:
    others = "import os\n[p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]"
    assert await shown(service, session, others) == "[]"
    user = int(await shown(service, session, "os.getuid()"))
    assert user >= 2_000_000_000 if os.geteuid() == 0 else user == os.geteuid()
    status = await shown(service, session, "print(open('/proc/self/status').read())")
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(lines[kind], 16) == 0, kind
    assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")


async def test_nothing_of_the_zygotes_own_places_is_left_in_a_sandbox(service: Service, session: str) -> None:
    worker = worker_of(service, session)

    def points() -> list[str]:
        return [line.split()[4] for line in Path(f"/proc/{worker.pid}/mountinfo").read_text().splitlines()]

    # Init takes the way in away while the first cell may run, which cannot go there.
    assert await until(lambda: not [point for point in points() if point.startswith("/.ingle")])
    for place in ("/proc", "/tmp", "/var/tmp", "/dev/shm", "/dev/pts"):
        assert points().count(place) == 1, place
    assert await shown(service, session, "import os\nos.listdir('/var/tmp')") == "[]"


async def test_the_host_knows_the_processes_by_the_kernels_word(service: Service, session: str) -> None:
    worker = worker_of(service, session)
    number = await shown(service, session, "import os\nos.getpid()")
    inside = Path(f"/proc/{worker.pid}/status").read_text()
    assert [line.split()[-1] for line in inside.splitlines() if line.startswith("NSpid")] == [number]
    assert number != str(worker.pid)
    assert Path(f"/proc/{worker.init_pid}/task/{worker.init_pid}/children").read_text().split() == [str(worker.pid)]


async def test_files_of_the_host_are_not_there_and_its_own_are(service: Service, session: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    assert await shown(service, session, f"import os\nos.path.exists({str(secret)!r})") == "False"
    assert await shown(service, session, "open('made', 'w').write('x')\nos.listdir()") == "['made']"
    assert [each.name for each in (await service.list_files(session)).files] == ["made"]


async def test_no_descriptor_leads_out_of_the_sandbox(service: Service, session: str) -> None:
    at = "f'/proc/self/fd/{n}'"
    look = f"import os\nprint(*[os.readlink({at}) for n in range(200) if os.path.lexists({at})])"
    kinds = {link.partition(":")[0] for link in (await shown(service, session, look)).split()}
    assert kinds == {"pipe", "socket"}


async def test_a_worker_that_comes_after_another_has_its_files(service: Service, session: str) -> None:
    await service.execute(session, "open('a', 'w').write('1')\nimport os\nos.mkdir('d')\nopen('d/b', 'w').close()")
    await service.execute(session, "os.kill(os.getpid(), 9)")
    assert (
        await shown(service, session, "open('a', 'a').write('2')\nopen('d/b', 'a').write('3')\nopen('a').read()")
        == "'12'"
    )


async def test_two_sessions_do_not_see_each_other_and_are_two_users_where_the_server_is_root(
    service: Service, session: str
) -> None:
    other = (await service.create_session()).session_id
    folder = await shown(service, session, "import os\nopen('mine', 'w').close()\nprint(os.getcwd())")
    assert await shown(service, other, f"import os\nos.path.exists({folder.strip()!r})") == "False"
    if os.geteuid() == 0:
        assert await shown(service, session, "os.getuid()") != await shown(service, other, "os.getuid()")


async def test_no_two_sessions_draw_the_same_numbers_of_a_library_that_was_loaded_beforehand(
    mark: str, apart: Path, home: Path
) -> None:
    """OpenSSL and others know a fork by its number: with the zygote's own number in its sandbox, a session would not be
    one, and draw the keys of its neighbours."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(apart / "env")
    (library,) = (apart / "env").glob("lib/python3*/site-packages")
    (library / "early.py").write_text(
        "import ssl, tempfile\nssl.RAND_bytes(1)\ntempfile.NamedTemporaryFile().close()\n"
    )
    settings = make_settings(python=str(apart / "env/bin/python"), preload=["early"], pool=1, isolation="sandbox")
    draw = "import ssl, tempfile\nprint(ssl.RAND_bytes(16).hex(), next(tempfile._get_candidate_names()))"
    async with Service.local(settings, home) as service:
        names = [(await service.create_session()).session_id for _ in range(3)]
        drawn = [(await shown(service, name, draw)).split() for name in names]
    assert [len(set(each)) for each in zip(*drawn, strict=True)] == [len(names)] * 2, drawn


@pytest.mark.fresh_service
async def test_a_session_that_ended_leaves_an_init_without_children(service: Service, session: str) -> None:
    worker = worker_of(service, session)
    await service.execute(session, "import subprocess\np = subprocess.Popen(['setsid', 'sleep', '600'])")
    init = worker.init_pid
    await service.end_session(session)
    assert Path(f"/proc/{init}/task/{init}/children").read_text() == ""
    await service.stop()
    assert not Path(f"/proc/{init}").exists()


async def test_a_sandbox_that_cannot_be_prepared_is_told_with_its_cause(
    service: Service, session: str, home: Path
) -> None:
    packages = Path((await service.get_session(session)).cwd).parent / "packages"
    assert packages.is_relative_to(home)
    packages.rmdir()
    packages.write_text("no folder, so that it cannot be mounted as one")
    assert (await service.execute(session, "import os; os._exit(0)")).status == "exit"
    with pytest.raises(StartFailed, match=r"the session's sandbox could not be prepared \(mounting .*ENOTDIR"):
        await service.execute(session, "1")


async def test_a_level_that_cannot_be_had_is_refused_with_its_cause(
    mark: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "read", lambda proof: self_test.with_remedy("a new user namespace: no"))
    with pytest.raises(IsolationUnavailable, match=r"not available here.*apparmor_restrict.*--isolation auto"):
        await Service.local(make_settings(preload=[], isolation="sandbox"), home).start()
    async with Service.local(make_settings(preload=[], pool=0, isolation="auto"), home) as service:
        held = await service.isolation()
    assert (held.level, list(held.missing)) == ("none", ["sandbox", "restricted", "limits"])
    assert "your files and your network); not sandbox: a new user namespace" in held.sentence


def leave_it_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on those who attack find what they look for: a file of the server's is one that every session has."""
    make = self_test.AttackTargets.__init__

    def make_open(self: self_test.AttackTargets, home: str) -> None:
        make(self, home)
        self.order = replace(self.order, secret="/etc/hosts")

    monkeypatch.setattr(self_test.AttackTargets, "__init__", make_open)


LEAKS = "code confined by it could still read a file of the server"


async def test_a_sandbox_that_leaks_is_not_taken_for_one(
    mark: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_it_open(monkeypatch)
    with pytest.raises(IsolationUnavailable, match=LEAKS):
        await Service.local(make_settings(preload=[], isolation="sandbox"), home).start()
    async with Service.local(make_settings(preload=[], pool=1, isolation="auto"), home) as service:
        held = await service.isolation()
        assert (held.level, held.missing["sandbox"]) == ("limits", LEAKS)
        assert (await service.create_session()).isolation == "limits"


async def test_what_held_at_the_start_is_proven_again_when_the_zygote_is_another(
    service: Service, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_it_open(monkeypatch)
    launcher = session_of(service, session).launcher
    os.kill(launcher.zygote_pid, 9)
    assert await until(lambda: launcher._zygotes.living is None)
    # One may have been prepared before.
    tries = [await asyncio.gather(service.create_session(), return_exceptions=True) for _ in range(3)]
    assert isinstance(tries[-1][0], IsolationUnavailable)
    assert LEAKS in str(tries[-1][0])
    assert await shown(service, session, "1 + 1") == "2"
    monkeypatch.undo()
    assert (await service.create_session()).isolation == "sandbox"


async def test_an_interpreter_that_does_not_start_is_told_and_lowers_no_level(mark: str, home: Path) -> None:
    home.mkdir()
    python = home / "python"
    async with Service.local(make_settings(preload=[], pool=0, isolation="auto", python=str(python)), home) as service:
        with pytest.raises(InterpreterRefused, match="there is no interpreter"):
            await service.create_session()
        python.symlink_to(sys.executable)
        assert (await service.create_session()).isolation == (await service.isolation()).level == "sandbox"


async def test_what_a_room_calls_its_temporary_files_is_never_removed_outside(
    service: Service, session: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[str] = []
    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: removed.append(str(path)))
    for _ in range(2):
        await service.execute(session, "import os\nos.kill(os.getpid(), 9)")
    assert await shown(service, session, "import os\nos.environ['TMPDIR']") == "'/tmp'"
    await service.fork_session(session)
    assert [path for path in removed if not path.startswith(f"{home}/sessions/")] == []
    monkeypatch.undo()


def test_only_what_lies_in_a_sessions_folder_is_removed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside / "tmp-1", outside):
        folder.mkdir(parents=True)
    for path in ("", str(outside), str(inside), f"{inside}/../outside", str(tmp_path)):
        session_folders.remove_below(inside, path)
    assert (outside.exists(), (inside / "tmp-1").exists()) == (True, True)
    session_folders.remove_below(inside, str(inside / "tmp-1"))
    assert not (inside / "tmp-1").exists()


# --- shell tasks ---


async def test_a_task_of_a_session_runs_in_its_sandbox(service: Service, session: str) -> None:
    await service.execute(session, "open('here', 'w').close()\nopen('/tmp/there', 'w').close()\nimport os")
    task = await service.shell("id -u; ls; ls /tmp/there; grep -c . /proc/1/comm; echo done > mine", session_id=session)
    user = (await shown(service, session, "os.getuid()")).strip()
    assert (task.status, task.stdout.split()) == ("done", [user, "here", "/tmp/there", "1"])
    assert await shown(service, session, "open('mine').read()") == "'done\\n'"


async def test_tasks_without_a_session_have_a_room_of_their_own(service: Service, session: str) -> None:
    await service.execute(session, "open('/tmp/there', 'w').close()")
    look = await service.shell("ls /tmp/there; ls /proc | grep -c '^[0-9]*$'; touch /tmp/kept made; pwd")
    assert "No such file" in look.stderr
    assert look.stdout.splitlines()[-1].endswith("/home/shell")
    assert (await service.shell("ls made && ls /tmp/kept")).stdout == "made\n/tmp/kept\n"


async def test_a_terminal_a_persistent_shell_and_a_long_command_work_in_a_sandbox(
    service: Service, session: str
) -> None:
    for bound in (session, None):
        task = await service.shell("test -t 0 && echo on a terminal > /dev/tty", session_id=bound, pty=True)
        assert (task.exit_code, task.stdout) == (0, "on a terminal\r\n")
        await service.shell("cd /tmp; x=41", session_id=bound, shell_session="s")
        task = await service.shell("cat; echo $((x + 1)) $PWD", session_id=bound, shell_session="s", stdin="in\n")
        assert task.stdout == "in\n42 /tmp\n"
        task = await service.shell(f": {'x' * 200_000}; echo long", session_id=bound)
        assert task.stdout == "long\n"


async def test_the_guest_is_compiled_once_though_a_room_is_read_only(
    mark: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = tmp_path / "guest"
    shutil.copytree(zygote.GUEST.parent, guest, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(zygote, "GUEST", guest / "__main__.py")
    assert await zygote.try_level("sandbox", sys.executable, str(home)) is None
    sources = {path.relative_to(guest).as_posix() for path in guest.rglob("*.py")}
    compiled = {
        path.parent.parent.joinpath(path.name.partition(".")[0] + ".py").relative_to(guest).as_posix()
        for path in guest.rglob("*.pyc")
    }
    assert compiled == sources


LAST_NUMBER = """
import ctypes, os, sys
fd = os.open(f"/proc/{sys.argv[1]}/ns/pid", os.O_RDONLY)
assert ctypes.CDLL(None).setns(fd, 0x20000000) == 0
if os.fork() == 0:
    # Counted for who writes, wherever that file was mounted.
    open("/proc/sys/kernel/ns_last_pid", "w").write(str(int(sys.argv[2]) - 1))
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can choose the next number in a pid namespace")
async def test_what_a_command_left_is_never_taken_for_who_has_its_number_outside(
    service: Service, session: str
) -> None:
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            ready = await service.shell("echo here", session_id=session, shell_session="s")
            assert ready.stdout == "here\n"
            init = worker_of(service, session).init_pid
            subprocess.run([sys.executable, "-c", LAST_NUMBER, str(init), str(bystander.pid)], check=True)
            task = await service.shell("sleep 600 & echo $!", session_id=session, shell_session="s")
            assert (task.stdout, [left.pid for left in task.left_running]) == (f"{bystander.pid}\n", [bystander.pid])
            over = await service.shell_cancel(task.task_id, wait=60)
            assert (over.status, over.left_running) == ("cancelled", [])
            assert bystander.poll() is None
        finally:
            bystander.kill()


async def test_a_room_has_no_more_than_its_share_of_what_the_machine_counts(service: Service, session: str) -> None:
    """Terminals, signals that wait; where all sessions are one user's, watches of files too."""
    code = """
import ctypes, os, resource, signal
terminals = []
try:
    while len(terminals) < 300:
        terminals.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError:
    pass
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
sent, libc = 0, ctypes.CDLL(None)
while sent < 10_000 and libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), None) == 0:
    sent += 1
count = len(terminals)
for fd in terminals:
    os.close(fd)
settings = ("user/max_inotify_watches", "fs/inotify/max_user_watches")
watches = [int(open(f"/proc/sys/{path}").read()) for path in settings]
count, sent < 10_000, watches[0] < watches[1]
"""
    assert await shown(service, session, code) == f"(128, True, {os.geteuid() != 0})"


async def test_a_number_that_is_somebody_elses_by_now_costs_him_nothing(service: Service, session: str) -> None:
    """The first word on a copy's wire can come from a process that is gone in the next moment."""
    worker = worker_of(service, session)
    with subprocess.Popen(["sleep", "600"]) as bystander:
        try:
            worker.init.child_pid = bystander.pid
            worker.init.kill_init()
            await worker.gone
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.parametrize("number", [1, 2])
async def test_a_server_with_a_small_number_as_in_a_container_can_have_a_sandbox(
    mark: str, home: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: number)
    assert await zygote.try_level("sandbox", sys.executable, str(home)) is None


async def test_a_folder_below_the_other_folder_for_temporary_files_can_be_granted(
    settings: Settings, mark: str, home: Path
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="ingle-granted-") as granted:
        (Path(granted) / "data").write_text("d")
        async with Service.local(replace(settings, mount=[granted]), home) as service:
            session = (await service.create_session(cwd=granted)).session_id
            code = "import os\nfor name in ('/var/tmp/own', 'made'): open(name, 'w').close()\n"
            code += "os.getcwd(), open('data').read()"
            assert await shown(service, session, code) == str((granted, "d"))
        assert sorted(os.listdir(granted)) == ["data", "made"]
    assert not Path("/var/tmp/own").exists()
