"""The user's library: code that is loaded into a session's namespace before its first cell.

Its text is compiled here once per Python version, and the host stores the code for later sessions. Its contents are
read from the syntax tree, before any of it runs. If it raises an error, the error is reported and the session continues
with the names defined so far.
"""

import ast
import marshal
import textwrap
import types
from typing import Any

from ingle_worker.session import traceback_text
from ingle_worker.session.compiler import SYNTAX_ERRORS
from ingle_worker.session.variables import unlisted

FILENAME = "<stdlib>"

MAX_CHARS = 300
"""Maximum length of a signature or a docstring line, in characters."""

MAX_LISTED = 10_000

UNLISTED_TYPES = (types.FunctionType, type, types.ModuleType)
"""Kinds that are not listed as variables while they are the library's own. Data is listed."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Library:
    """The library of this session, if there is one."""

    def __init__(self) -> None:
        self._code: types.CodeType | None = None
        self._source = ""
        self.own = unlisted
        """Functions, classes and modules that the library defined, by name."""

    @property
    def loaded(self) -> bool:
        return self._code is not None

    def set_source(self, source: str, code: bytes) -> None:
        """Set the library. Without code, compile it. Raises like `compile`."""
        self._code = marshal.loads(code) if code else compile(source, FILENAME, "exec", dont_inherit=True)
        self._source = source

    @property
    def code(self) -> bytes:
        return marshal.dumps(self._code)

    def run(self, space: dict[str, Any]) -> str:
        """Run the library in this namespace. Return the problem, or "". KeyboardInterrupt is not caught."""
        assert self._code is not None
        traceback_text.remember_source(FILENAME, self._source)
        before = space.copy()
        problem = ""
        try:
            exec(self._code, space)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # user code
            problem = problem_of(exc)
        finally:
            self._restore_dunders(space, before)
        return problem

    def _restore_dunders(self, space: dict[str, Any], before: dict[str, Any]) -> None:
        """Restore the session's own docstring and annotations, and record the new names."""
        for name in [name for name in space if name.startswith("__") and name.endswith("__")]:
            if name in before:
                space[name] = before[name]
            else:
                del space[name]
        if isinstance(space.get("__annotations__"), dict):
            space["__annotations__"].clear()
        new = {name: value for name, value in space.items() if before.get(name, space) is not value}
        self.own.update({name: value for name, value in new.items() if isinstance(value, UNLISTED_TYPES)})

    def other_names(self, space: dict[str, Any]) -> set[str]:
        """Return all names except those that still refer to definitions of the library."""
        # Copied in one step: threads may define names meanwhile.
        return set(space.copy()) - {name for name, value in self.own.items() if space.get(name) is value}


library = Library()
"""The library of this process, which is one session."""


def problem_of(exc: BaseException) -> str:
    """Return the problem and its line number in one line."""
    if isinstance(exc, SyntaxError):
        return f"line {exc.lineno}: {type(exc).__name__}: {exc.msg}"
    line = None
    tb = exc.__traceback__
    while tb is not None:
        if tb.tb_frame.f_code.co_filename == FILENAME:
            line = tb.tb_lineno if line is None else line
        tb = tb.tb_next
    try:
        raised = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    except BaseException:  # user code: an exception may have any __str__
        raised = type(exc).__name__
    return (f"line {line}: " if line is not None else "") + raised[:MAX_CHARS]


# --- contents, from the syntax tree -------------------------------------------------------------------------


def describe(source: str) -> dict[str, Any]:
    """Return functions, modules and other names of a library without running it. Raises like the parser."""
    functions: dict[str, dict[str, Any]] = {}
    modules: dict[str, dict[str, Any]] = {}
    other: dict[str, dict[str, Any]] = {}
    for kind, name, fields in _names(ast.parse(source).body):
        if name.startswith("_"):
            continue
        for group in (functions, modules, other):
            group.pop(name, None)  # the last definition wins
        {"function": functions, "module": modules}.get(kind, other)[name] = {"name": name, **fields}
    return {
        "functions": list(functions.values())[:MAX_LISTED],
        "modules": list(modules.values())[:MAX_LISTED],
        "other": list(other.values())[:MAX_LISTED],
        "count": len(functions) + len(modules) + len(other),
    }


def _names(body: list[ast.stmt]) -> "list[tuple[str, str, dict[str, Any]]]":
    found: list[tuple[str, str, dict[str, Any]]] = []
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
            fields = {"signature": _short(f"{node.name}({ast.unparse(node.args)}){returns}"), "doc": _doc(node)}
            found.append(("function", node.name, fields))
        elif isinstance(node, ast.ClassDef):
            found.append(("class", node.name, {"kind": "class", "doc": _doc(node)}))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                found.append(("module", name, {"module": alias.name if alias.asname else name}))
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            found += [("import", alias.asname or alias.name, {"kind": f"from {origin}"}) for alias in node.names]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            found += _assigned(node)
        else:
            for part in ("handlers", "orelse", "body", "finalbody"):  # the most likely last
                inner = getattr(node, part, None)
                if isinstance(inner, list) and not isinstance(node, ast.Expr):
                    for each in inner:
                        found += _names(each.body if isinstance(each, ast.ExceptHandler) else [each])
    return found


def _assigned(node: "ast.Assign | ast.AnnAssign") -> "list[tuple[str, str, dict[str, Any]]]":
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if node.value is not None else []
    names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    if isinstance(node.value, ast.Lambda):
        signature = ast.unparse(node.value.args)
        return [("function", name, {"signature": _short(f"{name}({signature})"), "doc": ""}) for name in names]
    return [("value", name, {"kind": "value"}) for name in names]


def _doc(node: Definition) -> str:
    lines = (ast.get_docstring(node) or "").strip().split("\n")
    return _short(lines[0])


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"


# --- additions ----------------------------------------------------------------------------------------------


class Refused(Exception):
    """The addition is not possible. The message says why."""


def merged(source: str, addition: str) -> "tuple[str, list[str], list[str]]":
    """Return the library with the addition, the names it defines, and those it replaced.

    A function or class replaces definitions of the same name. Other statements are appended, except imports that are
    already there. All other text stays unchanged.
    """
    try:
        old = ast.parse(source)
    except SYNTAX_ERRORS as exc:
        raise Refused(f"the library as it is does not compile ({problem_of(exc)}); fix it first") from None
    addition = textwrap.dedent(addition.replace("\r\n", "\n").replace("\r", "\n")).strip("\n")
    try:
        compile(addition, "<addition>", "exec", dont_inherit=True)
        new = ast.parse(addition)
    except SYNTAX_ERRORS as exc:
        raise Refused(f"it does not compile: {problem_of(exc)}") from None
    if not any(name for _, name, _ in _names(new.body)):
        raise Refused("it defines nothing; give the whole of a function, from its `def` on")
    defined = {node.name for node in new.body if isinstance(node, Definition)}
    earlier = [node for node in old.body if isinstance(node, Definition) and node.name in defined]
    lines = source.split("\n")
    added = [name for _, name, _ in _names(new.body)]
    replaced = list(dict.fromkeys(node.name for node in earlier))
    known = {ast.dump(node) for node in old.body if isinstance(node, (ast.Import, ast.ImportFrom))}
    repeated = [node for node in new.body if ast.dump(node) in known and _alone(node, new.body)]
    text = _without(addition.split("\n"), repeated)
    if len(new.body) - len(repeated) == 1 and len(earlier) == 1:
        # One for one: keep the position, on which other code may depend.
        first, last = _span(earlier[0])
        lines[first:last] = text.strip("\n").split("\n")
        return "\n".join(lines), added, replaced
    rest = _without(lines, earlier).rstrip("\n")
    text = text.strip("\n")
    return "\n\n\n".join(part for part in (rest, text) if part) + "\n", added, replaced


def _span(node: ast.stmt) -> "tuple[int, int]":
    """Return the lines of a statement including decorators, counted from 0."""
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)]) - 1, node.end_lineno or node.lineno


def _alone(node: ast.stmt, body: "list[ast.stmt]") -> bool:
    """Return whether no other statement shares its lines."""
    first, last = _span(node)
    return all(each is node or _span(each)[1] <= first or _span(each)[0] >= last for each in body)


def _without(lines: "list[str]", nodes: "list[Any]") -> str:
    """Return the lines without these statements and the blank lines after each."""
    dropped = dict(map(_span, nodes))
    kept: list[str] = []
    number = 0
    while number < len(lines):
        if number in dropped:
            number = dropped[number]
            while number < len(lines) and not lines[number].strip():
                number += 1
        else:
            kept.append(lines[number])
            number += 1
    return "\n".join(kept)


def decoded(data: bytes) -> str:
    """Return the text of the file, with lines that end as for the compiler. Raises UnicodeDecodeError."""
    return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
