"""Editors that take one entry out of another program's configuration file. All other bytes stay as they are."""

import copy
import re
from typing import Any

from ingle.install.edit_config import (
    Path,
    checked,
    end_of,
    json_members,
    line_end,
    parse_yaml,
    plain_json,
    read_json,
    read_toml,
    read_yaml,
)

_COMMA = re.compile(r"\s*,")


def remove_json(text: str, path: Path) -> str:
    """Return the text without the entry at `path`."""
    table, name = path
    expected = _without(read_json(text), path)
    plain = plain_json(text)
    outer = json_members(plain, plain.index("{"))[table][0]
    members = json_members(plain, outer)
    first, end = members[name]
    before = max((last for _, last in members.values() if last < first), default=outer + 1)
    start = plain.index('"', before)
    following = _COMMA.match(plain, end)
    comma = plain.find(",", before, start) if following is None else -1
    head = len(text[:start].rstrip(" \t"))
    if text[head - 1] == "\n":
        head -= 2 if text[head - 2] == "\r" else 1
    kept = text[:head] if comma < 0 else text[:comma] + text[comma + 1 : head]
    return checked(kept + text[end if following is None else following.end() :], expected, read_json, _refusal(name))


def remove_toml(text: str, path: Path) -> str:
    """Return the text without the table `[path]`."""
    import tomlkit

    table, name = path
    expected = _without(read_toml(text), path)
    document = tomlkit.parse(text)
    servers: Any = document[table]
    del servers[name]
    made = tomlkit.dumps(document)
    if not expected[table] and table not in read_toml(made):
        del expected[table]  # it stood only in the name of its last table
    return checked(made, expected, read_toml, _refusal(name))


def remove_yaml(text: str, path: Path) -> str:
    """Return the text without the lines of the entry at `path`. A comment above it stays."""
    table, name = path
    expected = _without(read_yaml(text), path)
    expected[table] = expected[table] or None
    (entries,) = (value for key, value in parse_yaml(text, "compose").value if key.value == table)
    ((key, value),) = ((key, value) for key, value in entries.value if key.value == name)
    start = key.start_mark.index - key.start_mark.column
    end = line_end(text, end_of(value, key.end_mark.index))
    return checked(text[:start] + text[end:], expected, read_yaml, _refusal(name))


def _without(document: Any, path: Path) -> Any:
    made = copy.deepcopy(document)
    del made[path[0]][path[1]]
    return made


def _refusal(name: str) -> str:
    return f"the entry {name} is written in a way that cannot be taken out safely; move it by hand"
