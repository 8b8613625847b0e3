"""Finding magics in the text of a cell: which lines begin a statement with `!`, `%`, `%%` or ask with `?`.

Pure functions over text. Only where a logical line begins can a magic stand; inside of brackets, after a backslash, in
strings (f-strings and their nested quotes too) and in comments nothing is one. The scanner keeps to the lexical rules
of the Python it runs in, and does not judge: text that is no Python either way is left for the compiler to refuse.
"""

import re
import sys
from typing import NamedTuple

NESTED_QUOTES = sys.version_info >= (3, 12)
"""From 3.12 on an expression inside an f-string may use the quotes of that f-string."""

MAYBE = re.compile(r"^[ \t\f]*(?:[!%?]|[^\n#]*=[ \t]*[!%])|\?[ \t]*$", re.MULTILINE)
"""What a text must have somewhere to hold a magic at all."""

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
"""Line magics whose text is Python, which may go on over several lines inside of brackets."""


class Found(NamedTuple):
    """One magic: where it stands in the text, and what it says."""

    start: int
    end: int
    sign: str
    """`!`, `!!`, `%`, `%%`, or `?` and `??` for help."""
    name: str
    text: str
    assigned: bool


def find(code: str) -> list[Found]:
    """The magics of a text whose lines end with a newline each, in order. A cell magic has all the rest as its own."""
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
        # Something else stuck to the name: no magic that there is.
        return None
    if name in PYTHON_LINES and sign == "%":
        end = _logical_end(code, after)
        end -= code[end - 1 : end] == "\n"
        return Found(start, end, sign, name, code[after:end], assigned)
    end = _line_end(code, after)
    return Found(start, end, sign, name, code[after:end].replace("\\\n", " ").strip(), assigned)


def _line_end(code: str, at: int) -> int:
    """The end of a line of a shell's or a magic's own language: only a backslash continues it."""
    while True:
        end = code.find("\n", at)
        if end < 0:
            return len(code)
        if code[end - 1] != "\\" or end == at:
            return end
        at = end + 1


def _logical_end(code: str, at: int) -> int:
    """Behind the newline that ends the logical line of Python which begins here."""
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
    """Behind the `}` of a replacement field whose expression begins here."""
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
        else:  # never closed: the string's own end is for whoever called
            return token.start()


def is_blank(text: str) -> bool:
    """Whether there is nothing here but blank lines and remarks."""
    at = 0
    while at < len(text):
        blank = _BLANK.match(text, at)
        if blank is None:
            return False
        if blank.end() == at:
            break
        at = blank.end()
    return True
