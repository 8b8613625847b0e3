"""Files of the own folder are part of the state: a rollback brings them back, byte for byte."""

import asyncio
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from ingle.files import FileChanges
from ingle.service import Service
from ingle.settings import Settings
from ingle.support.processes import lives
from ingle.trees.agent import TreeAgent
from support.crash_rounds import children
from support.folder_agent import state_of
from support.folder_cases import CHANGE_MANY, CHANGES, MANY, OPEN, SETUP
from support.internals import manager_of, session_of, worker_of
from support.service import make_settings
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.rollback")]


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, keep_files=12_000, keep_bytes=4 * 1024**2)


@pytest.fixture
async def main(service: Service) -> str:
    return (await service.create_session("main")).session_id


def folder_of(service: Service, sid: str) -> Path:
    return Path(session_of(service, sid).folders.workspace)


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout.strip()


@pytest.mark.parametrize("kind", CHANGES)
async def test_a_rollback_brings_files_back(service: Service, main: str, kind: str) -> None:
    change, check = CHANGES[kind]
    await say(service, main, SETUP)
    before = state_of(folder_of(service, main))
    assert (await service.checkpoint(main, "base")).notices == []
    for _ in range(2):
        await say(service, main, change)
        assert state_of(folder_of(service, main)) != before
        back = await service.rollback(main, "base")
        assert state_of(folder_of(service, main)) == before
        assert back.files is not None
        assert await say(service, main, f"print({check})") == "True"


async def test_a_rollback_tells_what_it_changed(service: Service, main: str) -> None:
    await say(service, main, SETUP)
    await service.checkpoint(main, "base")
    await say(service, main, "Path('a').write_text('A'); os.remove('b'); Path('new').touch(); os.chmod('sub/c', 0o755)")
    back = await service.rollback(main, "base")
    assert back.files == FileChanges(created=["b"], changed=["a", "sub/c"], deleted=["new"])
    assert (await service.rollback(main, "base")).files == FileChanges()


@pytest.mark.parametrize("kind", OPEN)
async def test_open_files_continue_where_they_were(service: Service, main: str, kind: str) -> None:
    begin, change, check, expected = OPEN[kind]
    await say(service, main, SETUP)
    await say(service, main, begin)
    before = state_of(folder_of(service, main))
    assert (await service.checkpoint(main, "base")).notices == []
    for _ in range(2):
        await say(service, main, change)
        await service.rollback(main, "base")
        assert state_of(folder_of(service, main)) == before
        assert await say(service, main, check) == expected
    assert (await service.execute(main, "pass")).notices == []


async def test_thousands_of_small_files_come_back(service: Service, main: str) -> None:
    await say(service, main, MANY)
    before = state_of(folder_of(service, main))
    assert (await service.checkpoint(main, "base")).notices == []
    await say(service, main, CHANGE_MANY)
    back = await service.rollback(main, "base")
    assert state_of(folder_of(service, main)) == before
    assert back.files is not None
    assert (len(back.files.created), back.files.changed, back.files.deleted) == (100, ["8/8"], [])


async def test_the_last_cell_is_undone_with_its_files_after_a_crash_too(service: Service) -> None:
    sid = (await service.create_session("main", checkpoints="auto")).session_id
    await say(service, sid, "open('a', 'w').write('one')")
    result = await service.execute(sid, "import os\nopen('a', 'w').write('two')\nos.remove('a')\nos._exit(3)")
    assert result.status == "exit"
    back = await service.rollback(sid)
    assert back.files == FileChanges(created=["a"])
    assert await say(service, sid, "print(open('a').read())") == "one"


async def test_a_folder_above_the_bounds_is_not_kept_and_stays(service: Service, main: str) -> None:
    await say(service, main, "open('large', 'wb').write(bytes(5_000_000))")
    made = await service.checkpoint(main, "base")
    why = "the folder holds 5.0 MB, above the bound of 4.2 MB (keep_bytes)"
    assert made.notices == [f"the files are not kept: {why}"]
    await say(service, main, "x = 1; open('large', 'wb').write(b'small')")
    back = await service.rollback(main, "base")
    assert (back.files, back.session.variables) == (None, [])
    result = await service.execute(main, "print(open('large').read(), 'x' in globals())")
    assert result.stdout == "small False\n"
    assert f"the files stay as they are: {why}" in result.notices


async def test_much_that_was_written_since_is_removed(service: Service, main: str) -> None:
    """A folder may have grown above the bounds since the checkpoint."""
    await say(service, main, "open('a', 'w').write('a')")
    before = state_of(folder_of(service, main))
    await service.checkpoint(main, "base")
    await say(service, main, "open('large', 'wb').write(bytes(9_000_000))")
    assert (await service.rollback(main, "base")).files == FileChanges(deleted=["large"])
    assert state_of(folder_of(service, main)) == before


async def test_what_cannot_be_kept_is_named(service: Service, main: str) -> None:
    await say(service, main, "import os\nos.mkfifo('pipe')")
    made = await service.checkpoint(main, "base")
    assert made.notices == ["files that are not kept: pipe (a pipe, a socket or a device)"]
    await service.rollback(main, "base")
    assert await say(service, main, "print(os.path.exists('pipe'))") == "True"


async def test_files_that_a_fork_shares_stay_as_they_are(service: Service, main: str) -> None:
    """A fork shares the folder if it is too large to be copied."""
    await say(service, main, "open('a', 'w').write('one')")
    await service.checkpoint(main, "base")
    await say(service, main, "open('large', 'wb').write(bytes(5_000_000))")
    (fork,) = await service.fork_session(main, "other")
    await say(service, fork.session_id, "open('a', 'w').write('two')")
    shared = "the files stay as they are: another session shares the folder, a fork or the original"
    back = await service.rollback(main, "base")
    assert (back.files, shared in back.session.notices) == (None, True)
    await service.end_session(fork.session_id)
    assert (await service.rollback(main, "base")).files == FileChanges(changed=["a"], deleted=["large"])


async def test_a_folder_without_a_change_is_not_listed(
    service: Service, main: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await say(service, main, "open('a', 'w').write('one')")
    await service.checkpoint(main, "first")
    listed: list[str] = []
    files = session_of(service, main).kept_files
    with_agent = files._with_agent

    async def note(*given: object) -> object:
        listed.append("")
        return await with_agent(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_with_agent", note)
    await say(service, main, "x = 1")
    await service.checkpoint(main, "second")
    assert listed == []
    await say(service, main, "os = __import__('os'); os.chmod('a', 0o600)")
    await service.checkpoint(main, "third")
    assert listed == [""]


async def test_kept_files_end_with_their_checkpoints(service: Service, main: str) -> None:
    store = manager_of(service)._trees.of("")
    await say(service, main, "open('a', 'w').write('a' * 100)")
    await service.checkpoint(main, "one")
    await say(service, main, "open('a', 'w').write('b' * 200)")
    await service.checkpoint(main, "two")
    assert store.used == 300
    await service.drop_checkpoint(main, "one")
    assert await until(lambda: store.used == 200)
    await service.end_session(main)
    assert await until(lambda: store.used == 0)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_file_agent_that_is_killed_is_followed_by_another(
    service: Service, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """It is lost while the files are brought back, or of a durable session while they are written down before."""
    main = (await service.create_session("main", durable=durable)).session_id
    await say(service, main, "open('a', 'w').write('one')")
    await service.checkpoint(main, "base")
    await say(service, main, "open('a', 'w').write('two')")
    files = session_of(service, main).kept_files
    with_agent, lost = files._with_agent, []

    async def lose_once(worker: object, work: object, **more: object) -> object:
        def cut(agent: object) -> object:
            lost.append("")
            agent._socket.close()  # type: ignore[attr-defined]
            return work(agent)  # type: ignore[operator]

        return await with_agent(worker, work if lost else cut, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "_with_agent", lose_once)
    assert (await service.rollback(main, "base")).files == FileChanges(changed=["a"])
    assert lost == [""]


async def test_two_checkpoints_have_their_own_files(service: Service, main: str) -> None:
    await say(service, main, "f = open('a', 'w+'); f.write('one'); f.flush()")
    await service.checkpoint(main, "one")
    await say(service, main, "f.write('two'); f.flush()")
    await service.checkpoint(main, "two")
    await say(service, main, "f.write('three'); f.flush()")
    for name, text in (("one", "one"), ("two", "onetwo"), ("one", "one")):
        await service.rollback(main, name)
        assert await say(service, main, "print(open('a').read(), f.tell())") == f"{text} {len(text)}"


async def test_the_folder_can_be_used_after_a_crash_and_a_rollback(service: Service, main: str) -> None:
    await say(service, main, "open('a', 'w').write('one')")
    await service.checkpoint(main, "base")
    assert (await service.execute(main, "import os; os._exit(3)")).status == "exit"
    await say(service, main, "open('b', 'w').write('two')")  # in a new process
    assert (await service.rollback(main, "base")).files == FileChanges(deleted=["b"])
    assert await say(service, main, "open('c', 'w').write('x'); print(open('a').read())") == "one"


async def test_a_rollback_whose_processes_are_killed_is_finished_by_the_next(
    service: Service, main: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy, its checkpoint and the file agent end with their init, when half of the files are back."""
    await say(service, main, "for each in range(200): _ = open(f'file{each}', 'w').write('one')")
    before = state_of(folder_of(service, main))
    await service.checkpoint(main, "base")
    await say(service, main, "for each in range(200): _ = open(f'file{each}', 'w').write('two')")
    apply, killed = TreeAgent.apply, []

    def kill_once(agent: TreeAgent, steps: list[list[object]], sources: list[int]) -> object:
        done = apply(agent, steps, sources)
        worker = session_of(service, main).worker
        if not killed and worker is not None and worker.init_pid is not None:
            killed.append(len(steps))
            os.kill(worker.init_pid, signal.SIGKILL)
        return done

    monkeypatch.setattr(TreeAgent, "apply", kill_once)
    await service.rollback(main, "base")
    assert killed == [64]
    assert state_of(folder_of(service, main)) == before


async def test_no_file_agent_outlives_the_process_that_it_serves(
    service: Service, main: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on to write, while the next process brings the files back. The checkpoint keeps its init alive."""
    await say(service, main, "for each in range(40): _ = open(f'file{each}', 'w').write('one')")
    before = state_of(folder_of(service, main))
    await service.checkpoint(main, "base")
    await say(service, main, "for each in range(40): _ = open(f'file{each}', 'w').write('two')")
    init = worker_of(service, main).init_pid
    assert init is not None
    others = set(children(init))
    apply, agents = TreeAgent.apply, []

    def kill_once(agent: TreeAgent, steps: list[list[object]], sources: list[int]) -> object:
        if not agents:
            copy = worker_of(service, main).pid
            assert copy is not None
            agents.extend(set(children(init)) - others - {copy})
            for each in agents:
                os.kill(each, signal.SIGSTOP)
            os.kill(copy, signal.SIGKILL)
        return apply(agent, steps, sources)

    monkeypatch.setattr(TreeAgent, "apply", kill_once)
    await service.rollback(main, "base")
    assert (len(agents), [each for each in agents if lives(each)]) == (1, [])
    assert state_of(folder_of(service, main)) == before


async def test_a_thread_lets_go_of_its_connection_before_that_is_closed(service: Service) -> None:
    """Afterwards the number of the closed descriptor may be that of another one, on which the thread would wait."""
    ours, theirs = socket.socketpair()
    received: list[bytes] = []
    waiting = threading.Event()

    def receive() -> None:
        waiting.set()
        received.append(ours.recv(1))

    with ours, theirs:
        working = asyncio.create_task(manager_of(service)._trees.with_connections(receive, ours))
        await asyncio.to_thread(waiting.wait)
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert received == [b""]
