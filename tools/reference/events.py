"""Page of the events and of the other shapes in answers, from the structs."""

import typing
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct

from ingle import batches, capacity, events, files, trials
from ingle.grants import ApprovalInfo
from ingle.tools import shapes as shapes_of_tools
from reference.markdown import field_meanings, kind_of, summary, table

HEAD = """\
# Events and shapes

This page is generated from `src/ingle/events.py` by `python tools/reference`.

A session has a timeline of numbered events.
Streams, WebSockets and `session.events()` yield them in the same shape.
A field that has its default is left out of an event.

## Fields of every event

"""

SHAPES = """
## Other shapes

Answers of the HTTP interface and values of the Python client have these fields.
"""


def page() -> str:
    """Return the whole page."""
    kinds = typing.get_args(events.AnyEvent)
    found = {
        **vars(events),
        **vars(files),
        **vars(trials),
        **vars(capacity),
        **vars(batches),
        **vars(shapes_of_tools),
    }.values()
    shapes = [each for each in found if _is_shape(each) and each not in (*kinds, batches.NewBatch)]
    parts = [HEAD + _fields(events.Event)]
    common = {field.name for field in msgspec.structs.fields(events.Event)}
    parts += [f"\n## `{kind.__struct_config__.tag}`\n\n{_about(kind)}{_fields(kind, common)}" for kind in kinds]
    parts.append(SHAPES)
    parts += [f"\n### {shape.__name__}\n\n{_about(shape)}{_fields(shape)}" for shape in shapes]
    return "".join(parts)


def _is_shape(value: Any) -> bool:
    modules = tuple(each.__name__ for each in (events, files, trials, capacity, batches, shapes_of_tools))
    own = (
        isinstance(value, type) and issubclass(value, Struct) and (value.__module__ in modules or value is ApprovalInfo)
    )
    return own and value is not events.Event


def _about(kind: type[Struct]) -> str:
    text = summary(kind)
    return f"{text}\n\n" if text else ""


def _fields(kind: type[Struct], without: set[str] | None = None) -> str:
    _, components = msgspec.json.schema_components((kind,))
    schemas = components[kind.__name__]["properties"]
    meanings = field_meanings(kind)
    rows = [
        (
            f"`{field.encode_name}`",
            kind_of(schemas[field.encode_name]),
            _default(field),
            meanings.get(field.name, ""),
        )
        for field in msgspec.structs.fields(kind)
        if field.name not in (without or set())
    ]
    return table(("Field", "Value", "Default", "Meaning"), rows) if rows else "It has no other fields.\n"


def _default(field: Any) -> str:
    value = field.default if field.default is not NODEFAULT else None
    if isinstance(value, bool | int | float | str):
        return f"`{msgspec.json.encode(value).decode()}`"
    return ""
