"""The scanner of magics on modules of the standard library. It starts no process, but is slow for a unit test."""

import ast
import io
import sysconfig
import tokenize
import warnings
from pathlib import Path

import pytest

from ingle_worker.magics import scan, translate
from ingle_worker.session.compiler import Compiler

pytestmark = pytest.mark.req("rich.magics")


def library() -> list[Path]:
    return [
        path
        for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
        if "site-packages" not in path.parts and path.stat().st_size < 200_000
    ]


def starts(code: str) -> list[int]:
    """The lines on which statements begin, by Python's own tokenizer."""
    lines, fresh = [], True
    between = (tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.NEWLINE:
            fresh = True
        elif fresh and token.type not in between:
            lines.append(token.start[0])
            fresh = False
    return lines


@pytest.mark.timeout(300)
def test_the_scanner_sees_statements_of_the_standard_library_where_python_sees_them() -> None:
    seen = 0
    for path in library()[::50]:
        code = path.read_text(encoding="utf-8", errors="replace")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(code)
        except SyntaxError:
            continue
        # Every statement gets a magic before it; the text must then hold exactly these.
        lines = code.split("\n")
        for number in reversed(starts(code)):
            lines.insert(number - 1, "!here")
        assert scan.find(code) == [], path
        assert len(scan.find("\n".join(lines))) == len(starts(code)), path
        seen += 1
    assert seen > 20


def test_what_is_valid_python_is_compiled_as_it_stands() -> None:
    compiler = Compiler()
    changed = []
    # Each fourth of some 1,700: their text is like that of the others.
    for path in library()[::4]:
        code = path.read_text(encoding="utf-8", errors="replace")
        if scan.MAYBE.search(code) is not None and translate.find(code) and compiler._is_python(code):
            changed.append(path)
    assert changed == []
