"""Where a magic may stand, and where what looks like one is left alone."""

import ast
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingle_worker.magics import scan, translate

pytestmark = pytest.mark.req("rich.magics")


def found(code: str) -> list[tuple[str, str, str]]:
    return [(each.sign, each.name, each.text.strip()) for each in scan.find(code)]


@pytest.mark.parametrize(
    ("code", "magics"),
    [
        ("!ls", [("!", "", "ls")]),
        ("  !ls -l", [("!", "", "ls -l")]),
        ("!!ls", [("!!", "", "ls")]),
        ("x = !ls", [("!", "", "ls")]),
        ("x, y = !ls", [("!", "", "ls")]),
        ("d['a'].b = !ls", [("!", "", "ls")]),
        ("a = b = %pwd", [("%", "pwd", "")]),
        ("%cd ..", [("%", "cd", "..")]),
        ("# first\n\n%%bash -e\n!x", [("%%", "bash", "-e"), ("!", "", "x")]),
        ("if x:\n    !ls\nelse:\n\t%pwd", [("!", "", "ls"), ("%", "pwd", "")]),
        ("!echo a \\\n  b\nx = 1", [("!", "", "echo a \\\n  b")]),
        ("%cd a \\\n  b", [("%", "cd", "a    b")]),
        ("%time f(1,\n  2)\n!ls", [("%", "time", "f(1,\n  2)"), ("!", "", "ls")]),
        ("!echo don't\n!echo 'so", [("!", "", "echo don't"), ("!", "", "echo 'so")]),
        ("len?", [("?", "len", "")]),
        ("os.path??", [("??", "os.path", "")]),
        ("?len", [("?", "len", "")]),
        ("%timeit?", [("?", "%timeit", "")]),
        ("x = '''\n!ls\n'''\n!pwd", [("!", "", "pwd")]),
        ("x = (1\n%time\n)\n%pwd", [("%", "pwd", "")]),
        ("x = 5 \\\n%time\n%pwd", [("%", "pwd", "")]),
        ("# !ls\n#%pwd\n%pwd", [("%", "pwd", "")]),
        ('x = "a\\\n!b"\n!c', [("!", "", "c")]),
    ],
)
def test_a_magic_is_found_where_a_statement_begins(code: str, magics: list[tuple[str, str, str]]) -> None:
    assert found(code) == magics


@pytest.mark.parametrize(
    "code",
    [
        "x = 1 != 2",
        "x = 5\nx %= 3",
        "'%s' % x",
        "a = (b\n  % c)",
        "a = b \\\n  % c",
        "print('''\n%time x\n!ls\n''')",
        "f(\n!r\n)",
        "x % y",
        "% 5",
        "%5",
        "!= 3",
        "'''a?'''",
        "x = '?'\ny  # really?",
        "# what?",
        "x == %y",
        "x: !ls",
        "%time: 5",
    ],
)
def test_what_only_looks_like_a_magic_is_none(code: str) -> None:
    assert found(code) == []


@pytest.mark.skipif(not scan.NESTED_QUOTES, reason="f-strings nest their quotes from 3.12 on")
@pytest.mark.parametrize(
    "code",
    [
        "f'{x['a']}'\n",
        "f'{f'{1}'}'\n",
        "f'{x:{'>'}{10}}'\n",
        "f'{{'\n",
        "f'{x!r:^{w}}'\n",
        "f'\\N{DIGIT ONE}'\n",
        "f'''{\n'''\n!a\n'''\n}'''\n",
        "rf'\\{x}'\n",
        "f'{lambda_[1:2]}' + '}'\n",
    ],
)
def test_the_quotes_inside_of_an_f_string_do_not_end_it(code: str) -> None:
    assert found(code) == []
    assert found(code + "!ls") == [("!", "", "ls")]


LINE = st.sampled_from(
    [
        "x = 1",
        "x %= 2",
        "'''",
        '"""',
        "f(",
        ")",
        "[",
        "]",
        "# !a",
        "x = '%s' % \\",
        "%d",
        "a != b",
        "  y",
        "{",
        "}",
        "\\",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(LINE | st.text("ab!%?'\"\\\n =()#", max_size=12), max_size=12).map("\n".join))
@example("'''\n!a\n'''")
@example("x = (\n%time\n)")
def test_text_that_python_takes_is_never_translated(code: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError):
        return
    assert translate.find(code) == []


@settings(max_examples=300, deadline=None)
@given(st.text("ab!%?'\"\\\n =()#{}f\r\t", max_size=60))
@example("!a \\\n b\nx = 1")
@example("%%bash\na\nb")
@example("%time f(\n1)\n5")
def test_translation_keeps_every_line_in_its_place(code: str) -> None:
    translated = translate.plain(code)
    if translated is code:
        return
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert len(translated.split("\n")) == len(lines)
    for before, after in zip(lines, translated.split("\n"), strict=True):
        assert after == before or after == "" or after.rstrip().endswith("...")
