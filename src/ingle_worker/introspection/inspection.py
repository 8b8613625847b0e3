"""Inspection: signature, documentation and source of the object at the cursor."""

import inspect
import re
import types
from typing import Any

from ingle_worker.introspection import lookup
from ingle_worker.session import variables
from ingle_worker.wire.messages import Inspected, Variable

MAX_DOC_CHARS = 50_000
MAX_SOURCE_CHARS = 100_000
MAX_DEFAULT_CHARS = 60
MAX_SIGNATURE_CHARS = 2000

_NAME = r"[^\W\d]\w*"
_BEFORE = re.compile(rf"(?:{_NAME}\.)*(?:{_NAME})?$")
_AFTER = re.compile(r"\w*")


def inspect_at(ticket: int, space: dict[Any, Any], before: str, after: str, *, source: bool) -> Inspected:
    """Return what is known about the name at the cursor, or about the function whose arguments it is in."""
    for path in _names_at(before, after):
        try:
            value = lookup.find(space, path.split("."))
        except lookup.NotFound:
            continue
        described: dict[str, Any] = {"name": path, "type": variables.type_name(value)}
        variables.describe(value, described, variables.Libraries())
        return Inspected(
            ticket,
            Variable(**described),
            signature_of(value)[:MAX_SIGNATURE_CHARS],
            _doc_of(value)[:MAX_DOC_CHARS],
            _source_of(value)[:MAX_SOURCE_CHARS] if source else "",
        )
    return Inspected(ticket)


def _names_at(before: str, after: str) -> list[str]:
    """Return the dotted name at the cursor, then those of the calls around it, from the inside out."""
    start = _BEFORE.search(before)
    end = _AFTER.match(after)
    assert start is not None
    assert end is not None
    names = [(start[0] + end[0]).rstrip(".")]
    depth = 0
    for place in range(len(before) - 1, -1, -1):
        if before[place] in ")]}":
            depth += 1
        elif before[place] in "([{":
            depth -= 1
            if depth < 0 and before[place] == "(":
                called = _BEFORE.search(before[:place].rstrip())
                assert called is not None
                names.append(called[0])
                depth = 0
    return [name for name in names if name and not name.endswith(".")]


# --- signatures ------------------------------------------------------------------------------------------------


def signature_of(value: Any) -> str:
    """Return the parameters of a function or class, and the empty text if they are not known without user code."""
    if lookup.is_class(value):
        for name in ("__init__", "__new__"):
            try:
                made = signature_of(lookup.attribute(value, name))
            except lookup.NotFound:
                continue
            if made:
                first, separator, rest = made[1:].partition(", ")
                return f"({rest}" if separator else "()" if first else made
        return _text_signature(value)
    if type(value) is types.MethodType:
        return signature_of(value.__func__)
    if type(value) is types.FunctionType:
        return _of_function(value)
    return _text_signature(value)


def _text_signature(value: Any) -> str:
    """Return the signature that a function or class written in C tells."""
    if type(value) not in (
        type,
        types.BuiltinFunctionType,
        types.MethodDescriptorType,
        types.ClassMethodDescriptorType,
    ):
        return ""
    text = value.__text_signature__
    if type(text) is not str:
        return ""
    # The first argument of a bound function is marked: its module, or the object it belongs to.
    return (
        re.sub(r"^\(\$\w+(, /)?(, )?", "(", text)
        if type(value) is not types.MethodDescriptorType
        else text.replace("$", "")
    )


def _of_function(function: types.FunctionType) -> str:
    code = function.__code__
    names = code.co_varnames
    plain, keyword_only = code.co_argcount, code.co_kwonlyargcount
    defaults = function.__defaults__ or ()
    first_default = plain - len(defaults)
    parts: list[str] = []
    for number in range(plain):
        part = names[number] + _annotation(function, names[number])
        if number >= first_default:
            part += f"={_default(defaults[number - first_default])}"
        parts.append(part)
        if number + 1 == code.co_posonlyargcount:
            parts.append("/")
    place = plain + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{names[place]}")
        place += 1
    elif keyword_only:
        parts.append("*")
    keyword_defaults = function.__kwdefaults__ or {}
    for name in names[plain : plain + keyword_only]:
        part = name + _annotation(function, name)
        parts.append(f"{part}={_default(keyword_defaults[name])}" if name in keyword_defaults else part)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{names[place]}")
    returned = _annotation(function, "return")
    return f"({', '.join(parts)})" + (f" -> {returned[2:]}" if returned else "")


def _default(value: Any) -> str:
    return variables.preview(value, 1, MAX_DEFAULT_CHARS)


def _annotation(function: types.FunctionType, name: str) -> str:
    """Return `: annotation` if it is text or a class. Other objects would have to write themselves."""
    # Since Python 3.14 annotations are made when they are read, and that runs the function's own code.
    if getattr(function, "__annotate__", None) is not None:
        return ""
    value = function.__annotations__.get(name)
    if type(value) is str:
        return f": {value}"
    return f": {type.__dict__['__qualname__'].__get__(value)}" if lookup.is_class(value) else ""


# --- texts -----------------------------------------------------------------------------------------------------


def _doc_of(value: Any) -> str:
    text: Any = None
    for each in (value, type(value)):
        try:
            text = lookup.attribute(each, "__doc__")
        except lookup.NotFound:
            continue
        if type(text) is str:
            break
    if type(value) is property and type(value.fget) is types.FunctionType and type(text) is not str:
        text = value.fget.__doc__
    return inspect.cleandoc(text) if type(text) is str else ""


def _source_of(value: Any) -> str:
    if type(value) is types.MethodType:
        value = value.__func__
    if type(value) is property:
        value = value.fget
    if type(value) is not types.FunctionType and not lookup.is_class(value):
        return ""
    try:
        return inspect.getsource(value)
    except Exception:  # there is none, or user code has replaced what names its file
        return ""
