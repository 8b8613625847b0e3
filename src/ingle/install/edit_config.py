"""One entry put into a configuration file that belongs to someone else: all other bytes stay as they are.

JSON with comments and trailing commas (as VS Code writes it), TOML and YAML are edited as text. A file that cannot be
read as what it should be is refused with the place of the trouble. After every edit the new text is read again, and
must say what the old one said plus the entry; else nothing comes out.
"""

import copy
import json
import re
import tomllib
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

Entry = dict[str, Any]

DEEPEST = 100


class BrokenFile(Exception):
    """The file cannot be read; the message says where. It is left as it is."""


class CannotEdit(Exception):
    """The file is fine and written in a way that is not edited here; the message says what to do."""


# --- JSON, with comments ---

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_WORDS = {"true": True, "false": False, "null": None}


@dataclass
class Node:
    """A value and where it stands. Of an object also its members."""

    value: Any
    start: int
    end: int
    members: "dict[str, Node]" = field(default_factory=dict)


class _Json:
    """Reads JSON as people write it: with comments, and with commas after the last member."""

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at

    def whole(self) -> Node:
        self.space()
        node = self.any(0)
        self.space()
        if self.at < len(self.text):
            raise self.broken("there is more after the end")
        return node

    def broken(self, why: str) -> BrokenFile:
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        return BrokenFile(f"line {line}, column {column}: {why}")

    def space(self) -> None:
        """Past white space and comments."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r\n":
                self.at += 1
            elif self.text.startswith("//", self.at):
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self.text.startswith("/*", self.at):
                end = self.text.find("*/", self.at + 2)
                if end < 0:
                    raise self.broken("a comment does not end")
                self.at = end + 2
            else:
                return

    def any(self, depth: int) -> Node:
        if depth > DEEPEST:
            raise self.broken("it is nested too deeply")
        start = self.at
        sign = self.text[start : start + 1]
        if sign == "{":
            return self.object(depth)
        if sign == "[":
            return self.array(depth)
        if sign == '"':
            return Node(self.string(), start, self.at)
        for word, value in _WORDS.items():
            if self.text.startswith(word, start):
                self.at += len(word)
                return Node(value, start, self.at)
        number = _NUMBER.match(self.text, start)
        if number is None:
            raise self.broken("a value is expected")
        self.at = number.end()
        return Node(json.loads(number[0]), start, self.at)

    def string(self) -> str:
        try:
            value, self.at = scanstring(self.text, self.at + 1, False)
        except json.JSONDecodeError as error:
            raise self.broken(error.msg.lower()) from None
        return str(value)

    def object(self, depth: int) -> Node:
        node = Node({}, self.at, self.at)
        self.at += 1
        self.space()
        while not self.text.startswith("}", self.at):
            if not self.text.startswith('"', self.at):
                raise self.broken("a name in double quotes is expected")
            name = self.string()
            self.space()
            if not self.text.startswith(":", self.at):
                raise self.broken("a colon is expected")
            self.at += 1
            self.space()
            member = self.any(depth + 1)
            node.value[name] = member.value
            node.members[name] = member
            self.comma("}")
        self.at += 1
        node.end = self.at
        return node

    def array(self, depth: int) -> Node:
        node = Node([], self.at, self.at)
        self.at += 1
        self.space()
        while not self.text.startswith("]", self.at):
            node.value.append(self.any(depth + 1).value)
            self.comma("]")
        self.at += 1
        node.end = self.at
        return node

    def comma(self, close: str) -> None:
        self.space()
        if self.text.startswith(",", self.at):
            self.at += 1
            self.space()
        elif not self.text.startswith(close, self.at):
            raise self.broken(f"a comma or {close} is expected")


def read_json(text: str) -> Any:
    return _Json(text.removeprefix("\ufeff")).whole().value


def put_json(text: str, path: tuple[str, ...], entry: Entry) -> str:
    """The text with `entry` at the end of `path`. What an entry already there has beyond ours is kept."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text[len(mark) :]
    if not body.strip():
        return mark + json.dumps(_nested(path, entry), indent=2, ensure_ascii=False) + "\n"
    node = _Json(body).whole()
    expected = copy.deepcopy(node.value)
    value = expected
    for depth, name in enumerate(path):
        if not isinstance(node.value, dict):
            where = ".".join(path[:depth]) or "the file"
            raise BrokenFile(f"{where} should be an object in braces, and is not")
        if name not in node.members:
            value[name] = _nested(path[depth + 1 :], entry)
            return mark + _checked(_insert(body, node, depth, name, value[name]), expected)
        node = node.members[name]
        if depth < len(path) - 1:
            value = value[name]
    merged = {**node.value, **entry} if isinstance(node.value, dict) else entry
    if merged == node.value:
        return text
    value[path[-1]] = merged
    style = _Style(body)
    dumped = style.dump(merged, style.indent * len(path))
    return mark + _checked(body[: node.start] + dumped + body[node.end :], expected)


def _nested(path: tuple[str, ...], entry: Entry) -> Any:
    value: Any = entry
    for name in reversed(path):
        value = {name: value}
    return value


def _checked(text: str, expected: Any) -> str:
    if read_json(text) != expected:
        raise CannotEdit("the file is written in a way that cannot be edited safely")
    return text


class _Style:
    """How the file is laid out: its ends of lines and its indentation."""

    def __init__(self, text: str) -> None:
        self.newline = "\r\n" if "\r\n" in text else "\n"
        found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
        self.indent = found[1] if found else "  "

    def dump(self, value: Any, before: str) -> str:
        lines = json.dumps(value, indent=self.indent, ensure_ascii=False).split("\n")
        return (self.newline + before).join(lines)


def _insert(text: str, node: Node, depth: int, name: str, value: Any) -> str:
    """One more member at the end of an object."""
    style = _Style(text)
    outer, inner = style.indent * depth, style.indent * (depth + 1)
    member = f"{json.dumps(name, ensure_ascii=False)}: {style.dump(value, inner)}"
    close = node.end - 1
    # The last thing before the closing brace, be it a member or a comment.
    last = len(text[:close].rstrip())
    tail = text[last:close]
    if "\n" not in tail:
        tail = style.newline + outer
    if not node.members:
        return text[:last] + style.newline + inner + member + tail + text[close:]
    end = max(each.end for each in node.members.values())
    after = _Json(text, end)
    after.space()
    comma = "" if text.startswith(",", after.at) else ","
    return text[:end] + comma + text[end:last] + style.newline + inner + member + tail + text[close:]


# --- TOML ---


def read_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BrokenFile(str(error)) from None


def put_toml(text: str, path: tuple[str, str], entry: Entry) -> str:
    """The text with the table `[path]`. Other keys and tables of an entry already there are kept."""
    table, name = path
    old = read_toml(text)
    expected = copy.deepcopy(old)
    there = expected.setdefault(table, {})
    if not isinstance(there, dict):
        raise BrokenFile(f"{table} should be a table, and is not")
    before = there.get(name)
    there[name] = {**before, **entry} if isinstance(before, dict) else entry
    if expected == old:
        return text
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [f"{key} = {_toml(value)}" for key, value in entry.items()]
    if before is None:
        gap = "" if not text else newline if text.endswith("\n") else newline * 2
        made = text + gap + newline.join([f"[{table}.{name}]", *lines]) + newline
    else:
        made = _in_table(text, table, name, entry, newline)
    try:
        same = tomllib.loads(made) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        shown = "\n".join([f"[{table}.{name}]", *lines])
        raise CannotEdit(f"it is written in a way that cannot be edited safely; put these lines in:\n{shown}")
    return made


def _in_table(text: str, table: str, name: str, entry: Entry, newline: str) -> str:
    """New values in a table that is there: its lines with our keys are replaced, or added after its header."""
    header = re.compile(rf"[ \t]*\[[ \t]*\"?{table}\"?[ \t]*\.[ \t]*\"?{name}\"?[ \t]*\][ \t]*(#.*)?")
    made: list[str] = []
    left = dict(entry)
    place: int | None = None
    inside = False
    for line in text.splitlines(keepends=True):
        found = re.match(r"[ \t]*([A-Za-z0-9_-]+)[ \t]*=", line)
        if line.lstrip().startswith("["):
            inside = header.fullmatch(line.rstrip("\r\n")) is not None
            made.append(line)
            place = len(made) if inside else place
        elif inside and found is not None and found[1] in left:
            made.append(f"{found[1]} = {_toml(left.pop(found[1]))}{newline}")
        else:
            made.append(line)
    if place is not None:
        made[place:place] = [f"{key} = {_toml(value)}{newline}" for key, value in left.items()]
    return "".join(made)


def _toml(value: Any) -> str:
    """JSON's strings, numbers and lists are TOML's, too."""
    return json.dumps(value, ensure_ascii=False)


# --- YAML, as far as a mapping of mappings goes ---

_KEY = re.compile(r"""(?P<indent> *)(?P<key>"[^"]*"|'[^']*'|[^\s#:'"{}\[\],&*!|>%@`-][^:#]*?):(?P<rest>\s.*|)""")


def put_yaml(text: str, path: tuple[str, str], entry: Entry) -> str:
    """The text with `entry` under `path`, two levels of a block mapping. An entry already there is replaced whole."""
    table, name = path
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines()
    tops = _children(lines, 0, len(lines), 0)
    if table not in tops:
        return newline.join([*lines, f"{table}:", *_yaml(name, entry, 2)]) + newline
    start, end = tops[table]
    head = _KEY.fullmatch(lines[start])
    assert head is not None
    value = head["rest"].split(" #")[0].strip()
    made = list(lines)
    if value in ("{}", "null", "~"):
        made[start] = lines[start][: head.start("rest")]
    elif value and not value.startswith("#"):
        shown = "\n".join([f"{table}:", *_yaml(name, entry, 2)])
        raise CannotEdit(f"{table} is written on one line; put these lines in instead:\n{shown}")
    inner = _indent_of(lines[start + 1 : end])
    children = _children(lines, start + 1, end, inner)
    first, last = children.get(name, (end, end))
    made[first:last] = _yaml(name, entry, inner)
    return text if made == lines else newline.join(made) + newline


def _indent_of(lines: list[str]) -> int:
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            return len(line) - len(line.lstrip(" "))
    return 2


def _children(lines: list[str], first: int, last: int, indent: int) -> dict[str, tuple[int, int]]:
    """The keys at this indentation, and the lines that belong to each."""
    found: dict[str, tuple[int, int]] = {}
    key: str | None = None
    for number in range(first, last):
        line = lines[number]
        if "\t" in line[: len(line) - len(line.lstrip())]:
            raise BrokenFile(f"line {number + 1}: YAML is not indented with tabs")
        if not line.strip() or line.lstrip().startswith("#") or line in ("---", "..."):
            continue
        depth = len(line) - len(line.lstrip(" "))
        if depth > indent or (depth == indent and line.lstrip().startswith("- ")):
            if key is None:
                raise BrokenFile(f"line {number + 1}: this belongs to no key")
            found[key] = (found[key][0], number + 1)
            continue
        match = _KEY.fullmatch(line)
        if depth < indent or match is None:
            raise BrokenFile(f"line {number + 1}: a key with a colon is expected")
        key = match["key"].strip("\"'")
        if key in found:
            raise BrokenFile(f"line {number + 1}: {key} is there twice")
        found[key] = (number, number + 1)
    return found


def _yaml(name: str, entry: Entry, indent: int) -> list[str]:
    """JSON values are YAML's, too."""
    inner = " " * (indent * 2)
    lines = [f"{inner}{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    return [f"{' ' * indent}{name}:", *lines]
