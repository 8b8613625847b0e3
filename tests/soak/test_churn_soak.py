"""A hundred thousand one-offs in sandboxes: nothing of them may stay, in the server, its processes or the kernel."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from processes.test_density import memory, open_files
from soak.test_soak import Clock, zombies
from support.internals import session_folders
from support.processes import marked_processes
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.soak, pytest.mark.fresh_service]

ONE_OFFS = 100_000
AT_ONCE = 8
ROUND = 1000
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def settings() -> Settings:
    return make_settings(preload=["numpy", "pandas"], pool=2, isolation="sandbox", network="none", mount=[])


def namespaces(mark: str) -> int:
    """Return how many namespaces the processes of a service have, of all kinds."""
    found = set()
    for pid, _ in marked_processes(mark):
        for kind in ("mnt", "net", "ipc", "uts", "pid", "user"):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    return len(found)


def cgroups() -> int:
    return sum("ingle-" in folder for folder, _, _ in os.walk(CGROUPS))


def mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def kernel_memory() -> float:
    """Return megabytes that the kernel cannot give back."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(size) for name, size, *_ in lines if name in ("SUnreclaim:", "PageTables:", "KernelStack:")) / 1024


async def run_round(service: Service) -> None:
    async def work(number: int) -> None:
        for step in range(ROUND // AT_ONCE):
            result = await service.interpret(f"print({number} * {step})", timeout=120)
            assert (result.status, result.stdout) == ("ok", f"{number * step}\n"), result

    await asyncio.gather(*(work(number) for number in range(AT_ONCE)))


async def test_a_hundred_thousand_one_offs_leave_nothing(service: Service, home: Path, mark: str) -> None:
    clock = Clock(0.5)
    await run_round(service)
    before = (memory(), open_files(service), len(marked_processes(mark)), namespaces(mark), cgroups(), mounts())
    kernel, done = kernel_memory(), 0
    while done < ONE_OFFS and not clock.over:
        await run_round(service)
        done += ROUND
    after = (memory(), open_files(service), len(marked_processes(mark)), namespaces(mark), cgroups(), mounts())
    names = ("memory MB", "files", "processes", "namespaces", "cgroups", "mounts")
    print(
        f"{done} one-offs;", *(f"{name} {a:.0f} -> {b:.0f}," for name, a, b in zip(names, before, after, strict=True))
    )
    print(f"kernel memory {kernel:.0f} -> {kernel_memory():.0f} MB")
    assert after[0] - before[0] < 30
    # Idle inits are kept for a while, and a session may be about to end.
    for name, first, last in list(zip(names, before, after, strict=True))[1:]:
        assert last <= first + 100, name
    assert zombies(mark) <= AT_ONCE
    assert await until(lambda: session_folders(service, home) == [], 30)


SERVER = """
import asyncio, sys
from pathlib import Path
from ingle.service import Service
from ingle.settings import Settings
async def main():
    settings = Settings(preload=[], pool=2, isolation="sandbox", network="none")
    async with Service.local(settings, Path(sys.argv[1])) as service:
        async def work():
            while True:
                await service.interpret("print(1)", timeout=60)
                print("done", flush=True)
        await asyncio.gather(*(work() for _ in range(8)))
asyncio.run(main())
"""


async def test_a_server_that_is_killed_in_the_middle_leaves_no_process(tmp_path: Path, mark: str) -> None:
    for _ in range(5):
        server = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path / "home")], stdout=subprocess.PIPE)
        assert server.stdout is not None
        for _ in range(50):
            await asyncio.to_thread(server.stdout.readline)
        server.send_signal(signal.SIGKILL)
        await asyncio.to_thread(server.wait)
        server.stdout.close()
        assert await until(lambda: marked_processes(mark) == [], 30)
