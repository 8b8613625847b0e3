"""Editors that put one entry into another program's configuration file: JSON with comments, TOML and YAML.

All other bytes of the file stay as they are. A file that cannot be parsed is refused with the place of the error. After
every edit the new text is parsed again; an edit that changed anything besides the entry is refused.
"""

import copy
import json
import re
import tomllib
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, NoReturn

Entry = dict[str, Any]
Path = tuple[str, str]

TOO_DEEP = "it is nested too deeply"
UNSAFE = "it is written in a way that cannot be edited safely; put these lines in:\n"


class BrokenFile(Exception):
    """The file cannot be parsed. The message says where."""


class CannotEdit(Exception):
    """The file is valid, but its layout is not supported. The message says what to do."""


def _newline_of(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _with_entry(document: Any, path: Path, entry: Entry, kind: str) -> dict[str, Any]:
    """Return a copy of `document` with `entry` at `path`. Keys of an existing entry that are not ours are kept."""
    made = copy.deepcopy(document)
    if not isinstance(made, dict):
        raise BrokenFile(f"the file should be {kind}, and is not")
    table, name = path
    if made.get(table) is None:
        made[table] = {}
    if not isinstance(made[table], dict):
        raise BrokenFile(f"{table} should be {kind}, and is not")
    there = made[table].get(name)
    made[table][name] = {**there, **entry} if isinstance(there, dict) else entry
    return made


def checked(made: str, expected: Any, read: Callable[[str], Any], refusal: str) -> str:
    """Return `made` if it says what is expected, or raise CannotEdit with this text."""
    try:
        if read(made) == expected:
            return made
    except BrokenFile:
        pass
    raise CannotEdit(refusal)


# --- JSON with comments and trailing commas, as VS Code writes it ---

# Both expressions match strings first, so that nothing inside a string is taken for a comment or a comma.
_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|(//[^\n]*|/\*.*?\*/)', re.DOTALL)
_LAST_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|[{\[]\s*,|(,)(?=\s*[}\]])', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")


def plain_json(text: str) -> str:
    """Return strict JSON of the same length: comments and trailing commas become spaces, so positions stay."""
    for pattern in (_COMMENT, _LAST_COMMA):
        text = pattern.sub(lambda found: re.sub(r"\S", " ", found[0]) if found[1] else found[0], text)
    return text


def _no_constant(name: str) -> NoReturn:
    raise BrokenFile(f"{name} is not a value of JSON")


_JSON = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def read_json(text: str) -> Any:
    """Parse JSON that may have comments, trailing commas and a byte order mark."""
    plain = plain_json(text.removeprefix("\ufeff"))
    try:
        return _JSON.decode(plain)
    except json.JSONDecodeError as error:
        unfinished = plain.startswith("/*", error.pos)
        why = "a comment does not end" if unfinished else error.msg.lower()
        raise BrokenFile(f"line {error.lineno}, column {error.colno}: {why}") from None
    except RecursionError:
        raise BrokenFile(TOO_DEEP) from None


def put_json(text: str, path: Path, entry: Entry) -> str:
    """Return the text with `entry` at `path`. Keys of an existing entry that are not ours are kept."""
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    if not body.strip():
        return mark + json.dumps({path[0]: {path[1]: entry}}, indent=2, ensure_ascii=False) + "\n"
    old = read_json(body)
    expected = _with_entry(old, path, entry, "an object in braces")
    if expected == old:
        return text
    value: Any = expected
    plain, indent = plain_json(body), _indent_of(body)
    start = plain.index("{")
    for depth, name in enumerate(path, 1):
        value = value[name]
        members = json_members(plain, start)
        if name not in members:
            made = _insert(body, members, start, depth, json.dumps(name) + ": " + _dump(value, body, indent * depth))
            break
        start, end = members[name]
        if depth == len(path) or plain.startswith("null", start):
            made = body[:start] + _dump(value, body, indent * depth) + body[end:]
            break
    return mark + checked(made, expected, read_json, UNSAFE + json.dumps({path[0]: {path[1]: entry}}, indent=2))


def json_members(plain: str, start: int) -> dict[str, tuple[int, int]]:
    """Return where the value of each member of the object at `start` begins and ends. The text is valid."""

    def skip(at: int) -> int:
        return _SPACE.match(plain, at).end()  # type: ignore[union-attr]

    found: dict[str, tuple[int, int]] = {}
    at = skip(start + 1)
    while plain[at] != "}":
        name, at = scanstring(plain, at + 1, False)
        first = skip(skip(at) + 1)
        _, end = _JSON.raw_decode(plain, first)
        found[name] = (first, end)
        at = skip(end)
        at = skip(at + 1) if plain[at] == "," else at
    return found


def _insert(text: str, members: dict[str, tuple[int, int]], start: int, depth: int, member: str) -> str:
    """Return the text with one more member at the end of the object that begins at `start`."""
    plain = plain_json(text)
    end = max((end for _, end in members.values()), default=start + 1)
    close = plain.index("}", end)
    # The last character before the closing brace belongs to a member, to a comma or to a comment.
    last = len(text[:close].rstrip())
    newline, indent = _newline_of(text), _indent_of(text)
    tail = text[last:close] if "\n" in text[last:close] else newline + indent * (depth - 1)
    after = _COMMENT.sub(lambda found: " " * len(found[0]), text[end:close])
    comma = "," if members and "," not in after else ""
    return text[:end] + comma + text[end:last] + newline + indent * depth + member + tail + text[close:]


def _indent_of(text: str) -> str:
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return found[1] if found else "  "


def _dump(value: Any, text: str, before: str) -> str:
    """Return the value as JSON in the layout of `text`."""
    lines = json.dumps(value, indent=_indent_of(text), ensure_ascii=False).split("\n")
    return (_newline_of(text) + before).join(lines)


# --- TOML ---


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BrokenFile(str(error)) from None
    except RecursionError:
        raise BrokenFile(TOO_DEEP) from None


def put_toml(text: str, path: Path, entry: Entry) -> str:
    """Return the text with the table `[path]`. Keys of an existing entry that are not ours are kept."""
    import tomlkit

    table, name = path
    old = read_toml(text)
    expected = _with_entry(old, path, entry, "a table")
    if expected == old:
        return text
    newline = _newline_of(text)
    # tomlkit writes `\n` only. Where all lines end with `\r\n`, the new ones shall too.
    whole = newline == "\r\n" and text.count("\r\n") == text.count("\n")
    body = text.replace("\r\n", "\n") if whole else text
    new = tomlkit.dumps({table: {name: entry}})
    gap = "" if not body else "\n" if body.endswith("\n") else "\n\n"
    # A new table goes to the end, after an empty line: tomlkit would put it right below the last of its kind.
    made = body + gap + new
    try:
        if tomllib.loads(made) != expected:
            made = _edited_toml(body, path, entry)
    except tomllib.TOMLDecodeError:
        # The table is there already, or inline, or written with dotted keys.
        made = _edited_toml(body, path, entry)
    return checked(made.replace("\n", newline) if whole else made, expected, read_toml, UNSAFE + new.rstrip())


def change_list(text: str, name: str, value: str, *, remove: bool) -> str:
    """Return TOML with a value added to the list `name`, or removed from it. All else stays as it is written."""
    import tomlkit

    old = read_toml(text)
    values = old.get(name, [])
    if not isinstance(values, list) or (value in values) != remove:
        return text
    document = tomlkit.parse(text)
    if name not in document:
        document.add(name, tomlkit.array())
    changed: Any = document[name]
    if remove:
        changed.remove(value)
    else:
        changed.append(value)
    return tomlkit.dumps(document)


def _edited_toml(text: str, path: Path, entry: Entry) -> str:
    """Return the text with the new values where the old ones are, or inside the inline table that there is."""
    import tomlkit

    document = tomlkit.parse(text)
    servers: Any = document[path[0]]
    there = servers.get(path[1])
    if not isinstance(there, dict):
        servers[path[1]] = entry
        return tomlkit.dumps(document)
    for key, value in entry.items():
        if there.get(key) != value:
            there[key] = value
    return tomlkit.dumps(document)


# --- YAML ---


def parse_yaml(text: str, parse: str) -> Any:
    """Call one of ruamel.yaml's parsers, and translate its errors."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return getattr(YAML(typ="safe", pure=True), parse)(text)
    except MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise BrokenFile(line + str(error.problem)) from None
    except YAMLError as error:
        raise BrokenFile(str(error).splitlines()[0]) from None
    except RecursionError:
        raise BrokenFile(TOO_DEEP) from None


def read_yaml(text: str) -> Any:
    """Parse YAML, as plain values."""
    return parse_yaml(text, "load")


def put_yaml(text: str, path: Path, entry: Entry) -> str:
    """Return the text with `entry` at `path`. Keys of an existing entry that are not ours are kept.

    ruamel.yaml says where the nodes are, and the entry is spliced in as text. Its own writer keeps comments, but would
    change the layout elsewhere: spaces after colons, `---`, `~`, wrapped strings.
    """
    table, name = path
    old = read_yaml(text)
    if old is not None and not isinstance(old, dict):
        raise BrokenFile("line 1: a key with a colon is expected")
    expected = _with_entry(old or {}, path, entry, "a mapping")
    if expected == old:
        return text
    try:
        made = _spliced_yaml(text, path, expected[table][name])
    except TypeError as error:
        # A date, for example, which has no form in JSON.
        raise CannotEdit(f"the entry {name} holds what cannot be written again: {error}") from None
    return checked(made, expected, read_yaml, UNSAFE + _yaml_text(path, entry))


def _spliced_yaml(text: str, path: Path, entry: Entry) -> str:
    table, name = path
    newline = _newline_of(text)
    pairs = {key.value: (key, value) for key, value in getattr(parse_yaml(text, "compose"), "value", None) or ()}
    if table not in pairs:
        return _with_lines(text, len(text), len(text), [f"{table}:", *_yaml_lines(name, entry, 2)], newline)
    key, value = pairs[table]
    if not value.value or value.tag.endswith(":null"):
        if value.start_mark.index < value.end_mark.index:
            # Written as `{}`, `~` or `null`, which goes.
            text = text[: value.start_mark.index].rstrip(" ") + text[value.end_mark.index :]
        end = line_end(text, key.end_mark.index)
        return _with_lines(text, end, end, _yaml_lines(name, entry, 2), newline)
    if value.flow_style:
        raise CannotEdit(f"{table} is written on one line; put these lines in instead:\n{_yaml_text(path, entry)}")
    indent = value.start_mark.column
    start = end = line_end(text, end_of(value, key.end_mark.index))
    for child, content in value.value:
        if child.value == name:
            start = child.start_mark.index - indent
            end = line_end(text, end_of(content, child.end_mark.index))
    return _with_lines(text, start, end, _yaml_lines(name, entry, indent), newline)


def end_of(value: Any, known: int) -> int:
    """Return the index after the last character of a node. The parser's mark of a block is where the next one begins.

    `known` is an index on the last line before the value. It stands for an empty value, and for an alias, whose node is
    elsewhere in the file.
    """
    start, end = value.start_mark.index, value.end_mark.index
    if start == end or end <= known:
        return known
    if isinstance(value.value, str) or value.flow_style:
        return int(end)
    last = value.value[-1]
    return end_of(last[1], last[0].end_mark.index) if isinstance(last, tuple) else end_of(last, start)


def line_end(text: str, at: int) -> int:
    """Return the index of the line after the one that holds the character before `at`."""
    if at and text[at - 1] == "\n":
        return at
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _with_lines(text: str, start: int, end: int, lines: list[str], newline: str) -> str:
    before = text[:start]
    if before and not before.endswith("\n"):
        before += newline
    return before + newline.join(lines) + newline + text[end:]


def _yaml_text(path: Path, entry: Entry) -> str:
    return "\n".join([f"{path[0]}:", *_yaml_lines(path[1], entry, 2)])


def _yaml_lines(name: str, entry: Entry, indent: int) -> list[str]:
    """Return the lines of an entry. Values are written as JSON, which is YAML too."""
    inner = " " * (indent * 2)
    lines = [f"{inner}{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    return [f"{' ' * indent}{name}:", *lines]
