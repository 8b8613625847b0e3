"""Notebook habits in a session: `!`, `%` and `%%` do what people expect, and nothing else changes for it."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ingle.events import Result
from ingle.service import Service
from support.waiting import until

pytestmark = [pytest.mark.both_levels, pytest.mark.req("rich.magics")]

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def run(service: Service, tmp_path: Path) -> Run:
    await service.create_session("s", cwd=str(tmp_path))

    async def execute(code: str, **options: object) -> Result:
        return await service.execute("s", code, **options)

    return execute


async def shown(run: Run, code: str) -> str | None:
    result = await run(code)
    assert (result.status, result.error) == ("ok", None)
    return result.result["text/plain"] if result.result else None


# --- commands ----------------------------------------------------------------------------------------------


async def test_a_command_writes_to_both_streams_and_tells_its_exit_code(run: Run) -> None:
    result = await run("!echo out; echo err >&2; exit 3\n_exit_code")
    assert (result.status, result.stdout, result.stderr) == ("ok", "out\n", "err\n")
    assert result.result == {"text/plain": "3"}
    assert await shown(run, "!kill -9 $$$$\n_exit_code") == "-9"


async def test_the_lines_of_a_command_can_be_assigned(run: Run) -> None:
    assert await shown(run, "x = !printf 'a b\\nc d\\n'; exit 2\nx, x.n, x.s, x.l, _exit_code") == (
        "(['a b', 'c d'], 'a b\\nc d', 'a b c d', ['a b', 'c d'], 2)"
    )
    assert await shown(run, "x.grep('C'), x.fields(1), isinstance(x, list)") == "(['c d'], ['b', 'd'], True)"
    assert await shown(run, "!!echo err >&2") == "['err']"
    assert await shown(run, "a, b = !echo 1; echo 2\nb") == "'2'"


async def test_values_of_the_session_are_put_into_a_command(run: Run) -> None:
    await run("name, i, d = 'n m', 7, {'k': 'v'}\nclass P: x = 'attr'\np = P()")
    cases = {
        "{name} $name ${name}": "n m n m n m",
        "{i + 1} {i:03d} {d['k']}": "8 007 v",
        "$p.x $name.txt": "attr n m.txt",
        "$$i ${i:-x} {nothing} $nothing {{i}}": "x {nothing} {i}",
        "{1,2} {a..c} {} {5}": "1 2 a b c {} {5}",
    }
    for command, expected in cases.items():
        assert (await run(f"!echo {command}")).stdout == expected + "\n", command
    assert (await run("!printf 'a b\\n' | awk '{print $2}' | awk '{print}'")).stdout == "b\n"


async def test_a_command_stands_in_blocks_and_functions_and_sees_their_names(run: Run) -> None:
    result = await run("for f in 'ab':\n    if f != 'c':\n        !echo {f}\n    else:\n        !echo never\nf")
    assert (result.stdout, result.result) == ("a\nb\n", {"text/plain": "'b'"})
    assert await shown(run, "def g(inside):\n    x = !echo {inside} $inside\n    return x\ng(5)") == "['5 5']"


async def test_a_command_shows_its_output_while_it_runs_and_reads_the_cells_input(service: Service, run: Run) -> None:
    result = await run("!echo ready; read line; echo got $line", wait=10)
    assert (result.status, result.stdout) == ("waiting_for_input", "ready\n")
    result = await service.input("s", "this")
    assert (result.status, result.stdout) == ("ok", "ready\ngot this\n")


async def test_an_interrupt_stops_a_command_and_the_cell(service: Service, run: Run) -> None:
    number = await service.begin("s", "x = 1\n!echo begun; sleep 100\nx = 2")
    assert await until_output(service, number, "begun")
    result = await service.interrupt("s")
    assert result is not None
    assert (result.status, result.error.name) == ("interrupted", "KeyboardInterrupt")
    assert result.error.traceback.splitlines()[1:3] == [
        '  File "<cell 1>", line 2, in <module>',
        "    !echo begun; sleep 100",
    ]
    assert await shown(run, "x") == "1"


async def until_output(service: Service, cell: int, text: str) -> bool:
    seen = ""

    async def look() -> bool:
        nonlocal seen
        seen = (await service.wait("s", cell, wait=0)).stdout
        return text in seen

    for _ in range(500):
        if await look():
            return True
        await until(lambda: False, 0.01)
    return False


async def test_cd_in_a_command_is_told_to_be_lost(run: Run, tmp_path: Path) -> None:
    result = await run("!cd /\n%pwd")
    assert result.result == {"text/plain": repr(str(tmp_path))}
    assert result.stderr == "!cd changes the folder of a shell that ends with this line; %cd changes the session's\n"
    assert (await run("!cd / && pwd")).stderr == ""


# --- scripts and files -------------------------------------------------------------------------------------


async def test_a_script_runs_whole_and_its_failure_is_an_error(run: Run) -> None:
    result = await run("%%bash\nx=5\nfor i in 1 2; do\n  echo $((i + x)) {x}\ndone")
    assert (result.status, result.stdout) == ("ok", "6 {x}\n7 {x}\n")
    result = await run("%%sh\necho before\nexit 4")
    assert (result.status, result.stdout, result.error.name) == ("error", "before\n", "subprocess.CalledProcessError")
    assert result.error.value == "Command '%%sh' returned non-zero exit status 4."
    assert "ingle" not in result.error.traceback
    long = "# " + "x" * 200_000
    assert (await run(f"%%bash\n{long}\necho done")).stdout == "done\n"


async def test_a_file_is_written_appended_and_run(run: Run, tmp_path: Path) -> None:
    body = "import sys\nprint(sys.argv, __name__, __file__)\nmade = base + 1\n"
    assert (await run(f"%%writefile script.py\n{body}")).stdout == "Writing script.py\n"
    assert (tmp_path / "script.py").read_text() == body
    assert (await run("%%writefile -a script.py\ndef f(): return 1 / 0\n")).stdout == "Appending to script.py\n"
    result = await run("base = 41\n%run script.py a 'b c'\nmade")
    assert result.stdout == "['script.py', 'a', 'b c'] __main__ script.py\n"
    assert result.result == {"text/plain": "42"}
    assert await shown(run, "import sys\n'__file__' in globals(), sys.argv") == "(False, [''])"
    failed = await run("f()")
    assert 'script.py", line 4, in f\n    def f(): return 1 / 0\n' in failed.error.traceback
    assert (await run("%%writefile out.txt\n{not} $expanded %time\n")).status == "ok"
    assert (tmp_path / "out.txt").read_text() == "{not} $expanded %time\n"


# --- folders and environment -------------------------------------------------------------------------------


async def test_the_folder_is_changed_for_good_and_back(run: Run, tmp_path: Path) -> None:
    (tmp_path / "in ner").mkdir()
    result = await run("folder = 'in ner'\n%cd {folder}\n%cd -\n%cd \"in ner\"")
    inner = str(tmp_path / "in ner")
    assert (result.status, result.stdout) == ("ok", f"{inner}\n{tmp_path}\n{inner}\n")
    assert await shown(run, "import os\nos.getcwd()") == repr(inner)
    failed = await run("%cd /not/there")
    assert failed.error.name == "FileNotFoundError"
    assert failed.error.traceback.splitlines()[1:3] == ['  File "<cell 3>", line 1, in <module>', "    %cd /not/there"]


async def test_the_environment_is_listed_read_and_set(run: Run) -> None:
    assert (await run("v = 'x y'\n%env A=1\n%env B {v}\n%env C = 3")).stdout == "env: A=1\nenv: B=x y\nenv: C=3\n"
    assert (await run("!echo $A $B")).stdout == "1 x y\n"
    assert await shown(run, "%env B") == "'x y'"
    assert await shown(run, "e = %env\ntype(e), e['C']") == "(<class 'dict'>, '3')"
    assert (await run("%env NOT_THERE")).error.value == "the environment has no variable NOT_THERE"


# --- time --------------------------------------------------------------------------------------------------

TIMES = r"CPU times: user [\d.e+]+ .?s, sys: [\d.e+]+ .?s, total: [\d.e+]+ .?s\nWall time: [\d.e+]+ .?s\n"


async def test_time_tells_how_long_a_line_took_and_keeps_its_value(run: Run) -> None:
    for code, value in (
        ("%time 1 + 1", "2"),
        ("x = %time 2 + 2\nx", "4"),
        ("%time y = 3\ny", "3"),
        ("%time sum([1,\n 2])", "3"),
        ("%time for i in range(3): y += i\ny", "6"),
        ("%time 5;", None),
        ("import asyncio\n%time await asyncio.sleep(0, 7)", "7"),
        ("%%time\nz = 1\nz + 1", "2"),
        ("%%time\nawait asyncio.sleep(0, 8)", "8"),
    ):
        result = await run(code)
        assert (result.status, result.result and result.result["text/plain"]) == ("ok", value), code
        assert re.fullmatch(TIMES, result.stdout), code


async def test_an_error_in_a_timed_line_is_shown_where_it_is(run: Run) -> None:
    result = await run("x = 1\nif x:\n    %time  x + (1 / 0)")
    lines = result.error.traceback.splitlines()
    assert lines[1:3] == ['  File "<cell 1>", line 3, in <module>', "    %time  x + (1 / 0)"]
    assert lines[3].rstrip() == "                ~~^~~"
    result = await run("a = 1\n%time b +")
    assert (result.error.name, "line 2" in result.error.traceback) == ("SyntaxError", True)
    assert "    %time b +\n" in result.error.traceback
    assert (await run("a")).error.name == "NameError"


async def test_timeit_tells_mean_and_deviation(run: Run) -> None:
    result = await run("n = 10\n%timeit -n 20 -r 3 sum(range(n))")
    line = r"[\d.]+ .?s ± [\d.]+ .?s per loop \(mean ± std. dev. of 3 runs, 20 loops each\)\n"
    assert re.fullmatch(line, result.stdout)
    assert (await run("%%timeit -n 2 -r 1 made = 5\nseen.append(made)")).error.name == "NameError"
    await run("seen = []")
    assert (await run("%%timeit -n 2 -r 1 made = 5\nseen.append(made)\n")).status == "ok"
    assert await shown(run, "seen, 'made' in globals()") == "([5, 5], False)"
    assert "loops each" in (await run("%timeit -r 1 1")).stdout


# --- looking around ----------------------------------------------------------------------------------------


async def test_who_lists_what_the_user_made(run: Run) -> None:
    assert (await run("%who")).stdout == "There are no variables yet.\n"
    await run("b, a = [1, 2], 'x'\n_hidden = 1")
    assert (await run("%who")).stdout == "a\tb\n"
    assert (await run("%whos")).stdout.splitlines()[2:] == [
        "a          str    n=1: 'x'",
        "b          list   n=2: [1, 2]",
    ]


async def test_a_question_mark_explains(run: Run) -> None:
    await run('def f(a, b=1):\n    """Adds."""\n    return a + b')
    assert (
        await run("f?")
    ).stdout == "Type:      function\nSignature: f(a, b=1)\nFile:      <cell 1>\nDocstring: Adds.\n"
    assert "    return a + b" in (await run("f??")).stdout
    assert (await run("?nothing.x")).stdout == "Object `nothing.x` not found.\n"


async def test_magics_that_need_nothing_here_are_accepted(run: Run) -> None:
    assert (
        await run("%matplotlib inline\n%load_ext autoreload\n%config InlineBackend.figure_format = 'svg'")
    ).stdout == ""
    assert "inline" in (await run("%matplotlib qt")).stdout
    assert "importlib.reload" in (await run("%autoreload 2")).stdout


async def test_output_can_be_captured(run: Run) -> None:
    assert (await run("%%capture kept\nprint('a')\n5")).stdout == ""
    assert await shown(run, "kept.stdout") == "'a\\n'"


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.req("cell.compile-first")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%nosuch", "there is no %nosuch here. Known magics: !command, %autoreload %cat %cd"),
        ("%reset -f", "there is no %reset here; use `del name`"),
        ("%bash", "%bash is a cell magic: write %%bash on the first line of a cell"),
        ("%%time", "%%time must be the first line of its cell"),
        ("%timeit -r 0 1", "%timeit needs one run at least"),
        ("%time", "%time needs code behind it"),
    ],
)
async def test_what_is_no_magic_is_said_before_anything_runs(run: Run, line: str, says: str) -> None:
    result = await run(f"x = 1\nprint('ran')\n{line}")
    assert (result.status, result.stdout, result.error.name) == ("error", "", "UsageError")
    assert result.error.value.startswith(says)
    shown_line = f'  File "<cell 1>", line 3\n    {line}\n    ^\nUsageError: '
    assert result.error.traceback.startswith(shown_line)
    assert (await run("x")).error.name == "NameError"


async def test_a_cell_magic_that_does_not_exist_is_named_too(run: Run) -> None:
    assert (await run("%%nosuch\nx = 1")).error.value.startswith("there is no %%nosuch here. Known magics:")
    assert (await run("%%cd /")).error.value == "%%cd is a line magic: write %cd"


async def test_more_lines_could_complete_a_cell_with_magics(run: Run) -> None:
    result = await run("!echo ran\nif x:")
    assert (result.status, result.needs_more_input, result.stdout) == ("error", True, "")
    assert (await run("!echo ran\nx = )")).needs_more_input is False


# --- what stays as it is -----------------------------------------------------------------------------------


async def test_strings_comments_and_operators_are_not_touched(run: Run) -> None:
    code = "!true\ns = '''\n!ls\n%time x\n'''  # !ls\nx = (7\n%4)\ny = 7 \\\n%4\ns, x, y, 1 != 2"
    assert await shown(run, code) == "('\\n!ls\\n%time x\\n', 3, 3, True)"


@pytest.mark.req("cell.traceback")
async def test_lines_and_sources_are_those_that_the_user_wrote(run: Run) -> None:
    result = await run("!echo a \\\n  b\ndef f():\n    x = !echo 1\n    return (x[0] +\n            0)\nf()")
    lines = result.error.traceback.splitlines()
    assert '  File "<cell 1>", line 7, in <module>' in lines
    assert '  File "<cell 1>", line 5, in f' in lines
    source = "def f():\n    x = !echo 1\n    return (x[0] +\n            0)\n"
    assert await shown(run, "import inspect\ninspect.getsource(f)") == repr(source)


@pytest.mark.req("cell.clean-globals")
async def test_nothing_of_the_magics_is_in_the_users_way(run: Run) -> None:
    await run("import builtins\nbefore = set(dir(builtins)) | {'_'}, set(globals()) | {'before'}")
    await run("%time 1\n%pwd\nx = !true\n%timeit -n1 -r1 1")
    left = "sorted(set(dir(builtins)) - before[0]), sorted(set(globals()) - before[1])"
    assert await shown(run, left) == "([], ['_exit_code', 'x'])"


@pytest.mark.req("cell.shadow")
async def test_what_a_user_shadows_breaks_no_magic(run: Run) -> None:
    await run(
        "import builtins, os, sys, subprocess\n"
        "ast = print = open = len = str = None\n"
        "os.waitpid = os.posix_spawn = os.pipe = subprocess.Popen = None\n"
        "for name in ('len', 'isinstance', 'Exception', 'open', 'getattr'):\n    setattr(builtins, name, None)\n"
        "sys.modules.clear()\ndel __builtins__"
    )
    result = await run("x = !echo 1; echo 2\n!echo {x[1]}\n%cd /\n%time 5\n%timeit -n1 -r1 5\n%who")
    assert (result.status, result.error) == ("ok", None)
    assert result.stdout.startswith("2\n/\nCPU times: ")


@pytest.mark.req("cell.traceback")
async def test_runner_frames_are_not_shown_even_where_a_user_has_broken_what_tracebacks_need(run: Run) -> None:
    await run("import builtins\nfor name in ('len', 'isinstance', 'getattr'):\n    setattr(builtins, name, None)")
    result = await run("%cd /not/there")
    assert result.error.traceback.startswith(
        'Traceback (most recent call last):\n  File "<cell 2>", line 1, in <module>\n'
    )
    assert "ingle_worker" not in result.error.traceback


async def test_a_cell_without_a_magic_is_compiled_without_looking_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from ingle_worker.session import compiler

    monkeypatch.setattr(compiler, "translate", None)
    assert compiler.Compiler().compile("x = 1\n1 + 1", "<cell 1>").last is not None
