"""Sessions in every Python of the machine: bare environments of those that will do, plain words for the others."""

import functools
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ingle_worker
from ingle import errors
from ingle.events import Done, Result, Stderr, Stdout
from ingle.service import Service
from ingle.settings import Settings
from support.pythons import GOOD, OLD, Python
from support.service import make_settings
from support.waiting import until

pytestmark = pytest.mark.req("cell.pythons")


NOWHERE = "python-that-is-not-there"


@pytest.fixture(scope="module")
def environments() -> Iterator[Path]:
    """Where they lie: no session may write there."""
    with tempfile.TemporaryDirectory(prefix="ingle-environments-") as folder:
        yield Path(folder)


def granted(environments: Path) -> list[str]:
    """All that the tests here name."""
    made = [environments / python.name / "bin" / "python" for python in GOOD]
    return [*map(str, made), *(python.path for python in (*GOOD, *OLD)), NOWHERE]


@pytest.fixture(scope="module")
def settings(environments: Path) -> Settings:
    return make_settings(preload=[], pool=1, pythons=granted(environments))


@pytest.fixture(scope="module")
def bare(environments: Path) -> Callable[[Python], str]:
    """The interpreter of a virtual environment of that Python with nothing installed, made once."""

    @functools.cache
    def make(python: Python) -> str:
        home = environments / python.name
        made = subprocess.run([python.path, "-m", "venv", "--without-pip", str(home)], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"{python.path} makes no virtual environments: {made.stderr[-200:]}")
        # As after an installation. The first start on a fresh checkout compiles the guest, and what that leaves in
        # memory is counted by a test here.
        subprocess.run([python.path, "-m", "compileall", "-q", Path(ingle_worker.__file__).parent], check=True)
        return str(home / "bin" / "python")

    return make


@pytest.fixture(params=GOOD, ids=lambda python: python.name)
def python(request: pytest.FixtureRequest) -> Python:
    return request.param


@pytest.fixture
async def run(service: Service, python: Python, bare: Callable[[Python], str]):
    """Runs a cell in the one session of the test, which is of this Python."""
    info = await service.create_session("s", python=bare(python))
    assert info.python == python.name

    async def execute(code: str, **options: object) -> Result:
        return await service.execute("s", code, **options)

    return execute


def test_several_pythons_are_proven_where_they_are_installed() -> None:
    if len(GOOD) == 1:
        pytest.skip("only one CPython from 3.10 on is installed")
    assert all(re.fullmatch(r"3\.\d+\.\d+", python.name) for python in GOOD)


async def test_a_bare_environment_runs_a_session_with_nothing_installed(run, python: Python, bare) -> None:
    result = await run("import os, sys, sysconfig\nprint(sys.executable)\nprint(sys.prefix != sys.base_prefix)\n1 + 1")
    assert (result.status, result.stderr, result.result) == ("ok", "", {"text/plain": "2"})
    assert result.stdout == f"{bare(python)}\nTrue\n"
    assert (await run("os.listdir(sysconfig.get_path('purelib'))")).result == {"text/plain": "[]"}
    for name in ("ingle", "msgspec", "click"):
        assert (await run(f"import {name}")).error.name == "ModuleNotFoundError"
    assert (await run("[p for p in sys.path if 'ingle' in p.rpartition('/')[2]]")).result == {"text/plain": "[]"}


async def test_values_output_and_state(service: Service, run) -> None:
    await run("import sys\ndef double(x):\n\n    return 2 * x")
    result = await run("for i in range(50):\n    print('o', i)\n    print('e', i, file=sys.stderr)\ndouble(21)")
    assert (result.status, result.result) == ("ok", {"text/plain": "42"})
    assert (result.stdout, result.stderr) == tuple("".join(f"{c} {i}\n" for i in range(50)) for c in "oe")
    lines = []
    async for event in service.events("s"):
        if isinstance(event, Stdout | Stderr):
            lines.append(event.text)
        elif isinstance(event, Done) and event.cell == 2:
            break
    assert "".join(lines) == "".join(f"o {i}\ne {i}\n" for i in range(50))
    assert (await run("_ + 1;")).result is None
    assert (await run("_")).result == {"text/plain": "42"}


async def test_globals_are_those_of_the_same_python(run, python: Python) -> None:
    code = "print(sorted(globals()), __name__)"
    expected = subprocess.run([python.path, "-c", code], capture_output=True, text=True, check=True).stdout
    assert (await run(code)).stdout == expected


OWN_MEMORY = """
import sys
def own_kilobytes():
    with open('/proc/self/smaps_rollup') as file:
        return sum(int(line.split()[1]) for line in file if line.startswith('Private'))
own_kilobytes()
"""

MAX_OWN_KILOBYTES = 300
"""The list of all values takes some of these."""


async def test_the_use_of_inherited_objects_copies_no_memory(run, python: Python) -> None:
    if python.version < (3, 12):
        pytest.skip("this version counts the references to every object, inside of it")
    own = int((await run(OWN_MEMORY)).result["text/plain"])
    uses = "values = [value for module in list(sys.modules.values()) for value in vars(module).values()]\nlen(values)"
    assert int((await run(uses)).result["text/plain"]) > 5_000
    assert int((await run("own_kilobytes()")).result["text/plain"]) - own < MAX_OWN_KILOBYTES


async def test_errors_have_the_users_frames_and_lines(run, python: Python) -> None:
    await run("class A:\n    def f(self):\n        return 1 / 0")
    result = await run("A().f()")
    lines = [line for line in result.error.traceback.splitlines() if set(line.strip()) - set("^~")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 1, in <module>',
        "    A().f()",
        '  File "<cell 1>", line 3, in f',
        "    return 1 / 0",
        "ZeroDivisionError: division by zero",
    ]
    assert (result.status, result.error.name, result.error.value) == ("error", "ZeroDivisionError", "division by zero")
    assert (await run("import sys; sys.last_exc is sys.last_value, sys.last_type")).result == {
        "text/plain": "(True, <class 'ZeroDivisionError'>)"
    }
    source = "'class A:\\n    def f(self):\\n        return 1 / 0'"
    assert (await run("import inspect; inspect.getsource(A).rstrip()")).result == {"text/plain": source}
    kept = "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    saved = e"
    await run(kept)
    assert '  File "<cell 5>", line 2, in <module>\n    1 / 0\n' in (await run("raise saved")).error.traceback
    if python.version >= (3, 11):
        result = await run("e = ValueError('v')\ne.add_note('a note')\nraise ExceptionGroup('g', [e])")
        assert "    | ValueError: v\n    | a note\n" in result.error.traceback


@pytest.mark.parametrize("code", ["if 1:", "x = (1,", "'''a", "try:\n    x", "@d", "def f():\n    if 1:", "x = \\"])
async def test_incomplete_code_is_known_as_such(run, code: str) -> None:
    result = await run(f"print('ran')\n{code}")
    assert (result.status, result.stdout, result.needs_more_input) == ("error", "", True)


async def test_awaiting_cells_tasks_between_cells_and_asyncio_run(run, tmp_path: Path) -> None:
    code = f"""
import asyncio, pathlib
async def work():
    await asyncio.sleep(0.01)
    pathlib.Path({str(tmp_path / "done")!r}).touch()
    print("from the background")
task = asyncio.create_task(work())
await asyncio.sleep(0, "value")
"""
    result = await run(code)
    assert (result.status, result.stdout, result.result) == ("ok", "", {"text/plain": "'value'"})
    assert await until((tmp_path / "done").exists)
    assert (await run("asyncio.run(asyncio.sleep(0, 'run'))")).result == {"text/plain": "'run'"}
    result = await run("task.done(), [x async for x in (await asyncio.sleep(0, i) for i in range(2))]")
    assert (result.stdout, result.result) == ("", {"text/plain": "(True, [0, 1])"})
    result = await run("async def f():\n    1 / 0\nawait f()")
    assert '  File "<cell 4>", line 2, in f\n    1 / 0\n' in result.error.traceback


@pytest.mark.parametrize("wait", ["while True: pass", "time.sleep(3600)", "await asyncio.sleep(3600)", "input()"])
async def test_an_interrupt_keeps_the_state(service: Service, run, tmp_path: Path, wait: str) -> None:
    sign = tmp_path / "sign"
    await run("import asyncio, time\nkept = 'kept'")
    await service.begin("s", f"open({str(sign)!r}, 'w').close()\n{wait}")
    assert await until(sign.exists)
    if wait == "input()":
        assert (await service.wait("s", wait=30)).status == "waiting_for_input"
    result = await service.interrupt("s")
    assert (result.status, result.error.name) == ("interrupted", "KeyboardInterrupt")
    # The sign is there as soon as it is opened: under load the interrupt may find the cell still in its first line.
    assert re.search(
        r'  File "<cell 2>", line [12], in <module>\n    (open|while|time|await|input)', result.error.traceback
    )
    assert (await run("kept")).result == {"text/plain": "'kept'"}


async def test_input_is_asked_for_and_answered(service: Service, run) -> None:
    result = await run("name = input('name? ')\nname")
    assert (result.status, result.prompt) == ("waiting_for_input", "name? ")
    result = await service.input("s", "Zoë")
    assert (result.status, result.stdout, result.result) == ("ok", "name? ", {"text/plain": "'Zoë'"})


@pytest.mark.parametrize(
    ("code", "exit_code", "signal"),
    [("import sys; sys.exit(3)", 3, None), ("exit()", 0, None), ("import os; os._exit(7)", 7, None)],
)
async def test_an_exit_is_told_and_followed_by_a_fresh_worker(run, code: str, exit_code: int, signal: None) -> None:
    await run("import atexit; x = 1\natexit.register(print, 'at exit');")
    result = await run(code)
    assert (result.status, result.exit.code, result.exit.signal) == ("exit", exit_code, signal)
    assert result.stdout == ("" if exit_code == 7 else "at exit\n")
    result = await run("'x' in globals()")
    assert (result.result, len(result.notices)) == ({"text/plain": "False"}, 1)


async def test_a_segfault_is_named_with_its_last_words(run) -> None:
    result = await run("import ctypes\nctypes.string_at(0)")
    assert (result.status, result.exit.signal) == ("exit", "SIGSEGV")
    assert "Fatal Python error: Segmentation fault\n" in result.stderr
    assert (await run("1")).result == {"text/plain": "1"}


@pytest.mark.parametrize(
    "sabotage",
    [
        "del __builtins__",
        "import sys; sys.modules.clear()",
        "import builtins; builtins.Exception = builtins.isinstance = builtins.len = None",
        "import os, time; os.write = os.getpid = time.perf_counter = None",
        "import sys; del sys.stdout, sys.stderr",
    ],
)
async def test_what_a_user_breaks_is_his_own(run, sabotage: str) -> None:
    await run("kept = 1")
    await run(sabotage)
    result = await run("print('out')\nkept")
    assert (result.status, result.stdout, result.result) == ("ok", "out\n", {"text/plain": "1"})
    assert (await run("1 / 0")).error.value == "division by zero"
    assert (await run("1 +")).error.name == "SyntaxError"


async def test_a_background_thread_is_not_the_next_cells_output(service: Service, run) -> None:
    thread = "t = threading.Thread(target=lambda: go.wait() and print('bg')); t.start()"
    await run(f"import threading\ngo = threading.Event()\n{thread}")
    result = await run("go.set(); t.join(); print('fg')")
    assert (result.status, result.stdout) == ("ok", "fg\n")


async def test_several_pythons_serve_side_by_side(service: Service, bare) -> None:
    for python in GOOD:
        await service.create_session(f"p{python.name}", python=bare(python))
    code = "import platform; print(platform.python_version())"
    said = [(await service.execute(f"p{python.name}", code)).stdout for python in GOOD]
    assert said == [f"{python.name}\n" for python in GOOD]


class TestSpawned:
    @pytest.fixture
    def settings(self, environments: Path) -> Settings:
        return make_settings(preload=[], pool=0, start_method="spawn", pythons=granted(environments))

    async def test_a_session_runs_without_a_zygote_too(self, service: Service, run, python: Python) -> None:
        result = await run("import sys\nprint('out'); print('err', file=sys.stderr)\nsys.version_info[:3]")
        assert (result.stdout, result.stderr, result.result) == ("out\n", "err\n", {"text/plain": str(python.version)})
        assert (await run("1 / 0")).error.name == "ZeroDivisionError"

    @pytest.mark.parametrize("old", OLD, ids=lambda python: python.name)
    async def test_an_older_one_is_refused_here_too(self, service: Service, old: Python) -> None:
        with pytest.raises(errors.InterpreterRefused, match=r"CPython 3\.10"):
            await service.create_session(python=old.path)


# --- what is refused ---


@pytest.mark.parametrize("old", OLD, ids=lambda python: python.name)
async def test_an_older_python_is_refused_in_plain_words(service: Service, old: Python) -> None:
    for _ in range(2):
        with pytest.raises(errors.InterpreterRefused) as refused:
            await service.create_session("s", python=old.path)
        message = refused.value.message
        assert message.startswith("ingle needs CPython 3.10 or later for a session; ")
        assert message.endswith(f" {old.name}. Name a newer interpreter.")
        assert (refused.value.code, refused.value.status) == ("interpreter_refused", 422)
    # The name is free, and the server as good as before.
    assert await service.list_sessions() == []
    await service.create_session("s")
    assert (await service.execute("s", "1")).result == {"text/plain": "1"}


NOT_PYTHON = {
    "a path where nothing is": None,
    "a folder": "folder",
    "a file that cannot be run": ("not for running\n", 0o644),
    "a file in no format": ("\x7f???", 0o755),
    "a script whose interpreter is missing": ("#!/not/there\n", 0o755),
    "a program that ends at once": ("#!/bin/sh\nexit 0\n", 0o755),
    "a program that fails": ("#!/bin/sh\necho 'this is no snake' >&2\nexit 3\n", 0o755),
    "a program that talks": ("#!/bin/sh\necho hello; echo hello >&2\n", 0o755),
}


class TestNoPython:
    @pytest.fixture
    def settings(self, apart: Path) -> Settings:
        return make_settings(preload=[], pool=1, pythons=[str(apart / "interpreter"), NOWHERE])

    @pytest.mark.parametrize("name", NOT_PYTHON)
    async def test_what_is_no_python_is_refused_in_plain_words(self, service: Service, apart: Path, name: str) -> None:
        path, content = apart / "interpreter", NOT_PYTHON[name]
        if content == "folder":
            path.mkdir()
        elif content is not None:
            path.write_text(content[0])
            path.chmod(content[1])
        with pytest.raises(errors.InterpreterRefused) as refused:
            await service.create_session(python=str(path))
        assert str(path) in refused.value.message
        assert "name a CPython 3.10 or later" in refused.value.message
        assert ("this is no snake" in refused.value.message) is (name == "a program that fails")
        with pytest.raises(errors.InterpreterRefused):
            await service.execute_once("1", python=NOWHERE)
        assert await service.list_sessions() == []


@pytest.mark.fresh_service
class TestPatience:
    @pytest.fixture
    def settings(self, apart: Path) -> Settings:
        return make_settings(preload=[], pool=1, start_patience=0.3, pythons=[str(apart / "interpreter")])

    async def test_an_interpreter_that_never_comes_up_is_given_up(self, service: Service, apart: Path) -> None:
        path = apart / "interpreter"
        path.write_text("#!/bin/sh\nsleep 1000\n")
        path.chmod(0o755)
        with pytest.raises(errors.StartFailed, match=r"did not start within 0\.3 s"):
            await service.create_session("s", python=str(path))
        assert await service.list_sessions() == []


@pytest.mark.req("rich.magics", "rich.vars")
async def test_magics_and_variables_work_in_each(service: Service, run) -> None:
    result = await run("lines = !printf '1\\n2\\n'\nfor each in lines:\n    !echo got {each}\n%time len(lines)")
    assert (result.status, result.result) == ("ok", {"text/plain": "2"})
    assert result.stdout.startswith("got 1\ngot 2\nCPU times: ")
    assert (await run("import asyncio\nx = %time await asyncio.sleep(0, 5)\nx")).result == {"text/plain": "5"}
    assert "1 loop each" in (await run("%%timeit -n1 -r1\n1 + 1")).stdout
    refused = await run("y = 1\n%nosuch")
    assert (refused.status, refused.error.name) == ("error", "UsageError")
    told = {each.name: (each.type, each.preview) for each in (await service.variables("s")).variables}
    assert told == {
        "asyncio": ("module", "<module 'asyncio'>"),
        "each": ("str", "'2'"),
        "lines": ("Lines", "['1', '2']"),
        "x": ("int", "5"),
    }
    assert (await service.variable("s", "lines")).variable.value == "['1', '2']"
