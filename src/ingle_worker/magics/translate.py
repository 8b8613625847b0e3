"""Magics become ordinary Python: the text of a cell with magics in it, translated, parsed, and its code bound.

    text ── translate ──> Python with `...` where each magic stood, line for line
         ── parse, weave ──> a tree in which each `...` is a call
         ── compile, bind ──> code whose constants are the things called

What is called stands in the code's own constants, so that nothing is put into the user's globals or into `builtins`,
and nothing he does to either can break it. A magic that does not exist is known before anything of the cell runs.
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
"""Begins the constants that stand for what is called until the code is bound; nobody writes it by chance."""

_HIDDEN = {"inner": " inner", "loops": " loops", "timer": " timer", "began": " began", "_": " _"}
"""Names in the function that `%timeit` makes: no code can spell them, so none collides."""

_TEMPLATE = """
def inner(loops, timer):
    began = timer()
    for _ in loops:
        pass
    return timer() - began
"""
_TIMEIT_OPTION = re.compile(r"[ \t]*-(?:([nr])[ \t]*(\d+)|([qtc])(?=[ \t]|$)|p[ \t]*\d+)")


class UsageError(SyntaxError):
    """A magic that does not exist, or is not written as it must be."""

    def __str__(self) -> str:
        return self.msg


UsageError.__module__ = "builtins"  # shown by its bare name, as those who read it expect


class Woven:
    """A cell with magics: the source to parse, and what becomes of it after that."""

    def __init__(
        self, code: str, found: list[Found], filename: str, parse: Callable[[str], ast.Module], flags: int
    ) -> None:
        self._code = code = _with_newlines(code)
        self._filename = filename
        self._parse = parse
        self._flags = flags
        self._lines = code.split("\n")
        self._bound: dict[str, Bound] = {}
        self._places: dict[tuple[int, int], Found] = {}
        self._whole: Found | None = None
        self.source = self._translate(found)

    # --- text ---

    def _translate(self, found: list[Found]) -> str:
        """`...` where each magic stands, and every line where it is."""
        code = self._code
        pieces: list[str] = []
        at, line = 0, 1
        for number, each in enumerate(found):
            line += code.count("\n", at, each.start)
            before = code[code.rfind("\n", 0, each.start) + 1 : each.start]
            place = (line, _bytes(before))
            self._check(each, place, first=number == 0)
            end, text = each.end, "..."
            if each.sign == "%%":
                if each.name in commands.AROUND:
                    # The rest is Python and stays; what comes around it is woven in later.
                    self._whole, text = each, ""
                else:
                    end = len(code)
            if text:
                self._places[place] = each
            newlines = code.count("\n", each.start, end)
            pieces += [code[at : each.start], text, "\n" * newlines]
            line += newlines
            at = end
            if end == len(code):
                break
        pieces.append(code[at:])
        return "".join(pieces)

    def _check(self, magic: Found, place: tuple[int, int], *, first: bool) -> None:
        if magic.sign == "%%" and not (first and scan.is_blank(self._code[: magic.start])):
            raise self._usage(place, f"%%{magic.name} must be the first line of its cell")
        problem = commands.problem(magic.sign, magic.name)
        if problem is not None:
            raise self._usage(place, problem)

    def _usage(self, place: tuple[int, int], text: str) -> UsageError:
        line = self._lines[place[0] - 1]
        offset = len(line.encode("utf-8", "surrogatepass")[: place[1]].decode("utf-8", "surrogatepass")) + 1
        # With its end, or newer versions of Python underline the rest of the line.
        return UsageError(text, (self._filename, place[0], offset, line + "\n", place[0], offset + 1))

    # --- tree ---

    def weave(self, tree: ast.Module) -> None:
        """Replace each `...` that stands for a magic by what the magic does."""
        self._replace_below(tree)
        if self._whole is not None:
            tree.body = self._around(self._whole, tree.body)

    # By hand, here and below, and not with the tools of `ast`: those look up `isinstance` where a user can change it.

    def _replace_below(self, node: ast.AST) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                value[:] = [new for each in value for new in self._replaced(each)]
            elif isinstance(value, ast.AST):
                (new,) = self._replaced(value)
                setattr(node, name, new)

    def _replaced(self, node: Any) -> list[Any]:
        """What comes in this one's place: itself, mostly."""
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
            return self._places.get((node.lineno, node.col_offset))
        return None

    def statements(self, magic: Found, node: ast.Expr) -> list[ast.stmt]:
        """What a magic that stands alone becomes."""
        if magic.sign == "%" and magic.name == "time":
            return self._timed(self._python(magic, node, magic.text), node, hidden=_hides(magic.text))
        return [_place(ast.Expr(self.expression(magic, node.value)), node)]

    def expression(self, magic: Found, node: ast.expr) -> ast.expr:
        """What a magic becomes that has a value."""
        if magic.name == "timeit":
            return self._call(self._timeit(magic, node), node)
        if magic.name == "time" and magic.sign == "%":
            body = self._python(magic, node, magic.text)
            if len(body) != 1 or not isinstance(body[0], ast.Expr):
                raise self._usage((node.lineno, node.col_offset), "only an expression can be timed and assigned")
            clock = commands.Clock()
            return self._call(Bound(clock.end), node, self._call(Bound(clock.begin), node), body[0].value)
        # The place reaches to the end of the line, so that a traceback marks all of it or nothing.
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

    def _call(self, bound: Bound, place: ast.AST, *args: ast.expr) -> ast.Call:
        name = f"{_MARK}{len(self._bound)}"
        self._bound[name] = bound
        # Through an attribute: to call a text is something the compiler would warn of.
        constant = _place(ast.Constant(name), place)
        function = _place(ast.Attribute(constant, "__call__", ast.Load()), place)
        call = ast.Call(function, list(args), [])
        _place(call, place)
        return call

    def _timed(self, body: list[ast.stmt], place: ast.AST, *, hidden: bool) -> list[ast.stmt]:
        """Statements with the clock running; the value of the last one, if it has one, stays the value."""
        clock = commands.Clock()
        begin = _place(ast.Expr(self._call(Bound(clock.begin), place)), place)
        ahead = _futures(body)
        last = body[-1] if body[ahead:] else None
        if isinstance(last, ast.Expr) and not hidden:
            end = _place(ast.Expr(self._call(Bound(clock.end), last, last.value)), last)
            return [*body[:ahead], begin, *body[ahead:-1], end]
        return [*body[:ahead], begin, *body[ahead:], _place(ast.Expr(self._call(Bound(clock.end), place)), place)]

    def _around(self, magic: Found, body: list[ast.stmt]) -> list[ast.stmt]:
        place = (
            _place(ast.Pass(), body[0]) if body else ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
        )
        if magic.name == "time":
            return self._timed(body, place, hidden=_hides(self._code))
        ahead = _futures(body)
        context = self._call(Bound(commands.AROUND[magic.name], magic.text), place)
        within = _place(ast.With([ast.withitem(context)], body[ahead:] or [place]), place)
        return [*body[:ahead], within]

    def _python(self, magic: Found, node: Any, text: str) -> list[ast.stmt]:
        """Python that stands behind a magic's name, parsed, with the places it has in the cell."""
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
        """The function that runs the code in a loop, compiled now; called when its line is reached."""
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
                each.id = _HIDDEN[each.id]
            elif isinstance(each, ast.arg):
                each.arg = _HIDDEN[each.arg]
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        function.name = _HIDDEN["inner"]
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
        return Bound(commands.time_it, code, _HIDDEN["inner"], options["n"], options["r"], bool(options["q"]))

    # --- code ---

    def bind(self, code: CodeType | None) -> CodeType | None:
        """The code with what it calls among its constants."""
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


def _place(node: Any, like: Any) -> Any:
    """The node, where the other one stands."""
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
    """How many statements at the beginning must stay there."""
    return max(
        (at + 1 for at, each in enumerate(body) if isinstance(each, ast.ImportFrom) and each.module == "__future__"),
        default=0,
    )


def find(code: str) -> list[Found]:
    """The magics of a cell. Most cells are known by one glance to have none."""
    return scan.find(_with_newlines(code)) if scan.MAYBE.search(code) is not None else []


def plain(code: str) -> str:
    """The text with `...` for each magic, for whoever wants to know only whether the rest is whole."""
    found = find(code)
    try:
        return Woven(code, found, "<cell>", ast.parse, 0).source if found else code
    except SyntaxError:
        return code


def _with_newlines(code: str) -> str:
    """Lines that end as the compiler ends them."""
    return code.replace("\r\n", "\n").replace("\r", "\n") if "\r" in code else code
