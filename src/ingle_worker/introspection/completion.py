"""Completion: the names that may stand at the cursor.

Names of the session, attributes of live objects, keys of dictionaries and columns of tables, modules, magics.
"""

import builtins
import keyword
import os
import re
import sys
import time
import types
from collections.abc import Iterable, Iterator
from typing import Any

from ingle_worker.introspection import lookup
from ingle_worker.magics import commands
from ingle_worker.session import variables
from ingle_worker.wire.messages import Suggestion

MAX_MATCHES = 1000
MAX_NAME_CHARS = 200
MAX_FOLDER_ENTRIES = 10_000
"""Entries of one folder that are read when modules are looked for."""

MAX_SECONDS = 0.2
"""Seconds for reading folders. Modules found later are left out."""

_NAME = r"[^\W\d]\w*"
_DOTTED = re.compile(rf"((?:{_NAME}\.)*)({_NAME})?$")
_KEY = re.compile(rf"((?:{_NAME}\.)*{_NAME})\[(['\"])([^'\"\\\n]*)$")
_MAGIC = re.compile(r"^[ \t]*(%%?)(\w*)$")
_IMPORT = re.compile(r"^\s*(?:import\s+(?:.*,\s*)?|from\s+)([\w.]*)$")
_IMPORT_FROM = re.compile(r"^\s*from\s+([\w.]+)\s+import\s+(?:.*[,(]\s*)?(\w*)$")

_functions = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    staticmethod,
    classmethod,
)


def complete(space: dict[Any, Any], text: str) -> tuple[list[Suggestion], int, int]:
    """Return the names that may stand at the end of this code, sorted.

    Also return how many characters each name replaces, and the number of names left out.
    """
    line = text.rpartition("\n")[2]
    prefix, found = _found(space, line)
    matches = []
    for name, kind in found:
        if name.startswith(prefix) and len(name) <= MAX_NAME_CHARS and (prefix or not name.startswith("_")):
            matches.append(Suggestion(name, kind))
    matches.sort(key=lambda each: (each.text.startswith("_"), each.text))
    return matches[:MAX_MATCHES], len(prefix), max(len(matches) - MAX_MATCHES, 0)


def _found(space: dict[Any, Any], line: str) -> tuple[str, Iterable[tuple[str, str]]]:
    """Return the beginning of the name at the end of this line, and the names that could stand there."""
    if match := _MAGIC.search(line):
        return match[2], ((name, "magic") for name in _magics(match[1]))
    if match := _IMPORT_FROM.search(line):
        return match[2], _importable(match[1])
    if match := _IMPORT.search(line):
        package, _, prefix = match[1].rpartition(".")
        return prefix, _submodules(package) if package else _modules()
    if match := _KEY.search(line):
        return match[3], _keys(space, match[1].split("."), match[2])
    match = _DOTTED.search(line)
    assert match is not None
    prefix = match[2] or ""
    if match[1]:
        return prefix, _attributes(space, match[1][:-1].split("."))
    if line[: match.start()].rstrip().endswith("."):
        return prefix, ()  # an attribute of an expression, which would have to run
    return prefix, _names(space)


def kind_of(value: Any) -> str:
    """Return what kind of thing this is, in the words that editors use."""
    kind = type(value)
    if lookup.is_class(value):
        return "class"
    if lookup.is_module(value):
        return "module"
    # A metaclass may have any `__eq__` and `__hash__`, so its classes are not looked up.
    if type(kind) is type and kind in _functions:
        return "function"
    return "property" if kind is property else "instance"


def _names(space: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    seen = set()
    for names in (space.copy(), vars(builtins).copy()):
        for name, value in names.items():
            if type(name) is str and name not in seen:
                seen.add(name)
                yield name, kind_of(value)
    for name in (*keyword.kwlist, *keyword.softkwlist):
        if name not in seen:
            yield name, "keyword"


def _attributes(space: dict[Any, Any], path: list[str]) -> Iterator[tuple[str, str]]:
    try:
        value = lookup.find_value(space, path)
    except lookup.NotFound:
        return
    names = lookup.names_of(value)
    for name in _columns(value):
        if name.isidentifier():
            names.setdefault(name, None)
    for name, held in names.items():
        yield name, kind_of(held)


def _keys(space: dict[Any, Any], path: list[str], quote: str) -> Iterator[tuple[str, str]]:
    try:
        value = lookup.find_value(space, path)
    except lookup.NotFound:
        return
    keys = _columns(value)
    if type(value) is dict:
        keys = [each for each in value.copy() if type(each) is str]
    for each in keys:
        if each.isprintable() and "\\" not in each and quote not in each:
            yield each, "key"


def _columns(value: Any) -> list[str]:
    """Return the names of a data frame's columns."""
    for module in ("pandas.core.frame", "polars.dataframe.frame"):
        if type(value) is variables.module_attribute(module, "DataFrame"):
            return [each for each in list(value.columns)[: lookup.MAX_NAMES] if type(each) is str]
    return []


def _magics(sign: str) -> set[str]:
    return {*commands.COMPILED, *(commands.LINES if sign == "%" else (*commands.CELLS, *commands.WRAPPING))}


# --- modules -------------------------------------------------------------------------------------------------


def _modules() -> Iterator[tuple[str, str]]:
    known = {*sys.builtin_module_names, *sys.stdlib_module_names}
    known.update(_in_folders(sys.path))
    for name in known:
        yield name, "module"


def _submodules(package: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of a package that is imported already. Finding others would run its code."""
    module = sys.modules.get(package)
    if not lookup.is_module(module):
        return
    contents = lookup.names_of(module)
    names = {name for name, value in contents.items() if lookup.is_module(value)}
    folders = contents.get("__path__")
    names.update(_in_folders(folders if type(folders) is list else []))
    for name in names:
        yield name, "module"


def _importable(package: str) -> Iterator[tuple[str, str]]:
    module = sys.modules.get(package)
    found = dict(_submodules(package))
    if lookup.is_module(module):
        found = {**{name: kind_of(value) for name, value in lookup.names_of(module).items()}, **found}
    yield from found.items()


def _in_folders(folders: Any) -> Iterator[str]:
    deadline = time.monotonic() + MAX_SECONDS
    for folder in list(folders):
        if type(folder) is not str or time.monotonic() > deadline:
            continue
        try:
            with os.scandir(folder or ".") as entries:
                for _, entry in zip(range(MAX_FOLDER_ENTRIES), entries, strict=False):
                    name, dot, rest = entry.name.partition(".")
                    module = rest == "py" or rest.endswith(("so", "pyd")) if dot else entry.is_dir()
                    if module and name.isidentifier() and name != "__pycache__":
                        yield name
        except OSError:
            continue
