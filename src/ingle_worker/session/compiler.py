"""Compilation of a cell: the whole cell is compiled before any of it runs.

A last statement that is an expression is compiled separately, so that its value can be shown. Uniformly indented code
is accepted without changing strings. `from __future__` flags apply to later cells too.
"""

import __future__

import ast
import codeop
import inspect
import warnings
from types import CodeType
from typing import NamedTuple

from ingle_worker.magics import translate

FUTURE_MASK = 0
for _name in __future__.all_feature_names:
    FUTURE_MASK |= getattr(__future__, _name).compiler_flag
# `nested_scopes` shares its bit with CO_NESTED, which compile() refuses.
FUTURE_MASK &= ~__future__.nested_scopes.compiler_flag

SYNTAX_ERRORS = (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError)
"""Exceptions of compile() for bad text, such as NUL bytes, huge numbers or deep nesting."""


INDENT = " " * 4

_NOT_ONE_LINE = frozenset("\n\r\f\\:;")
"""Without any of these characters a cell is one simple statement, and no parser warning can appear twice."""


class Compiled(NamedTuple):
    body: CodeType | None
    last: CodeType | None
    awaits: bool
    lasting: bool
    """Functions, classes or caught exceptions may outlive the cell, so its source must stay available."""


class Compiler:
    def __init__(self) -> None:
        self.flags = 0

    def compile(self, code: str, filename: str) -> Compiled:
        line = self._compile_line(code, filename) if _NOT_ONE_LINE.isdisjoint(code) else None
        return line or self._compile_tree(code, filename)

    def check(self, code: str) -> tuple[str, str]:
        """Return whether code is `complete`, `incomplete` or `invalid`, and the indentation of its next line.

        A block is incomplete until an empty line ends it, as at the prompt of Python.
        """
        last = code.rpartition("\n")[2]
        indent = last[: len(last) - len(last.lstrip())]
        if needs_more_input(code):
            return "incomplete", indent + (INDENT if last.rstrip().endswith(":") else "")
        if code.startswith("%%"):
            return ("complete", "") if "\n" in code else ("incomplete", "")
        try:
            translated = self._translate(code, "<cell>") if "%" in code or "!" in code or "?" in code else None
            self._parse(code if translated is None else translated.source, "<cell>")
        except SYNTAX_ERRORS:
            return "invalid", ""
        in_block = "\n" in code and last.strip() and last[0].isspace() and not is_indented(code)
        return ("incomplete", indent) if in_block else ("complete", "")

    def _compile_line(self, code: str, filename: str) -> Compiled | None:
        """Compile one simple statement on one line without a syntax tree, in a third of the time.

        The "single" mode passes the value of an expression to `sys.displayhook` itself. Return None if the full
        compilation is needed. Errors always use the full one, so that they look the same.
        """
        try:
            flags = self.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            made = compile(code, filename, "single", flags, dont_inherit=True)
        except SYNTAX_ERRORS:
            return None
        if made.co_flags & inspect.CO_COROUTINE:
            return None
        self.flags = (flags | made.co_flags) & FUTURE_MASK
        lasting = bool(getattr(made, "co_exceptiontable", b"unknown"))
        for const in made.co_consts:
            lasting = lasting or type(const) is CodeType
        return Compiled(made, None, False, lasting)

    def _compile_tree(self, code: str, filename: str) -> Compiled:
        translated = self._translate(code, filename) if "%" in code or "!" in code or "?" in code else None
        if translated is not None:
            code = translated.source
        tree = self._parse(code, filename)
        if translated is not None:
            translated.insert_calls(tree)
        last: ast.Expression | None = None
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not hides_value(code, tree.body[-1]):
            expression = tree.body.pop()
            assert isinstance(expression, ast.Expr)
            last = ast.Expression(expression.value)
        flags = self.flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        body_code = compile(tree, filename, "exec", flags, dont_inherit=True) if tree.body else None
        if body_code is not None:
            flags |= body_code.co_flags & FUTURE_MASK
        last_code = compile(last, filename, "eval", flags, dont_inherit=True) if last else None
        if translated is not None:
            body_code, last_code = translated.bind(body_code), translated.bind(last_code)
        # Only now: a cell that does not compile changes nothing.
        self.flags = flags & FUTURE_MASK
        codes = [each for each in (body_code, last_code) if each is not None]
        awaits = any(each.co_flags & inspect.CO_COROUTINE for each in codes)
        # CPython 3.10 has no exception table, so every source stays there.
        catches = any(getattr(each, "co_exceptiontable", b"unknown") for each in codes)
        lasting = catches or any(isinstance(const, CodeType) for each in codes for const in each.co_consts)
        return Compiled(body_code, last_code, awaits, lasting)

    def _translate(self, code: str, filename: str) -> "translate.TranslatedCell | None":
        """Return the cell with its magics translated, or None. Text that is valid Python contains no magics."""
        found = translate.find(code)
        if not found or self._is_python(code):
            return None
        return translate.TranslatedCell(code, found, filename, lambda text: self._parse(text, filename), self.flags)

    def _is_python(self, code: str) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._parse(code, "<cell>")
        except Exception:  # user code may have broken the library; then trust the scanner
            return False
        return True

    def _parse(self, code: str, filename: str) -> ast.Module:
        flags = self.flags | ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            tree: ast.Module | None = compile(code, filename, "exec", flags, dont_inherit=True)
        except IndentationError as error:
            tree = self._parse_indented(code, filename, flags)
            if tree is None:
                raise error from None
        assert tree is not None
        return tree

    @staticmethod
    def _parse_indented(code: str, filename: str, flags: int) -> ast.Module | None:
        """Parse code that is indented as a whole as the body of an `if`. Columns stay those of the source."""
        if not is_indented(code):
            return None
        try:
            tree = compile("if 1:\n" + code, filename, "exec", flags, dont_inherit=True)
        except SYNTAX_ERRORS:
            return None
        assert isinstance(tree, ast.Module)
        if len(tree.body) != 1 or not isinstance(tree.body[0], ast.If) or tree.body[0].orelse:
            return None
        ast.increment_lineno(tree, -1)
        return ast.Module(tree.body[0].body, [])


def hides_value(code: str, last: ast.Expr) -> bool:
    """Return whether a `;` follows the last expression."""
    if ";" not in code:
        return False
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if last.end_lineno is None or last.end_col_offset is None or last.end_lineno > len(lines):
        return False
    rest = "\n".join(lines[last.end_lineno - 1 :]).encode("utf-8", "surrogatepass")[last.end_col_offset :]
    return rest.lstrip(b" \t\f\\\n").startswith(b";")


def is_indented(code: str) -> bool:
    """Return whether the first line of code, except blank lines and comments, is indented."""
    first = next((line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return first[:1].isspace()


def needs_more_input(code: str) -> bool:
    """Return whether more lines could complete code that does not compile."""
    if "%" in code or "!" in code or "?" in code:
        code = translate.plain(code)
    if is_indented(code):
        code = "if 1:\n" + code
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(code, "<cell>", "exec") is None
    except Exception:  # user code may have broken the library, which costs only the hint
        return False
