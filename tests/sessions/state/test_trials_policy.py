"""Trials that are committed by themselves: all rules of a policy hold, or the trial waits and says why."""

import asyncio
from pathlib import Path

import pytest

from ingle.events import Result
from ingle.requests import CommitPolicy
from ingle.service import Service
from ingle.settings import Settings
from ingle.trials import Decision
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("trial.commit")]


@pytest.fixture(scope="module")
def granted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("granted")


@pytest.fixture(scope="module")
def settings(granted: Path) -> Settings:
    return make_settings(preload=[], pool=0, isolation="sandbox", mount=[str(granted)])


@pytest.fixture
async def session(service: Service, granted: Path) -> Service:
    (granted / "file").write_text("theirs")
    await service.create_session("s")
    result = await service.execute("s", f"import os\ngranted = {str(granted)!r}; x = 1\nopen('old', 'w').write('old')")
    assert result.error is None, result.error
    return service


async def trial(service: Service, code: str, policy: CommitPolicy) -> tuple[Result, Decision]:
    result = await service.trial("s", code, policy=policy)
    assert result.trial is not None
    assert result.trial.decision is not None
    return result, result.trial.decision


async def test_a_trial_within_the_rules_is_committed(session: Service) -> None:
    result, decision = await trial(session, "x = 2; open('new', 'w').write('new')", CommitPolicy())
    assert decision.committed
    assert decision.reasons == [
        "the cell succeeded",
        "a commit ends nothing",
        "no host was asked for",
        "files differ in the own folder only",
        "3 bytes are written, of at most 10.0 MB",
        "any variable may differ",
    ]
    assert decision.files is not None
    assert decision.files.created == ["new"]
    assert await session.trials("s") == []
    after = await session.execute("s", "print(x, open('new').read())")
    assert (after.stdout, after.cell) == ("2 new\n", result.cell + 1)


LEFT_OPEN = [
    ("1 / 0", CommitPolicy(), "the cell did not succeed: its status is error"),
    (
        "import urllib.request\ntry: urllib.request.urlopen('http://example.com/', timeout=5)\nexcept OSError: pass",
        CommitPolicy(),
        "the cell asked for example.com:80 (network)",
    ),
    ("open(granted + '/file', 'w').write('ours')", CommitPolicy(), "files of granted folders differ: {}/file (files)"),
    ("open('new', 'w').close()", CommitPolicy(files="none"), "files differ: new (files)"),
    ("os.remove('old')", CommitPolicy(deletes=False), "files are deleted: old (deletes)"),
    (
        "open('new', 'w').write('x' * 2000)",
        CommitPolicy(bytes=1000),
        "2 kB are written, of at most 1 kB (bytes)",
    ),
    ("x = 2; y = 3", CommitPolicy(variables="created"), "variables differ, or may: x (variables)"),
    ("y = 3", CommitPolicy(variables="none"), "variables differ, or may: y (variables)"),
]


@pytest.mark.parametrize(("code", "policy", "reason"), LEFT_OPEN, ids=[reason for _, _, reason in LEFT_OPEN])
async def test_a_trial_past_a_rule_waits(
    session: Service, granted: Path, code: str, policy: CommitPolicy, reason: str
) -> None:
    result, decision = await trial(session, code, policy)
    assert decision == Decision(False, [reason.format(granted)])
    assert result.trial is not None
    (listed,) = await session.trials("s")
    assert (listed.name, listed.decision) == (result.trial.name, decision)
    await session.discard("s", listed.name)
    look = await session.execute("s", "print(x, sorted(os.listdir()), open(granted + '/file').read())")
    assert look.stdout == "1 ['old'] theirs\n"


async def test_each_rule_can_be_widened(session: Service, granted: Path) -> None:
    policy = CommitPolicy(network="any", files="any", bytes=5, variables="created")
    code = (
        "import urllib.request\ntry: urllib.request.urlopen('http://example.com/', timeout=5)\nexcept OSError: pass\n"
        "open(granted + '/file', 'w').write('ours'); os.remove('old')"
    )
    _, decision = await trial(session, code, policy)
    assert decision.committed, decision
    assert (granted / "file").read_text() == "ours"


async def test_what_a_commit_would_end_is_not_ended_by_a_policy(session: Service) -> None:
    waits = "import threading\nwait = threading.Event()\nthreading.Thread(target=wait.wait, name='w').start()"
    await session.execute("s", waits)
    result, decision = await trial(session, "x = 2", CommitPolicy())
    assert decision == Decision(False, ["a commit would end 1 thread of the original: w"])
    assert result.trial is not None
    await session.discard("s", result.trial.name)
    await session.execute("s", "wait.set()")


async def test_a_commit_that_is_refused_leaves_the_trial_open(session: Service, granted: Path) -> None:
    (granted / "signal").write_text("")
    code = (
        "import time\nopen(granted + '/file', 'w').write('ours')\n"
        "with open(granted + '/signal') as signal:\n    while not signal.read(): time.sleep(0.01)"
    )
    running = await session.trial("s", code, policy=CommitPolicy(files="any"), wait=0)
    assert running.status == "running"
    # Another program changes the file while the cell runs.
    (granted / "file").write_text("somebody else's")
    (granted / "signal").write_text("go on")
    while (listed := (await session.trials("s"))[0]).decision is None:
        await asyncio.sleep(0.02)
    assert not listed.decision.committed
    assert "others have changed the same files" in listed.decision.reasons[0]
    assert (granted / "file").read_text() == "somebody else's"
    await session.discard("s", listed.name)
