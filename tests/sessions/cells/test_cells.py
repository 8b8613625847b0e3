"""Cells: what is taken as one, what it leaves behind, and what a user cannot break."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from ingle.events import Result
from ingle.service import Service

pytestmark = pytest.mark.both_levels


def value(result: Result) -> str:
    """The text of the value a cell has shown, all else having gone well."""
    assert (result.status, result.error, result.stderr, result.notices) == ("ok", None, "", [])
    assert result.result is not None
    assert list(result.result) == ["text/plain"]
    return result.result["text/plain"]


def printed(result: Result) -> str:
    assert (result.status, result.error, result.stderr, result.notices) == ("ok", None, "", [])
    return result.stdout


# --- one unit ---

WHOLE = {
    "two blocks without a blank line between them": (
        "for i in range(2):\n    print(i)\nif True:\n    print('then')\nprint('end')",
        "0\n1\nthen\nend\n",
    ),
    "a function with blank lines in it, then its call": (
        "def f(x):\n\n    y = x + 1\n\n\n    return y\n\nprint(f(1))\n",
        "2\n",
    ),
    "a class with blank lines between methods": (
        "class A:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n\nprint(A().f(), A().g())",
        "1 2\n",
    ),
    "try, except, else and finally": (
        "try:\n    x = 1\n\nexcept ValueError:\n    pass\n\nelse:\n    print('else')\n\nfinally:\n    print('end')\n",
        "else\nend\n",
    ),
    "brackets over blank lines": ("x = [\n\n    1,\n\n    2,\n\n]\nprint(\n\n    x\n\n)", "[1, 2]\n"),
    "a triple-quoted string over blank lines": ('print("""a\n\n  b\n\n""", end="")', "a\n\n  b\n\n"),
    "a line continued by a backslash": ("x = 1 + \\\n    2\nprint(x)", "3\n"),
    "a decorated function": ("def d(f):\n    return f\n@d\n\ndef g(): return 7\nprint(g())", "7\n"),
    "indented as a whole": ("    x = 1\n\n    if x:\n        print('in')\n    print('out')\n", "in\nout\n"),
    "indented as a whole with tabs": ("\tfor i in range(2):\n\t\tprint(i)\n", "0\n1\n"),
    "indented as a whole, comments and blank lines at the margin": (
        "# head\n\n    x = 1\n# between\n    print(x)\n",
        "1\n",
    ),
    "indented as a whole, with a string whose inside is not": (
        '    x = """\nleft\n    right"""\n    print(x)\n',
        "\nleft\n    right\n",
    ),
    "indented as a whole, with a return-less function": ("  def f():\n      print('f')\n  f()", "f\n"),
    "lines that end with CRLF": ("if True:\r\n    print('a')\r\nprint('b')\r\n", "a\nb\n"),
    "statements on one line": ("x = 1; print(x); print(x + 1)", "1\n2\n"),
    "only a comment": ("# nothing to do", ""),
    "nothing at all": ("", ""),
    "only blank lines": ("\n\n   \n", ""),
    "names and strings of any script": ("größe = '\U0001f600 中'\nprint(größe)", "\U0001f600 中\n"),
}


@pytest.mark.req("cell.one-unit")
@pytest.mark.parametrize("name", WHOLE)
async def test_whatever_is_sent_in_one_piece_runs_as_one_cell(run, name: str) -> None:
    code, expected = WHOLE[name]
    result = await run(code)
    assert printed(result) == expected
    assert (result.cell, result.result, result.needs_more_input) == (1, None, False)


@pytest.mark.req("cell.one-unit")
async def test_three_megabytes_of_source_are_one_cell(run) -> None:
    line = "total += 1  # %s\n" % ("x" * 82)
    code = "total = 0\n" + line * 20_000 + 'text = """%s"""\n(total, len(text))' % ("y\n\n" * 400_000)
    assert len(code) > 3_000_000
    assert value(await run(code)) == "(20000, 1200000)"


INCOMPLETE = {
    "if True:": "IndentationError",
    "print('ran')\ndef f(x):": "IndentationError",
    "async with x:": "IndentationError",
    "print('ran')\nx = (1,": "SyntaxError",
    "await f(": "SyntaxError",
    "print('ran')\nx = '''abc\n\n": "SyntaxError",
    "print('ran')\ntry:\n    x = 1\n": "SyntaxError",
    "print('ran')\n@decorator": "SyntaxError",
    "x = 1 + \\": "SyntaxError",
    "    print('ran')\n    def f():": "IndentationError",
    "    x = [1,\n": "IndentationError",
}


@pytest.mark.req("cell.one-unit")
@pytest.mark.parametrize("code", INCOMPLETE)
async def test_incomplete_code_is_a_syntax_error_at_once_and_says_that_lines_are_missing(run, code: str) -> None:
    result = await run(code)
    assert (result.status, result.success, result.stdout, result.needs_more_input) == ("error", False, "", True)
    assert result.error.name == INCOMPLETE[code]
    assert result.error.traceback.startswith('  File "<cell 1>", line ')
    # There is no mode to go on in: the next cell stands for itself.
    assert value(await run("1 + 1")) == "2"


@pytest.mark.req("cell.one-unit")
@pytest.mark.parametrize(
    "code", ["1 +", "x = )", "def 1", "if x\n  y", "print('ran')\n  x = 1", "return 5", "\0", "'\\x'"]
)
async def test_wrong_code_is_a_syntax_error_that_more_lines_would_not_mend(run, code: str) -> None:
    result = await run(code)
    assert (result.status, result.stdout, result.needs_more_input) == ("error", "", False)
    assert result.error.name in ("SyntaxError", "IndentationError", "ValueError")


# --- compiled first ---


@pytest.mark.req("cell.compile-first")
@pytest.mark.parametrize(
    "end",
    ["yield 2", "return 2", "break", "def f():\n  nonlocal x", "(", "async def f():\n  yield 1\n  return 2", "1 = 2"],
)
async def test_a_cell_that_does_not_compile_runs_no_line_of_it(run, end: str) -> None:
    result = await run(f"print('ran')\nx = 1\n{end}")
    assert (result.status, result.error.name, result.stdout) == ("error", "SyntaxError", "")
    assert value(await run("'x' in globals()")) == "False"


@pytest.mark.req("cell.compile-first")
async def test_the_last_expression_compiles_before_the_first_statement_runs(run) -> None:
    # Parses, and is refused by the compiler only: the value of a cell is compiled apart from its body.
    result = await run("print('ran')\nx = 1\n(lambda: (yield))() + [(yield 1) for y in ()]")
    assert (result.status, result.error.name, result.stdout) == ("error", "SyntaxError", "")
    assert value(await run("'x' in globals()")) == "False"


# --- the last value ---


@pytest.mark.req("cell.last-value")
async def test_the_last_expression_is_shown_and_kept_in_underscore(run) -> None:
    assert value(await run("x = 20\nx + 1")) == "21"
    assert value(await run("_ * 2")) == "42"
    assert value(await run("def f():\n    return 'f'\nf()")) == "'f'"
    assert value(await run("_")) == "'f'"


@pytest.mark.req("cell.last-value")
async def test_none_statements_and_earlier_expressions_show_nothing_and_leave_underscore_alone(run) -> None:
    await run("'kept'")
    for code in ("None", "x = 1", "1\n2\nx = 3", "for i in range(2):\n    i", "import os", "def f(): pass", "f()"):
        result = await run(code)
        assert (result.status, result.result, result.stdout) == ("ok", None, "")
    assert value(await run("_")) == "'kept'"


@pytest.mark.req("cell.last-value")
@pytest.mark.parametrize(
    "code",
    ["1;", "1 ;  # why", "(\n  1\n);", "(1);\n\n", "print('a', end='');", "x = 1; x;", "'ä';", "f = 1\n[\n f\n] ;"],
)
async def test_a_semicolon_at_the_end_hides_the_value(run, code: str) -> None:
    await run("'before'")
    result = await run(code)
    assert (result.status, result.result, result.error) == ("ok", None, None)
    assert value(await run("_")) == "'before'"


@pytest.mark.req("cell.last-value")
@pytest.mark.parametrize(("code", "shown"), [("';'", "';'"), ("1  # ;", "1"), ("x = 1; x", "1"), ("'ä'  # ;", "'ä'")])
async def test_a_semicolon_elsewhere_hides_nothing(run, code: str, shown: str) -> None:
    assert value(await run(code)) == shown


@pytest.mark.req("cell.last-value")
async def test_a_display_hook_of_the_users_is_honoured(run) -> None:
    await run("import sys\nseen = []\nsys.displayhook = lambda v: print('hook', v) or seen.append(v)")
    for code, expected in (("6 * 7", "hook 42\n"), ("None", "hook None\n"), ("8;", "")):
        result = await run(code)
        assert (result.status, result.stdout, result.result) == ("ok", expected, None)
    result = await run("sys.displayhook = lambda v: 1 / 0\n1")
    assert (result.status, result.error.name) == ("error", "ZeroDivisionError")
    await run("sys.displayhook = sys.__displayhook__")
    assert (await run("seen")).stdout == "[42, None]\n"


@pytest.mark.req("cell.last-value")
async def test_a_value_whose_repr_fails_is_an_error_of_the_cell(run) -> None:
    result = await run("class Bad:\n    def __repr__(self):\n        raise ValueError('no picture')\nBad()")
    assert (result.status, result.result, result.error.name, result.error.value) == (
        "error",
        None,
        "ValueError",
        "no picture",
    )


# --- __future__ ---


@pytest.mark.req("cell.future")
async def test_future_flags_persist_over_cells(run) -> None:
    code = "def f(x: not_there): pass\nf.__annotations__"
    assert (await run(code)).error.name == "NameError"
    await run("from __future__ import annotations")
    assert value(await run(code)) == "{'x': 'not_there'}"
    await run("1 / 0")
    assert value(await run("from __future__ import generator_stop\n" + code)) == "{'x': 'not_there'}"


@pytest.mark.req("cell.future")
async def test_a_future_import_in_a_cell_that_does_not_compile_changes_nothing(run) -> None:
    result = await run("from __future__ import annotations\nyield 1")
    assert result.error.name == "SyntaxError"
    assert (await run("def f(x: not_there): pass")).error.name == "NameError"


@pytest.mark.req("cell.future")
async def test_a_future_that_changes_the_grammar_governs_bodies_and_values_of_later_cells(run) -> None:
    await run("from __future__ import barry_as_FLUFL")
    assert value(await run("x = 1 <> 2\nx, 1 <> 1")) == "(True, False)"
    assert (await run("1 != 2")).error.name == "SyntaxError"


# --- a user breaks only the own session ---

SABOTAGE = [
    "ast = 1; sys = 2; os = 3; compile = None; exec = None; eval = None; traceback = 4",
    "print = None",
    "__name__ = None; __file__ = 3",
    "del __builtins__",
    "__builtins__ = None",
    "__builtins__ = 5",
    "import builtins; builtins.print = None",
    "import builtins; builtins.Exception = None; builtins.BaseException = None",
    "import builtins; builtins.isinstance = builtins.len = builtins.getattr = builtins.type = None",
    "import builtins; builtins.compile = builtins.exec = builtins.eval = None",
    "import builtins; builtins.KeyboardInterrupt = builtins.SystemExit = builtins.SyntaxError = int",
    "import sys; sys.modules.clear()",
    "import sys; sys.modules['__main__'] = None; sys.modules['builtins'] = None",
    "import sys; sys.stdout = sys.stderr = sys.stdin = None",
    "import sys; del sys.stdout, sys.stderr, sys.stdin",
    "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
    "import sys; sys.__stdout__ = sys.__stderr__ = None",
    "import sys; sys.path.clear(); sys.meta_path.clear(); sys.path_hooks.clear()",
    "import sys; sys.displayhook = None",
    "import sys; del sys.displayhook",
    "import sys; sys.excepthook = None",
    "import sys; sys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
    "import sys; sys.setrecursionlimit(60)",
    "import os; os.close(0); os.close(1); os.close(2)",
    "import os; os.getpid = os.write = os.fstat = os.dup2 = None",
    "import time; time.perf_counter = time.monotonic_ns = None",
    "import ast, codeop, inspect, linecache; ast.Expr = codeop.compile_command = linecache.cache = None",
    "import linecache; linecache.cache.clear(); linecache.getlines = None",
    "import traceback; traceback.TracebackException = traceback.format_exception = None",
    "import json, struct, select; json.loads = json.dumps = struct.pack = struct.unpack = select.select = None",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); signal.getsignal = signal.signal = None",
    "import gc; gc.disable(); gc.set_threshold(1)",
    "import warnings; warnings.simplefilter('error'); warnings.catch_warnings = None",
    "import threading; threading.current_thread = threading.enumerate = None",
    "import codecs; codecs.lookup = None; codecs.register_error('backslashreplace', lambda e: ('', e.end))",
    "import os; os.environ.clear(); os.chdir('/')",
    "globals().clear()",
    "for name in list(globals()): del globals()[name]",
    "globals()[1] = 2; globals()[None] = 3",
]


@pytest.mark.req("cell.shadow")
@pytest.mark.parametrize("sabotage", SABOTAGE)
async def test_what_a_user_overwrites_breaks_his_own_code_only(run, sabotage: str) -> None:
    assert (await run("kept = 41")).status == "ok"
    broken = await run(sabotage)
    assert (broken.cell, broken.exit) == (2, None)
    result = await run("40 + 2;")
    assert (result.status, result.error) == ("ok", None)
    # Errors are still told, and none ends the session.
    failing = await run("1 // 0")
    assert (failing.status, failing.error.name, failing.exit) == ("error", "ZeroDivisionError", None)
    assert failing.error.value == "integer division or modulo by zero" or failing.error.value == "division by zero"
    wrong = await run("1 +")
    assert (wrong.status, wrong.error.name) == ("error", "SyntaxError")
    last = await run("x = 1")
    assert (last.cell, last.status) == (6, "ok")


@pytest.mark.req("cell.shadow")
@pytest.mark.parametrize(
    "sabotage",
    [
        "ast = 1",
        "del __builtins__",
        "import sys; sys.modules.clear()",
        "import sys; sys.stdout = None",
        "import sys; del sys.stdout",
        "import os; os.close(1); os.close(2)",
        "import builtins; builtins.Exception = None",
        "import builtins; builtins.isinstance = None",
    ],
)
async def test_the_cell_after_a_sabotage_still_has_values_output_and_state(run, sabotage: str) -> None:
    await run("kept = 41")
    await run(sabotage)
    result = await run("print('out')\nkept + 1")
    assert (result.status, result.stdout, result.result) == ("ok", "out\n", {"text/plain": "42"})


@pytest.mark.req("cell.shadow")
async def test_who_breaks_the_session_itself_is_told_so_and_goes_on_with_a_fresh_one(run) -> None:
    await run("import sys; broken = sys.modules['ingle_worker.session.worker'].Worker; broken._repair = None")
    result = await run("print('never runs')")
    assert (result.status, result.stdout, result.exit.code) == ("exit", "", 70)
    assert result.stderr == "the session failed: TypeError: 'NoneType' object is not callable\n"
    assert len(result.notices) == 1
    assert "variables, functions and imports are lost" in result.notices[0]
    assert (await run("print('runs')")).stdout == "runs\n"


@pytest.mark.req("cell.shadow")
async def test_what_was_put_back_for_the_next_cell_is_said(run) -> None:
    await run("import os, sys; os.close(1); sys.stderr = None")
    assert (await run("x = 1")).notices == [
        "descriptor 1 had been closed and was opened again",
        "sys.stderr was closed or None and was put back",
    ]


@pytest.mark.req("cell.shadow")
async def test_shadowed_names_of_one_session_are_not_shadowed_in_another(service: Service) -> None:
    await service.create_session("a")
    await service.execute("a", "import builtins; builtins.print = None; builtins.len = 3")
    await service.create_session("b")
    assert printed(await service.execute("b", "print(len('abc'))")) == "3\n"


# --- clean globals ---


@pytest.mark.req("cell.clean-globals")
async def test_a_fresh_session_has_the_globals_of_a_fresh_python(run) -> None:
    code = "print(sorted((k, type(v).__name__) for k, v in globals().items()))"
    expected = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed(await run(code)) == expected
    assert printed(
        await run("print(sorted(dir()) == sorted(globals()), __name__, __doc__, __package__, __spec__)")
    ) == ("True __main__ None None None\n")


@pytest.mark.req("cell.clean-globals")
async def test_no_cell_leaves_a_helper_in_globals_or_builtins(run) -> None:
    await run(
        "import builtins\nbefore = set(globals()) | {'before', 'now'}\nwas = set(dir(builtins)); before.add('was')"
    )
    for code in ("1", "import asyncio\nawait asyncio.sleep(0)", "1 / 0", "1 +", "print(3)"):
        await run(code)
    assert printed(await run("print(sorted(set(globals()) - before), sorted(set(dir(builtins)) - was))")) == (
        "['asyncio'] ['_']\n"
    )


@pytest.mark.req("cell.clean-globals")
async def test_main_is_the_session_and_what_it_defines_can_be_pickled(run) -> None:
    await run("class Point:\n    def __init__(self, x):\n        self.x = x\n\ndef double(x):\n    return 2 * x\n")
    assert value(await run("import sys\nsys.modules['__main__'].__dict__ is globals(), Point.__module__")) == (
        "(True, '__main__')"
    )
    code = "import pickle\ncopy = pickle.loads(pickle.dumps(Point(3)))\ntype(copy) is Point, copy.x"
    assert value(await run(code)) == "(True, 3)"
    assert value(await run("pickle.loads(pickle.dumps(double)) is double")) == "True"


@pytest.mark.req("cell.clean-globals")
async def test_multiprocessing_takes_the_users_functions_and_classes(run) -> None:
    code = """
    import multiprocessing as mp

    class Point:
        def __init__(self, x):
            self.x = x

    def move(point):
        print(f"moved {point.x}\\n", end="")
        return Point(point.x + 1)

    with mp.get_context("fork").Pool(2) as pool:
        moved = pool.map(move, [Point(1), Point(2)], chunksize=1)
    [type(p) is Point for p in moved], [p.x for p in moved]
    """
    result = await run(dedent(code))
    assert value(result) == "([True, True], [2, 3])"
    assert sorted(result.stdout.splitlines()) == ["moved 1", "moved 2"]


@pytest.mark.req("cell.clean-globals")
async def test_a_forked_child_that_returns_from_the_cell_is_not_the_session(run) -> None:
    result = await run("import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nprint(pid > 0)")
    assert printed(result) == "False\nTrue\n"
    assert value(await run("pid > 0")) == "True"


# --- the folder ---


@pytest.mark.req("cell.cwd")
async def test_a_session_starts_in_a_workspace_of_its_own(service: Service, home: Path) -> None:
    infos = [await service.create_session(name) for name in ("a", "b")]
    folders = [(await service.execute(name, "import os; print(os.getcwd())")).stdout.strip() for name in ("a", "b")]
    assert [info.cwd for info in infos] == folders
    assert len(set(folders)) == 2
    for folder in folders:
        assert Path(folder).is_relative_to(home / "sessions")
        assert list(Path(folder).iterdir()) == []


@pytest.mark.req("cell.cwd")
async def test_a_session_starts_in_the_folder_it_is_given(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "neighbour.py").write_text("name = 'neighbour'\n")
    info = await service.create_session("s", cwd=str(folder))
    assert info.cwd == str(folder)
    result = await service.execute("s", "import os, neighbour\nos.getcwd(), neighbour.name")
    assert value(result) == repr((str(folder), "neighbour"))
    await service.end_session("s")
    assert (folder / "neighbour.py").exists()


@pytest.mark.req("cell.cwd")
async def test_the_folder_is_on_the_path_as_an_empty_string_and_follows_chdir(run) -> None:
    assert value(await run("import sys; sys.path[0], sys.path.count('')")) == "('', 1)"
    await run("import os; os.mkdir('sub'); open('sub/inner.py', 'w').write('here = 1\\n')")
    assert (await run("import inner")).error.name == "ModuleNotFoundError"
    await run("os.chdir('sub')")
    assert value(await run("import inner; inner.here")) == "1"
    assert value(await run("os.path.basename(os.getcwd()), sys.path[0]")) == "('sub', '')"
