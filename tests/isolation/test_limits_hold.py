"""A limit that is shown holds: for each process of a session, as long as it runs, whatever rights the server has."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingle.isolation.limits import cgroup_mounts
from support.server import Server
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
        started = Server(Path(folder) / "home", *arguments, prefix=prefix)
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
