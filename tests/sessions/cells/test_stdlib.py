"""The user's own library: what new sessions begin with, and how it grows."""

import asyncio
import os
import stat
from pathlib import Path

import httpx
import pytest

from ingle import Client, errors
from ingle.callers import Caller
from ingle.events import Stdlib, StdlibFunction, StdlibModule, StdlibOther
from ingle.mcp.handlers import Tools
from ingle.service import Service
from ingle.sessions.process import calls
from support.cells import value
from support.internals import manager_of
from support.server import Server, problem
from support.service import make_settings

pytestmark = [pytest.mark.both_levels, pytest.mark.req("state.stdlib")]

DOUBLE = (
    'def double(x: int, times=2, *rest) -> int:\n    """Twice as much.\n\n    Or more.\n    """\n    return x * times\n'
)


def write(home: Path, text: str, name: str = "stdlib.py") -> Path:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


# --- what a session begins with ----------------------------------------------------------------------------


async def test_what_was_added_is_there_in_new_sessions_and_never_in_running_ones(service: Service) -> None:
    await service.create_session("old")
    await service.execute("old", "x = 1")
    change = await service.add_to_stdlib(DOUBLE)
    assert (change.added, change.replaced, change.count) == (["double"], [], 1)
    await service.create_session("new")
    assert await value(service, "new", "double(4)") == "8"
    late = await service.execute("old", "double(4)")
    assert late.error is not None
    assert late.error.name == "NameError"


async def test_definitions_of_the_library_are_no_variables_after_a_load_either(service: Service) -> None:
    await service.add_to_stdlib(DOUBLE)
    await service.create_session("first")
    await service.execute("first", "x = double(4)\ndef own(): pass")
    saved = await service.save_session("first", "calc")
    restored = await service.load_session("calc", session_id="second")
    assert (saved.variables, restored.variables, restored.session.variables) == (2, 2, ["own", "x"])
    assert {each.name for each in (await service.list_snapshots())[0].variables} == {"own", "x"}
    await service.execute("second", "double(x)")
    again = await service.get_session("second")
    listed = [each.name for each in (await service.variables("second")).variables]
    assert (again.variables, listed) == (["own", "x"], ["own", "x"])
    await service.execute("second", "double = 5")
    assert (await service.get_session("second")).variables == ["double", "own", "x"]


async def test_a_worker_that_is_replaced_begins_with_the_library_of_its_session(service: Service) -> None:
    await service.add_to_stdlib(DOUBLE)
    await service.create_session("s")
    await service.add_to_stdlib("def later(): pass")
    await service.execute("s", "import os; os._exit(3)")
    assert await value(service, "s", "double(4), 'later' in globals()") == "(8, False)"


async def test_whoever_does_not_want_the_library_begins_without_it(service: Service) -> None:
    await service.add_to_stdlib(DOUBLE)
    await service.create_session("bare", include_stdlib=False)
    assert await value(service, "bare", "'double' in globals()") == "False"


async def test_one_off_code_has_the_library_too(service: Service) -> None:
    await service.add_to_stdlib(DOUBLE)
    with_it = await service.execute_once("double(21)")
    without = await service.execute_once("double(21)", include_stdlib=False)
    assert with_it.result == {"text/plain": "42"}
    assert without.error is not None
    assert without.error.name == "NameError"


async def test_source_and_tracebacks_of_the_library_can_be_read(service: Service) -> None:
    await service.add_to_stdlib("def fails(x):\n    return 1 / x\n\n\nclass Kept:\n    n = 1")
    await service.create_session("s")
    # The file is another by now; the session shows what it runs.
    await service.add_to_stdlib("# moved\n# down\ndef before(): pass")
    source = await value(service, "s", "import inspect; print(inspect.getsource(fails), inspect.getsource(Kept)); 1")
    assert source == "1"
    assert (await service.wait("s", 1)).stdout == "def fails(x):\n    return 1 / x\n class Kept:\n    n = 1\n\n"
    failed = await service.execute("s", "fails(0)")
    assert failed.error is not None
    # Some versions of Python underline the calls too.
    lines = [line for line in failed.error.traceback.splitlines() if line.strip("~^ ")]
    assert lines[1:5] == [
        '  File "<cell 2>", line 1, in <module>',
        "    fails(0)",
        '  File "<stdlib>", line 2, in fails',
        "    return 1 / x",
    ]


async def test_classes_of_the_library_can_be_pickled_as_those_of_the_session(service: Service) -> None:
    await service.add_to_stdlib("class Kept:\n    def __init__(self, n): self.n = n")
    await service.create_session("s")
    assert await value(service, "s", "import pickle; pickle.loads(pickle.dumps(Kept(5))).n") == "5"


async def test_the_namespace_is_clean_but_for_what_the_library_defines(service: Service, home: Path) -> None:
    write(home, '"""About it."""\nfrom __future__ import annotations\nkept: int = 5\ndef f(): pass\n')
    await service.create_session("bare", include_stdlib=False)
    await service.create_session("full")
    bare = await value(service, "bare", "{k: str(v) for k, v in globals().items() if k != '__builtins__'}")
    full = await value(
        service,
        "full",
        "{k: str(v) for k, v in globals().items() if k not in ('__builtins__', 'kept', 'f', 'annotations')}",
    )
    assert full == bare
    # What the flags of the library say holds for the library.
    assert await value(service, "full", "def g(x: int): pass\ng.__annotations__['x'] is int") == "True"


async def test_functions_of_the_library_are_no_variables_until_they_are_changed(service: Service, home: Path) -> None:
    write(home, "import os\ndef f(): pass\nlimit = 5\n")
    info = await service.create_session("s")
    assert info.variables == ["limit"]
    listed = await service.variables("s")
    assert [each.name for each in listed.variables] == ["limit"]
    assert (await service.execute("s", "%who")).stdout.split() == ["limit"]
    await service.execute("s", "x = 1; f = 2")
    assert (await service.get_session("s")).variables == ["f", "limit", "x"]
    assert [each.name for each in (await service.variables("s")).variables] == ["f", "limit", "x"]


async def test_the_library_is_compiled_once_for_all_sessions(service: Service, home: Path) -> None:
    write(home, "import sys\nseen = sys._getframe().f_code.co_filename\n")
    local = manager_of(service)
    await service.create_session("a")
    library = await local.libraries.read("")
    (code,) = library.codes.values()
    # From now on sessions take the code as it is: here, another one.
    await service.create_session("b")
    assert await local.libraries.read("") is library
    assert list(library.codes.values()) == [code]
    assert await value(service, "b", "seen") == "'<stdlib>'"


# --- a library that is broken ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told", "there"),
    [
        ("def f(:\n", "line 1: SyntaxError", []),
        ("good = 1\nbad = 1 / 0\nnever = 2\n", "line 2: ZeroDivisionError: division by zero", ["good"]),
        ("import sys\ngood = 1\nsys.exit(3)\n", "line 3: SystemExit: 3", ["good"]),
        ("good = 1\nimport no_such_module_here\n", "line 2: ModuleNotFoundError", ["good"]),
        ("good = 1\n\0", "null bytes", []),
    ],
)
async def test_a_broken_library_keeps_no_session_from_starting_and_says_what_is_wrong(
    service: Service, home: Path, text: str, told: str, there: list[str]
) -> None:
    write(home, text)
    info = await service.create_session("s")
    assert info.state == "idle"
    (notice,) = info.notices
    assert notice.startswith("the user's library was loaded only in part: ")
    assert told in notice
    assert info.variables == there
    first = await service.execute("s", "1 + 1")
    assert (first.success, first.notices) == (True, [notice])
    assert (await service.execute("s", "2")).notices == []


@pytest.mark.parametrize(
    ("text", "how"), [("import os; os._exit(9)", "code 9"), ("import os, signal; os.kill(os.getpid(), 9)", "SIGKILL")]
)
async def test_a_library_that_ends_the_process_is_left_out(service: Service, home: Path, text: str, how: str) -> None:
    write(home, text)
    info = await service.create_session("s")
    (notice,) = info.notices
    assert "is not loaded: it ended the process" in notice
    assert how in notice
    assert await value(service, "s", "6 * 7") == "42"


@pytest.mark.parametrize("text", ["while True: pass", "import time; time.sleep(600)", "input()"])
async def test_a_library_that_never_comes_to_an_end_is_stopped(
    service: Service, home: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "NAMESPACE_SECONDS", 0.2)
    write(home, f"good = 1\n{text}\n")
    info = await service.create_session("s")
    assert len(info.notices) == 1
    assert "it took too long and was stopped" in info.notices[0]
    assert await value(service, "s", "good") == "1"


async def test_a_library_that_heeds_no_interrupt_is_left_out(
    service: Service, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "NAMESPACE_SECONDS", 0.1)
    monkeypatch.setattr(calls, "NAMESPACE_INTERRUPTS", 1)
    write(home, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass\n")
    info = await service.create_session("s")
    assert "it ended the process, which did not stop" in info.notices[0]
    assert await value(service, "s", "6 * 7") == "42"


# --- adding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("def f(:", "it does not compile: line 1: SyntaxError"),
        ("def f():\n    return\n  x", "it does not compile: line 3: IndentationError"),
        ("@missing\ndef f(): pass", "NameError: name 'missing' is not defined"),
        ("def f(): pass\nraise ValueError('no')", "ValueError: no"),
        ("x = 1\nimport os; os._exit(0)", "it ends the process that loads it"),
        ("double(3)", "it defines nothing"),
        ("", "there is no code"),
        ("x = 1\0", "null bytes"),
        ("(" * 5000, "it does not compile"),
    ],
)
async def test_what_does_not_compile_or_run_is_refused_and_the_file_is_untouched(
    service: Service, home: Path, code: str, told: str
) -> None:
    await service.add_to_stdlib(DOUBLE)
    path = home / "stdlib.py"
    before = (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
    with pytest.raises(errors.StdlibRefused) as refused:
        await service.add_to_stdlib(code)
    assert refused.value.message.startswith("nothing was added to the library: ")
    assert told in refused.value.message
    assert (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert await service.list_sessions() == []


async def test_what_is_added_may_use_what_is_there_and_all_of_that_stays(service: Service, home: Path) -> None:
    text = (
        "# mine, by hand\nimport re   # for later\n\nfactor = 3\n\n\n"
        "def triple(x):\n    # a comment\n    return factor * x\n"
    )
    path = write(home, text)
    await service.add_to_stdlib("    import re\n    import json\n    nine = triple(3)\n")
    assert path.read_text("utf-8") == f"{text}\n\nimport json\nnine = triple(3)\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in home.iterdir() if each.name.startswith(".stdlib")] == []


async def test_a_function_of_the_same_name_is_replaced_in_its_place(service: Service, home: Path) -> None:
    text = (
        "def a():\n    return 'a'\n\n\ndef deco(f):\n    return f\n\n\n"
        "@deco\n@deco\ndef b():\n    return 'b'\n\n\nkept = b\n"
    )
    path = write(home, text)
    change = await service.add_to_stdlib("def b():\n    return 'new'\n")
    assert (change.added, change.replaced) == (["b"], ["b"])
    assert path.read_text("utf-8") == (
        "def a():\n    return 'a'\n\n\ndef deco(f):\n    return f\n\n\ndef b():\n    return 'new'\n\n\nkept = b\n"
    )
    change = await service.add_to_stdlib("import math\n\ndef a():\n    return math.pi\n")
    assert (change.added, change.replaced) == (["math", "a"], ["a"])
    assert path.read_text("utf-8") == (
        "def deco(f):\n    return f\n\n\ndef b():\n    return 'new'\n\n\nkept = b\n\n\n"
        "import math\n\ndef a():\n    return math.pi\n"
    )


async def test_additions_that_come_together_are_all_kept(service: Service, home: Path) -> None:
    # Two servers on one folder, each with several at a time.
    async with Service.local(make_settings(preload=[], pool=1), home) as other:
        await asyncio.gather(
            *((service, other)[n % 2].add_to_stdlib(f"def f{n}(): return {n}") for n in range(8)),
        )
        listed = await other.list_stdlib()
    assert sorted(each.name for each in listed.functions) == [f"f{n}" for n in range(8)]


async def test_a_library_that_does_not_compile_is_not_added_to(service: Service, home: Path) -> None:
    path = write(home, "def broken(:\n")
    with pytest.raises(errors.StdlibRefused, match=r"as it is does not compile \(line 1: SyntaxError.*fix it first"):
        await service.add_to_stdlib(DOUBLE)
    assert path.read_text("utf-8") == "def broken(:\n"


async def test_a_library_beyond_its_bound_is_refused_and_not_loaded(service: Service, home: Path) -> None:
    with pytest.raises(errors.InvalidRequest, match="put data into files"):
        await service.add_to_stdlib("x = '" + "x" * (1 << 20) + "'")
    write(home, "x = 1 #" + "x" * (1 << 20))
    info = await service.create_session("s")
    assert "larger than" in info.notices[0]
    assert (await service.list_stdlib()).problem == "it is larger than 1048576 bytes"


# --- listing -----------------------------------------------------------------------------------------------


async def test_the_listing_tells_functions_modules_and_other_without_running_them(service: Service, home: Path) -> None:
    write(
        home,
        "import os, numpy as np\nimport os.path\nfrom math import pi as PI\n"
        "open('ran', 'w')\nlimit, _private = 5, 6\nrate: float = 0.5\n"
        f"{DOUBLE}"
        "async def fetch(url, /, *, retries: int = 3) -> 'bytes': pass\n"
        "short = lambda x, y=1: x\n"
        'class Kept:\n    """A class."""\n'
        "if limit:\n    def inside(): 'In a block.'\n"
        "def _helper(): pass\n"
        "1 / 0\n",
    )
    assert await service.list_stdlib() == Stdlib(
        functions=[
            StdlibFunction("double", "double(x: int, times=2, *rest) -> int", "Twice as much."),
            StdlibFunction("fetch", "fetch(url, /, *, retries: int=3) -> 'bytes'", ""),
            StdlibFunction("short", "short(x, y=1)", ""),
            StdlibFunction("inside", "inside()", "In a block."),
        ],
        modules=[StdlibModule("np", "numpy"), StdlibModule("os", "os")],
        other=[
            StdlibOther("PI", "from math"),
            StdlibOther("limit", "value"),
            StdlibOther("rate", "value"),
            StdlibOther("Kept", "class", "A class."),
        ],
        count=10,
    )
    assert list(home.rglob("ran")) == []


async def test_without_a_library_the_listing_is_empty(service: Service, home: Path) -> None:
    assert await service.list_stdlib() == Stdlib()
    write(home, "def f(:\n")
    assert (await service.list_stdlib()).problem == "line 1: SyntaxError: invalid syntax"
    write(home, "\n")
    assert await service.list_stdlib() == Stdlib()


async def test_an_edit_by_hand_is_seen_at_once(service: Service, home: Path) -> None:
    path = write(home, "a = 1\n")
    assert (await service.list_stdlib()).other == [StdlibOther("a", "value")]
    libraries = manager_of(service).libraries
    for n in range(300):
        # As editors do: in place, of the same size, several times within one tick of the file system's clock.
        path.write_text(f"a ={n % 10}\n", "utf-8")
        assert (await libraries.read("")).text == f"a ={n % 10}\n".encode()
    await service.create_session("s")
    assert await value(service, "s", "a") == "9"


# --- the doors ---------------------------------------------------------------------------------------------


async def test_each_tenant_has_a_library_of_its_own(service: Service) -> None:
    other = service.acting_for(Caller("them", "tenant-a"))
    await service.add_to_stdlib("def ours(): return 1")
    await other.add_to_stdlib("def theirs(): return 2")
    assert [each.name for each in (await service.list_stdlib()).functions] == ["ours"]
    assert [each.name for each in (await other.list_stdlib()).functions] == ["theirs"]
    await other.create_session("s")
    assert await value(other, "s", "theirs(), 'ours' in globals()") == "(2, False)"


async def test_who_may_only_read_adds_nothing(service: Service) -> None:
    reader = service.acting_for(Caller("reader", "", scopes=frozenset({"read"})))
    assert (await reader.list_stdlib()).count == 0
    with pytest.raises(errors.Forbidden):
        await reader.add_to_stdlib(DOUBLE)


def test_over_http_and_with_the_client(server: Server) -> None:
    with server.make_client() as http:
        added = http.post("/v1/stdlib", json={"function_code": DOUBLE}).json()
        assert (added["added"], added["replaced"]) == (["double"], [])
        listed = http.get("/v1/stdlib").json()
        assert {name: listed[name] for name in ("functions", "modules", "other", "count")} == {
            "functions": [
                {"name": "double", "signature": "double(x: int, times=2, *rest) -> int", "doc": "Twice as much."}
            ],
            "modules": [],
            "other": [],
            "count": 1,
        }
        refused = http.post("/v1/stdlib", json={"function_code": "def"})
        assert "it does not compile" in problem(refused, 422, "stdlib_refused")["detail"]
        assert isinstance(http.post("/v1/stdlib", json={"code": "x"}), httpx.Response)
        problem(http.post("/v1/stdlib", json={"code": "x"}), 422, "invalid_request")
    with Client(server.url, server.token) as client:
        assert client.add_to_stdlib("import os").added == ["os"]
        assert [each.name for each in client.stdlib().modules] == ["os"]
        with pytest.raises(errors.StdlibRefused):
            client.add_to_stdlib("1/0")
        with client.session() as session, client.session(include_stdlib=False) as bare:
            assert session.run("double(2)").text == "4"
            assert bare.run("'double' in globals()").text == "False"


def test_the_library_outlives_the_server(start, home: Path) -> None:  # type: ignore[no-untyped-def]
    first = start()
    with first.make_client() as http:
        assert http.post("/v1/stdlib", json={"function_code": DOUBLE}).status_code == 200
    os.kill(first.process.pid, 9)
    first.process.wait()
    second = start()
    second.make_session()
    assert second.execute("double(5)")["result"] == {"text/plain": "10"}


async def test_a_model_adds_and_lists_with_tools(service: Service) -> None:
    tools = Tools(service)

    async def call(name: str, **given: object) -> tuple[str, bool]:
        async def quiet(seconds: float, line: str) -> None: ...

        answer = await tools.call(name, given, quiet)
        (part,) = answer.parts
        return part.text, answer.is_error  # type: ignore[union-attr]

    assert await call("list_stdlib_functions") == (
        "the library is empty; add_to_stdlib(function_code=…) adds to it",
        False,
    )
    assert await call("add_to_stdlib", function_code=f"import os\n{DOUBLE}") == (
        "added: os, double. New sessions have it; running ones do not.",
        False,
    )
    assert await call("list_stdlib_functions") == (
        "double(x: int, times=2, *rest) -> int: Twice as much.\nmodules: os",
        False,
    )
    text, failed = await call("add_to_stdlib", function_code="def f(:")
    assert failed
    assert "nothing was added to the library: it does not compile: line 1" in text
    await call("create_repl_session", session_id="bare", include_stdlib=False)
    assert "NameError" in (await call("python_session", code="double(1)", session_id="bare"))[0]
    assert (await call("python", code="double(21)"))[0].startswith("42")


# --- hostile sessions --------------------------------------------------------------------------------------

FORGE = """
import json, marshal, os, socket, stat, struct
def send(kind, header, payload):
    said = json.dumps(header).encode()
    frame = struct.pack(">IIB", len(said) + len(payload), len(said), kind) + said + payload
    for fd in range(3, 200):
        if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
            socket.socket(fileno=os.dup(fd)).sendall(frame)
"""
POISON = """
class Kept:
    def __del__(self, send=send, code=marshal.dumps(compile("planted = True", "library", "exec"))):
        send(84, {}, code)
kept = Kept()
"""
REWRITE = """
send(85, {"added": ["added"], "count": 1}, b"planted = True")
def added(): pass
"""


@pytest.mark.req("safe.isolation")
async def test_code_of_the_library_is_taken_from_nobody_who_has_run_anything(service: Service) -> None:
    await service.add_to_stdlib(DOUBLE)
    await service.create_session("hostile")
    assert (await service.execute("hostile", FORGE + POISON)).status == "ok"
    await service.clear_session("hostile")
    assert await value(service, "hostile", "'kept' in globals(), double(2)") == "(False, 4)"
    await service.create_session("next")
    assert await value(service, "next", "'planted' in globals(), double(2)") == "(False, 4)"


@pytest.mark.req("safe.isolation")
async def test_what_is_added_is_what_was_sent_whatever_it_says_when_it_runs(service: Service, home: Path) -> None:
    await service.add_to_stdlib(FORGE + REWRITE)
    text = (home / "stdlib.py").read_text()
    assert "def added(): pass" in text
    assert not text.startswith("planted")
