"""Code as it is typed at a prompt: whether it is whole, how the next line is indented, and requests for help."""

import ast
import codeop
import re
import warnings

INDENT = "    "

_HELP = re.compile(r"\?{0,2}\s*([\w.\[\]'\"]+?)\s*\?{0,2}")

_compiler = codeop.CommandCompiler()
_compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def is_whole(text: str) -> bool:
    """Return whether Enter sends this code. A block with indented lines ends with a blank line."""
    lines = text.split("\n")
    ended = len(lines) == 1 or not lines[-1].strip()
    if lines[0].startswith("%%"):
        return len(lines) > 1 and ended
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if _compiler(text, symbol="exec") is None:
                return False
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        # The session reports the error. It may also be a magic, which only the session understands.
        return True
    return ended or not lines[-1][0].isspace()


def next_indent(line: str) -> str:
    """Return the indentation of the line after this one."""
    indent = line[: len(line) - len(line.lstrip())]
    return indent + INDENT if line.rstrip().endswith(":") else indent


def help_wanted(text: str) -> tuple[str, bool] | None:
    """Return the name that `name?` or `?name` asks about, and whether the source is wanted (`??`)."""
    text = text.strip()
    found = _HELP.fullmatch(text)
    if found is None or not (text.startswith("?") or text.endswith("?")):
        return None
    return found[1], "??" in text
