"""A cell becomes code as one unit: what is shown, what is taken as it is, what stays for later, what is refused."""

import __future__

import argparse
import asyncio
import inspect
import sys
import textwrap
import typing
from types import ModuleType
from typing import Any

import pytest

from ingle_worker.session.compiler import SYNTAX_ERRORS, Compiled, Compiler, needs_more_input

NOTHING = object()


def run(compiled: Compiled, space: dict[str, Any] | None = None) -> Any:
    """The value that would be shown, or NOTHING. Code of one line shows its value by itself."""
    space = {} if space is None else space
    shown = [NOTHING]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "displayhook", shown.append)
        if compiled.body is not None:
            exec(compiled.body, space)
        if compiled.last is not None:
            sys.displayhook(eval(compiled.last, space))
    assert len(shown) <= 2
    return shown[-1]


def value_of(code: str) -> Any:
    return run(Compiler().compile(code, "<cell 1>"))


# --- the last value ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", 2),
        ("x = 4\nx * 2", 8),
        ("x = 4; x * 2", 8),
        ("None", None),
        ("(1,\n 2,\n)", (1, 2)),
        ("5  # a remark; with a semicolon", 5),
        ("';'", ";"),
        ("'a'  # ;", "a"),
        ("'''\n;'''", "\n;"),
        ("(5)", 5),
        ("\n\n5\n\n# end\n", 5),
        ("'ä🔥'", "ä🔥"),
        ("'\\ud800'", "\ud800"),
        ("(x := 3)", 3),
        ("[i for i in range(3)]", [0, 1, 2]),
        ("lambda: 1\n5", 5),
        ("5\r\n", 5),
        ("x = 2\r\nx\r\n", 2),
    ],
)
def test_the_value_of_a_last_expression_is_kept(code: str, value: Any) -> None:
    assert value_of(code) == value


@pytest.mark.parametrize(
    "code",
    [
        "",
        "   ",
        "\n\n",
        "# only a remark",
        "x = 1",
        "pass",
        "if True:\n    5",
        "for i in range(2): i",
        "def f():\n    return 1",
        "import os",
        "5\nx = 1",
        "x: int = 1",
        "assert True",
    ],
)
def test_other_last_statements_have_no_value(code: str) -> None:
    assert value_of(code) is NOTHING


@pytest.mark.parametrize(
    "code",
    [
        "5;",
        "5 ;",
        "5\t; # remark",
        "(5);",
        "((5) );",
        "(\n5\n);",
        "(5  # remark\n);",
        "5 \\\n;",
        "x = 1; x;",
        "'ä🔥';",
        "'''a\nb''';",
        "    5;",
        "x = 1\r\nx;\r\n",
        "x = 1\rx;",
        "5;\n# end\n\n",
    ],
)
def test_a_semicolon_hides_the_value(code: str) -> None:
    assert value_of(code) is NOTHING


def test_a_lone_surrogate_in_the_source_is_refused_as_a_syntax_error_is() -> None:
    with pytest.raises(SYNTAX_ERRORS):
        Compiler().compile("'\ud800'", "<cell 1>")


@pytest.mark.parametrize("module", [argparse, inspect, textwrap, typing])
def test_a_line_is_taken_by_itself_if_and_only_if_it_is_a_cell(module: ModuleType) -> None:
    def compiles(line: str) -> bool:
        try:
            Compiler()._compile_tree(line, "<cell 1>")
        except SYNTAX_ERRORS:
            return False
        return True

    lines = {line.strip() for line in inspect.getsource(module).splitlines() if not set(line) & set(":;\\")}
    quick = {line for line in lines if Compiler()._compile_line(line, "<cell 1>")}
    assert len(quick) > 50
    # A blank line or a remark is a cell, but nothing that a prompt would take.
    assert quick == {line for line in lines if line and not line.startswith("#") and compiles(line)}


# --- indented code -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("    x = 1\n    x + 1", 2),
        ("\tx = 1\n\tx + 1", 2),
        ("\n\n  5\n", 5),
        ("# remark\n    x = 3\n# remark\n    x", 3),
        ("    if True:\n        x = 1\n    else:\n        x = 2\n    x", 1),
        ("    def f():\n        return 7\n\n    f()", 7),
        ("    '''a\nb\n    c'''", "a\nb\n    c"),
        ('    x = """\n  two\n      six"""\n    x', "\n  two\n      six"),
    ],
)
def test_code_that_is_indented_as_a_whole_runs_and_its_strings_are_untouched(code: str, value: Any) -> None:
    assert value_of(code) == value


@pytest.mark.parametrize(
    "code", ["    x = 1\ny = 2", "  x = 1\n    y = 2", "x = 1\n    y = 2", "    x = 1\nelse:\n    y = 2", "  )"]
)
def test_code_with_uneven_indentation_is_refused_in_its_own_words(code: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        Compiler().compile(code, "<cell 1>")
    with pytest.raises(SyntaxError) as pythons:
        compile(code, "<cell 1>", "exec")
    assert (caught.value.msg, caught.value.lineno) == (pythons.value.msg, pythons.value.lineno)


def test_lines_and_columns_of_indented_code_are_those_of_the_source() -> None:
    compiled = Compiler().compile("\n    def f(): pass\n    missing", "<cell 1>")
    assert compiled.last is not None
    assert (3, 3, 4, 11) in set(compiled.last.co_positions())


# --- the whole cell first ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "x = 1\nyield 2",
        "x = 1\nreturn 2",
        "x = 1\nbreak",
        "x = 1\n1 = x",
        "x = 1\nf(x=1, x=2)",
        "x = 1\nx +",
        "x = 1\nnonlocal x",
        "x = 1\nglobal x",
        "x = 1\nfrom __future__ import annotations",
        "x = 1\nfrom __future__ import braces",
        "def f(a, a): pass",
        "x = (yield)",
        "[(yield x) for x in ()]",
    ],
)
def test_a_cell_with_a_mistake_anywhere_is_refused_as_a_whole(code: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        Compiler().compile(code, "<cell 7>")
    assert caught.value.filename == "<cell 7>"


@pytest.mark.parametrize(
    "code",
    [
        "x = 1\0",
        "(" * 10_000,
        "(" * 10_000 + ")" * 10_000,
        "-" * 100_000 + "1",
        "x = " + "[" * 5_000 + "]" * 5_000,
        "x" + ".y" * 200_000,
        "9" * 10_000,
        "x = " + "1 + " * 200_000 + "1",
        "if 1:\n" + "".join(" " * depth + "if 1:\n" for depth in range(1, 200)),
    ],
    ids=["nul", "open", "parentheses", "minus", "brackets", "dots", "digits", "plus", "indents"],
)
def test_what_the_compiler_cannot_take_is_one_of_the_named_errors(code: str) -> None:
    compiler = Compiler()
    with pytest.raises(SYNTAX_ERRORS):
        compiler.compile(code, "<cell 1>")
    assert run(compiler.compile("1 + 1", "<cell 2>")) == 2


# --- from __future__ ---------------------------------------------------------------------------------------


def annotations_of(compiler: Compiler) -> Any:
    space: dict[str, Any] = {}
    run(compiler.compile("def f(x: int): pass", "<cell 2>"), space)
    return space["f"].__annotations__


def test_future_flags_stay_for_later_cells() -> None:
    compiler = Compiler()
    assert annotations_of(compiler) == {"x": int}
    compiler.compile("from __future__ import annotations", "<cell 1>")
    assert annotations_of(compiler) == {"x": "int"}
    assert annotations_of(compiler) == {"x": "int"}


def test_future_flags_hold_in_the_last_expression_of_their_own_cell() -> None:
    compiled = Compiler().compile("from __future__ import annotations\nlambda: 1", "<cell 1>")
    assert compiled.last is not None
    assert compiled.last.co_flags & __future__.annotations.compiler_flag


@pytest.mark.parametrize(
    "code",
    [
        "from __future__ import annotations\nx +",
        "from __future__ import annotations\nyield 1",
        "from __future__ import annotations\nx = 1\n(yield 1)",
        "from __future__ import annotations, braces",
    ],
)
def test_a_cell_that_does_not_compile_leaves_no_flags(code: str) -> None:
    compiler = Compiler()
    with pytest.raises(SyntaxError):
        compiler.compile(code, "<cell 1>")
    assert compiler.flags == 0
    assert annotations_of(compiler) == {"x": int}


def test_each_compiler_has_its_own_flags() -> None:
    one, other = Compiler(), Compiler()
    one.compile("from __future__ import annotations", "<cell 1>")
    assert annotations_of(other) == {"x": int}


def test_future_flags_change_how_later_cells_are_parsed() -> None:
    compiler = Compiler()
    compiler.compile("from __future__ import barry_as_FLUFL", "<cell 1>")
    assert run(compiler.compile("1 <> 2", "<cell 2>")) is True


# --- await -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "awaits"),
    [
        ("import asyncio\nawait asyncio.sleep(0)", True),
        ("x = await f()", True),
        ("await f()\n5", True),
        ("async with f(): pass", True),
        ("async for x in f(): pass", True),
        ("[x async for x in f()]", True),
        ("async def f():\n    await g()", False),
        ("x = 1\nx", False),
        ("'await f()'", False),
        ("", False),
    ],
)
def test_whether_a_cell_awaits_is_known(code: str, awaits: bool) -> None:
    assert Compiler().compile(code, "<cell 1>").awaits is awaits


def test_code_that_awaits_is_a_coroutine_with_a_value() -> None:
    compiled = Compiler().compile("import asyncio\nawait asyncio.sleep(0, 'slept')", "<cell 1>")
    assert compiled.last is not None
    assert compiled.last.co_flags & inspect.CO_COROUTINE
    space: dict[str, Any] = {}
    exec(compiled.body, space)  # type: ignore[arg-type]
    assert asyncio.run(eval(compiled.last, space)) == "slept"


@pytest.mark.parametrize(
    ("code", "lasting"),
    [("x = 1", False), ("x + 1", False), ("def f(): pass", True), ("class A: pass", True), ("lambda: 1", True)],
)
def test_what_makes_functions_keeps_its_source(code: str, lasting: bool) -> None:
    assert Compiler().compile(code, "<cell 1>").lasting is lasting


# --- unfinished code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "if True:",
        "def f():",
        "def f():\n    x = 1\n    if x:",
        "for i in range(3):\n",
        "x = (1,",
        "x = [\n1,\n",
        "print('a'",
        "'''text",
        "x = '''\ntext",
        "x = 1 + \\",
        "try:\n    x = 1",
        "class A:",
        "@decorator",
        "with a as b:",
        "async def f():",
        "    if True:",
        "    x = (1,",
    ],
)
def test_more_lines_could_complete_it(code: str) -> None:
    with pytest.raises(SyntaxError):
        Compiler().compile(code, "<cell 1>")
    assert needs_more_input(code) is True


@pytest.mark.parametrize(
    "code",
    [
        "x = )",
        "x = 1 2",
        "if True\n    x",
        "1 = x",
        "'text",
        "x +",
        "def f(:",
        "yield 1",
        "x = 1\nyield 2",
        "return",
        "    x = 1\ny = 2",
        "x = (]",
        "if True:\nx = 1",
        "a b c",
        "x = 1\0",
        "(" * 10_000,
        "-" * 100_000 + "1",
    ],
)
def test_no_more_lines_could_mend_it(code: str) -> None:
    with pytest.raises(SYNTAX_ERRORS):
        Compiler().compile(code, "<cell 1>")
    assert needs_more_input(code) is False
