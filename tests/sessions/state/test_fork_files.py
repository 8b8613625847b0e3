"""Files of forks: a fork has its own copy of the folder, and neither session sees what the other does to its files."""

import asyncio
import os
import signal

import pytest

from ingle import errors
from ingle.service import Service
from ingle.settings import Settings
from support.crash_rounds import children
from support.internals import worker_of
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.fork")]

MADE = """
import os, sqlite3, stat
os.makedirs('deep/er')
for name in ('plain', 'deep/er/changed', 'gone', 'renamed'):
    open(name, 'w').write(name)
open('binary', 'wb').write(bytes(range(256)))
open('run.sh', 'w').write('#!/bin/sh'); os.chmod('run.sh', 0o750)
os.symlink('plain', 'link'); os.symlink('/nowhere', 'broken')
os.mkdir('empty')
db = sqlite3.connect('data.sqlite')
db.execute('create table t (n)'); db.execute('insert into t values (1)'); db.commit()
log = open('log', 'a+'); log.write('first\\n'); log.flush()
whole = open('plain'); whole.read(2)
here = os.open('.', os.O_RDONLY)
def state():
    found = []
    for folder, folders, files in sorted(os.walk('.')):
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            content = os.readlink(path) if stat.S_ISLNK(mode) else '' if stat.S_ISDIR(mode) else open(path, 'rb').read()
            found.append((path, oct(mode), content))
    return found
"""

CHANGED = """
open('deep/er/changed', 'w').write('otherwise'); os.remove('gone'); os.rename('renamed', 'new name')
os.chmod('run.sh', 0o600); os.remove('link'); os.symlink('binary', 'link'); os.rmdir('empty'); open('more', 'w').close()
log.write('of this one\\n'); log.flush()
try:
    db.execute('insert into t values (2)'); db.commit()
except sqlite3.OperationalError:
    # SQLite writes no file that was replaced at its path, as it is in a fork in a sandbox.
    db = sqlite3.connect('data.sqlite'); db.execute('insert into t values (2)'); db.commit()
os.close(os.open('by folder', os.O_CREAT | os.O_WRONLY, dir_fd=here))
"""


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1)


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


@pytest.fixture
async def pair(service: Service) -> Service:
    """The service, with a session that has files of all kinds, and a fork of it."""
    await service.create_session("main")
    await say(service, "main", MADE)
    await service.fork_session("main", "copy")
    return service


@pytest.mark.parametrize(("writer", "other"), [("main", "copy"), ("copy", "main")])
async def test_changes_stay_in_their_session(pair: Service, writer: str, other: str) -> None:
    before = await say(pair, other, "print(state())")
    assert await say(pair, writer, "print(state())") == before
    await say(pair, writer, CHANGED)
    assert await say(pair, other, "print(state())") == before
    assert await say(pair, writer, "print(state())") != before
    look = (
        "log.seek(0); print(log.read().split(), db.execute('select n from t').fetchall(), os.path.exists('by folder'))"
    )
    assert await say(pair, writer, look) == "['first', 'of', 'this', 'one'] [(1,), (2,)] True\n"
    assert await say(pair, other, look) == "['first'] [(1,)] False\n"


async def test_open_files_keep_their_position(pair: Service) -> None:
    assert await say(pair, "copy", "print(whole.read())") == "ain\n"
    assert await say(pair, "main", "print(whole.read())") == "ain\n"


async def test_files_and_commands_of_a_fork_are_its_own(pair: Service) -> None:
    await say(pair, "copy", CHANGED)
    names = {sid: {file.name for file in (await pair.list_files(sid, "")).files} for sid in ("main", "copy")}
    assert names["main"] ^ names["copy"] == {"gone", "renamed", "new name", "more", "by folder", "empty"}
    task = await pair.shell("cat deep/er/changed", session_id="copy")
    assert task.stdout == "otherwise"
    task = await pair.shell("cat deep/er/changed", session_id="main")
    assert task.stdout == "deep/er/changed"


async def test_a_fork_keeps_its_files_when_its_process_is_replaced(pair: Service) -> None:
    await say(pair, "copy", CHANGED)
    assert (await pair.execute("copy", "os._exit(1)")).exit is not None
    look = "import os; print(os.path.exists('more'), open('deep/er/changed').read(), os.path.basename(os.getcwd()))"
    assert await say(pair, "copy", look) == "True otherwise workspace\n"
    await say(pair, "copy", "open('later', 'w').close()")
    assert await say(pair, "main", "print(os.path.exists('later'))") == "False\n"


async def test_each_of_a_family_goes_back_alone(pair: Service) -> None:
    await pair.fork_session("copy", "third")
    for sid in ("main", "copy", "third"):
        await pair.checkpoint(sid, "then")
    before = await say(pair, "third", "print(state())")
    for sid in ("main", "copy", "third"):
        await say(pair, sid, CHANGED)
        rolled = await pair.rollback(sid, "then")
        assert rolled.files is not None
        assert "gone" in rolled.files.created
        assert await say(pair, sid, "print(state())") == before


async def test_what_a_fork_still_shares_is_named(service: Service) -> None:
    await service.create_session("main")
    await say(
        service,
        "main",
        "import mmap, os, socket\ngone = open('removed', 'wb+'); gone.write(bytes(4096)); gone.flush()\n"
        "memory = mmap.mmap(gone.fileno(), 0); os.remove('removed')\nalso = open('other', 'w'); os.remove('other')\n"
        "listening = socket.create_server(('127.0.0.1', 0))",
    )
    await service.fork_session("main", "copy")
    shared = [notice for notice in (await service.execute("copy", "1")).notices if "shared with the original" in notice]
    assert [notice.partition(":")[0] for notice in shared] == [
        "files that are mapped, and shared with the original",
        "deleted files that are open, and shared with the original",
        "connections that are shared with the original",
    ]
    assert ["/removed" in shared[0], "/other" in shared[1], "at 127.0.0.1:" in shared[2]] == [True] * 3
    assert set(shared) <= set((await service.get_session("copy")).notices)


async def test_a_pipe_of_the_session_alone_is_copied_with_its_content(service: Service) -> None:
    await service.create_session("main")
    await say(
        service,
        "main",
        "import os, subprocess\nreader, writer = os.pipe(); os.set_blocking(reader, False); os.write(writer, b'both')\n"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)",
    )
    await service.fork_session("main", "copy")
    await say(service, "copy", "os.write(writer, b' and more')")
    assert await say(service, "main", "print(os.read(reader, 100))") == "b'both'\n"
    assert await say(service, "copy", "print(os.read(reader, 100))") == "b'both and more'\n"
    (named,) = [each for each in (await service.get_session("copy")).notices if "connections that are shared" in each]
    assert named.count("a pipe") == 1


@pytest.mark.fresh_service
class TestPastTheBound:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=0, keep_files=3)

    async def test_a_fork_shares_the_files_and_says_why(self, service: Service) -> None:
        await service.create_session("main")
        await say(service, "main", "for n in range(5): open(str(n), 'w').close()")
        (made,) = await service.fork_session("main", "copy")
        assert "its files are those of the original: the folder has more than 3 entries (keep_files)" in made.notices
        await say(service, "copy", "open('new', 'w').close()")
        assert await say(service, "main", "import os; print(os.path.exists('new'))") == "True\n"


async def test_a_process_that_is_killed_while_its_files_are_read_ends_the_wait(service: Service) -> None:
    """Its file agent hangs, and would be waited for a minute."""
    await service.create_session("main")
    await service.checkpoint("main", "base")  # it keeps the other processes of the session alive
    await say(service, "main", "for n in range(2000): _ = open(f'many{n}', 'w').write('x' * 10_000)")
    worker = worker_of(service, "main")
    init = worker.init_pid
    assert init is not None
    assert worker.pid is not None
    others = set(children(init))
    forking = asyncio.create_task(service.fork_session("main", "copy"))
    while not (agents := set(children(init)) - others):
        await asyncio.sleep(0)
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)
    os.kill(worker.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        with pytest.raises(errors.StartFailed, match="has ended, and cannot be copied"):
            await forking
