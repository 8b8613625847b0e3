"""Files of every kind in a tracked folder, through every operation on a session in a sandbox, byte for byte.

Rollbacks and committed trials change the folder. Forks share it, and saves leave it alone: it belongs to the user.
"""

from pathlib import Path
from typing import Any

import pytest

from ingle.service import Service
from support.folder_agent import State, state_of
from support.folder_cases import CHANGE_MANY, CHANGES, MANY, OPEN, SETUP
from support.tracked_folder import say, serving

pytestmark = pytest.mark.req("files.state", "trial.commit", "trial.discard")

WRITTEN = {
    # An overlay renames no folder in place.
    kind: change.replace("os.rename('sub',", "shutil.move('sub',")
    for kind, (change, _) in CHANGES.items()
    if kind != "locked"
}
"""Changes of which nothing is hidden from the session itself."""

IN_TRIAL = {kind: each for kind, each in OPEN.items() if "database with a log" not in kind}
"""Files that go on in a trial. An overlay shows a changed file as another one, which the log of a database notices."""

RECONNECT = """
import sqlite3
try:
    {code}
except sqlite3.OperationalError:
    # SQLite writes no file that was replaced at its path.
    db.close(); db = sqlite3.connect('db'); {code}
"""


@pytest.fixture
def tracking() -> dict[str, Any]:
    return {"pool": 0, "isolation": "sandbox", "keep_files": 12_000}


async def trial(service: Service, code: str) -> str:
    """Run a trial. Return its name."""
    result = await service.trial("main", code)
    assert (result.status, result.error) == ("ok", None), result
    assert result.trial is not None
    return result.trial.name


async def plain_state(service: Service, project: Path, *cells: str) -> State:
    """Return the folder as these cells leave it in a session. The folder is brought back afterwards."""
    await service.checkpoint("main", "plain")
    for cell in cells:
        await say(service, cell)
    after = state_of(project)
    await service.rollback("main", "plain")
    return after


async def test_trials_are_discarded_committed_and_rolled_back(tracked: Service, project: Path) -> None:
    await say(tracked, SETUP)
    before = state_of(project)
    await tracked.checkpoint("main", "base")
    for kind, change in WRITTEN.items():
        after = await plain_state(tracked, project, change)
        assert state_of(project) == before != after, kind
        name = await trial(tracked, change)
        assert state_of(project) == before, kind
        await tracked.discard("main", name)
        assert state_of(project) == before, kind
        await tracked.commit("main", await trial(tracked, change))
        assert state_of(project) == after, kind
        await tracked.rollback("main", "base")
        assert state_of(project) == before, kind


@pytest.mark.parametrize("kind", OPEN)
async def test_open_files_continue_after_a_rollback(tracked: Service, project: Path, kind: str) -> None:
    begin, change, check, expected = OPEN[kind]
    await say(tracked, SETUP)
    await say(tracked, begin)
    before = state_of(project)
    await tracked.checkpoint("main", "base")
    await say(tracked, change)
    await tracked.rollback("main", "base")
    assert state_of(project) == before
    assert await say(tracked, check) == expected


@pytest.mark.parametrize("kind", IN_TRIAL)
async def test_open_files_of_a_trial_are_its_own(tracked: Service, project: Path, kind: str) -> None:
    begin, change, check, unchanged = IN_TRIAL[kind]
    if "database" in kind:
        change, check = RECONNECT.format(code=change), RECONNECT.format(code=check)
    await say(tracked, SETUP)
    await say(tracked, begin)
    before = state_of(project)
    after = await plain_state(tracked, project, change)
    name = await trial(tracked, change)
    assert state_of(project) == before
    await tracked.discard("main", name)
    assert state_of(project) == before
    await tracked.commit("main", await trial(tracked, change))
    assert state_of(project) == after
    await tracked.rollback("main", "plain")
    assert await say(tracked, check) == unchanged


async def test_ten_thousand_small_files(tracked: Service, project: Path) -> None:
    await say(tracked, MANY)
    before = state_of(project)
    assert (await tracked.checkpoint("main", "base")).notices == []
    await say(tracked, CHANGE_MANY)
    after = state_of(project)
    back = await tracked.rollback("main", "base")
    assert state_of(project) == before
    assert back.files is not None
    assert (len(back.files.created), back.files.changed, back.files.deleted) == (100, ["8/8"], [])
    name = await trial(tracked, CHANGE_MANY)
    assert state_of(project) == before
    await tracked.discard("main", name)
    assert state_of(project) == before
    done = await tracked.commit("main", await trial(tracked, CHANGE_MANY))
    assert state_of(project) == after
    assert done.files is not None
    assert (len(done.files.deleted), done.files.changed, done.files.created) == (100, ["8/8"], [])


async def test_forks_share_the_folder_and_saves_leave_it_alone(
    apart: Path, mark: str, project: Path, tracking: dict[str, Any]
) -> None:
    folder = f"{project}:tracked"
    async with serving(apart / "kept", folder, kind="serve", **tracking) as first:
        await first.create_session("main", durable=True)
        await say(first, SETUP)
        await first.save_session("main", "snap")
        for kind, change in WRITTEN.items():
            await first.checkpoint("main", "base")
            after = await plain_state(first, project, change)
            await first.fork_session("main", "fork")
            await say(first, change, "fork")
            assert state_of(project) == after, kind
            await first.load_session("snap", "other")
            assert state_of(project) == after, kind
            for sid in ("fork", "other"):
                await first.end_session(sid)
            await first.rollback("main", "base")
        await say(first, MANY)
        before = state_of(project)
    async with serving(apart / "kept", folder, kind="serve", **tracking) as second:
        await say(second, "pass")
        assert state_of(project) == before
