"""What a session tells of its variables: enough to go on with, in no time, and without running the user's code."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ingle import errors
from ingle.events import Result, VariableInfo
from ingle.introspection import Rows
from ingle.service import Service
from ingle.sessions.process.namespace import NO_ANSWER
from ingle_worker.session import variables
from support.waiting import until

pytestmark = pytest.mark.req("rich.vars")

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def run(service: Service) -> Run:
    await service.create_session("s")

    async def execute(code: str, **options: object) -> Result:
        result = await service.execute("s", code, **options)
        assert result.error is None, result.error.traceback
        return result

    return execute


async def listed(service: Service) -> dict[str, VariableInfo]:
    answer = await service.variables("s")
    assert (answer.session_id, answer.more, answer.notices) == ("s", 0, [])
    return {each.name: each for each in answer.variables}


# --- the listing -------------------------------------------------------------------------------------------


async def test_a_fresh_session_has_no_variables(service: Service, run: Run) -> None:
    assert await listed(service) == {}
    await run("_hidden = 1\n__dunder__ = 2")
    assert await listed(service) == {}


async def test_generators_have_the_size_of_their_frame(service: Service, run: Run) -> None:
    await run("async def later(): pass\ng = (each for each in range(3)); next(g)\nc = later()")
    sizes = {name: each.size for name, each in (await listed(service)).items() if name in ("g", "c")}
    assert {name: size is not None and 0 < size < 10_000 for name, size in sizes.items()} == {"g": True, "c": True}
    await run("c.close()")


async def test_each_variable_is_told_by_type_extent_size_and_preview(service: Service, run: Run) -> None:
    await run(
        "import collections, datetime, os\n"
        "a, b, c = 5, 'text', [1, 'x', None]\n"
        "d = {'k': (1,), 2: {3}}\n"
        "class Point: pass\n"
        "p = Point()\n"
        "def f(x, *y, z=1, **rest): pass\n"
        "o = collections.OrderedDict(a=1)\n"
        "day = datetime.date(2020, 1, 1)\n"
        "lines = !printf '1\\n2\\n'\n"
        "big = 10 ** 10000\n"
        "t, e, s = (1,), (), frozenset()\n"
    )
    told = await listed(service)
    assert {name: (each.type, each.length, each.preview) for name, each in told.items()} == {
        "Point": ("type", None, "<class 'Point'>"),
        "a": ("int", None, "5"),
        "b": ("str", 4, "'text'"),
        "big": ("int", None, "<int of 33220 bits>"),
        "c": ("list", 3, "[1, 'x', None]"),
        "collections": ("module", None, "<module 'collections'>"),
        "d": ("dict", 2, "{'k': (1,), 2: {3}}"),
        "datetime": ("module", None, "<module 'datetime'>"),
        "day": ("datetime.date", None, "<date>"),
        "e": ("tuple", 0, "()"),
        "f": ("function", None, "f(x, *y, z, **rest)"),
        "lines": ("Lines", 2, "['1', '2']"),
        "o": ("collections.OrderedDict", 1, "OrderedDict({'a': 1})"),
        "os": ("module", None, "<module 'os'>"),
        "p": ("Point", None, "<Point>"),
        "s": ("frozenset", 0, "frozenset()"),
        "t": ("tuple", 1, "(1,)"),
    }
    assert told["a"].size == (5).__sizeof__()
    assert told["c"].size == [1, "x", None].__sizeof__()
    assert all(each.value is None and each.repr is None for each in told.values())


async def test_arrays_and_tables_are_told_by_shape_and_data(service: Service, run: Run) -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("pandas")
    await run(
        "import numpy as np, pandas as pd\n"
        "a = np.arange(6)\nm = np.zeros((2, 3))\no = np.array([object()])\n"
        "df = pd.DataFrame({'x': [1, 2, 3], 'y': [0.5, 1.5, 2.5]})\ns = df['x']"
    )
    told = await listed(service)
    assert {name: (told[name].type, told[name].shape, told[name].size, told[name].preview) for name in "amo"} == {
        "a": ("numpy.ndarray", [6], 48, "0, 1, 2, 3, 4, 5 (int64)"),
        "m": ("numpy.ndarray", [2, 3], 48, "array of float64"),
        "o": ("numpy.ndarray", [1], 8, "array of object"),
    }
    table = told["df"]
    assert (table.type, table.shape, table.size, table.preview) == ("pandas.DataFrame", [3, 2], 48, "columns: x, y")
    assert (told["s"].type, told["s"].shape, told["s"].preview) == ("pandas.Series", [3], "series of int64")


HOSTILE = """
import os, threading
from unittest import mock
def die(*args, **kwargs): os._exit(77)
class Meta(type):
    __hash__ = __eq__ = __repr__ = __instancecheck__ = __getattribute__ = die
class Deadly(metaclass=Meta):
    __repr__ = __str__ = __len__ = __sizeof__ = __getattr__ = __hash__ = __eq__ = __bool__ = __iter__ = die
    __class__ = property(die)
deadly = Deadly()
within = [deadly, {'k': deadly}, (deadly,)]
class Dict(dict):
    __len__ = items = keys = __iter__ = __getitem__ = __repr__ = __sizeof__ = die
user_dict = Dict(a=1)
class List(list):
    __len__ = __getitem__ = __iter__ = __repr__ = die
user_list = List([1])
class Text(str):
    __len__ = __getitem__ = __repr__ = __str__ = __hash__ = __eq__ = die
text = str.__new__(Text, 'abc')
m = mock.MagicMock()
m.__len__.side_effect = die
loop = []; loop.append(loop)
deep = []
for i in range(10000): deep = [deep]
huge = [list(range(1000))] * 100_000
globals()[5] = 'a name that is no text'
class Name(str):
    __eq__ = die
    __hash__ = str.__hash__
globals()[Name('named')] = 1
"""


async def test_a_listing_runs_none_of_the_users_code(service: Service, run: Run) -> None:
    await run(HOSTILE)
    told = {each.name: (each.type, each.preview) for each in (await service.variables("s")).variables}
    assert told["deadly"] == ("Deadly", "<Deadly>")
    assert told["within"] == ("list", "[<Deadly>, {'k': <Deadly>}, (<Deadly>,)]")
    assert told["user_dict"] == ("Dict", "<Dict>")
    assert told["user_list"] == ("List", "<List>")
    assert told["text"] == ("Text", "<Text>")
    assert told["m"] == ("unittest.MagicMock", "<MagicMock>")
    assert told["loop"] == ("list", "[[[[…]]]]")
    assert told["deep"] == ("list", "[[[[…]]]]")
    assert told["huge"][1].startswith("[[0, 1, 2, 3")
    assert len(told["huge"][1]) <= variables.MAX_PREVIEW_CHARS
    assert told["Deadly"] == ("type", "<class 'Deadly'>")
    assert "named" not in told
    assert (await run("deadly is not None")).result == {"text/plain": "True"}


async def test_a_class_that_is_only_called_ndarray_is_nobodys(service: Service, run: Run) -> None:
    await run(
        "import sys, types, os\nfake = types.ModuleType('numpy')\n"
        "class ndarray:\n    shape = property(lambda self: os._exit(77))\n"
        "fake.ndarray = ndarray\nsys.modules['numpy'] = fake\narray = ndarray()"
    )
    assert (await listed(service))["array"].preview == "<ndarray>"


async def test_a_hundred_thousand_variables_are_counted_and_not_waited_for(service: Service, run: Run) -> None:
    await run("for i in range(100_000): globals()[f'v{i}'] = [i] * 100\ndel i")
    answer = await service.variables("s")
    for _ in range(20):
        if answer.notices != [NO_ANSWER]:  # a busy machine may take longer than a listing may
            break
        answer = await service.variables("s")
    assert (len(answer.variables), answer.more) == (10_000, 90_000)
    assert answer.notices == ["90000 more variables are not listed"]
    assert {each.type for each in answer.variables} == {"list"}
    assert answer.variables[0].preview is not None


def test_past_its_time_a_listing_gives_names_and_types_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "MAX_SECONDS", 0.0)
    assert variables.listing({"a": 1, "b": "x"}) == ([{"name": "a", "type": "int"}, {"name": "b", "type": "str"}], 0)


def test_a_listing_is_bounded_in_bytes() -> None:
    space = {f"{'n' * 150}{i}": "x" * 10_000 for i in range(9000)}
    listed, more = variables.listing(space)
    assert len(listed) + more == 9000
    assert sum(len(str(each)) for each in listed) < 2 * variables.MAX_LISTING_CHARS
    assert all(len(each["name"]) <= variables.MAX_PREVIEW_CHARS for each in listed)


async def test_variables_that_change_meanwhile_do_no_harm(service: Service, run: Run) -> None:
    await run(
        "import threading\nstop = False\nchanging, ever = {}, []\n"
        "def change():\n    n = 0\n    while not stop:\n        n += 1\n"
        "        globals()[f'n{n % 500}'] = n\n        globals().pop(f'n{(n * 7) % 500}', None)\n"
        "        changing[n % 50] = n\n        changing.pop((n * 7) % 50, None)\n        ever.append(n)\n"
        "        if n % 1000 == 0: ever.clear()\n"
        "thread = threading.Thread(target=change)\nthread.start()"
    )
    for _ in range(50):
        told = await listed(service)
        assert {"changing", "ever", "thread"} <= set(told)
    await run("stop = True\nthread.join()")


# --- while a cell runs -------------------------------------------------------------------------------------


@pytest.mark.req("cell.busy")
async def test_while_a_cell_runs_the_names_before_it_are_given_and_it_is_said(service: Service, run: Run) -> None:
    await run("before = 1")
    cell = await service.begin("s", "during = 2\ninput()")
    assert await until_waiting(service)
    answer = await service.variables("s")
    assert answer.variables == [VariableInfo("before")]
    assert answer.notices == ["a cell is running; the variables are those of the last finished cell"]
    with pytest.raises(errors.Busy):
        await service.variable("s", "before")
    await service.input("s", "go on")
    assert (await service.wait("s", cell)).status == "ok"
    assert set(await listed(service)) == {"before", "during"}


async def until_waiting(service: Service) -> bool:
    for _ in range(1000):
        if (await service.get_session("s")).state == "waiting_for_input":
            return True
        await asyncio.sleep(0.005)
    return False


async def test_listings_and_cells_do_not_get_into_each_others_way(service: Service, run: Run) -> None:
    await run("n = 0")

    async def count() -> None:
        for _ in range(40):
            await service.execute("s", "n += 1", queue=True)

    async def look() -> list[int]:
        seen = []
        while len(seen) < 200:
            seen.append(len((await service.variables("s")).variables))
            await asyncio.sleep(0)
        return seen

    _, *seen = await asyncio.gather(count(), look(), look())
    assert {count for each in seen for count in each} == {1}
    assert (await run("n")).result == {"text/plain": "40"}


async def test_a_worker_whose_loop_is_blocked_is_not_waited_for_nor_harmed(service: Service, run: Run) -> None:
    await run(
        "import asyncio, time\nkept = 1\ngate = asyncio.Event()\n"
        "async def block():\n    await gate.wait()\n    open('blocked', 'w').close()\n    time.sleep(3)\n"
        "task = asyncio.create_task(block())\n"
        "asyncio.get_running_loop().call_later(0.01, gate.set)\nawait asyncio.sleep(0)"
    )
    info = await service.get_session("s")
    assert await until((Path(info.cwd) / "blocked").exists)
    answer = await service.variables("s")
    assert answer.notices == ["the session did not answer; the variables are those of the last finished cell"]
    assert "kept" in [each.name for each in answer.variables]
    assert (await run("kept")).result == {"text/plain": "1"}


# --- one variable ------------------------------------------------------------------------------------------


async def test_one_variable_is_told_in_full(service: Service, run: Run) -> None:
    await run("class P:\n    def __repr__(self): return 'the repr'\n    def __str__(self): return 'the str'\np = P()")
    answer = await service.variable("s", "p")
    assert (answer.session_id, answer.notices) == ("s", [])
    told = answer.variable
    assert (told.name, told.type, told.preview, told.repr, told.value) == ("p", "P", "<P>", "the repr", "the str")
    await run("x = list(range(1000))")
    assert (await service.variable("s", "x")).variable.value == str(list(range(1000)))


async def test_a_long_text_keeps_its_head_and_its_tail(service: Service, run: Run) -> None:
    await run("x = 'a' * 3_000_000 + 'z'")
    told = (await service.variable("s", "x")).variable
    assert told.value is not None
    assert told.value.startswith("aaa")
    assert told.value.endswith("az")
    assert "\n… 2000001 characters left out …\n" in told.value
    assert len(told.value) < 1_000_100


async def test_an_unknown_name_is_refused_with_those_that_are_near(service: Service, run: Run) -> None:
    await run("frame, other = 1, 2")
    with pytest.raises(
        errors.VariableNotFound, match=r"there is no variable 'frme' in this session; did you mean frame\?"
    ):
        await service.variable("s", "frme")
    for bad in ("a.b", "a[0]", "", "1", "f()", "x" * 2000):
        with pytest.raises(errors.InvalidRequest, match="is not the name of a variable"):
            await service.variable("s", bad)
    with pytest.raises(errors.SessionNotFound):
        await service.variables("nobody")


async def test_a_repr_that_raises_is_told_and_costs_nothing_else(service: Service, run: Run) -> None:
    await run(
        "class P:\n    def __repr__(self): raise ValueError('bad')\n    def __str__(self): return 'fine'\np = P()"
    )
    answer = await service.variable("s", "p")
    assert (answer.variable.repr, answer.variable.value) == ("<ValueError: bad>", "fine")
    assert answer.notices == ["repr() of p raised ValueError: bad"]
    await run("class Q:\n    def __repr__(self): exit(3)\nq = Q()")
    with pytest.raises(errors.VariableUntold, match="q cannot be told: its own code raised SystemExit: 3"):
        await service.variable("s", "q")
    assert (await run("p is not None")).result == {"text/plain": "True"}


HANGING = (
    "import time\nclass P:\n    def __repr__(self):\n        open('begun', 'w').close()\n        {}\np = P()\nkept = 1"
)


async def test_a_repr_that_hangs_is_stopped_and_the_session_goes_on(service: Service, run: Run) -> None:
    await run(HANGING.format("time.sleep(1000)"))
    with pytest.raises(errors.VariableUntold, match=r"took longer than 0\.1 s"):
        await service.variable("s", "p", limit=0.1)
    await run(HANGING.format("while True: pass"))
    with pytest.raises(errors.VariableUntold, match="the session is as it was"):
        await service.variable("s", "p", limit=0.1)
    assert (await run("kept")).result == {"text/plain": "1"}


async def test_a_cell_waits_while_a_variable_is_told_and_an_interrupt_stops_that(service: Service, run: Run) -> None:
    await run(HANGING.format("time.sleep(1000)"))
    folder = Path((await service.get_session("s")).cwd)
    telling = asyncio.ensure_future(service.variable("s", "p", limit=100))
    assert await until((folder / "begun").exists)
    cell = asyncio.ensure_future(service.execute("s", "kept"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (await service.get_session("s")).state == "idle"
    names = await service.variables("s")
    assert names.notices == ["another variable is just being told; these are the names of the last finished cell"]
    assert not cell.done()
    assert await service.interrupt("s") is None
    with pytest.raises(errors.VariableUntold, match="was interrupted"):
        await telling
    assert (await cell).result == {"text/plain": "1"}


async def test_a_repr_that_cannot_be_stopped_costs_the_worker_and_is_named(service: Service, run: Run) -> None:
    stubborn = "while True:\n            try:\n                time.sleep(1)\n            except BaseException: pass"
    await run(HANGING.format(stubborn))
    with pytest.raises(errors.VariableUntold, match="the session's process ended while it described p"):
        await service.variable("s", "p", limit=0.1)
    result = await run("1 + 1")
    assert result.result == {"text/plain": "2"}
    assert "did not stop telling of a variable when its time was over" in result.notices[0]


async def test_whoever_stops_waiting_for_a_variable_leaves_its_limit_in_place(service: Service, run: Run) -> None:
    await run(HANGING.format("time.sleep(1000)"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(service.variable("s", "p", limit=0.3), 0.05)
    assert (await run("kept")).result == {"text/plain": "1"}


TABLES = """
import numpy as np, pandas as pd, polars as pl, pyarrow as pa
frame = pd.DataFrame({"word": list("abcde"), "number": [1.5, None, 3, 4, 5]}, index=list("vwxyz"))
other = pl.DataFrame({"word": list("abcde"), "number": [1, None, 3, 4, 5]})
arrow = pa.table({"word": list("abcde"), "number": [1, None, 3, 4, 5]})
series, grid = frame.number, np.arange(6).reshape(3, 2)
words, facts = ["a", "b"], {"k": [1], 2: None}
long = list(range(100_000))
"""


PAGES = {
    "frame": (["word", "number"], ["x", "y"], [["c", "3.0"], ["d", "4.0"]], 5, [1.5, None, 3.0, 4.0, 5.0]),
    "other": (["word", "number"], ["2", "3"], [["c", "3"], ["d", "4"]], 5, [1.0, None, 3.0, 4.0, 5.0]),
    "arrow": (["word", "number"], ["2", "3"], [["c", "3"], ["d", "4"]], 5, [1.0, None, 3.0, 4.0, 5.0]),
    "series": (["number"], ["x", "y"], [["3.0"], ["4.0"]], 5, [1.5, None, 3.0, 4.0, 5.0]),
    "grid": (["0", "1"], ["2"], [["4", "5"]], 3, [1.0, 3.0, 5.0]),
    "long": ([""], ["2", "3"], [["2"], ["3"]], 100_000, [float(n) for n in range(0, 100_000, 100)]),
    "words": ([""], [], [], 2, None),
    "facts": ([""], [], [], 2, None),
}


async def test_rows_of_a_table_are_told_by_page(service: Service, run: Run) -> None:
    await run(TABLES)
    for name, told in PAGES.items():
        variable = (await service.variable("s", name, rows=Rows(2, 2, 1))).variable
        page = variable.table
        assert page is not None, name
        assert (page.columns, page.index, page.cells, page.total, page.points) == told, name
        assert (page.first, variable.repr, variable.value) == (2, None, None)
    facts = (await service.variable("s", "facts", rows=Rows(2))).variable.table
    assert facts is not None
    assert (facts.index, facts.cells) == (["'k'", "2"], [["[1]"], ["None"]])


async def test_rows_are_bounded_and_what_has_none_is_told_as_text(service: Service, run: Run) -> None:
    await run(
        "import numpy as np, pandas as pd\nodd = object()\n"
        "wide = pd.DataFrame(np.zeros((3, 500)))\nwide[0] = 'x' * 5000"
    )
    wide = (await service.variable("s", "wide", rows=Rows(3))).variable.table
    assert wide is not None
    assert (wide.width, len(wide.columns), wide.points) == (500, 100, None)
    assert [len(row) for row in wide.cells] == [100] * 3
    assert len(wide.cells[0][0]) == 200
    plain = (await service.variable("s", "odd", rows=Rows(3))).variable
    assert (plain.table, str(plain.repr).startswith("<object")) == (None, True)
    with pytest.raises(errors.VariableNotFound):
        await service.variable("s", "nothing", rows=Rows(3))
