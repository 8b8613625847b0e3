"""Forks of sessions: a live copy is a session of its own, and whatever becomes of either is nothing to the other."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from ingle import errors
from ingle.callers import Caller, Limits
from ingle.events import SessionInfo
from ingle.service import Service
from ingle.settings import Settings
from ingle.workers import siblings
from support.internals import idle_inits, own_processes, session_folders, until_prepared, worker_of
from support.processes import marked_processes
from support.pythons import GOOD, Python
from support.seeds import new_chance
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.fork")]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, pythons=[python.path for python in GOOD])


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


async def fork(service: Service, sid: str = "main", new: str | None = "copy", **options: bool) -> SessionInfo:
    (made,) = await service.fork_session(sid, new, **options)
    return made


@pytest.fixture
async def main(service: Service) -> str:
    return (await service.create_session("main", env={"GIVEN": "1"}, idle_timeout=77.0)).session_id


async def test_a_fork_is_a_session_of_its_own(service: Service, main: str) -> None:
    await say(service, main, "import os\nos.mkdir('sub'); os.chdir('sub')\nx = [1]\nprint('of the original')")
    made = await fork(service)
    original = await service.get_session(main)
    same = ("variables", "execution_count", "python", "idle_timeout", "state", "isolation", "limits")
    assert [getattr(made, name) for name in same] == [getattr(original, name) for name in same]
    assert (made.session_id, made.variables, made.execution_count) == ("copy", ["os", "x"], 1)
    assert (made.parent, original.parent) == ("main", None)
    assert made.cwd.endswith("/workspace/sub")
    if original.isolation == "sandbox":
        assert made.cwd == f"{original.cwd}/sub"
    assert made.notices == ["this session is a fork of 'main', made after its cell 1", *other_path(original)]
    # Cells are counted on, and those of the original are read there.
    second = await service.execute("copy", "x.append(2); print(x, os.environ['GIVEN'])\nundefined")
    assert (second.cell, second.stdout) == (2, "[1, 2] 1\n")
    assert second.error is not None
    assert "<cell 2>" in second.error.traceback
    assert await say(service, main, "print(x)") == "[1]\n"
    assert [cell.cell for cell in await service.cells("copy")] == [2]
    with pytest.raises(errors.CellElsewhere, match="cell 1 ran before session 'copy' was forked from 'main'"):
        await service.wait("copy", 1)
    assert [await say(service, sid, "print(os.environ['TMPDIR'])") for sid in (main, "copy")] == [
        await say(service, sid, "import tempfile; print(tempfile.gettempdir())") for sid in (main, "copy")
    ]
    first = [event async for event in take(service.events("copy", 1), 3)]
    assert [type(event).__name__ for event in first] == ["Notice", "StateChanged", "StateChanged"]


def other_path(original: SessionInfo) -> list[str]:
    """What a fork says where its files cannot appear at the original's path."""
    if original.isolation == "sandbox":
        return []
    return ["its files are at another path, and paths of the original lead to its files"]


async def take(events, count):  # type: ignore[no-untyped-def]
    async for event in events:
        yield event
        count -= 1
        if not count:
            return


async def test_the_original_may_end_while_forks_live(service: Service, main: str, home: Path) -> None:
    await say(
        service,
        main,
        "import os, tempfile, atexit\nopen('data', 'w').write('kept'); folder = tempfile.TemporaryDirectory()\n"
        "open(folder.name + '/deep', 'w').write('kept too')\natexit.register(lambda: open('exited', 'a').close())\n"
        "class Loud:\n    def __del__(self): open('gone', 'a').write('x')\nloud = Loud()",
    )
    await fork(service)
    await fork(service, "copy", "copy-of-copy")
    await service.end_session("copy")
    # What a fork inherited is left alone when it ends.
    look = "print(os.path.exists('gone'), os.path.exists('exited'), os.listdir(folder.name))"
    assert await say(service, main, look) == "False False ['deep']\n"
    await service.end_session(main)
    read = "print(open('data').read(), os.getcwd() == os.path.abspath('.'), os.listdir())"
    assert await say(service, "copy-of-copy", read) == "kept True ['data']\n"
    assert len([each for each in session_folders(service, home) if ".trees." not in each.name]) == 2
    assert [file.name for file in (await service.list_files("copy-of-copy", "")).files] == ["data"]
    # Its worker is replaced as any other.
    result = await service.execute("copy-of-copy", "os._exit(3)")
    assert result.exit is not None
    assert result.exit.code == 3
    assert await say(service, "copy-of-copy", "print(open('data').read())") == "kept\n"
    await service.end_session("copy-of-copy")
    assert session_folders(service, home) == []


async def test_many_forks_draw_the_same_numbers_unless_reseeded(service: Service, main: str) -> None:
    await say(service, main, "import random\nrandom.seed(3); _ = random.random()")
    made = await service.fork_session(main, "twin", count=3)
    assert [info.session_id for info in made] == ["twin-1", "twin-2", "twin-3"]
    drawn = {await say(service, sid, "print(random.random())") for sid in (main, "twin-1", "twin-2", "twin-3")}
    assert drawn == {"0.5442292252959519\n"}
    await fork(service, main, "fresh", reseed=True)
    await fork(service, main, "fresh-too", reseed=True)
    assert len({await say(service, sid, "print(random.random())") for sid in (main, "fresh", "fresh-too")}) == 3
    unnamed = await service.fork_session(main, count=2)
    assert len({info.session_id for info in unnamed}) == 2


@pytest.mark.req("cell.busy")
async def test_a_fork_while_a_cell_runs_is_answered_busy(service: Service, main: str) -> None:
    await service.execute(main, "import time; time.sleep(600)", wait=0)
    for asked in (service.fork_session(main), service.checkpoint(main, "a")):
        with pytest.raises(errors.Busy, match=r"cell 1 has run for .* s; wait, or interrupt"):
            await asked
    assert len(await service.list_sessions()) == 1
    await service.interrupt(main)
    assert (await service.wait(main, 1)).status == "interrupted"
    await fork(service)


async def test_what_is_not_copied_is_told_in_the_listing_and_with_the_first_cell(service: Service, main: str) -> None:
    await say(
        service,
        main,
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='t').start()",
    )
    missing = "not copied: 1 thread of the original: t"
    assert missing in (await fork(service)).notices
    original = await service.get_session(main)
    assert (await service.execute("copy", "1")).notices == [missing, *other_path(original)]
    assert (await service.execute("copy", "1")).notices == []


async def test_names_counts_and_quotas_are_held_to(service: Service, main: str) -> None:
    for new, count, error in (
        ("main", 1, errors.SessionExists),
        ("../x", 1, errors.InvalidName),
        ("x" * 63, 2, errors.InvalidName),
        (None, 0, errors.InvalidRequest),
        (None, 201, errors.InvalidRequest),
    ):
        with pytest.raises(error):
            await service.fork_session(main, new, count=count)
    with pytest.raises(errors.SessionNotFound):
        await service.fork_session("nobody")
    assert [info.session_id for info in await service.list_sessions()] == ["main"]
    tenant = service.acting_for(Caller("t", "tenant", limits=Limits(sessions=3)))
    await tenant.create_session("own")
    with pytest.raises(errors.QuotaExceeded, match="3 sessions"):
        await tenant.fork_session("own", count=3)
    await tenant.fork_session("own", "more", count=2)
    await tenant.end_session("more-1")
    with pytest.raises(errors.SessionNotFound):
        await tenant.fork_session(main)
    assert sorted(info.session_id for info in await tenant.list_sessions()) == ["more-2", "own"]
    assert len(await service.list_sessions()) == 1


async def test_requests_that_come_during_a_fork_wait_and_none_is_lost(service: Service, main: str) -> None:
    await say(service, main, "n = 0")
    forks = [asyncio.ensure_future(service.fork_session(main)) for _ in range(3)]
    await asyncio.sleep(0)
    ran = await asyncio.gather(*(service.execute(main, "n += 1; print(n)", queue=True) for _ in range(3)))
    assert sorted(result.stdout for result in ran) == ["1\n", "2\n", "3\n"]
    for made in await asyncio.gather(*forks, return_exceptions=True):
        # Between cells they are made, in a cell they are refused.
        assert isinstance(made, list | errors.Busy), made
    assert await say(service, main, "print(n)") == "3\n"


ROUNDS = 25


async def test_a_fork_against_interrupts_kills_and_ends(service: Service, mark: str, home: Path) -> None:
    """Whoever comes first: the fork is there and whole, or it is refused in words; and nothing is left behind."""
    await race(service, new_chance(), ROUNDS, mark, home)


async def race(service: Service, chance: random.Random, rounds: int, mark: str, home: Path) -> None:
    # What is opened once, by the first fork and the first end of a worker, is no leak.
    await service.create_session("warm")
    await service.fork_session("warm", "warm-too")
    await service.execute("warm", "import os; os._exit(1)")
    for name in ("warm", "warm-too"):
        await service.end_session(name)
    await until_prepared(service)

    def counted() -> tuple[int, int]:
        idle = idle_inits(service)
        return len(os.listdir("/proc/self/fd")) - idle, len(marked_processes(mark)) - idle

    descriptors, processes = counted()[0], own_processes(service, 1)
    seen: Counter[str] = Counter()
    for number in range(rounds):
        sid = (await service.create_session(f"s{number}")).session_id
        await say(service, sid, "import os, signal; x = 41")
        count = chance.choice((1, 3, 10))
        forking = asyncio.ensure_future(service.fork_session(sid, count=count))
        against = chance.choice(("interrupt", "kill", "end", "cancel"))
        await pause(chance.choice((0.004, 0.02, 0.05)) * chance.random())
        if against == "interrupt":
            await service.interrupt(sid)
        elif against == "end":
            await service.end_session(sid)
        elif against == "cancel":
            forking.cancel()
        else:
            kill_worker(service, sid)
        (made,) = await asyncio.gather(forking, return_exceptions=True)
        if isinstance(made, list):
            for info in made:
                assert await say(service, info.session_id, "x += 1; print(x)") == "42\n"
            seen[f"{against}: made"] += 1
        else:
            assert isinstance(made, errors.StartFailed | errors.SessionNotFound | asyncio.CancelledError), repr(made)
            seen[f"{against}: {type(made).__name__}"] += 1
        for info in await service.list_sessions():
            await service.end_session(info.session_id)
    print(dict(seen))
    # Of four things that can come in between, and two ways that it can end, most have been seen.
    assert len(seen) > 3, seen
    assert await until(lambda: counted()[0] <= descriptors, 5), (descriptors, counted(), seen)
    assert await until(lambda: counted()[1] <= processes, 5), (processes, counted(), seen)
    assert session_folders(service, home) == []


def kill_worker(service: Service, sid: str) -> None:
    worker = worker_of(service, sid)
    if worker is not None and worker.pid is not None:
        os.kill(worker.pid, 9)


async def pause(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await asyncio.sleep(0)


@pytest.mark.req("cell.pythons", "state.rollback")
@pytest.mark.parametrize("python", GOOD, ids=lambda python: python.name)
async def test_in_every_python(service: Service, python: Python) -> None:
    """What Python does around a fork differs from release to release, and so does asyncio."""
    await service.create_session("main", python=python.path, checkpoints="auto")
    await say(
        service,
        "main",
        "import asyncio, atexit, logging, os, random, subprocess, sys, threading, time, warnings\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "warnings.simplefilter('always')\nrandom.seed(5)\nticks = 0\n"
        "async def tick():\n    global ticks\n    while True:\n        await asyncio.sleep(0.001); ticks += 1\n"
        "task = asyncio.ensure_future(tick())\nawait asyncio.sleep(0.01)\n"
        "pool = ThreadPoolExecutor(2); done = pool.submit(time.sleep, 0.001).result()\n"
        "forked = []\nos.register_at_fork(after_in_child=lambda: forked.append('child'))",
    )
    made = await service.fork_session("main", "copy", count=3)
    assert [len([each for each in info.notices if "not copied" in each]) for info in made] == [2, 2, 2]
    seen = (
        "await asyncio.sleep(0.01)\n"
        "with ThreadPoolExecutor(2) as p: two = p.submit(lambda: 2).result()\n"
        "t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()\n"
        "print(two, random.random(), threading.main_thread().native_id == os.getpid(), forked)\n"
        "print(subprocess.run(['true']).returncode)"
    )
    result = await service.execute("copy-2", seen)
    assert (result.error, result.stderr) == (None, "")
    assert result.stdout == "thread\n2 0.6229016948897019 True ['child']\n0\n"
    # And again, of the copy; and back.
    await service.fork_session("copy-2", "deeper")
    assert await say(service, "deeper", "print(two); two = 3") == "2\n"
    result = await service.execute("main", "ticks = -10**9; os._exit(1)")
    assert result.exit is not None
    await service.rollback("main")
    assert await say(service, "main", "await asyncio.sleep(0.01); print(ticks > 0, len(forked))") == "True 2\n"
    result = await service.execute("copy-1", "exit(3)")
    assert result.exit is not None
    assert result.exit.code == 3


async def test_copies_that_cannot_be_had_take_nobodys_place(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "MAX_WORKERS_PER_INIT", 5)
    await service.create_session("s")
    with pytest.raises(errors.StartFailed, match="have had too many copies"):
        await service.fork_session("s", "f", count=5)
    made = await service.fork_session("s", "f", count=4)
    assert [each.session_id for each in made] == ["f-1", "f-2", "f-3", "f-4"]
