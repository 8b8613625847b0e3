"""Help for people who write code: completions and descriptions from live objects, without running the user's code."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ingle import errors
from ingle.introspection import Completeness, Completion, Suggestion
from ingle.service import Service
from ingle.sessions.process.introspection import CELL_RUNS

Run = Callable[[str], Awaitable[None]]

HOSTILE = """
class Hostile:
    ran = []
    plain = 1
    def __getattr__(self, name): self.ran.append(name); raise AttributeError(name)
    def __getattribute__(self, name): type(self).ran.append(name); return object.__getattribute__(self, name)
    def __dir__(self): self.ran.append("dir"); return ["from_dir"]
    def __repr__(self): self.ran.append("repr"); return "shown"
    @property
    def prop(self):
        "What it is."
        self.ran.append("prop")
        return self
    def method(self, one, two=2, *rest, flag: bool = True, **more) -> int:
        "Do it."
h = Hostile()
h.own = 5
Hostile.ran.clear()
"""


@pytest.fixture
async def run(service: Service) -> Run:
    await service.create_session("s")

    async def execute(code: str) -> None:
        result = await service.execute("s", code)
        assert result.error is None, result.error.traceback

    return execute


async def texts(service: Service, code: str, cursor: int | None = None) -> list[str]:
    return [each.text for each in (await service.complete("s", code, cursor)).matches]


# --- completions -------------------------------------------------------------------------------------------


@pytest.mark.req("rich.complete")
async def test_names_of_the_session_builtins_and_keywords_are_completed(service: Service, run: Run) -> None:
    await run("import os\nprice, prices = 1, [2]\ndef prize(): pass\n_hidden = 1")
    found = await service.complete("s", "x = pri")
    assert found == Completion(
        "s",
        [
            Suggestion("price", "instance"),
            Suggestion("prices", "instance"),
            Suggestion("print", "function"),
            Suggestion("prize", "function"),
        ],
        4,
        7,
    )
    assert await texts(service, "imp") == ["import"]
    assert (await service.complete("s", "os")).matches == [Suggestion("os", "module")]
    assert await texts(service, "_hid") == ["_hidden"]
    assert "_hidden" not in await texts(service, "")


@pytest.mark.req("rich.complete")
async def test_attributes_of_live_objects_are_completed_without_their_code(service: Service, run: Run) -> None:
    await run(HOSTILE)
    assert await texts(service, "print(h.") == ["method", "own", "plain", "prop", "ran"]
    assert (await service.complete("s", "h.m")).matches == [Suggestion("method", "function")]
    assert await texts(service, "h.prop.") == await texts(service, "h.prop.fget.") == []
    assert await texts(service, "h.missing.") == []
    assert await texts(service, "Hostile.pl") == ["plain"]
    assert await texts(service, "h.__dict") == ["__dict__"]
    await run("assert Hostile.ran == [], Hostile.ran")


@pytest.mark.req("rich.complete")
async def test_the_cursor_may_be_anywhere_in_the_code(service: Service, run: Run) -> None:
    await run("alpha = 'é'\nimport math")
    found = await service.complete("s", "äöü = math.sq\nmore()", 13)
    assert found == Completion("s", [Suggestion("sqrt", "function")], 11, 13)
    assert await texts(service, "a = 1\nalp") == ["alpha"]
    assert await texts(service, "f().al") == await texts(service, "'x'.up") == await texts(service, "1.") == []


@pytest.mark.req("rich.complete")
async def test_keys_modules_and_magics_are_completed(service: Service, run: Run) -> None:
    await run("d = {'apple': 1, 'apricot': 2, 'b': 3, 5: 6, 'a\"q': 1}\nimport email")
    assert await texts(service, "d['ap") == ["apple", "apricot"]
    assert await texts(service, 'd["a') == ["apple", "apricot"]
    assert "json" in await texts(service, "import js")
    assert "mime" in await texts(service, "import email.mi")
    assert "message_from_string" in await texts(service, "from email import mess")
    await run("open('my_own_module.py', 'w').close()")
    assert await texts(service, "import my_own") == ["my_own_module"]
    assert await texts(service, "%time") == ["time", "timeit"]
    assert await texts(service, "%%wr") == ["writefile"]


@pytest.mark.req("rich.complete")
async def test_columns_of_tables_are_attributes_and_keys(service: Service, run: Run) -> None:
    await run("import pandas as pd\ndf = pd.DataFrame({'price': [1], 'two words': [2]})")
    assert await texts(service, "df.pri") == ["price"]
    assert await texts(service, "df['") == ["price", "two words"]


@pytest.mark.req("rich.complete")
async def test_many_names_are_bounded_and_counted(service: Service, run: Run) -> None:
    await run("globals().update({f'name_{each}': each for each in range(1500)})")
    found = await service.complete("s", "name_")
    assert (len(found.matches), found.more) == (1000, 500)


@pytest.mark.req("rich.complete")
async def test_while_a_cell_runs_the_names_before_it_are_completed(service: Service, run: Run) -> None:
    await run("price = 1")
    await service.begin("s", "later = 1\ninput()")
    await service.wait("s")
    found = await service.complete("s", "pri")
    assert found == Completion("s", [Suggestion("price")], 0, 3, notices=[CELL_RUNS])
    assert await texts(service, "price.") == []
    with pytest.raises(errors.Busy):
        await service.inspect("s", "price")
    with pytest.raises(errors.Busy):
        await service.is_complete("s", "price")
    await service.interrupt("s")
    assert await texts(service, "lat") == ["later"]


@pytest.mark.req("rich.complete")
async def test_many_requests_at_once_and_cells_between_them_are_all_answered(service: Service, run: Run) -> None:
    await run("price = 1")
    found = await asyncio.gather(*(texts(service, "pri") for _ in range(30)), run("pride = 1"))
    assert all("price" in each for each in found[:30])


# --- descriptions ------------------------------------------------------------------------------------------


@pytest.mark.req("rich.inspect")
async def test_an_object_is_described_without_its_code(service: Service, run: Run) -> None:
    await run(HOSTILE)
    told = await service.inspect("s", "h.method(1, ")
    assert told.found
    assert (told.name, told.type, told.doc) == ("h.method", "function", "Do it.")
    assert told.signature == "(self, one, two=2, *rest, flag: bool=True, **more) -> int"
    assert told.source == ""
    assert (await service.inspect("s", "h.prop")).doc == "What it is."
    value = await service.inspect("s", "h")
    assert (value.type, value.preview) == ("Hostile", "<Hostile>")
    await run("assert Hostile.ran == [], Hostile.ran")


@pytest.mark.req("rich.inspect")
@pytest.mark.parametrize(
    ("code", "cursor", "name"),
    [
        ("len", 1, "len"),
        ("len(", None, "len"),
        ("print(len([1, 2]), s", None, "print"),
        ("print(len(", None, "len"),
        ("import math\nmath.sqrt(2)", 19, "math.sqrt"),
        ("nothing_here", None, ""),
        ("", None, ""),
        ("1 + ", None, ""),
    ],
)
async def test_the_name_at_the_cursor_or_the_call_around_it_is_described(
    service: Service, run: Run, code: str, cursor: int | None, name: str
) -> None:
    await run("import math")
    told = await service.inspect("s", code, cursor)
    assert (told.found, told.name) == (bool(name), name)


@pytest.mark.req("rich.inspect")
async def test_classes_functions_in_c_and_values_are_described(service: Service, run: Run) -> None:
    await run("class Point:\n    'A place.'\n    def __init__(self, x, y=0): self.x = x\np = [1, 2]")
    told = await service.inspect("s", "Point(", source=True)
    assert (told.signature, told.doc) == ("(x, y=0)", "A place.")
    assert told.source.startswith("class Point:\n    'A place.'\n")
    assert (await service.inspect("s", "len")).signature == "(obj, /)"
    value = await service.inspect("s", "p")
    assert (value.type, value.length, value.preview) == ("list", 2, "[1, 2]")


# --- whether code is complete ------------------------------------------------------------------------------


@pytest.mark.req("rich.inspect")
@pytest.mark.parametrize(
    ("code", "status", "indent"),
    [
        ("x = 1", "complete", ""),
        ("", "complete", ""),
        ("for i in range(3):", "incomplete", "    "),
        ("for i in range(3):\n    print(i)", "incomplete", "    "),
        ("for i in range(3):\n    print(i)\n", "complete", ""),
        ("f(1,", "incomplete", ""),
        ("'''text", "incomplete", ""),
        ("await f()", "complete", ""),
        ("x = = 1", "invalid", ""),
        ("!ls", "complete", ""),
        ("%%bash", "incomplete", ""),
        ("%%bash\nls", "complete", ""),
        ("  x = 1", "complete", ""),
    ],
)
async def test_code_is_complete_incomplete_or_invalid(
    service: Service, run: Run, code: str, status: str, indent: str
) -> None:
    assert await service.is_complete("s", code) == Completeness("s", status, indent)


@pytest.mark.req("rich.complete", "rich.inspect")
async def test_a_cursor_outside_of_the_code_and_long_code_are_refused(service: Service, run: Run) -> None:
    with pytest.raises(errors.InvalidRequest, match="the cursor is at 4, and the code has 3 characters"):
        await service.complete("s", "abc", 4)
    with pytest.raises(errors.InvalidRequest, match="the cursor is at -1"):
        await service.inspect("s", "abc", -1)
    with pytest.raises(errors.InvalidRequest, match="above the limit"):
        await service.is_complete("s", "x" * (service.settings.max_code + 1))
    with pytest.raises(errors.SessionNotFound):
        await service.complete("other", "abc")
