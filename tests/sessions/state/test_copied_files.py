"""Files of every kind in forks and trials: each copy and its original hold what they must, byte for byte.

The same kinds go through rollbacks in test_kept_files, and through saves and restarts in test_saved_files.
"""

from pathlib import Path

import pytest

from ingle.service import Service
from ingle.settings import Settings
from support.folder_agent import State, state_of
from support.folder_cases import CHANGE_MANY, CHANGES, MANY, OPEN, SETUP
from support.internals import session_of
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("files.state")]

RECONNECT = """
import sqlite3
try:
    {code}
except sqlite3.OperationalError:
    # SQLite writes no file that was replaced at its path, as it is in a copy in a sandbox.
    db = sqlite3.connect('db'); {code}
"""


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, keep_files=12_000)


@pytest.fixture
async def main(service: Service) -> Service:
    await service.create_session("main")
    await say(service, "main", SETUP)
    return service


def folder_of(service: Service, sid: str = "main") -> Path:
    return Path(session_of(service, sid).folders.place)


def state(service: Service, sid: str = "main") -> State:
    return state_of(folder_of(service, sid))


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout.strip()


async def trial(service: Service, code: str) -> tuple[str, State]:
    """Run a trial. Return its name, and the files that it has."""
    held = (await service.get_session("main")).isolation == "sandbox"
    result = await service.trial("main", code, network="held" if held else "allowed")
    assert (result.status, result.error) == ("ok", None), result
    assert result.trial is not None
    (copy,) = session_of(service, "main").trials.sessions
    return result.trial.name, state_of(Path(copy.folders.place))


@pytest.mark.req("trial.discard", "trial.commit")
async def test_changes_of_a_trial_are_discarded_or_committed(main: Service) -> None:
    before = state(main)
    await main.checkpoint("main", "base")
    for kind, (change, check) in CHANGES.items():
        name, tried = await trial(main, change)
        assert state(main) == before != tried, kind
        await main.discard("main", name)
        assert state(main) == before, kind
        assert await say(main, "main", f"print({check})") == "True", kind
        if kind == "locked":
            continue  # A file that the session may not read is not part of its state.
        name, tried = await trial(main, change)
        await main.commit("main", name)
        assert state(main) == tried, kind
        await main.rollback("main", "base")
        assert state(main) == before, kind


@pytest.mark.req("state.fork")
async def test_changes_of_a_fork_are_its_own(main: Service) -> None:
    before = state(main)
    for kind, (change, check) in CHANGES.items():
        await main.fork_session("main", "writes")
        await main.fork_session("main", "reads")
        await say(main, "writes", change)
        assert state(main, "writes") != before, kind
        for sid in ("main", "reads"):
            assert state(main, sid) == before, kind
            assert await say(main, sid, f"print({check})") == "True", kind
        for sid in ("writes", "reads"):
            await main.end_session(sid)


@pytest.mark.parametrize("kind", OPEN)
@pytest.mark.req("state.fork", "trial.discard", "trial.commit")
async def test_open_files_of_a_copy_are_its_own(main: Service, kind: str) -> None:
    begin, change, check, unchanged = OPEN[kind]
    change, check = RECONNECT.format(code=change), RECONNECT.format(code=check)
    await say(main, "main", begin)
    before = state(main)
    name, tried = await trial(main, change)
    await main.discard("main", name)
    assert state(main) == before
    await main.fork_session("main", "reads")
    await main.fork_session("main", "writes")
    await say(main, "writes", change)
    assert state(main) == before
    name, tried = await trial(main, change)
    assert state(main) == before
    await main.commit("main", name)
    assert state(main) == tried
    assert state(main, "reads") == before
    # A copy continues as if nobody else had changed anything, and a commit as if the cell had run in the session.
    assert await say(main, "reads", check) == unchanged
    await main.create_session("plain")
    plain = await main.execute("plain", f"{SETUP}\n{begin}\n{change}\n{check}")
    if plain.error is None:
        for sid in ("main", "writes"):
            assert await say(main, sid, check) == plain.stdout.strip(), sid
    assert "shared" not in "".join((await main.get_session("reads")).notices)


@pytest.mark.req("state.fork", "trial.discard", "trial.commit")
async def test_thousands_of_small_files_are_copied(service: Service) -> None:
    await service.create_session("main")
    await say(service, "main", MANY)
    before = state(service)
    await service.fork_session("main", "fork")
    await say(service, "fork", CHANGE_MANY)
    assert state(service) == before
    name, tried = await trial(service, CHANGE_MANY)
    assert state(service, "fork") == tried != before
    await service.discard("main", name)
    assert state(service) == before
    name, _ = await trial(service, CHANGE_MANY)
    done = await service.commit("main", name)
    assert state(service) == tried
    assert done.files is not None
    assert (len(done.files.deleted), done.files.changed, done.files.created) == (100, ["8/8"], [])


@pytest.mark.req("state.fork", "trial.discard", "trial.commit")
async def test_a_large_file_is_copied(service: Service) -> None:
    """`make soak` copies one of 1 GB."""
    await service.create_session("main")
    await say(service, "main", "import os\nopen('large', 'wb').write(os.urandom(32_000_000))")
    before = state(service)
    await service.fork_session("main", "fork")
    change = "file = open('large', 'r+b'); file.seek(5_000_000); file.write(b'changed'); file.close()"
    await say(service, "fork", change)
    name, tried = await trial(service, change)
    assert state(service) == before != tried == state(service, "fork")
    await service.discard("main", name)
    assert state(service) == before
    name, _ = await trial(service, change)
    await service.commit("main", name)
    assert state(service) == tried
