"""Trials: a cell runs in a copy of the session, its effect is told, and it is committed or discarded."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Result
from ingle.service import Service
from ingle.settings import Settings
from ingle.trials import Effect
from support.internals import session_of, worker_of
from support.service import make_settings
from support.waiting import until

pytestmark = pytest.mark.both_levels


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1)


async def say(service: Service, sid: str, code: str) -> str:
    result = await service.execute(sid, code)
    assert (result.status, result.error) == ("ok", None), result
    return result.stdout


async def network(service: Service) -> str:
    """Connections can be held in a sandbox only."""
    return "held" if (await service.get_session("s")).isolation == "sandbox" else "allowed"


async def trial(service: Service, code: str) -> tuple[Result, Effect]:
    result = await service.trial("s", code, network=await network(service))
    assert result.trial is not None
    assert result.trial.effect is not None
    return result, result.trial.effect


@pytest.fixture
async def session(service: Service) -> Service:
    await service.create_session("s")
    await say(
        service,
        "s",
        "import os, sqlite3, threading\ntable = {'a': [1, 2], 'b': [3, 4]}; keep = 1; rows = [1]\n"
        "open('data.csv', 'w').write('a,b\\n1,3\\n'); open('notes', 'w').write('mine\\n')\n"
        "db = sqlite3.connect('data.sqlite'); db.execute('create table t (n)'); db.commit()\n"
        # SQLite writes no file that was replaced at its path, so a change has a connection of its own.
        "def insert(n):\n"
        "    with sqlite3.connect('../data.sqlite') as mine: mine.execute('insert into t values (?)', (n,))\n"
        "log = open('log', 'a+'); log.write('first\\n'); log.flush()\nos.mkdir('deep'); os.chdir('deep')",
    )
    return service


STATE = "print(sorted(table), keep, rows, sorted(os.listdir('..')), db.execute('select n from t').fetchall())"
BEFORE = "['a', 'b'] 1 [1] ['data.csv', 'data.sqlite', 'deep', 'log', 'notes'] []\n"
CODE = (
    "del table['b']; keep = 2; more = [0]; os.remove('../data.csv'); open('../notes', 'a').write('yours\\n')\n"
    "os.rename('../log', '../renamed'); log.write('second\\n'); log.flush()\n"
    "insert(7); print('ran'); 6 * 7"
)


@pytest.mark.req("trial.effect")
async def test_the_effect_names_what_would_change(session: Service) -> None:
    result, effect = await trial(session, CODE)
    assert (result.session_id, result.cell, result.status, result.stdout) == ("s", 2, "ok", "ran\n")
    assert result.result == {"text/plain": "42"}
    assert [(each.name, each.change) for each in effect.variables] == [
        ("keep", "changed"),
        ("more", "created"),
        ("table", "changed"),
    ]
    lengths = {each.name: each.after.length for each in effect.variables if each.after is not None}
    assert lengths == {"keep": None, "more": 1, "table": 1}
    assert effect.unknown == ["log"]
    assert effect.files is not None
    assert [(each.path, each.change) for each in effect.files] == [
        ("data.csv", "deleted"),
        ("data.sqlite", "changed"),
        ("log", "deleted"),
        ("notes", "changed"),
        ("renamed", "created"),
    ]
    assert {each.path: each.text for each in effect.files}["notes"] == (
        "--- a/notes\n+++ b/notes\n@@ -1 +1,2 @@\n mine\n+yours\n"
    )
    assert (effect.processes, effect.threads, effect.ends) == ([], 0, [])
    if (await session.get_session("s")).isolation != "sandbox":
        assert effect.notices == [
            "its files are at another path, and paths of the original lead to its files",
            "at the level 'none' the code has the rights of the session: what it did to other files, to processes "
            "and over the network is done, and not listed",
        ]
    assert effect.memory is not None
    await session.discard("s", result.trial.name if result.trial else "")


VARIABLES = """
import sys, weakref
class Point:
    def __init__(self): self.saved = []
    def __reduce__(self):
        self.saved.append(1)
        return (Point, ())
same, grown, gone, number = [1], [1], 'text', 1
point, text = Point(), 'x' * 1000
other, held = {'point': point}, (each for each in 'ab')
next(held)
def function(): return 1
"""
CHANGE_VARIABLES = """
grown.append(2)
del gone
number += 1
number -= 1
number += 999
new = [Point]
function.limit = 3
text = text + 'y'
"""


@pytest.mark.req("trial.effect", "diff.state")
async def test_an_effect_tells_the_variables_as_a_diff_does(service: Service) -> None:
    await service.create_session("s")
    await say(service, "s", VARIABLES)
    result, effect = await trial(service, CHANGE_VARIABLES)
    assert [(each.name, each.change) for each in effect.variables] == [
        ("function", "changed"),
        ("gone", "deleted"),
        ("grown", "changed"),
        ("new", "created"),
        ("number", "changed"),
        ("text", "changed"),
    ]
    assert effect.unknown == ["held"]
    grown = effect.variables[2]
    assert grown.before is not None
    assert grown.after is not None
    assert (grown.before.preview, grown.after.preview) == ("[1]", "[1, 2]")
    assert result.trial is not None
    await service.discard("s", result.trial.name)
    await service.checkpoint("s", "before")
    await say(service, "s", CHANGE_VARIABLES)
    found = await service.diff("s", "before")
    assert (found.variables, found.unknown) == (effect.variables, effect.unknown)


@pytest.mark.req("trial.effect", "trial.commit")
async def test_comparing_variables_changes_nothing_in_a_trial(service: Service) -> None:
    """No code of their classes runs there, and nothing holds what the cell lets go."""
    await service.create_session("s")
    await say(service, "s", VARIABLES)
    code = "ref = weakref.ref(point); del point, other; freed = ref() is None; second = Point()"
    result, effect = await trial(service, code)
    assert {each.name: each.change for each in effect.variables}["point"] == "deleted"
    assert result.trial is not None
    await service.commit("s", result.trial.name)
    assert await say(service, "s", "print(freed, second.saved)") == "True []\n"
    _, effect = await trial(service, "second.mark = 1")
    assert [each.name for each in effect.variables] == []
    (open_trial,) = await service.trials("s")
    await service.commit("s", open_trial.name)
    assert await say(service, "s", "print(second.mark, second.saved)") == "1 []\n"


@pytest.mark.req("trial.discard")
async def test_a_discarded_trial_leaves_no_trace(session: Service) -> None:
    await say(session, "s", "threading.Thread(target=threading.Event().wait, daemon=True).start()")
    result, effect = await trial(session, CODE + "\nimport subprocess; left = subprocess.Popen(['sleep', '1000'])")
    assert [each.split()[0] for each in effect.processes] == ["sleep"]
    assert [each.partition(":")[0] for each in effect.ends] == ["1 thread of the original"]
    worker = worker_of(session, "s")
    assert result.trial is not None
    await session.discard("s", result.trial.name)
    assert worker_of(session, "s") is worker
    assert await say(session, "s", STATE) == BEFORE
    assert await say(session, "s", "print(threading.active_count(), 'left' in globals())") == "2 False\n"
    assert [each.cell for each in await session.cells("s")] == [1, 2, 3, 4]
    with pytest.raises(errors.TrialNotFound):
        await session.discard("s", result.trial.name)


@pytest.mark.req("trial.commit")
async def test_a_committed_trial_is_the_session(session: Service) -> None:
    await session.checkpoint("s", "before")
    result, _ = await trial(session, CODE + "\nran = globals().get('ran', 0) + 1")
    assert result.trial is not None
    done = await session.commit("s", result.trial.name)
    assert done.cell == 2
    assert done.files is not None
    assert (done.files.created, done.files.deleted) == (["renamed"], ["data.csv", "log"])
    after = "['a'] 2 [1] ['data.sqlite', 'deep', 'notes', 'renamed'] [(7,)]\n"
    assert await say(session, "s", STATE) == after
    assert await say(session, "s", "print(ran, os.path.basename(os.getcwd()))") == "1 deep\n"
    # Open files and connections go on in the session's own files.
    await say(session, "s", "log.write('third\\n'); log.flush(); insert(8)")
    assert await say(session, "s", "print(open('../renamed').read().split())") == "['first', 'second', 'third']\n"
    names = [file.name for file in (await session.list_files("s", "")).files]
    assert names == ["data.sqlite", "deep", "notes", "renamed"]
    # The cell is one of the session, with its output.
    assert (await session.wait("s", 2)).stdout == "ran\n"
    assert [each.cell for each in await session.cells("s")] == [1, 2, 3, 4, 5, 6]
    # Checkpoints from before still work, and a new process finds the files.
    await session.rollback("s", "before")
    assert await say(session, "s", STATE) == BEFORE
    await session.execute("s", "os._exit(1)")
    assert await say(session, "s", "import os; print(sorted(os.listdir()))") == (
        "['data.csv', 'data.sqlite', 'deep', 'log', 'notes']\n"
    )


@pytest.mark.req("trial.commit")
async def test_trials_follow_one_another(session: Service) -> None:
    for number in range(4):
        result, _ = await trial(session, f"n{number} = {number}; open('../f{number}', 'w').write('{number}')")
        assert result.trial is not None
        await session.commit("s", result.trial.name)
    look = "print([globals()[f'n{n}'] for n in range(4)], [open(f'../f{n}').read() for n in range(4)])"
    assert await say(session, "s", look) == "[0, 1, 2, 3] ['0', '1', '2', '3']\n"
    await session.fork_session("s", "copy")
    assert await say(session, "copy", look) == "[0, 1, 2, 3] ['0', '1', '2', '3']\n"


@pytest.mark.req("trial.commit")
async def test_a_trial_of_a_fork_is_committed_to_the_files_of_the_fork(session: Service) -> None:
    await say(session, "s", "full = open(os.path.abspath('../full'), 'w')")
    await session.fork_session("s", "fork")
    await session.fork_session("fork", "other")
    for number in range(2):
        code = f"open('../new{number}', 'w').close()"
        result = await session.trial("fork", code, network=await network(session))
        assert result.trial is not None
        await session.commit("fork", result.trial.name)
        changed = await session.execute("fork", f"open('../later{number}', 'w').close()")
        assert changed.files is not None
        assert changed.files.created == [f"later{number}"]
    # Open files are saved by their paths in the folder, though they were opened in another one.
    assert "full" not in [each.name for each in (await session.save_session("fork", "kept")).skipped]
    await session.delete_snapshot("kept")
    names = {sid: {file.name for file in (await session.list_files(sid, "")).files} for sid in ("s", "fork", "other")}
    assert names["s"] == names["other"]
    assert names["fork"] - names["s"] == {"new0", "new1", "later0", "later1"}


@pytest.mark.req("trial.discard")
async def test_an_open_trial_makes_the_session_busy(session: Service) -> None:
    result, _ = await trial(session, "keep = 3")
    assert result.trial is not None
    name = result.trial.name
    for request in (session.execute("s", "1"), session.checkpoint("s", "c"), session.fork_session("s", "copy")):
        with pytest.raises(errors.TrialOpen, match=f"busy: {name} is open; commit or discard it"):
            await request
    with pytest.raises(errors.TrialOpen):
        await session.trial("s", "1", network=await network(session))
    (listed,) = await session.trials("s")
    assert (listed.name, listed.cell, listed.status) == (name, 2, "ok")
    queued = asyncio.create_task(session.execute("s", "print(keep)", queue=True))
    await session.discard("s", name)
    assert (await queued).stdout == "1\n"
    assert await session.trials("s") == []


async def test_a_trial_that_fails_or_exits_is_told(session: Service) -> None:
    result, effect = await trial(session, "keep = 5; 1 / 0")
    assert result.error is not None
    assert (result.error.name, [each.name for each in effect.variables]) == ("ZeroDivisionError", ["keep"])
    assert result.trial is not None
    await session.discard("s", result.trial.name)
    result, effect = await trial(session, "os._exit(3)")
    assert result.exit is not None
    assert effect.notices[-1] == "its process has ended, so that it can only be discarded"
    assert result.trial is not None
    with pytest.raises(errors.Conflict, match="has ended"):
        await session.commit("s", result.trial.name)
    assert await say(session, "s", STATE) == BEFORE
    result, _ = await trial(session, "try:\n    input()\nexcept EOFError:\n    print('no input')")
    assert result.stdout.endswith("no input\n")


@pytest.mark.req("trial.discard")
async def test_the_end_of_a_session_ends_its_trial(service: Service, home: Path) -> None:
    await service.create_session("s")
    await trial(service, "open('f', 'w').close()")
    await service.end_session("s")
    assert await service.list_sessions() == []


class TestExpiring:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=0, trial_seconds=0.3)

    @pytest.mark.req("trial.discard")
    async def test_a_trial_expires(self, service: Service) -> None:
        await service.create_session("s")
        await say(service, "s", "x = 1")
        result = await service.trial("s", "x = 2", network=await network(service))
        assert result.trial is not None

        while await service.trials("s"):
            await asyncio.sleep(0.01)
        after = await service.execute("s", "print(x)", queue=True)
        assert after.stdout == "1\n"
        assert any("was discarded: it was not committed within 0.3 s" in notice for notice in after.notices)


class TestPastTheBound:
    @pytest.fixture
    def settings(self) -> Settings:
        return make_settings(preload=[], pool=0, keep_files=3)

    @pytest.mark.req("trial.discard", "probe.clean")
    async def test_code_is_not_tried_on_the_files_of_the_session(self, service: Service) -> None:
        await service.create_session("s")
        await say(service, "s", "import os\nfor n in range(5): open(str(n), 'w').close()")
        allowed, remove = await network(service), "os.remove('0')"
        why = r"its files cannot be copied: the folder has more than 3 entries \(keep_files\)"
        for attempt in (
            service.trial("s", remove, network=allowed),
            service.probe("s", remove, network=allowed),
            service.try_cells("s", [remove], network=allowed),
        ):
            with pytest.raises(errors.TrialRefused, match=why):
                await attempt
        assert await say(service, "s", "print(os.path.exists('0'))") == "True\n"


@pytest.mark.req("try.best")
async def test_the_best_of_several_becomes_the_session(session: Service) -> None:
    codes = ["y = 1", "y = 3; open('../won', 'w').close()", "1 / 0", "y = float('nan')", "y = 2"]
    tried = await session.try_cells("s", codes, score="y", network=await network(session))
    assert [(each.index, each.status, each.score) for each in tried.variants] == [
        (0, "ok", 1.0),
        (1, "ok", 3.0),
        (2, "error", None),
        (3, "ok", None),
        (4, "ok", 2.0),
    ]
    assert tried.chosen == 1
    assert tried.variants[2].error == "ZeroDivisionError: division by zero"
    assert await say(session, "s", "print(y, os.path.exists('../won'))") == "3 True\n"
    assert [each.cell for each in await session.cells("s")] == [1, 2, 3]


@pytest.mark.req("try.best")
async def test_none_or_the_first_is_kept(session: Service) -> None:
    allowed = await network(session)
    tried = await session.try_cells("s", ["keep = 2"], keep="none", network=allowed)
    assert (tried.chosen, [each.status for each in tried.variants]) == (None, ["ok"])
    assert await say(session, "s", STATE) == BEFORE
    codes = ["while True: pass", "1 / 0", "first = 1"]
    tried = await session.try_cells("s", codes, keep="first_ok", budget=20.0, network=allowed)
    assert tried.chosen == 2
    assert tried.variants[0].status == "budget"
    assert tried.variants[0].execution_time > 0
    assert await say(session, "s", "print(first)") == "1\n"


@pytest.mark.req("probe.clean")
async def test_a_probe_changes_nothing(session: Service) -> None:
    code = "keep = 9; rows.append(2); open('../x', 'w').close(); print(keep, rows)"
    probed = await session.probe("s", code, network=await network(session))
    assert (probed.status, probed.stdout) == ("ok", "9 [1, 2]\n")
    assert await say(session, "s", STATE) == BEFORE


@pytest.mark.req("probe.clean")
async def test_a_clean_probe_has_only_the_named_values(session: Service) -> None:
    await say(session, "s", "import math; math.sqrt = lambda value: 99\nsum = None")
    code = "import math as m; print(m.sqrt(rows[0]), sum(rows), sorted(name for name in globals() if name[0] != '_'))"
    probed = await session.probe("s", code, clean=True, variables=["rows"], network="allowed")
    assert probed.stdout == "1.0 1 ['m', 'rows']\n"
    assert [info.session_id for info in await session.list_sessions()] == ["s"]
    with pytest.raises(errors.InvalidRequest):
        await session.probe("s", "1", variables=["rows"])


@pytest.mark.req("merge.names")
async def test_single_variables_and_files_are_taken_from_a_fork(session: Service) -> None:
    await session.fork_session("s", "copy")
    code = "rows.append(2); new = rows; os.mkdir('out'); open('out/f', 'w').write('f'); os.chmod('out/f', 0o750)"
    await say(session, "copy", f"{code}; keep = 7")
    merged = await session.merge("s", "copy", variables=["rows", "new"], files=["deep/out"])
    assert (merged.variables, merged.replaced, merged.files) == (["rows", "new"], ["rows"], ["deep/out"])
    assert merged.notices == ["the variables are copies: objects that they shared in the fork are separate now"]
    look = "print(rows, new, rows is new, keep, open('out/f').read(), oct(os.stat('out/f').st_mode & 0o777))"
    assert await say(session, "s", look) == "[1, 2] [1, 2] False 1 f 0o750\n"


@pytest.mark.req("trial.commit")
async def test_a_trial_is_committed_though_the_process_of_the_session_has_ended(session: Service) -> None:
    result, _ = await trial(session, "keep = 9; open('../new', 'w').write('text')")
    assert result.trial is not None
    worker = worker_of(session, "s")
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    done = await session.commit("s", result.trial.name)
    assert done.files is not None
    assert done.files.created == ["new"]
    assert await say(session, "s", "print(keep, rows, os.path.exists('../new'))") == "9 [1] True\n"


@pytest.mark.req("trial.discard")
async def test_the_effect_of_a_trial_whose_process_was_killed_does_not_wait(session: Service) -> None:
    running = asyncio.create_task(trial(session, "open('begun', 'w').close(); threading.Event().wait()"))
    copies = session_of(session, "s").trials
    assert await until(lambda: any(each.running is not None for each in copies.sessions), 20)
    (copy,) = copies.sessions
    assert copy.worker is not None
    assert copy.worker.pid is not None
    os.kill(copy.worker.pid, signal.SIGKILL)
    async with asyncio.timeout(30):
        result, effect = await running
    assert (result.status, effect.variables) == ("exit", [])
    assert result.trial is not None
    await session.discard("s", result.trial.name)
    assert await say(session, "s", STATE) == BEFORE


@pytest.mark.req("trial.commit")
async def test_a_commit_whose_caller_leaves_is_finished(session: Service) -> None:
    for number, seconds in enumerate((0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08)):
        before = (await session.get_session("s")).execution_count
        result, _ = await trial(session, f"step = {number}")
        assert result.trial is not None
        committing = asyncio.ensure_future(session.commit("s", result.trial.name))
        await asyncio.wait({committing}, timeout=seconds)
        committing.cancel()
        await asyncio.wait({committing})
        committed = await session.trials("s") == []
        if not committed:
            await session.discard("s", result.trial.name)
        # Wholly before or wholly after: the variable and the cell in the history go together.
        assert (await session.get_session("s")).execution_count == before + committed
        assert await say(session, "s", f"print(globals().get('step') == {number})") == f"{committed}\n"


@pytest.mark.req("probe.clean")
async def test_a_probe_without_a_time_limit_ends_as_a_trial_would(
    session: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_of(session, "s").trials, "_seconds", 0.3)
    probed = await session.probe("s", "while True: pass", network=await network(session))
    assert probed.status == "interrupted"
    assert await say(session, "s", STATE) == BEFORE
