"""Forks and checkpoints in a sandbox: a copy lives in the room of its original, and the room as long as any of them."""

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


async def test_a_copy_lives_in_the_room_of_its_original(service: Service) -> None:
    await service.create_session("main", checkpoints="auto")
    await say(
        service,
        "main",
        "import os, tempfile\nx = [1]; file = tempfile.NamedTemporaryFile(); open('data', 'w').write('kept')",
    )
    (made,) = await service.fork_session("main", "copy")
    assert made.isolation == "sandbox"
    seen = "print(os.readlink('/proc/self/ns/mnt'), os.getuid(), os.getppid(), os.path.exists(file.name))"
    rooms = {await say(service, sid, seen) for sid in ("main", "copy")}
    assert len(rooms) == 1
    assert rooms.pop().endswith(" 1 True\n")
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
