"""From the text of a cell to code objects: the whole cell compiles before any of it runs.

A cell is one unit. Its last statement, if that is an expression, is compiled on its own so that its value can be
shown. Uniformly indented code is taken as it is, without touching what stands inside strings. `from __future__`
flags stay for later cells.
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
"""What compile() raises for text it cannot take: NUL bytes, huge numbers and deep nesting among it."""


_BEYOND_A_LINE = frozenset("\n\r\f\\:;")
"""Without any of these a cell is at most one simple statement, and no warning of the parser's can come twice."""


class Compiled(NamedTuple):
    body: CodeType | None
    last: CodeType | None
    awaits: bool
    lasting: bool
    """Functions, classes or caught exceptions may outlive the cell, so its source must stay readable."""


class Compiler:
    def __init__(self) -> None:
        self.flags = 0

    def compile(self, code: str, filename: str) -> Compiled:
        line = self._compile_line(code, filename) if _BEYOND_A_LINE.isdisjoint(code) else None
        return line or self._compile_tree(code, filename)

    def _compile_line(self, code: str, filename: str) -> Compiled | None:
        """One simple statement on one line, as at a prompt: without a tree, in a third of the time.

        Compiled as for a prompt, the value of an expression goes to `sys.displayhook` by itself. None where the
        longer way is needed, for an error too, so that there is one way in which errors look.
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
        woven = self._weave(code, filename) if "%" in code or "!" in code or "?" in code else None
        if woven is not None:
            code = woven.source
        tree = self._parse(code, filename)
        if woven is not None:
            woven.weave(tree)
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
        if woven is not None:
            body_code, last_code = woven.bind(body_code), woven.bind(last_code)
        # Only now: a cell that does not compile changes nothing.
        self.flags = flags & FUTURE_MASK
        codes = [each for each in (body_code, last_code) if each is not None]
        awaits = any(each.co_flags & inspect.CO_COROUTINE for each in codes)
        # CPython 3.10 has no table of handlers to look at: there, every source stays.
        catches = any(getattr(each, "co_exceptiontable", b"unknown") for each in codes)
        lasting = catches or any(isinstance(const, CodeType) for each in codes for const in each.co_consts)
        return Compiled(body_code, last_code, awaits, lasting)

    def _weave(self, code: str, filename: str) -> "translate.Woven | None":
        """The cell with its magics translated, if it has any: what is valid Python has none, whatever it looks like."""
        found = translate.find(code)
        if not found or self._is_python(code):
            return None
        return translate.Woven(code, found, filename, lambda text: self._parse(text, filename), self.flags)

    def _is_python(self, code: str) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._parse(code, "<cell>")
        except (
            Exception
        ):  # the border to the cell: a user may have broken the library, and then the scanner is believed
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
        """Code that is indented as a whole parses as the body of an `if`; columns stay those of the source."""
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
    """Whether a `;` follows the last expression."""
    if ";" not in code:
        return False
    lines = code.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if last.end_lineno is None or last.end_col_offset is None or last.end_lineno > len(lines):
        return False
    rest = "\n".join(lines[last.end_lineno - 1 :]).encode("utf-8", "surrogatepass")[last.end_col_offset :]
    return rest.lstrip(b" \t\f\\\n").startswith(b";")


def is_indented(code: str) -> bool:
    """Whether the first line of code, blank lines and comments aside, is indented."""
    first = next((line for line in code.splitlines() if line.strip() and not line.lstrip().startswith("#")), "")
    return first[:1].isspace()


def needs_more_input(code: str) -> bool:
    """Whether more lines could have completed code that does not compile."""
    if "%" in code or "!" in code or "?" in code:
        code = translate.plain(code)
    if is_indented(code):
        code = "if 1:\n" + code
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return codeop.compile_command(code, "<cell>", "exec") is None
    except Exception:  # the border to the cell: a user may have broken the library, which costs the hint only
        return False
