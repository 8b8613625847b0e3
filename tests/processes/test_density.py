"""Many sessions at once, and the same again: all answer, and nothing grows."""

import asyncio
import fcntl
import os
import struct
from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support.internals import loaded_descriptors, manager_of
from support.service import make_settings
from support.waiting import until

pytestmark = pytest.mark.fresh_service

MANY = 400
AT_ONCE = 20
"""Requests under way together: enough to overlap, few enough for two cores."""


@pytest.fixture
def settings() -> Settings:
    return make_settings(preload=[], pool=0, idle_timeout=3600)


def open_files(service: Service) -> int:
    return len(os.listdir("/proc/self/fd")) - loaded_descriptors(service)


def memory() -> float:
    """Resident MB of this process, which is the host here."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def for_each(names: list[str], work) -> list:
    """Run `work(name)` for all names, a bounded number at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(name: str):
        async with gate:
            return await work(name)

    return await asyncio.gather(*(one(name) for name in names))


async def create_use_and_end(service: Service, count: int) -> None:
    names = [f"s{number}" for number in range(count)]
    await for_each(names, service.create_session)
    results = await for_each(names, lambda name: service.execute(name, f"'{name}' * 2", wait=120))
    assert [result.result for result in results] == [{"text/plain": repr(name * 2)} for name in names]
    assert len(await service.list_sessions()) == count
    await for_each(names, service.end_session)
    assert await service.list_sessions() == []


async def test_hundreds_of_idle_sessions_all_answer(service: Service) -> None:
    await create_use_and_end(service, MANY)


async def test_memory_and_descriptors_stay_flat_over_rounds(service: Service) -> None:
    await create_use_and_end(service, 50)
    files, before = open_files(service), memory()
    for _ in range(5):
        await create_use_and_end(service, 50)
    assert await until(lambda: open_files(service) == files), (open_files(service), files)
    assert memory() - before < 10


@pytest.mark.parametrize("pool", [0, 1])
async def test_what_a_session_takes_is_told_from_its_first_moment(pool: int, home: Path) -> None:
    async with Service.local(make_settings(preload=[], pool=pool), home) as service:
        await service.warm()
        fresh = await service.create_session("one")
        assert fresh.memory is not None
        assert 1_000_000 < fresh.memory < 100_000_000
        assert (await service.get_session("one")).memory == pytest.approx(fresh.memory, rel=0.2)
        await service.execute("one", "x = b'1' * 50_000_000")
        held = await service.get_session("one")
        assert held.memory is not None
        assert held.memory > fresh.memory + 45_000_000


GET_FLAGS, SET_FLAGS, TOP_FOLDER = 0x80086601, 0x40086602, 0x20000


def is_top_folder(folder: Path) -> bool:
    """Whether ext4 spreads the folders inside over the disk (`lsattr` shows T)."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(fd, GET_FLAGS, struct.pack("l", 0)))
        fcntl.ioctl(fd, SET_FLAGS, struct.pack("l", flags))  # is refused where there are no such flags
    except OSError:
        pytest.skip("this file system has no flags of ext4")
    finally:
        os.close(fd)
    return bool(flags & TOP_FOLDER)


async def test_ext4_spreads_the_folders_of_sessions(service: Service, home: Path) -> None:
    assert not is_top_folder(home)
    assert is_top_folder(home / "sessions")


OWN_HUGE = "[line for line in open('/proc/self/smaps_rollup') if line.startswith('AnonHugePages')][0].split()[1]"


def collapses_memory() -> bool:
    """Whether this kernel makes huge pages on demand (Linux 6.1 and later)."""
    major, minor = map(int, os.uname().release.split(".")[:2])
    return (major, minor) >= (6, 1) and Path("/sys/kernel/mm/transparent_hugepage").exists()


@pytest.mark.skipif(not collapses_memory(), reason="this kernel makes no huge pages on demand")
async def test_sessions_share_the_huge_pages_of_their_interpreter(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large.py").write_text("held = [bytearray(b'x') * 100_000 for _ in range(200)]")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with Service.local(make_settings(preload=["large"], pool=0, isolation="none"), home) as service:
        await service.create_session("one")
        shared = await service.execute("one", f"import large\nint({OWN_HUGE})")
        assert shared.result is not None
        assert int(shared.result["text/plain"]) > 8_000
        written = await service.execute("one", f"for each in large.held: each[:] = b'y' * 100_000\nint({OWN_HUGE})")
        assert written.result == {"text/plain": "0"}
        await service.create_session("two")
        same = await service.execute("two", "import large\nset(b''.join(large.held))")
        assert same.result == {"text/plain": "{120}"}


HOLES = """
objects = [bytes(60) for _ in range(4000)]
free = {id(each) for each in objects[::2]}
del objects[::2]
"""


async def test_new_objects_of_a_session_do_not_lie_among_inherited_ones(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "holes.py").write_text(HOLES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with Service.local(make_settings(preload=["holes"], pool=0, isolation="none"), home) as service:
        await service.create_session("one")
        code = "import holes\nlen(holes.free), holes.free & {id(each) for each in [bytes(60) for _ in range(500)]}"
        assert (await service.execute("one", code)).result == {"text/plain": "(2000, set())"}


async def test_the_node_knows_how_many_cells_run_however_they_end(service: Service) -> None:
    """While none runs, nobody looks through thousands of idle sessions for one."""
    telemetry = manager_of(service).telemetry
    endings = {
        "ok": "1",
        "error": "1 / 0",
        "exit": "raise SystemExit",
        "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "interrupted": "while True: pass",
        "ended": "while True: pass",
    }
    await for_each(list(endings), service.create_session)
    await for_each(list(endings), lambda name: service.execute(name, endings[name], wait=0))
    assert await until(lambda: telemetry.running_cells == 2)
    await service.interrupt("interrupted", wait=20)
    await service.end_session("ended")
    assert await until(lambda: telemetry.running_cells == 0)
    await service.execute("ok", "import time\ntime.sleep(60)", wait=0)
    assert telemetry.running_cells == 1
