"""Forks and checkpoints in a sandbox: a copy lives in that of its original, which stays as long as any of them."""

import os
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support.internals import worker_of
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.fork", "state.rollback")]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, isolation="sandbox", network="none")


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


async def test_a_copy_lives_in_the_sandbox_of_its_original(service: Service) -> None:
    await service.create_session("main", checkpoints="auto")
    await say(
        service,
        "main",
        "import os, tempfile\nx = [1]; file = tempfile.NamedTemporaryFile(); open('data', 'w').write('kept')",
    )
    (made,) = await service.fork_session("main", "copy")
    assert made.isolation == "sandbox"
    seen = "print(os.readlink('/proc/self/ns/pid'), os.getuid(), os.getppid(), os.path.exists(file.name))"
    sandboxes = {await say(service, sid, seen) for sid in ("main", "copy")}
    assert len(sandboxes) == 1
    assert sandboxes.pop().endswith(" 1 True\n")
    assert await say(service, "copy", "x.append(2); print(x, os.path.isdir(tempfile.gettempdir()))") == "[1, 2] True\n"
    # It is held as its original is.
    status = await say(service, "copy", "print(open('/proc/self/status').read())")
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (lines["NoNewPrivs"], lines["Seccomp"], int(lines["CapEff"], 16)) == ("1", "2", 0)
    # The host knows it by the kernel's word, not by its own.
    worker = worker_of(service, "copy")
    inside = int(await say(service, "copy", "print(os.getpid())"))
    told = Path(f"/proc/{worker.pid}/status").read_text()
    assert [line.split()[-1] for line in told.splitlines() if line.startswith("NSpid")] == [str(inside)]
    assert worker.pid != inside


async def test_a_cell_is_undone_and_an_original_may_go(service: Service) -> None:
    await service.create_session("main", checkpoints="auto")
    await say(service, "main", "import os\nx = 1; open('data', 'w').write('kept')")
    await service.fork_session("main", "copy")
    await service.execute("main", "x = 2; os._exit(1)")
    await service.rollback("main")
    assert await say(service, "main", "print(x, open('data').read())") == "1 kept\n"
    await service.end_session("main")
    assert await say(service, "copy", "print(x, open('data').read())") == "1 kept\n"
    # A fresh worker, in a room of its own, finds the same files.
    await service.execute("copy", "os._exit(1)")
    assert await say(service, "copy", "import os; print(open('data').read(), os.getcwd())") == (
        f"kept {(await service.get_session('copy')).cwd}\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="the memory of another user's process is told to root only")
async def test_the_memory_of_a_checkpoint_is_told(service: Service) -> None:
    await service.create_session("main")
    await service.checkpoint("main", "base")
    (base,) = await service.checkpoints("main")
    assert base.memory is not None


WAYS_OUT = """
import ctypes, glob, os
libc = ctypes.CDLL(None, use_errno=True)
mine = os.getcwd()
reached = []
for process in glob.glob('/proc/[0-9]*'):
    if process == f'/proc/{os.getpid()}':
        continue
    for way in (f'{process}/root{mine}', f'{process}/cwd', *glob.glob(f'{process}/fd/*')):
        try:
            if os.listdir(way):
                reached.append(way)
        except OSError:
            pass
    try:
        os.kill(int(process.rpartition('/')[2]), 0)
        reached.append(f'{process} by a signal')
    except OSError:
        pass
    for name in ('user', 'mnt', 'net', 'pid'):
        try:
            space = os.open(f'{process}/ns/{name}', os.O_RDONLY)
        except OSError:
            continue
        if libc.setns(space, 0) == 0:
            reached.append(f'{process}/ns/{name}')
for space in glob.glob('/proc/self/ns/*'):
    for kind in (0, 0x20000, 0x10000000):
        if libc.setns(os.open(space, os.O_RDONLY), kind) == 0:
            reached.append(space)
for folder in glob.glob(os.path.dirname(mine) + '/forks/*/workspace'):
    if os.path.realpath(folder) != os.path.realpath(mine) and os.path.exists(folder + '/secret'):
        reached.append(folder)
for fd in os.listdir('/proc/self/fd'):
    try:
        if os.path.exists(f'/proc/self/fd/{fd}/secret'):
            reached.append(fd)
    except OSError:
        pass
try:
    os.link('/proc/1/root/etc/passwd', 'passwd')
    reached.append('link')
except OSError:
    pass
for call in ('ptrace', 'mount', 'unshare', 'umount2'):
    if getattr(libc, call)(16, os.getppid(), 0, 0, 0) == 0:
        reached.append(call)
print(reached)
"""


async def test_a_fork_reaches_neither_its_original_nor_its_siblings(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", "import os\nopen('mine', 'w').close(); folder = os.open('.', os.O_PATH)")
    await service.fork_session("main", "copy", count=2)
    for sid in ("main", "copy-2"):
        await say(service, sid, "open('secret', 'w').close()")
    assert await say(service, "copy-1", WAYS_OUT) == "[]\n"
    assert await say(service, "copy-1", "print(sorted(os.listdir()), os.listdir(folder))") == "['mine'] ['mine']\n"


async def test_forks_of_forks_go_deep(service: Service) -> None:
    """Past the number of layers that Landlock has, a fork is made and says what it lacks."""
    await service.create_session("f0")
    await say(service, "f0", "import os\nopen('depth', 'w').write('0')")
    for depth in range(1, 18):
        (made,) = await service.fork_session(f"f{depth - 1}", f"f{depth}")
        await say(service, f"f{depth}", f"open('depth', 'w').write('{depth}')")
    assert "its processes can reach those of the original: it descends from too many forks" in made.notices
    read = [await say(service, f"f{depth}", "print(open('depth').read())") for depth in range(18)]
    assert read == [f"{depth}\n" for depth in range(18)]


DISGUISED = """
import os, resource, time
ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_RTTIME, ({limit}, -1))
        os.write(told, b"%d" % os.getpid())
        time.sleep(600)
    os._exit(0)
print(os.read(ready, 20).decode())
"""


@pytest.mark.parametrize("limit", ["-1", "2**60 + 1"], ids=["its original's", "another fork's"])
async def test_a_process_of_a_fork_ends_with_it_whatever_it_passes_for(service: Service, limit: str) -> None:
    await service.create_session("main")
    await service.fork_session("main", "copy")
    await service.fork_session("copy", "deeper")
    disguised = int(await say(service, "deeper", DISGUISED.format(limit=limit)))
    lives = f"import os; print(os.path.exists('/proc/{disguised}'))"
    assert await say(service, "main", lives) == "True\n"
    await service.end_session("deeper")
    assert await say(service, "main", lives) == "False\n"
    assert await say(service, "copy", "print('lives')") == "lives\n"
