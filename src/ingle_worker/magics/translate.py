"""Translation of magics: a cell with magics becomes ordinary Python code.

    text ── translate ──> Python with `...` in place of each magic, line for line
         ── parse, insert ──> a tree in which each `...` is a call
         ── compile, bind ──> code with the called objects as constants

The called objects are constants of the code. So nothing is added to the user's globals or `builtins`, and changes there
cannot break a magic. An unknown magic is reported before the cell runs.
"""

import ast
import os
import re
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from ingle_worker.magics import commands, scan
from ingle_worker.magics.commands import Bound
from ingle_worker.magics.scan import Found

_MARK = f"\0magic {os.urandom(8).hex()} "
"""Prefix of the constants that stand for called objects until the code is bound. It is random."""

_TIMEIT_NAMES = {"inner": " inner", "loops": " loops", "timer": " timer", "began": " began", "_": " _"}
"""Names in the function of `%timeit`. No code can spell them, so none collides."""

_TEMPLATE = """
def inner(loops, timer):
    began = timer()
    for _ in loops:
        pass
    return timer() - began
"""
_TIMEIT_OPTION = re.compile(r"[ \t]*-(?:([nr])[ \t]*(\d+)|([qtc])(?=[ \t]|$)|p[ \t]*\d+)")


class UsageError(SyntaxError):
    """A magic that does not exist or is used wrongly."""

    def __str__(self) -> str:
        return self.msg


UsageError.__module__ = "builtins"  # shown by its bare name, as readers expect


class TranslatedCell:
    """A cell with magics: the source to parse, and the later steps."""

    def __init__(
        self, code: str, found: list[Found], filename: str, parse: Callable[[str], ast.Module], flags: int
    ) -> None:
        self._code = code = _with_newlines(code)
        self._filename = filename
        self._parse = parse
        self._flags = flags
        self._lines = code.split("\n")
        self._bound: dict[str, Bound] = {}
        self._positions: dict[tuple[int, int], Found] = {}
        self._wrapping: Found | None = None
        self.source = self._translate(found)

    # --- text ---

    def _translate(self, found: list[Found]) -> str:
        """Replace each magic by `...` and keep all line numbers."""
        code = self._code
        pieces: list[str] = []
        at, line = 0, 1
        for number, each in enumerate(found):
            line += code.count("\n", at, each.start)
            before = code[code.rfind("\n", 0, each.start) + 1 : each.start]
            position = (line, _bytes(before))
            self._check(each, position, first=number == 0)
            end, text = each.end, "..."
            if each.sign == "%%":
                if each.name in commands.WRAPPING:
                    # The rest is Python and stays. The code around it is inserted later.
                    self._wrapping, text = each, ""
                else:
                    end = len(code)
            if text:
                self._positions[position] = each
            newlines = code.count("\n", each.start, end)
            pieces += [code[at : each.start], text, "\n" * newlines]
            line += newlines
            at = end
            if end == len(code):
                break
        pieces.append(code[at:])
        return "".join(pieces)

    def _check(self, magic: Found, position: tuple[int, int], *, first: bool) -> None:
        if magic.sign == "%%" and not (first and scan.is_blank(self._code[: magic.start])):
            raise self._usage(position, f"%%{magic.name} must be the first line of its cell")
        problem = commands.problem(magic.sign, magic.name)
        if problem is not None:
            raise self._usage(position, problem)

    def _usage(self, position: tuple[int, int], text: str) -> UsageError:
        line = self._lines[position[0] - 1]
        offset = len(line.encode("utf-8", "surrogatepass")[: position[1]].decode("utf-8", "surrogatepass")) + 1
        # With an end position, or newer Python versions underline the rest of the line.
        return UsageError(text, (self._filename, position[0], offset, line + "\n", position[0], offset + 1))

    # --- tree ---

    def insert_calls(self, tree: ast.Module) -> None:
        """Replace each `...` of a magic by a call."""
        self._replace_below(tree)
        if self._wrapping is not None:
            tree.body = self._wrap_body(self._wrapping, tree.body)

    # Not by the tools of `ast`: those look up `isinstance` where a user can change it.

    def _replace_below(self, node: ast.AST) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                value[:] = [new for each in value for new in self._replaced(each)]
            elif isinstance(value, ast.AST):
                (new,) = self._replaced(value)
                setattr(node, name, new)

    def _replaced(self, node: Any) -> list[Any]:
        """Return the replacement of a node, usually itself."""
        if isinstance(node, ast.Expr):
            magic = self.magic_at(node.value)
            if magic is not None:
                return list(self.statements(magic, node))
        elif isinstance(node, ast.Constant):
            magic = self.magic_at(node)
            return [node] if magic is None else [self.expression(magic, node)]
        if isinstance(node, ast.AST):
            self._replace_below(node)
        return [node]

    def magic_at(self, node: ast.AST) -> Found | None:
        if isinstance(node, ast.Constant) and node.value is ...:
            return self._positions.get((node.lineno, node.col_offset))
        return None

    def statements(self, magic: Found, node: ast.Expr) -> list[ast.stmt]:
        """Return the statements of a magic that stands alone."""
        if magic.sign == "%" and magic.name == "time":
            return self._timed(self._python(magic, node, magic.text), node, hidden=_hides(magic.text))
        return [_at_position_of(ast.Expr(self.expression(magic, node.value)), node)]

    def expression(self, magic: Found, node: ast.expr) -> ast.expr:
        """Return the expression of a magic that has a value."""
        if magic.name == "timeit":
            return self._call(self._timeit(magic, node), node)
        if magic.name == "time" and magic.sign == "%":
            body = self._python(magic, node, magic.text)
            if len(body) != 1 or not isinstance(body[0], ast.Expr):
                raise self._usage((node.lineno, node.col_offset), "only an expression can be timed and assigned")
            clock = commands.Clock()
            return self._call(Bound(clock.end), node, self._call(Bound(clock.begin), node), body[0].value)
        # Extend the position to the end of the line, so that a traceback marks all of it or nothing.
        node.end_lineno = node.lineno
        node.end_col_offset = max(_bytes(self._lines[node.lineno - 1].rstrip()), node.col_offset + 1)
        if magic.sign == "%%":
            body_text = self._code[magic.end + 1 :]
            return self._call(Bound(commands.CELLS[magic.name], magic.text, body_text), node)
        if magic.sign == "%":
            return self._call(Bound(commands.LINES[magic.name], magic.text), node)
        if magic.sign in ("?", "??"):
            return self._call(Bound(commands.explain, magic.name, magic.sign), node)
        listed = magic.sign == "!!" or magic.assigned
        return self._call(Bound(commands.listed if listed else commands.shell, magic.text), node)

    def _call(self, bound: Bound, position: ast.AST, *args: ast.expr) -> ast.Call:
        name = f"{_MARK}{len(self._bound)}"
        self._bound[name] = bound
        # Through an attribute, because the compiler warns about calling a string.
        constant = _at_position_of(ast.Constant(name), position)
        function = _at_position_of(ast.Attribute(constant, "__call__", ast.Load()), position)
        call = ast.Call(function, list(args), [])
        _at_position_of(call, position)
        return call

    def _timed(self, body: list[ast.stmt], position: ast.AST, *, hidden: bool) -> list[ast.stmt]:
        """Return statements with a clock around them. The value of a last expression stays the value."""
        clock = commands.Clock()
        begin = _at_position_of(ast.Expr(self._call(Bound(clock.begin), position)), position)
        ahead = _futures(body)
        last = body[-1] if body[ahead:] else None
        if isinstance(last, ast.Expr) and not hidden:
            end = _at_position_of(ast.Expr(self._call(Bound(clock.end), last, last.value)), last)
            return [*body[:ahead], begin, *body[ahead:-1], end]
        return [
            *body[:ahead],
            begin,
            *body[ahead:],
            _at_position_of(ast.Expr(self._call(Bound(clock.end), position)), position),
        ]

    def _wrap_body(self, magic: Found, body: list[ast.stmt]) -> list[ast.stmt]:
        position = (
            _at_position_of(ast.Pass(), body[0])
            if body
            else ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
        )
        if magic.name == "time":
            return self._timed(body, position, hidden=_hides(self._code))
        ahead = _futures(body)
        context = self._call(Bound(commands.WRAPPING[magic.name], magic.text), position)
        within = _at_position_of(ast.With([ast.withitem(context)], body[ahead:] or [position]), position)
        return [*body[:ahead], within]

    def _python(self, magic: Found, node: Any, text: str) -> list[ast.stmt]:
        """Parse the Python code behind a magic's name, with its positions in the cell."""
        skipped = len(magic.sign) + len(magic.name) + len(magic.text) - len(text.lstrip())
        column = node.col_offset + skipped
        try:
            tree = self._parse(text.strip())
        except SyntaxError as error:
            if error.lineno is not None:
                error.text = self._lines[node.lineno + error.lineno - 2] + "\n"
                if error.lineno == 1:
                    error.offset = (error.offset or 1) + column
                    error.end_offset = (error.end_offset or error.offset) + column
                error.lineno += node.lineno - 1
                error.end_lineno = (error.end_lineno or 1) + node.lineno - 1
            raise
        if not tree.body:
            raise self._usage((node.lineno, node.col_offset), f"%{magic.name} needs code behind it on its line")
        for each in _walk(tree):
            if hasattr(each, "lineno"):
                each.col_offset += column if each.lineno == 1 else 0
                each.end_col_offset += column if each.end_lineno == 1 else 0
                each.lineno += node.lineno - 1
                each.end_lineno += node.lineno - 1
        return tree.body

    def _timeit(self, magic: Found, node: Any) -> Bound:
        """Compile the function that runs the code in a loop. It is called when its line is reached."""
        options = {"n": 0, "r": 7, "q": 0}
        text = magic.text
        while option := _TIMEIT_OPTION.match(text):
            text = text[option.end() :]
            if option[1]:
                options[option[1]] = int(option[2])
            elif option[3] == "q":
                options["q"] = 1
        if options["r"] < 1:
            raise self._usage((node.lineno, node.col_offset), "%timeit needs one run at least: -r 1")
        tree: Any = compile(_TEMPLATE, self._filename, "exec", ast.PyCF_ONLY_AST)
        for each in _walk(tree):
            if isinstance(each, ast.Name):
                each.id = _TIMEIT_NAMES[each.id]
            elif isinstance(each, ast.arg):
                each.arg = _TIMEIT_NAMES[each.arg]
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        function.name = _TIMEIT_NAMES["inner"]
        loop = function.body[1]
        assert isinstance(loop, ast.For)
        if magic.sign == "%%":
            setup = self._python(magic, node, text) if text.strip() else []
            rest = self._code[magic.end :]
            body = self._parse("\n" * (node.lineno - 1) + rest).body
            if not body:
                raise self._usage((node.lineno, node.col_offset), "%%timeit needs code on the lines below")
            function.body[:0] = setup
        else:
            body = self._python(magic, node, text)
        loop.body = body
        code = compile(tree, self._filename, "exec", self._flags, dont_inherit=True)
        return Bound(commands.time_it, code, _TIMEIT_NAMES["inner"], options["n"], options["r"], bool(options["q"]))

    # --- code ---

    def bind(self, code: CodeType | None) -> CodeType | None:
        """Return the code with the called objects among its constants."""
        if code is None:
            return None
        constants = tuple(
            self.bind(each)
            if isinstance(each, CodeType)
            else self._bound.get(each, each)
            if isinstance(each, str)
            else each
            for each in code.co_consts
        )
        return code.replace(co_consts=constants)


def _at_position_of(node: Any, like: Any) -> Any:
    """Set the position of the node to that of the other."""
    node.lineno, node.col_offset = like.lineno, like.col_offset
    node.end_lineno, node.end_col_offset = like.end_lineno, like.end_col_offset
    return node


def _walk(node: ast.AST) -> Iterator[Any]:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        for name in each._fields:
            value = getattr(each, name, None)
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif isinstance(value, list):
                waiting += [item for item in value if isinstance(item, ast.AST)]


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _hides(text: str) -> bool:
    return text.rstrip().endswith(";")


def _futures(body: list[ast.stmt]) -> int:
    """Return the number of `__future__` statements, which must stay first."""
    return max(
        (at + 1 for at, each in enumerate(body) if isinstance(each, ast.ImportFrom) and each.module == "__future__"),
        default=0,
    )


def find(code: str) -> list[Found]:
    """Return the magics of a cell. A quick pattern excludes most cells."""
    return scan.find(_with_newlines(code)) if scan.MAYBE.search(code) is not None else []


def plain(code: str) -> str:
    """Return the text with `...` for each magic, to check whether the rest is complete."""
    found = find(code)
    try:
        return TranslatedCell(code, found, "<cell>", ast.parse, 0).source if found else code
    except SyntaxError:
        return code


def _with_newlines(code: str) -> str:
    """Return the text with the line ends of the compiler."""
    return code.replace("\r\n", "\n").replace("\r", "\n") if "\r" in code else code
