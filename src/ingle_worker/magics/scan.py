"""Search for magics in the text of a cell: statements that begin with `!`, `%` or `%%`, and help with `?`.

Pure functions on text. A magic can stand only at the start of a logical line, never inside brackets, strings or
comments. The scanner follows the lexical rules of the running Python and reports no errors: the compiler does.
"""

import re
import sys
from typing import NamedTuple

NESTED_QUOTES = sys.version_info >= (3, 12)
"""Since Python 3.12 an expression in an f-string may contain the quotes of that f-string."""

MAYBE = re.compile(r"^[ \t\f]*(?:[!%?]|[^\n#]*=[ \t]*[!%])|\?[ \t]*$", re.MULTILINE)
"""Pattern that matches somewhere in every text with a magic."""

_NAME = r"[^\W\d]\w*"
_TARGET = rf"\*?{_NAME}(?:\.{_NAME}|\[[^\[\]\n]*\])*"
_MAGIC = re.compile(
    rf"(?P<left>(?:{_TARGET}(?:[ \t]*,[ \t]*{_TARGET})*[ \t]*,?[ \t]*=(?!=)[ \t]*)+)?"
    rf"(?:(?P<sign>%%?)(?P<name>{_NAME})|(?P<shell>!!?))"
)
_HELP = re.compile(rf"(?P<before>\?\??)[ \t]*(?P<named>{_NAME}(?:\.{_NAME})*)[ \t]*$", re.MULTILINE)
_HELP_AFTER = re.compile(rf"(?P<named>%{{0,2}}{_NAME}(?:\.{_NAME})*)(?P<after>\?\??)[ \t]*$", re.MULTILINE)
_INDENT = re.compile(r"[ \t\f]*")
_BLANK = re.compile(r"[ \t\f]*(?:#[^\n]*)?(?:\n|\Z)")
_PREFIX = "[fF][rR]?|[rR][fF]" if sys.version_info < (3, 14) else "[fFtT][rR]?|[rR][fFtT]"
_TOKEN = re.compile(rf"(?:(?<!\w)({_PREFIX}))?('''|\"\"\"|'|\")|[()\[\]{{}}\n]|\\\n|#[^\n]*")
_FIELD = re.compile(rf"(?:(?<!\w)({_PREFIX}))?('''|\"\"\"|'|\")|[()\[\]{{}}:]|#[^\n]*")
_PLAIN_END = {
    quote: re.compile(rf"\\[\s\S]|{quote}" + (r"|\n" if len(quote) == 1 else "")) for quote in ("'", '"', "'''", '"""')
}
_FORMATTED = {
    (quote, raw): re.compile(
        ("" if raw else r"\\N\{[^}\n]*\}|") + rf"\\[^{{}}]|\{{\{{|\{{|{quote}" + (r"|\n" if len(quote) == 1 else "")
    )
    for quote in ("'", '"', "'''", '"""')
    for raw in (False, True)
}
_SPEC = {
    quote: re.compile(rf"[{{}}]|{quote}" + (r"|\n" if len(quote) == 1 else "")) for quote in ("'", '"', "'''", '"""')
}
PYTHON_LINES = ("time", "timeit")
"""Line magics whose text is Python, which may continue over several lines inside brackets."""


class Found(NamedTuple):
    """One magic: its position in the text, and its parts."""

    start: int
    end: int
    sign: str
    """`!`, `!!`, `%`, `%%`, or `?` and `??` for help."""
    name: str
    text: str
    assigned: bool


def find(code: str) -> list[Found]:
    """Return the magics of a text with newline line ends, in order. A cell magic covers the rest of the text."""
    found: list[Found] = []
    at, end = 0, len(code)
    while at < end:
        blank = _BLANK.match(code, at)
        if blank is not None:
            if blank.end() == at:
                break
            at = blank.end()
            continue
        indent = _INDENT.match(code, at)
        assert indent is not None
        magic = _magic_at(code, indent.end())
        if magic is None:
            at = _logical_end(code, at)
            continue
        found.append(magic)
        at = magic.end + 1
    return found


def _magic_at(code: str, at: int) -> Found | None:
    match = _MAGIC.match(code, at)
    if match is None:
        asked = _HELP.match(code, at) or _HELP_AFTER.match(code, at)
        if asked is None:
            return None
        marks = asked.groupdict().get("before") or asked.groupdict().get("after") or "?"
        return Found(at, asked.end(), marks, asked["named"], "", False)
    asked = _HELP_AFTER.match(code, at)
    if asked is not None:
        return Found(at, asked.end(), asked["after"], asked["named"], "", False)
    assigned = match["left"] is not None
    start = match.end("left") if assigned else at
    after = match.end()
    if match["shell"]:
        if code.startswith("=", after):  # `!=`
            return None
        end = _line_end(code, after)
        return Found(start, end, match["shell"], "", code[after:end], assigned)
    sign, name = match["sign"], match["name"]
    if code[after : after + 1] not in ("", " ", "\t", "\n"):
        # Other characters directly behind the name: not a magic.
        return None
    if name in PYTHON_LINES and sign == "%":
        end = _logical_end(code, after)
        end -= code[end - 1 : end] == "\n"
        return Found(start, end, sign, name, code[after:end], assigned)
    end = _line_end(code, after)
    return Found(start, end, sign, name, code[after:end].replace("\\\n", " ").strip(), assigned)


def _line_end(code: str, at: int) -> int:
    """Return the end of a shell or magic line. Only a backslash continues it."""
    while True:
        end = code.find("\n", at)
        if end < 0:
            return len(code)
        if code[end - 1] != "\\" or end == at:
            return end
        at = end + 1


def _logical_end(code: str, at: int) -> int:
    """Return the position after the newline that ends this logical line of Python."""
    depth = 0
    while True:
        token = _TOKEN.search(code, at)
        if token is None:
            return len(code)
        at = token.end()
        quote = token[2]
        if quote:
            at = _string_end(code, at, quote, token[1])
            continue
        text = token[0]
        if text == "\n":
            if depth <= 0:
                return at
        elif text in "([{":
            depth += 1
        elif text in ")]}":
            depth -= 1


def _string_end(code: str, at: int, quote: str, prefix: str | None) -> int:
    if prefix and NESTED_QUOTES:
        return _formatted_end(code, at, quote, "r" in prefix.lower())
    pattern = _PLAIN_END[quote]
    while True:
        token = pattern.search(code, at)
        if token is None:
            return len(code)
        at = token.end()
        if token[0] == quote:
            return at
        if token[0] == "\n":  # never closed
            return at - 1


def _formatted_end(code: str, at: int, quote: str, raw: bool) -> int:
    pattern = _FORMATTED[quote, raw]
    while True:
        token = pattern.search(code, at)
        if token is None:
            return len(code)
        at = token.end()
        if token[0] == quote:
            return at
        if token[0] == "\n":
            return at - 1
        if token[0] == "{":
            at = _field_end(code, at, quote)


def _field_end(code: str, at: int, quote: str) -> int:
    """Return the position after the `}` of the replacement field whose expression begins here."""
    depth = 0
    while True:
        token = _FIELD.search(code, at)
        if token is None:
            return len(code)
        at = token.end()
        text = token[0]
        if token[2]:
            at = _string_end(code, at, token[2], token[1])
        elif text == ":":
            if depth == 0:
                return _spec_end(code, at, quote)
        elif text in "([{":
            depth += 1
        elif text in ")]}":
            if depth == 0:
                return at
            depth -= 1


def _spec_end(code: str, at: int, quote: str) -> int:
    pattern = _SPEC[quote]
    while True:
        token = pattern.search(code, at)
        if token is None:
            return len(code)
        if token[0] == "{":
            at = _field_end(code, token.end(), quote)
        elif token[0] == "}":
            return token.end()
        else:  # never closed: the caller looks for the end of the string
            return token.start()


def is_blank(text: str) -> bool:
    """Return whether the text has only blank lines and comments."""
    at = 0
    while at < len(text):
        blank = _BLANK.match(text, at)
        if blank is None:
            return False
        if blank.end() == at:
            break
        at = blank.end()
    return True
