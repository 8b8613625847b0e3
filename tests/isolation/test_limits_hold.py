"""A limit that is shown holds: for each process of a session, as long as it runs, whatever rights the server has."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingle import errors
from ingle.isolation.limits import cgroup_mounts, disk_usage
from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.limits.cgroups import Group
from ingle.isolation.limits.watchdog import CLEANUP_BYTES, Watchdog, Watched
from ingle.requests import SessionLimits
from ingle.service import Service
from ingle.settings import Settings
from support.processes import own_mark
from support.server import Server
from support.service import make_settings
from support.waiting import wait_until

pytestmark = [pytest.mark.req("safe.isolation")]

MIB = 1024**2

HAS_GROUPS = os.geteuid() == 0 and cgroup_mounts.PROCESSES in cgroup_mounts.find_places(Path("/"))

MISSING_IN_CONTAINERS = "-sys_resource,-sys_nice,-sys_ptrace"


@pytest.fixture(scope="module", params=["all rights", "the rights in a container"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    prefix: tuple[str, ...] = ()
    if request.param != "all rights":
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            pytest.skip("only root has rights to give up, by setpriv")
        prefix = ("setpriv", f"--bounding-set={MISSING_IN_CONTAINERS}", f"--inh-caps={MISSING_IN_CONTAINERS}")
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as folder:
        Path(folder).chmod(0o755)
        granted = Path(folder) / "granted"
        granted.mkdir()
        arguments = "--isolation", "sandbox", "--network", "none", "--mount", str(granted)
        started = Server(Path(folder) / "home", *arguments, env=own_mark(), prefix=prefix)
        yield started
        assert started.stop() == 0


ASKED = {"files": 200, "file_size": 5 * MIB, "tmp": 8 * MIB, "disk": 8 * MIB}

READ = """
import os, resource
kinds = resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE
print(*(resource.getrlimit(kind)[1] for kind in kinds), os.nice(0), int(open('/proc/self/oom_score_adj').read()))
"""


@pytest.fixture
def session(server: Server) -> Iterator[str]:
    made = server.make_session("s", limits=ASKED)
    assert {name: made["limits"][name] for name in ASKED} == ASKED
    yield "s"
    server.client.delete("/v1/sessions/s").raise_for_status()


def shell(server: Server, command: str) -> str:
    answer = server.client.post("/v1/shell", json={"command": command, "session_id": "s", "wait": 30})
    assert answer.status_code == 200, answer.text
    return answer.json()["stdout"]


def test_each_process_of_a_session_has_its_limits(server: Server, session: str) -> None:
    nicer = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
    expected = f"200 {5 * MIB} 0 {nicer} 200\n"
    assert server.execute(READ, session)["stdout"] == expected
    assert shell(server, f"python - <<'END'\n{READ}\nEND") == expected


def test_a_session_writes_a_granted_folder_and_a_trial_does_not(server: Server, session: str) -> None:
    file = server.home.parent / "granted" / "file"
    server.execute(f"open({str(file)!r}, 'w').write('written')", session)
    assert file.read_text() == "written"
    body = {"code": f"open({str(file)!r}, 'w').write('tried')", "trial": True}
    answer = server.client.post(f"/v1/sessions/{session}/execute", json=body)
    assert (answer.status_code, answer.json().get("status")) == (200, "ok"), answer.text
    assert answer.json()["notices"] == []
    assert file.read_text() == "written"


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm", "/var/tmp"])
def test_temporary_files_of_a_sandbox_have_the_size_that_was_asked_for(
    server: Server, session: str, place: str
) -> None:
    code = f"for number in range(4): open('{place}/%d' % number, 'wb').write(bytes(4 << 20))"
    result = server.execute(code, session)
    assert (result["status"], result["error"]["name"]) == ("error", "OSError")
    assert "[Errno 28]" in result["error"]["value"]
    assert any(each.startswith("temporary file limit 8 MiB") for each in result["notices"])


def test_a_session_without_a_wish_of_its_own_has_the_servers_limits(server: Server) -> None:
    made = server.make_session("plain")
    assert made["limits"]["tmp"] == 512 * MIB
    assert server.execute(READ, "plain")["stdout"].startswith(f"1024 {1024 * MIB} 0 ")
    server.client.delete("/v1/sessions/plain").raise_for_status()


def test_limits_are_read_back_from_the_kernel(server: Server, session: str) -> None:
    server.execute("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))", session)
    assert server.client.get(f"/v1/sessions/{session}").json()["limits"] == {
        **server.client.get(f"/v1/sessions/{session}").json()["limits"],
        **ASKED,
        "files": 150,
    }


AFTER_ITS_CELL = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", '''
import time
for number in range(8):
    open(f"part-{number}", "wb").write(bytes(4 << 20))
time.sleep(1000)
'''])
"""
AFTER_A_REST = """
import threading, time
def write():
    time.sleep(3)
    for number in range(8):
        open(f"part-{number}", "wb").write(bytes(4 << 20))
    time.sleep(1000)
threading.Thread(target=write, daemon=True).start()
"""
BY_A_THREAD = """
import threading, time
def write():
    for number in range(8):
        open(f"part-{number}", "wb").write(bytes(4 << 20))
    time.sleep(1000)
threading.Thread(target=write, daemon=True).start()
"""
IN_THE_FOLDER_OF_FORKS = "for number in range(8): open(f'../forks/part-{number}', 'wb').write(bytes(4 << 20))"
BELOW_THE_FOLDER_OF_FORKS = """
import os
os.makedirs("../forks/x/y")
for number in range(8): open(f'../forks/x/y/part-{number}', 'wb').write(bytes(4 << 20))
"""
REMOVED_AND_OPEN = """
import os
held = []
for number in range(8):
    held.append(open("part", "wb"))
    held[-1].write(bytes(4 << 20))
    held[-1].flush()
    os.remove("part")
"""
WITHOUT_A_NAME = """
import os
held = []
for number in range(8):
    held.append(os.open(".", os.O_TMPFILE | os.O_RDWR))
    os.write(held[-1], bytes(4 << 20))
"""
REMOVED_AND_MAPPED = """
import mmap, os
held = []
for number in range(8):
    with open("part", "w+b") as file:
        file.write(bytes(4 << 20))
        file.flush()
        held.append(mmap.mmap(file.fileno(), 4 << 20))
    os.remove("part")
"""


@pytest.mark.parametrize(
    "code",
    [
        AFTER_ITS_CELL,
        AFTER_A_REST,
        BY_A_THREAD,
        IN_THE_FOLDER_OF_FORKS,
        BELOW_THE_FOLDER_OF_FORKS,
        REMOVED_AND_OPEN,
        WITHOUT_A_NAME,
        REMOVED_AND_MAPPED,
    ],
    ids=[
        "after its cell",
        "after a rest",
        "by a thread",
        "in the folder of forks",
        "below the folder of forks",
        "removed and open",
        "without a name",
        "removed and mapped",
    ],
)
def test_the_disk_limit_holds(server: Server, session: str, code: str) -> None:
    assert server.execute(code, session)["status"] == "ok"
    # No cell runs while this waits.
    assert wait_until(lambda: server.client.get(f"/v1/sessions/{session}").json()["variable_count"] == 0, 20)
    notices = server.execute("1", session)["notices"]
    assert any("was killed: disk limit 8 MiB" in each for each in notices), notices


def test_a_command_in_a_session_is_under_the_disk_limit_too(server: Server, session: str) -> None:
    command = "for n in 1 2 3 4 5 6 7 8; do head -c 4194304 /dev/zero > part-$n; done; sleep 1000"
    task = server.client.post("/v1/shell", json={"command": command, "session_id": session, "wait": 30}).json()
    assert task["status"] == "killed", task


# --- at the other levels ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, isolation="limits")


@pytest.mark.parametrize("method", ["fork", "spawn"])
async def test_without_isolation_the_limits_that_were_asked_for_hold(mark: str, home: Path, method: str) -> None:
    async with Service.local(make_settings(preload=[], pool=1, isolation="none", start_method=method), home) as service:
        made = await service.create_session("s", limits=SessionLimits(files=200, file_size=5 * MIB))
        assert made.limits == SessionLimits(files=200, file_size=5 * MIB)
        result = await service.execute("s", READ)
        assert result.stdout.startswith(f"200 {5 * MIB} 0 ")
        told = await service.shell("ulimit -n; ulimit -f", session_id="s")
        assert told.stdout == f"200\n{5 * 1024}\n"


async def test_a_limit_that_does_not_hold_is_named_and_the_session_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LimitApplier, "of_process", lambda self, wanted: {})
    with pytest.raises(errors.LimitUnavailable, match="the limit files: files is 1024"):
        await service.create_session("s", limits=SessionLimits(files=200))
    assert [each.session_id for each in await service.list_sessions()] == []


@pytest.mark.skipif(not HAS_GROUPS, reason="no cgroup can be made here")
async def test_a_limit_that_the_cgroup_refuses_is_named_and_the_session_refused(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = Group.bound

    def refuse(group: Group, memory: int | None, processes: int | None) -> None:
        if processes == 20:
            raise OSError(22, "no such limit")
        bound(group, memory, processes)

    monkeypatch.setattr(Group, "bound", refuse)
    with pytest.raises(errors.LimitUnavailable, match="memory or processes"):
        await service.create_session("s", limits=SessionLimits(processes=20))


def test_what_may_be_written_after_a_breach_is_not_raised_by_the_next(tmp_path: Path) -> None:
    watched = Watched(0, SessionLimits(disk=MIB), lambda limit: None, folder=tmp_path)
    watchdog = Watchdog(lambda only_running: [watched])

    def written(mib: int) -> list[str]:
        (tmp_path / "file").write_bytes(bytes(mib * MIB))
        for each in watchdog._disks.values():
            each.due = 0.0
        return [limit for _, limit in watchdog._full([watched])]

    more = CLEANUP_BYTES // MIB
    found: list[Any] = [written(mib) for mib in (0, 2, 3, 3 + more, 4 + more, 5 + more, 3, 0, 2)]
    killed = ["disk limit 1 MiB"]
    assert found == [[], killed, [], killed, killed, killed, [], [], killed]


def test_files_are_counted_again_only_after_something_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Path] = []
    of_session = disk_usage.of_session

    def count(folder: Path, kept: Iterable[str], pids: Iterable[int], user: int) -> disk_usage.Usage:
        counted.append(folder)
        return of_session(folder, kept, pids, user)

    monkeypatch.setattr(disk_usage, "of_session", count)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        watched = Watched(program.pid, SessionLimits(disk=MIB), lambda limit: None, folder=tmp_path)
        watchdog = Watchdog(lambda only_running: [watched])

        def look() -> int:
            for each in watchdog._disks.values():
                each.due = 0.0
            watchdog._full([watched])
            return len(counted)

        assert wait_until(lambda: look() == look(), 10)
        at_rest = look()
        assert look() == at_rest
        program.stdin.write(b"x\n")
        program.stdin.flush()
        assert program.stdout.readline() == b"x\n"
        assert look() == at_rest + 1
        program.stdin.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="as root each session has a user of its own")
class TestManyProcessesOfThisUser:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(isolation="restricted", limit_processes=12)

    async def test_they_do_not_count_as_the_sessions(self, service: Service) -> None:
        await service.create_session("s")
        others = [subprocess.Popen(["sleep", "60"]) for _ in range(24)]
        try:
            code = "import threading\nthread = threading.Thread(target=print, args=(1,))\nthread.start(); thread.join()"
            result = await service.execute("s", code)
            assert (result.status, result.stdout) == ("ok", "1\n")
        finally:
            for each in others:
                each.kill()
                each.wait()
