"""Ignore rules of a folder, as in `.gitignore`: which entries below it are left alone.

Paths and patterns have one character per byte, as git compares them.
"""

import re
from typing import NamedTuple

NAME = ".gitignore"

SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox"})
"""Folders that are always left alone: other programs own them, and they are large."""

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "punct": re.escape("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    "space": r"\s",
    "xdigit": "0-9A-Fa-f",
}


class Rule(NamedTuple):
    matches: "re.Pattern[str]"
    """Of a path relative to the folder of the rule."""
    negated: bool
    folders_only: bool


class Rules:
    """Rules of one file, in order. The last one that matches decides."""

    def __init__(self, text: str, prefix: str) -> None:
        """`prefix` is the path of the folder that holds the file, with a final slash; empty for the root."""
        self.prefix = prefix
        self._rules = [rule for line in text.split("\n") if (rule := read_rule(line)) is not None]
        self._rules.reverse()

    def decide(self, path: str, is_folder: bool) -> "bool | None":
        """Return whether a path below this folder is ignored. None: no rule here is about it."""
        relative = path[len(self.prefix) :]
        for rule in self._rules:
            if (is_folder or not rule.folders_only) and rule.matches.fullmatch(relative):
                return not rule.negated
        return None


def ignored(rules: "list[Rules]", path: str, name: str, is_folder: bool) -> bool:
    """Return whether an entry is ignored. The folders that it lies in are not. `rules` go from the root inwards."""
    if is_folder and name in SKIPPED:
        return True
    for each in reversed(rules):
        decided = each.decide(path, is_folder)
        if decided is not None:
            return decided
    return False


def read_rule(line: str) -> "Rule | None":
    """Return the rule of a line. None: it is empty, a comment, or matches nothing."""
    line = _without_trailing_spaces(line.removesuffix("\r"))
    if not line or line.startswith("#"):
        return None
    negated = line.startswith("!")
    pattern = line[negated:]
    folders_only = pattern.endswith("/") and not pattern.endswith("\\/")
    if folders_only:
        pattern = pattern[:-1]
    anchored = "/" in pattern
    pattern = pattern.removeprefix("/")
    try:
        text = _translate(pattern)
    except ValueError:
        return None
    if not text:
        return None
    return Rule(re.compile(text if anchored else f"(?:.*/)?{text}", re.DOTALL), negated, folders_only)


def _without_trailing_spaces(line: str) -> str:
    stripped = line.rstrip(" ")
    slashes = len(stripped) - len(stripped.rstrip("\\"))
    # A backslash keeps the space after it.
    return stripped + " " if slashes % 2 and len(stripped) < len(line) else stripped


def _translate(pattern: str) -> str:
    """Return the regular expression of a pattern. Raise ValueError for one that matches nothing."""
    found = ""
    at, end = 0, len(pattern)
    while at < end:
        character = pattern[at]
        if character == "*":
            after = at
            while after < end and pattern[after] == "*":
                after += 1
            whole = (at == 0 or pattern[at - 1] == "/") and (after == end or pattern[after] == "/")
            if after - at == 2 and whole:
                found += ".+" if after == end else "(?:.*/)?"
                at = after + 1
            else:
                found += "[^/]*"
                at = after
        elif character == "?":
            found += "[^/]"
            at += 1
        elif character == "[":
            part, at = _translate_class(pattern, at + 1)
            found += part
        elif character == "\\":
            if at + 1 == end:
                raise ValueError
            found += re.escape(pattern[at + 1])
            at += 2
        else:
            found += re.escape(character)
            at += 1
    return found


def _translate_class(pattern: str, at: int) -> "tuple[str, int]":
    """Return the expression of a bracket after its opening, and the position after its end."""
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    members = ""
    first = True
    while True:
        if at >= len(pattern):
            raise ValueError
        if pattern[at] == "]" and not first:
            break
        first = False
        if pattern.startswith("[:", at) and (close := pattern.find(":]", at)) > 0:
            members += _CLASSES.get(pattern[at + 2 : close], "")
            at = close + 2
            continue
        low, at = _member(pattern, at)
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            high, at = _member(pattern, at + 1)
            if low <= high:
                members += f"{re.escape(low)}-{re.escape(high)}"
        else:
            members += re.escape(low)
    if not members:
        return ("[^/]" if negated else "(?!)"), at + 1
    return f"(?!/)[{'^' if negated else ''}{members}]", at + 1


def _member(pattern: str, at: int) -> "tuple[str, int]":
    """Return one character of a bracket, and the position after it."""
    if pattern[at] == "\\":
        at += 1
        if at >= len(pattern):
            raise ValueError
    return pattern[at], at + 1
