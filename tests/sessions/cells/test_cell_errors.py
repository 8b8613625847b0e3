"""Cells that raise: what is told of it, and what can be looked at afterwards."""

import sys
from textwrap import dedent

import pytest

from ingle.service import Service


@pytest.fixture
def run(run):
    """As everywhere, but its code may be indented as the test is."""
    return lambda code, **options: run(dedent(code).strip("\n"), **options)


def plain(traceback: str) -> str:
    """A traceback without the lines of carets, which differ between Pythons."""
    return "".join(line for line in traceback.splitlines(True) if set(line.strip()) - set("^~") or not line.strip())


# --- tracebacks ---


@pytest.mark.req("cell.traceback")
async def test_a_traceback_has_the_users_frames_with_the_lines_of_every_cell(run) -> None:
    await run("def inner(x):\n\n    return 1 / x")
    await run("def outer(x):\n    return inner(x)  # of cell 2")
    result = await run("y = 0\nouter(y)")
    assert (result.status, result.success, result.stdout, result.stderr) == ("error", False, "", "")
    assert (result.error.name, result.error.value) == ("ZeroDivisionError", "division by zero")
    assert plain(result.error.traceback) == dedent(
        """\
        Traceback (most recent call last):
          File "<cell 3>", line 2, in <module>
            outer(y)
          File "<cell 2>", line 2, in outer
            return inner(x)  # of cell 2
          File "<cell 1>", line 3, in inner
            return 1 / x
        ZeroDivisionError: division by zero
        """
    )


@pytest.mark.req("cell.traceback")
async def test_a_redefined_function_shows_the_lines_of_the_cell_it_came_from(run) -> None:
    await run("def f():\n    return 1 / 0  # the first\nold = f")
    await run("def f():\n    return 1 / 0  # the second")
    assert "return 1 / 0  # the first\n" in (await run("old()")).error.traceback
    assert "return 1 / 0  # the second\n" in (await run("f()")).error.traceback


@pytest.mark.req("cell.traceback")
@pytest.mark.parametrize(
    "catch",
    [
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    saved = error",
        "import contextlib\nclass Keep:\n    def __enter__(self): pass\n    def __exit__(self, t, v, tb):\n"
        "        global saved\n        saved = v\n        return True\nwith Keep():\n    1 / 0",
    ],
)
async def test_an_exception_kept_from_an_earlier_cell_still_has_its_lines(run, catch: str) -> None:
    await run(catch)
    result = await run("raise saved")
    assert '  File "<cell 2>", line 1, in <module>\n    raise saved\n' in result.error.traceback
    assert ", in <module>\n    1 / 0\n" in result.error.traceback
    assert "<cell 1>" in result.error.traceback


@pytest.mark.req("cell.traceback")
async def test_frames_of_libraries_are_shown_and_frames_of_the_runner_never(run) -> None:
    codes = [
        "import json\njson.loads('{')",
        "import asyncio\nawait asyncio.wait_for(asyncio.sleep(9), 0)",
        "async def f():\n    1 / 0\nawait f()",
        "class Bad:\n    def __repr__(self):\n        return 1 / 0\nBad()",
        "import sys\nsys.displayhook = lambda v: 1 / 0\n5",
        "exec('1 / 0')",
        "eval('1 +')",
        "int('x')",
        "input(0) if 0 else open('/not/there')",
        "try:\n    1 / 0\nfinally:\n    [][1]",
        "import subprocess\nsubprocess.run(['false'], check=True)",
        "print(object(), file=3)",
        # These go through the runner's own streams and readers.
        "import sys\nsys.stdout.write(3)",
        "print('x', end=3)",
        "class Loud:\n    def __str__(self):\n        return 1 / 0\nprint(Loud())",
        "try:\n    sys.stdout.write(3)\nexcept TypeError as e:\n    raise KeyError(1) from e",
        "sys.stdin.read('x')",
        "import threading\nthreading.Thread().start(3)",
    ]
    for code in codes:
        traceback = (await run(code)).error.traceback
        assert traceback.startswith("Traceback (most recent call last):\n"), code
        assert "ingle" not in traceback, code
        assert "<cell " in traceback, code
    assert "json/decoder.py" in (await run(codes[0])).error.traceback


@pytest.mark.req("cell.traceback")
async def test_a_syntax_error_shows_the_line_and_no_stack(run) -> None:
    result = await run("x = 1\ny = = 2")
    assert plain(result.error.traceback) == ('  File "<cell 1>", line 2\n    y = = 2\nSyntaxError: invalid syntax\n')
    result = await run("compile('y = = 2', 'other.py', 'exec')")
    assert plain(result.error.traceback) == dedent(
        """\
        Traceback (most recent call last):
          File "<cell 2>", line 1, in <module>
            compile('y = = 2', 'other.py', 'exec')
          File "other.py", line 1
            y = = 2
        SyntaxError: invalid syntax
        """
    )


@pytest.mark.req("cell.traceback")
async def test_causes_and_contexts_are_shown_without_runner_frames(run) -> None:
    result = await run(
        """
        try:
            int("x")
        except ValueError as error:
            raise KeyError("k") from error
        """
    )
    assert plain(result.error.traceback) == dedent(
        """\
        Traceback (most recent call last):
          File "<cell 1>", line 2, in <module>
            int("x")
        ValueError: invalid literal for int() with base 10: 'x'

        The above exception was the direct cause of the following exception:

        Traceback (most recent call last):
          File "<cell 1>", line 4, in <module>
            raise KeyError("k") from error
        KeyError: 'k'
        """
    )


@pytest.mark.req("cell.traceback")
@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes and groups came with 3.11")
async def test_notes_and_groups_are_shown(run) -> None:
    result = await run("e = ValueError('v')\ne.add_note('first note')\ne.add_note('second\\nnote')\nraise e")
    assert result.error.traceback.endswith("ValueError: v\nfirst note\nsecond\nnote\n")
    result = await run("raise ExceptionGroup('several', [ValueError(1), TypeError('two')])")
    assert (result.error.name, result.error.value) == ("ExceptionGroup", "several (2 sub-exceptions)")
    assert plain(result.error.traceback) == (
        "  + Exception Group Traceback (most recent call last):\n"
        '  |   File "<cell 2>", line 1, in <module>\n'
        "  |     raise ExceptionGroup('several', [ValueError(1), TypeError('two')])\n"
        "  | ExceptionGroup: several (2 sub-exceptions)\n"
        "  +-+---------------- 1 ----------------\n"
        "    | ValueError: 1\n"
        "    +---------------- 2 ----------------\n"
        "    | TypeError: two\n"
        "    +------------------------------------\n"
    )


@pytest.mark.req("cell.traceback")
async def test_inspect_finds_the_source_of_what_cells_defined(run) -> None:
    await run(
        """
        class First:
            def method(self):
                return 1

        def function(x):
            # a comment

            return x

        anonymous = lambda x: x + 1
        """
    )
    await run("class Second(First):\n    pass\nasync def coroutine():\n    return 2")
    await run("x = 1\n1 / 0")
    result = await run(
        """
        import inspect
        for each in (First, First.method, function, anonymous, Second, coroutine):
            print(inspect.getsource(each), end="|")
        """
    )
    assert (result.error, result.stdout) == (
        None,
        "class First:\n    def method(self):\n        return 1\n|"
        "    def method(self):\n        return 1\n|"
        "def function(x):\n    # a comment\n\n    return x\n|"
        "anonymous = lambda x: x + 1\n|"
        "class Second(First):\n    pass\n|"
        "async def coroutine():\n    return 2\n|",
    )


@pytest.mark.req("cell.traceback")
async def test_an_exception_that_cannot_describe_itself_is_still_an_error_of_the_cell(run) -> None:
    result = await run("class Mute(Exception):\n    def __str__(self):\n        1 / 0\nraise Mute")
    assert (result.status, result.error.name, result.error.value) == ("error", "Mute", "<exception str() failed>")
    result = await run("class Fatal(BaseException):\n    def __str__(self):\n        raise SystemExit\nraise Fatal")
    assert (result.status, result.error.name, result.error.value) == ("error", "Fatal", "")
    assert result.error.traceback == (
        'Traceback (most recent call last):\n  File "<cell 2>", line 4, in <module>\nFatal: \n'
    )
    assert (await run("print('on')")).stdout == "on\n"


@pytest.mark.req("cell.traceback")
async def test_endless_recursion_is_told_in_bounded_text(run) -> None:
    result = await run("def f():\n    f()\nf()")
    assert (result.status, result.error.name) == ("error", "RecursionError")
    assert '  File "<cell 1>", line 2, in f\n    f()\n' in result.error.traceback
    assert len(result.error.traceback) < 5000
    result = await run("raise ValueError('x' * 3_000_000)")
    assert len(result.error.value) < 200_000
    assert len(result.error.traceback) < 1_100_000
    assert (await run("print('on')")).stdout == "on\n"


@pytest.mark.req("cell.traceback")
async def test_errors_are_named_with_their_module_unless_builtin_or_the_users(run) -> None:
    codes = ("1 / 0", "class Mine(Exception): pass\nraise Mine", "import json; json.loads('')")
    names = [(await run(code)).error.name for code in codes]
    assert names == ["ZeroDivisionError", "Mine", "json.decoder.JSONDecodeError"]


# --- the last exception ---


@pytest.mark.req("cell.last-exc")
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def f():\n    deep = 7\n    1 / 0\nf()", "ZeroDivisionError"),
        ("x = = 1", "SyntaxError"),
        ("[][0]", "IndexError"),
    ],
)
async def test_the_last_exception_is_where_python_puts_it(run, code: str, name: str) -> None:
    await run("raise LookupError('an earlier one')")
    await run(code)
    result = await run(
        """
        import sys
        assert sys.last_exc is sys.last_value
        assert sys.last_type is type(sys.last_exc)
        assert sys.last_traceback is sys.last_exc.__traceback__
        files, tb = [], sys.last_traceback
        while tb:
            files.append(tb.tb_frame.f_code.co_filename)
            tb = tb.tb_next
        print(sys.last_type.__name__, set(files))
        """
    )
    assert (result.error, result.stdout) == (None, f"{name} {set() if name == 'SyntaxError' else {'<cell 2>'}}\n")


@pytest.mark.req("cell.last-exc")
async def test_a_fresh_session_has_no_last_exception_and_a_good_cell_leaves_the_last_one(run) -> None:
    assert (await run("import sys; print([n for n in dir(sys) if n.startswith('last_')])")).stdout == "[]\n"
    await run("1 / 0")
    await run("x = 1")
    assert (await run("print(repr(sys.last_value))")).stdout == "ZeroDivisionError('division by zero')\n"


@pytest.mark.req("cell.last-exc")
async def test_the_debugger_looks_at_the_last_exception(service: Service, run) -> None:
    await run("def f(x):\n    deep = x * 2\n    return 1 / 0\nf(21)")
    result = await run("import pdb\npdb.pm()")
    assert (result.status, result.prompt, result.prompt_secret) == ("waiting_for_input", "(Pdb) ", False)
    assert "> <cell 1>(3)f()\n-> return 1 / 0\n" in result.stdout
    result = await service.input("s", "p deep")
    assert (result.status, result.stdout[-len("(Pdb) 42\n(Pdb) ") :]) == ("waiting_for_input", "(Pdb) 42\n(Pdb) ")
    result = await service.input("s", "up")
    assert "> <cell 1>(4)<module>()\n-> f(21)\n" in result.stdout
    result = await service.input("s", "up")
    assert "*** Oldest frame\n" in result.stdout
    result = await service.input("s", "q")
    assert (result.status, result.error) == ("ok", None)
