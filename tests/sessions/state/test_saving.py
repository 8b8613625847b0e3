"""Sessions saved and loaded: what comes back is what was there, hanging together as it did, in another process."""

import asyncio
import os
import pickle
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from ingle import errors
from ingle.callers import EXECUTE, IMPLIED, Caller
from ingle.events import Skipped
from ingle.nodes import snapshots
from ingle.service import Service
from ingle.sessions.persistence import save_store
from ingle.settings import Settings
from support.internals import session_of, worker_of
from support.pythons import GOOD, Python
from support.service import make_settings
from support.waiting import until

pytestmark = pytest.mark.both_levels


@pytest.fixture(scope="module")
def settings() -> Settings:
    return make_settings(preload=[], pool=1, pythons=[python.path for python in GOOD])


async def run(service: Service, code: str, session: str = "main") -> str:
    """The text of the last value, or what was printed; the cell must succeed."""
    result = await service.execute(session, code)
    assert result.success, result.error
    return result.result["text/plain"] if result.result else result.stdout


async def through_disk(service: Service, code: str) -> None:
    """Run this in `main`, save it, end it, and load it as `main` again."""
    await service.create_session("main")
    await run(service, code)
    saved = await service.save_session("main", "calc")
    assert saved.skipped == []
    await service.end_session("main")
    restored = await service.load_session("calc")
    assert (restored.session.session_id, restored.skipped, restored.notices) == ("main", [], [])


# --- what comes back -------------------------------------------------------------------------------------------


@pytest.mark.req("state.save")
@pytest.mark.req("state.load")
async def test_a_function_comes_back_onto_the_sessions_own_globals(service: Service) -> None:
    await through_disk(service, "counter = 5\ndef inc():\n    global counter\n    counter += 1")
    assert await run(service, "inc(); inc(); counter") == "7"
    assert await run(service, "counter = 40; inc(); counter") == "41"
    assert await run(service, "inc.__globals__ is globals()") == "True"
    assert await run(service, "import gc; gc.isenabled()") == "True"  # nothing is collected meanwhile


@pytest.mark.req("state.save")
async def test_what_two_names_share_they_share_again(service: Service) -> None:
    await through_disk(service, "a = [1]\nb = {'a': a}\nc = (a, b)\nr = []; r.append(r)\nalone = [1]")
    assert await run(service, "a.append(2); b['a'], c[0] is a, c[1] is b, r[0] is r, alone") == (
        "([1, 2], True, True, True, [1])"
    )


@pytest.mark.req("state.save")
async def test_a_class_is_one_class_for_all_that_are_of_it(service: Service) -> None:
    code = "class P:\n    made = 0\n    def __init__(self): P.made += 1\n"
    await through_disk(service, code + "p, q = P(), [P()]\ndef make(): return P()\nclass Q(P): pass\nold = P()\n")
    assert await run(service, "type(p) is type(q[0]) is type(old) is type(make()) is P, P.made, Q.__mro__[1] is P") == (
        "(True, 4, True)"
    )


@pytest.mark.req("state.save")
async def test_an_older_class_of_the_same_name_stays_another(service: Service) -> None:
    await service.create_session("main")
    await run(service, "class P: v = 1\nold = P()")
    await run(service, "class P: v = 2\nnew = P()")
    await service.save_session("main", "calc")
    await service.load_session("calc", "other")
    assert await run(service, "old.v, new.v, type(new) is P, type(old) is P", "other") == "(1, 2, True, False)"


@pytest.mark.req("state.save")
async def test_closures_share_their_cells_again(service: Service) -> None:
    code = (
        "def make():\n    n = 0\n    def up():\n        nonlocal n; n += 1\n    return up, lambda: n\nup, get = make()"
    )
    await through_disk(service, code + "\nup()")
    assert await run(service, "up(); get()") == "2"


@pytest.mark.req("state.save")
async def test_a_class_is_made_again_without_running_its_code_again(service: Service) -> None:
    code = (
        "log = []\n"
        "class Meta(type):\n"
        "    def __new__(m, *a, **k): log.append('meta'); return super().__new__(m, *a, **k)\n"
        "    def __init__(cls, *a, **k): super().__init__(*a)\n"
        "class Base(metaclass=Meta):\n"
        "    def __init_subclass__(cls, key): log.append(key)\n"
        "class Sub(Base, key='sub'): pass\n"
    )
    await through_disk(service, code)
    assert await run(service, "log, isinstance(Sub, Meta)") == "(['meta', 'meta', 'sub'], True)"
    assert await run(service, "class More(Base, key='more'): pass\nlog[-1]") == "'more'"


@pytest.mark.req("state.save")
async def test_what_cannot_be_saved_is_named_and_costs_nothing_else(service: Service) -> None:
    await service.create_session("main")
    await run(service, "shared = [1]\ng = (i for i in 'zab'); next(g)\nboth = [g, shared]")
    await run(service, "class C: held = g\nc = C()\nx = 1")
    saved = await service.save_session("main", "calc")
    why = "a generator that has started: its position in the code cannot be saved"
    assert sorted(saved.skipped, key=lambda each: each.name) == [
        Skipped("C", "type", why, "<cell 2>"),
        Skipped("both", "list", why, "<cell 1>"),
        Skipped("c", "C", "it needs C", "<cell 2>"),
        Skipped("g", "generator", why, "<cell 1>"),
    ]
    assert saved.variables == 2
    restored = await service.load_session("calc", "other")
    assert restored.session.variables == ["shared", "x"]
    assert restored.skipped == saved.skipped
    assert await run(service, "list(g)") == "['a', 'b']"  # the session that was saved has lost nothing


@pytest.mark.req("state.save")
async def test_code_that_runs_while_saving_changes_nothing_in_the_session(service: Service) -> None:
    await service.create_session("main")
    await run(
        service,
        "n = 0\nclass C:\n    def __getstate__(self):\n        global n; n += 1; print('hi'); return {'n': n}\nc = C()",
    )
    await service.save_session("main", "calc")
    assert await run(service, "n") == "0"
    await service.load_session("calc", "other")
    assert await run(service, "c.n", "other") == "1"


@pytest.mark.req("state.save")
async def test_a_copy_that_ends_itself_is_an_error_and_the_session_goes_on(service: Service) -> None:
    await service.create_session("main")
    await run(service, "x = 1")
    await service.save_session("main", "calc")
    await run(service, "import os\nclass C:\n    def __reduce__(self): os._exit(3)\nc = C()")
    with pytest.raises(errors.SaveFailed, match="ended with exit code 3"):
        await service.save_session("main", "calc")
    assert await run(service, "x") == "1"
    restored = await service.load_session("calc", "other")  # the save before is as it was
    assert restored.session.variables == ["x"]


@pytest.mark.req("state.save")
@pytest.mark.parametrize(
    "lie",
    [
        "b'garbage' * 1000",
        "struct.pack('>BI', 1, 36) + bytes(32) + struct.pack('>I', 2 ** 31)",
        "struct.pack('>BI', 4, 2 ** 31)",
        "struct.pack('>BI', 4, 2) + b'{}'",
        "struct.pack('>BI', 3, 5) + b'chunk'",
        "struct.pack('>BI', 1, 36) + bytes(32) + struct.pack('>I', 5) + struct.pack('>BI', 3, 5) + b'wrong'",
    ],
)
async def test_a_copy_that_lies_on_its_channel_costs_nobody_anything(service: Service, lie: str) -> None:
    """Code of the user's runs in the copy, and finds the channel: the last socket that was opened."""
    await service.create_session("main")
    code = f"""
        import os, stat, struct
        class Liar:
            def __reduce__(self):
                sockets = [int(n) for n in os.listdir("/proc/self/fd") if is_socket(int(n))]
                os.write(max(sockets), {lie})
                return (list, ())
        def is_socket(fd):
            try: return fd < 100 and stat.S_ISSOCK(os.fstat(fd).st_mode)
            except OSError: return False
        liar = Liar()
    """
    await run(service, code)
    with pytest.raises(errors.SaveFailed):
        await service.save_session("main", "calc")
    assert await service.list_snapshots() == []
    await run(service, "del liar, Liar; x = 1")
    await service.save_session("main", "calc")
    assert (await service.load_session("calc", "other")).session.variables == ["is_socket", "os", "stat", "struct", "x"]


@pytest.mark.req("state.save")
async def test_a_session_that_has_broken_its_own_tables_is_saved(service: Service) -> None:
    await service.create_session("main")
    await run(service, "import json, sys\nx = [1]\ndef f(): return x\nprint = None\nsys.modules.clear()")
    assert (await service.save_session("main", "calc")).skipped == []
    await service.load_session("calc", "other")
    assert await run(service, "json.dumps(f()), f() is x, sys.path[0], print", "other") == "('[1]', True, '', None)"


@pytest.mark.req("state.save")
async def test_saving_writes_nothing_that_the_session_itself_will_write(service: Service, tmp_path: Path) -> None:
    await service.create_session("main", cwd=str(tmp_path))
    await run(service, "out = open('out.txt', 'w'); out.write('one\\n'); raw = open('raw', 'wb'); raw.write(b'1')")
    await service.save_session("main", "calc")
    assert await run(service, "open('out.txt').read(), open('raw', 'rb').read()") == "('', b'')"
    await service.load_session("calc", "other")
    assert await run(service, "out.write('two\\n'); out.close(); raw.close(); open(out.name).read()", "other") == (
        "'one\\ntwo\\n'"
    )
    assert (
        await run(service, "out.write('2\\n'); out.close(); raw.close(); open('out.txt').read()[:6]") == "'one\\n2\\n'"
    )


@pytest.mark.req("state.save")
async def test_surroundings_come_back(service: Service, tmp_path: Path) -> None:
    (tmp_path / "mod.py").write_text("value = 7\n")
    await through_disk(
        service,
        "from __future__ import annotations\n"
        f"import os, random, sys; sys.path.append({str(tmp_path)!r}); import mod; os.environ['COLOUR'] = 'red'\n"
        f"os.environ.pop('HOME', None); os.chdir({str(tmp_path)!r}); random.seed(4); state = random.getstate()",
    )
    assert await run(service, "mod.value, os.environ['COLOUR'], 'HOME' in os.environ, random.getstate() == state") == (
        "(7, 'red', False, True)"
    )
    assert await run(service, "os.getcwd(), sys.path[-1]") == repr((str(tmp_path), str(tmp_path)))
    assert await run(service, "def f(a: missing): ...\nf.__annotations__") == "{'a': 'missing'}"


@pytest.mark.req("state.save")
async def test_source_and_tracebacks_know_loaded_code(service: Service) -> None:
    await through_disk(service, "def f(a):\n    return 1 / a")
    assert await run(service, "import inspect; print(inspect.getsource(f))") == "def f(a):\n    return 1 / a\n\n"
    result = await service.execute("main", "f(0)")
    assert result.error is not None
    assert re.sub(r"\s*[~^]+\n", "\n", result.error.traceback) == (
        "Traceback (most recent call last):\n"
        '  File "<cell 2>", line 1, in <module>\n    f(0)\n'
        '  File "<cell 1 before loading>", line 2, in f\n    return 1 / a\n'
        "ZeroDivisionError: division by zero\n"
    )


@pytest.mark.req("state.save")
@pytest.mark.req("state.load")
async def test_arrays_come_back_whole_and_look_into_each_other_through_two_generations(service: Service) -> None:
    code = (
        "import numpy as np, pandas as pd\nwhole = np.arange(3_000_000.0)\npart = whole[5:10]\n"
        "turned = whole.reshape(3, -1).T\ntext = 'x' * 2_000_000\nboth = [text, text]\nraw = bytes(9_000_000)\n"
        "frame = pd.DataFrame({'a': whole, 'b': 'b'})"
    )
    await through_disk(service, code)
    check = (
        "whole[5] += 1; part[0], turned[5, 0], float(whole.sum()), frame.shape, both[0] is both[1] is text, len(raw), "
        "whole.flags.writeable"
    )
    first = await run(service, check)
    assert first == "(np.float64(6.0), np.float64(6.0), 4499998500001.0, (3000000, 2), True, 9000000, True)"
    await service.save_session("main", "again")
    await service.load_session("again", "second")
    assert await run(service, check, "second") == (
        "(np.float64(7.0), np.float64(7.0), 4499998500002.0, (3000000, 2), True, 9000000, True)"
    )
    saved = await service.save_session("second", "third")
    assert saved.size < 2 * 24_000_000 + 60_000_000


# --- saving again ----------------------------------------------------------------------------------------------


@pytest.mark.req("state.save")
async def test_saving_again_writes_what_changed_only(service: Service, home: Path) -> None:
    await service.create_session("main")
    await run(
        service,
        "import os\nbig = [os.urandom(300_000) for _ in range(20)]\nclass C: pass\nmany = [C() for _ in range(100)]",
    )
    first = await service.save_session("main", "calc")
    assert first.new_bytes == first.size > 6_000_000
    again = await service.save_session("main", "calc")
    assert (again.size, again.new_bytes) == (first.size, 0)
    await run(service, "small = 'new'")
    third = await service.save_session("main", "calc")
    assert 0 < third.new_bytes < 1000
    await run(service, "del big; many[0].a = 1")
    await service.save_session("main", "calc")
    await service.save_session("main", "calc")  # now none of the two that are kept has it
    kept = sum(path.stat().st_size for path in (home / "snapshots").rglob("*") if path.is_file())
    assert kept < 1_000_000
    assert await run(service, "len(many)") == "100"
    await service.load_session("calc", "other")
    assert await run(service, "many[0].a, 'big' in globals()", "other") == "(1, False)"


@pytest.mark.req("state.save")
async def test_a_save_says_that_it_replaced_one_of_another_session(service: Service) -> None:
    for each in ("main", "other"):
        await service.create_session(each)
        await run(service, "x = 1; x", each)
    assert (await service.save_session("main", "calc")).notices == []
    # A program that saves its own session again is told nothing.
    assert (await service.save_session("main", "calc")).notices == []
    (notice,) = (await service.save_session("other", "calc")).notices
    assert re.fullmatch(
        r"it replaced a snapshot 'calc' of session 'main', saved [0-9.]+ s ago after cell 1; "
        "to keep both, use another name",
        notice,
    )
    (kept,) = await service.list_snapshots()
    assert (kept.name, kept.session_id) == ("calc", "other")


@pytest.mark.req("state.save")
async def test_a_session_that_runs_a_cell_is_busy(service: Service) -> None:
    await service.create_session("main")
    cell = await service.begin("main", "input()")
    with pytest.raises(errors.Busy, match=rf"busy: cell {cell} has run for"):
        await service.save_session("main", "calc")
    assert await service.list_snapshots() == []


@pytest.mark.req("state.save")
async def test_cells_go_on_while_a_session_is_saved(service: Service) -> None:
    """The copy waits for a file that only a later cell of the session itself makes."""
    await service.create_session("main")
    code = """
        import os, time
        class C:
            def __reduce__(self):
                open("began", "w").close()
                while not os.path.exists("go"):
                    time.sleep(0.01)
                return (list, ())
        c = C()
    """
    await run(service, code)
    saving = asyncio.create_task(service.save_session("main", "calc"))
    folder = Path((await service.get_session("main")).cwd)
    assert await until(lambda: (folder / "began").exists())
    await run(service, "open('go', 'w').close()")
    saved = await saving
    assert saved.skipped == []


# --- where it is kept ------------------------------------------------------------------------------------------


@pytest.mark.req("state.save")
@pytest.mark.req("state.load")
async def test_a_path_below_the_sessions_folder_is_one_portable_file(service: Service, tmp_path: Path) -> None:
    start = tmp_path / "project"
    start.mkdir()
    await service.create_session("main", cwd=str(start))
    await run(service, "x = [1, 2]")
    saved = await service.save_session("main", "private/sessions/calc.pkl", start=str(start))
    file = start / "private" / "sessions" / "calc.pkl.ingle"
    assert saved.snapshot == "private/sessions/calc.pkl.ingle"
    assert (file.stat().st_mode & 0o777, os.listdir(file.parent)) == (0o600, ["calc.pkl.ingle"])
    assert await service.list_snapshots() == []
    for number, path in enumerate(("private/sessions/calc.pkl", str(file))):
        await service.load_session(path, f"other-{number}", start=str(start))
        assert await run(service, "x", f"other-{number}") == "[1, 2]"


@pytest.mark.req("state.save")
@pytest.mark.parametrize("target", ["../x", "/etc/x", "a/../../x", "", "a/", "x\0y", "link/x", ".hidden/../../y"])
async def test_no_other_place_is_written(service: Service, tmp_path: Path, target: str) -> None:
    start = tmp_path / "project"
    start.mkdir()
    (start / "link").symlink_to(tmp_path)
    before = sorted(tmp_path.iterdir())
    await service.create_session("main", cwd=str(start))
    with pytest.raises(errors.InvalidRequest):
        await service.save_session("main", target, start=str(start))
    with pytest.raises(errors.IngleError) as caught:
        await service.load_session(target, "other", start=str(start))
    assert isinstance(caught.value, errors.InvalidRequest | errors.SnapshotNotFound)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.req("state.save")
@pytest.mark.parametrize("target", ["名前", "a b", ".hid", "x" * 65])
async def test_an_invalid_name_is_refused_and_is_no_path(service: Service, tmp_path: Path, target: str) -> None:
    await service.create_session("main", cwd=str(tmp_path))
    rule = "1 to 64 letters, digits, '.', '_' or '-', not starting with a dot"
    with pytest.raises(errors.InvalidName, match=rule):
        await service.save_session("main", target, start=str(tmp_path))
    with pytest.raises(errors.InvalidName, match=rule):
        await service.load_session(target, "other", start=str(tmp_path))
    with pytest.raises(errors.InvalidName, match=rule):
        await service.load_session(target, "other")
    assert list(tmp_path.iterdir()) == []
    saved = await service.save_session("main", "a b.ingle", start=str(tmp_path))
    assert (saved.snapshot, [each.name for each in tmp_path.iterdir()]) == ("a b.ingle", ["a b.ingle"])


@pytest.mark.req("state.load")
async def test_snapshots_are_listed_and_deleted(service: Service, home: Path) -> None:
    await service.create_session("main")
    await run(service, "x = 1\ny = 'text'")
    await service.save_session("main", "one")
    await service.save_session("main", "two")
    one, two = await service.list_snapshots()
    assert (one.name, two.name, one.session_id, one.cell, one.problem) == ("one", "two", "main", 1, None)
    assert [(each.name, each.type) for each in one.variables] == [("x", "int"), ("y", "str")]
    await service.delete_snapshot("one")
    assert [each.name for each in await service.list_snapshots()] == ["two"]
    with pytest.raises(errors.SnapshotNotFound):
        await service.load_session("one", "other")
    await service.delete_snapshot("two")
    assert list((home / "snapshots").rglob("*.pack")) == []


async def test_what_is_saved_is_for_one_user_alone(service: Service, home: Path) -> None:
    await service.create_session("main")
    await service.save_session("main", "calc")
    modes = {path.stat().st_mode & 0o077 for path in (home / "snapshots", *(home / "snapshots").rglob("*"))}
    assert modes == {0}


@pytest.mark.req("state.load")
async def test_a_name_that_is_taken_is_not_loaded_over(service: Service) -> None:
    await service.create_session("main")
    await service.save_session("main", "calc")
    with pytest.raises(errors.SessionExists):
        await service.load_session("calc")


@pytest.mark.req("state.load")
async def test_tenants_see_only_their_own(service: Service, home: Path) -> None:
    ann, bob = (service.acting_for(Caller(name, name, IMPLIED[EXECUTE])) for name in ("ann", "bob"))
    await ann.create_session("main")
    await run(ann, "x = 1")
    await ann.save_session("main", "calc")
    assert [each.name for each in await ann.list_snapshots()] == ["calc"]
    assert await bob.list_snapshots() == await service.list_snapshots() == []
    with pytest.raises(errors.SnapshotNotFound):
        await bob.load_session("calc")
    # Not even if Ann's files are put where Bob's are: they are not signed for Bob.
    shutil.rmtree(home / "snapshots" / "bob")
    (home / "snapshots" / "ann").rename(home / "snapshots" / "bob")
    with pytest.raises(errors.SnapshotUntrusted):
        await bob.load_session("calc")
    with pytest.raises(errors.Forbidden, match="scope 'admin'"):
        await bob.load_session("calc", trust=True)


@pytest.mark.req("state.load")
async def test_a_snapshot_is_loaded_into_no_weaker_confinement_than_it_came_from(mark: str, home: Path) -> None:
    async with Service.local(make_settings(preload=[], pool=1, isolation="none"), home) as service:
        await service.create_session("main", isolation="limits")
        await run(service, "x = 1")
        await service.save_session("main", "calc")
        restored = await service.load_session("calc", "other")
        assert (await service.get_session("main")).isolation == restored.session.isolation == "limits"
        with pytest.raises(errors.NotGranted):
            await service.load_session("calc", "third", isolation="none")


# --- what is not as it was written -----------------------------------------------------------------------------


async def save_twice(service: Service, home: Path) -> tuple[Path, Path]:
    """`calc` with x = 1, then with x = 2: the manifest of the last, and the pack that only the last uses."""
    await service.create_session("main")
    await run(service, "x = 'one' * 50_000")
    await service.save_session("main", "calc")
    packs = set((home / "snapshots").rglob("*.pack"))
    await run(service, "x = 'two' * 50_000")
    await service.save_session("main", "calc")
    (pack,) = set((home / "snapshots").rglob("*.pack")) - packs
    return home / "snapshots" / ".owner" / "named" / "calc.json", pack


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.req("state.load")
@pytest.mark.parametrize(
    "damage", ["chunk", "index", "torn pack", "no pack", "torn manifest", "changed manifest", "no manifest"]
)
async def test_a_damaged_save_is_named_and_the_one_before_is_used(
    service: Service, settings: Settings, home: Path, damage: str
) -> None:
    listed, pack = await save_twice(service, home)
    if damage == "chunk":
        flip(pack, 5000)
    elif damage == "index":
        flip(pack, pack.stat().st_size - 60)
    elif damage == "torn pack":
        os.truncate(pack, pack.stat().st_size // 2)
    elif damage == "no pack":
        pack.unlink()
    elif damage == "torn manifest":
        os.truncate(listed, listed.stat().st_size // 2)
    elif damage == "changed manifest":
        listed.write_bytes(listed.read_bytes().replace(b'"cell":2', b'"cell":3'))
    else:
        listed.unlink()
    async with Service.local(settings, home) as later:
        restored = await later.load_session("calc", "other")
        assert restored.notices[0].startswith("the last save ")
        assert await run(later, "x[:3]", "other") == "'one'"
    assert await run(service, "x[:3]") == "'two'"


@pytest.mark.req("state.load")
@pytest.mark.parametrize("damage", ["bytes", "index", "end", "half", "empty", "tail", "zip", "text"])
async def test_a_damaged_file_is_refused_and_says_so(service: Service, tmp_path: Path, damage: str) -> None:
    await service.create_session("main", cwd=str(tmp_path))
    await run(service, "x = 'one' * 100_000")
    await service.save_session("main", "s/calc", start=str(tmp_path))
    file = tmp_path / "s" / "calc.ingle"
    size = file.stat().st_size
    if damage == "bytes":
        flip(file, 5000)
    elif damage == "index":
        flip(file, size - 60)
    elif damage == "end":
        os.truncate(file, size - 1)
    elif damage == "half":
        os.truncate(file, size // 2)
    elif damage == "empty":
        os.truncate(file, 0)
    elif damage == "tail":
        file.write_bytes(file.read_bytes() + b"more")
    elif damage == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
            bomb.writestr("../../x", bytes(50_000_000))
    else:
        file.write_bytes(pickle.dumps([1]))
    for trust in (False, True):
        with pytest.raises(errors.SnapshotDamaged, match=r"the snapshot 's/calc.ingle' cannot be used: "):
            await service.load_session("s/calc", "other", start=str(tmp_path), trust=trust)
    assert [each.session_id for each in await service.list_sessions()] == ["main"]


@pytest.mark.req("state.load")
async def test_a_file_of_another_ingle_is_loaded_only_if_it_is_trusted(
    service: Service, settings: Settings, tmp_path: Path, apart: Path
) -> None:
    async with Service.local(settings, apart / "elsewhere") as elsewhere:
        await elsewhere.create_session("main", cwd=str(tmp_path))
        await run(
            elsewhere,
            "import os\nclass Evil:\n    def __reduce__(self): return (os.mkdir, ('/proc/self/nowhere',))\nx = 1",
        )
        await run(
            elsewhere,
            f"class Code:\n    def __reduce__(self): return (os.mkdir, ({str(tmp_path / 'ran')!r},))\nc = Code()",
        )
        await elsewhere.save_session("main", "s/calc", start=str(tmp_path))
    with pytest.raises(errors.SnapshotUntrusted, match="--trust"):
        await service.load_session("s/calc", "other", start=str(tmp_path))
    assert not (tmp_path / "ran").exists()
    restored = await service.load_session("s/calc", "other", start=str(tmp_path), trust=True)
    assert (tmp_path / "ran").is_dir()
    assert restored.session.variables == ["Code", "Evil", "c", "os", "x"]


@pytest.mark.req("state.load")
async def test_loading_that_ends_the_new_session_is_an_error_and_leaves_nothing(service: Service) -> None:
    await service.create_session("main")
    await run(service, "import os\nclass C:\n    def __reduce__(self): return (os._exit, (3,))\nc = C()")
    await service.save_session("main", "calc")
    with pytest.raises(errors.LoadFailed):
        await service.load_session("calc", "other")
    assert [each.session_id for each in await service.list_sessions()] == ["main"]
    assert await run(service, "1") == "1"


@pytest.mark.req("state.load")
async def test_what_cannot_be_loaded_is_named_and_the_rest_is_there(service: Service, tmp_path: Path) -> None:
    module = tmp_path / "gone.py"
    module.write_text("class Thing: pass\n")
    await service.create_session("main")
    await run(service, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport gone\nthing = gone.Thing()\nx = 1")
    await service.save_session("main", "calc")
    module.unlink()
    restored = await service.load_session("calc", "other")
    why = "ModuleNotFoundError: No module named 'gone'"
    assert restored.skipped == [Skipped("gone", "module", why), Skipped("thing", "gone.Thing", why)]
    assert restored.session.variables == ["sys", "x"]


# --- from one Python to another ---------------------------------------------------------------------------------

TRAVELLING = """
from __future__ import annotations
import collections, dataclasses, enum, functools, typing
count = 0
def inc(by=1, *, twice: bool = False):
    global count
    count += by * (2 if twice else 1)
    return count
def make():
    n = 5
    def up():
        nonlocal n
        n += 1
        return n
    return up, (lambda: n)
up, get = make()
class Base:
    def f(self): return [x * 2 for x in (1, 2)]
class Point(Base):
    __slots__ = ("x",)
    def f(self): return (super().f(), self.x)
point = Point(); point.x = 3
@dataclasses.dataclass
class Data:
    a: int
    b: list = dataclasses.field(default_factory=list)
data = Data(1)
class Color(enum.Enum):
    RED = 1
red = Color.RED
Pair = collections.namedtuple("Pair", "a b"); pair = Pair(1, 2)
@functools.lru_cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
values = {"list": [1, (2, 3)], "set": {4}}
code = compile("1 + 1", "nowhere", "eval")
"""

ARRIVED = """
assert (inc(), inc(2, twice=True), count) == (1, 5, 5)
assert (up(), get()) == (6, 6)
assert point.f() == ([2, 4], 3) and isinstance(point, Base)
assert data == Data(1) and dataclasses.replace(data, a=2).a == 2
assert red is Color.RED and pair == Pair(1, 2) and fib(20) == 6765
assert values == {"list": [1, (2, 3)], "set": {4}}
"""


@pytest.mark.req("state.load")
@pytest.mark.parametrize("python", GOOD, ids=lambda python: python.name)
async def test_a_snapshot_goes_from_one_python_to_another_and_back(service: Service, python: Python) -> None:
    same = python.version[:2] == sys.version_info[:2]
    for number, (there, here) in enumerate(((sys.executable, python.path), (python.path, sys.executable))):
        await service.create_session(f"from-{number}", python=there)
        await run(service, TRAVELLING, f"from-{number}")
        saved = await service.save_session(f"from-{number}", "trip")
        assert saved.skipped == []
        restored = await service.load_session("trip", f"to-{number}", python=here)
        # Code that no cell holds has no source to be made of.
        assert [each.name for each in restored.skipped] == ([] if same else ["code"])
        assert bool(restored.notices) is not same
        await run(service, ARRIVED, f"to-{number}")


async def test_what_a_save_had_not_finished_when_its_server_was_killed_is_removed(service: Service, home: Path) -> None:
    folder = home / "snapshots" / ".owner" / "named"
    folder.mkdir(parents=True)
    (folder / ".0123456789abcdef.part").write_bytes(b"half")
    await service.create_session("main")
    await service.save_session("main", "kept")
    assert await until(lambda: sorted(path.name for path in folder.iterdir()) == ["kept.json"])


HANGS = """
import time
class Hangs:
    def __reduce__(self):
        time.sleep(1000)
it = Hangs()
"""


async def test_sessions_that_hang_while_they_are_saved_keep_nobody_from_saving_or_listing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There were four threads for all of it, of all tenants, and each waited for what a session had to say."""
    monkeypatch.setattr(save_store, "SLOW_AFTER_SECONDS", 0.05)
    hanging = []
    for number in range(snapshots.MAX_TRANSFERS + 1):
        await service.create_session(f"hangs-{number}")
        await run(service, HANGS, f"hangs-{number}")
        hanging.append(asyncio.create_task(service.save_session(f"hangs-{number}", f"hung-{number}")))
    await service.create_session("main")
    await run(service, "x = 7")
    async with asyncio.timeout(30):
        await service.save_session("main", "calc")
        assert [each.name for each in await service.list_snapshots()] == ["calc"]
        restored = await service.load_session("calc", session_id="again")
    assert restored.variables == 1
    assert [each.done() for each in hanging] == [False] * len(hanging)
    for each in hanging:
        each.cancel()
    await asyncio.wait(hanging)


async def test_a_session_that_hangs_while_it_is_saved_is_gone_when_it_is_ended(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy lived on, for as long as it said a word now and then."""
    monkeypatch.setattr(snapshots, "FINISH_SAVE_SECONDS", 0.05)
    await service.create_session("main")
    await run(service, HANGS)
    members, turns = worker_of(service, "main").siblings.members, session_of(service, "main").turns
    saving = asyncio.create_task(service.save_session("main", "calc"))
    # The copy is there, the session goes on, and the save has begun.
    assert await until(lambda: len(members) == 2 and all(each.ready.done() for each in members) and turns.free)
    await service.end_session("main")
    async with asyncio.timeout(30):
        with pytest.raises(errors.SaveFailed, match="its session was ended"):
            await saving
    assert members == set()
