"""Makers of functions and their parts."""

import importlib
import sys
import types
from typing import Any

from ingle_worker.snapshot.rebuild.registry import CURRENT, FUTURE_MASK, MAGIC, CannotRebuild, LoadState, Lost, maker

_TEMPLATE = (lambda: None).__code__


@maker
def defined(key: str) -> Any:
    """Return a definition of a group that was loaded before."""
    try:
        return CURRENT.get().defined[key]
    except KeyError:
        raise CannotRebuild(f"it needs {key.partition('#')[0]!r}, which could not be loaded") from None


@maker
def code(magic: bytes, fields: dict[str, Any]) -> Any:
    """Create a code object. For another Python version, compile the source of its cell."""
    state = CURRENT.get()
    filename = fields["co_filename"]
    if magic != MAGIC:
        made = _from_source(fields, state)
        # Nested code was compiled with it.
        inside = [each for each in fields["co_consts"] if type(each) is Lost]
        state.lost = [each for each in state.lost if each not in inside]
        if type(made) is Lost:
            state.lost.append(made)
        return made
    return _TEMPLATE.replace(**{**fields, "co_filename": state.renamed.get(filename, filename)})


def _from_source(fields: dict[str, Any], state: LoadState) -> Any:
    filename, name = fields["co_filename"], fields["co_name"]
    source = state.sources.get(filename)
    if source is None:
        return Lost(f"the code of {name!r} is of another Python version, and its source is not in the snapshot")
    try:
        flags = fields["co_flags"] & FUTURE_MASK
        whole = compile(source, state.renamed.get(filename, filename), "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return Lost(f"the source of {name!r} does not compile on this Python: {error}")
    wanted = (name, fields["co_firstlineno"], fields["co_argcount"], fields["co_kwonlyargcount"], fields["co_freevars"])
    stack = [whole]
    while stack:
        each = stack.pop()
        if (each.co_name, each.co_firstlineno, each.co_argcount, each.co_kwonlyargcount, each.co_freevars) == wanted:
            return each
        stack += [const for const in each.co_consts if type(const) is types.CodeType]
    return Lost(f"{name!r} was not found in the source of its cell")


@maker
def function(made: Any, where: Any, closure: Any) -> Any:
    """Create a function. `where` is None for the session's globals, the name of a module, or a dictionary."""
    if type(made) is Lost:
        return made
    if where is None:
        where = CURRENT.get().space
    elif type(where) is str:
        where = vars(importlib.import_module(where))
    return types.FunctionType(made, where, made.co_name, None, closure)


@maker
def function_state(target: Any, state: dict[str, Any]) -> None:
    if type(target) is Lost:
        return
    for name, value in state.items():
        if name == "dict":
            vars(target).update(value)
        elif name == "globals":
            for each, content in value.items():
                target.__globals__.setdefault(each, content)
        elif name == "__annotations__" and sys.version_info >= (3, 14):
            setattr(target, "__annotate__" if callable(value) else name, value)
        elif name == "__annotate__" and sys.version_info < (3, 14):
            continue
        else:
            setattr(target, name, value)


@maker
def cell() -> types.CellType:
    return types.CellType()


@maker
def cell_state(target: types.CellType, contents: Any) -> None:
    target.cell_contents = contents


@maker
def match_again(pattern: Any, string: Any, start: int, end: int, span: tuple[int, int]) -> Any:
    """Repeat the match of a regular expression."""
    for found in (pattern.match(string, start, end), pattern.search(string, start, end), pattern.match(string, *span)):
        if found is not None and found.span() == span:
            return found
    return None


@maker
def lru_cache(function: Any, maxsize: Any, typed: bool) -> Any:
    import functools

    return functools.lru_cache(maxsize=maxsize, typed=typed)(function)


@maker
def set_dict(target: Any, state: dict[str, Any]) -> None:
    vars(target).update(state)
