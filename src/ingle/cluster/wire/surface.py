"""The verbs that can be called over a connection, read from the annotations of protocols.

`describe` turns a protocol into a `Surface`: its verbs with the types of their arguments and answers, and its parts,
which are other protocols. A method that is not described here cannot be called from outside.

    async def -> data                 CALL    the answer is the data
    async def -> protocol with close  OPEN    the object stays at the agent until it is closed
    def -> AsyncIterator              STREAM  items, as fast as they are read
    def -> None                       NOTE    no answer
    property, def or async def -> protocol    part: a step on the way to an object
"""

import enum
import inspect
import types
import typing
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec


class Kind(enum.Enum):
    CALL = "call"
    OPEN = "open"
    STREAM = "stream"
    NOTE = "note"


@dataclass(frozen=True, eq=False)
class Verb:
    """One method of a protocol."""

    name: str
    kind: Kind
    arguments: type[msgspec.Struct]
    """One field for each parameter but the upload, so that making one checks the call."""
    read_arguments: "msgspec.msgpack.Decoder[Any]"
    keywords: frozenset[str]
    """Parameters that are given by name only."""
    read_answer: "msgspec.msgpack.Decoder[Any]"
    """Reads the answer, or one item."""
    upload: tuple[int, str] | None
    """Position and name of the parameter that is a stream of bytes."""
    opens: "Surface | None" = None

    def take_upload(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], AsyncIterator[bytes] | None]:
        """Return the arguments without the upload, and the upload."""
        if self.upload is None:
            return args, kwargs, None
        position, name = self.upload
        if position < len(args):
            return args[:position] + args[position + 1 :], kwargs, args[position]
        return args, {key: value for key, value in kwargs.items() if key != name}, kwargs[name]

    def carry_out(self, target: object, arguments: msgspec.Struct, upload: AsyncIterator[bytes] | None) -> Any:
        """Call the method."""
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for name in arguments.__struct_fields__:
            value = getattr(arguments, name)
            if name in self.keywords:
                named[name] = value
            else:
                positional.append(value)
        if self.upload is not None:
            positional.insert(self.upload[0], upload)
        return getattr(target, self.name)(*positional, **named)


@dataclass(frozen=True, eq=False)
class Part:
    """Step from an object to another one."""

    name: str
    surface: "Surface"
    is_property: bool
    is_async: bool


@dataclass(eq=False)
class Surface:
    """What can be done with objects of one protocol."""

    name: str
    verbs: dict[str, Verb]
    parts: dict[str, Part]
    attributes: dict[str, Any]
    """Types of the plain attributes, which are sent when an object is opened."""
    opened: type[msgspec.Struct] | None = None
    """The attributes as one value."""

    @property
    def closes(self) -> bool:
        """Whether objects of this kind have to be closed."""
        return "close" in self.verbs


LOCAL = frozenset({"Node.start", "Node.stop"})
"""Methods that are about the process that has the object."""


@cache
def describe(protocol: type) -> Surface:
    """Return the surface of a protocol."""
    surface = Surface(protocol.__name__, {}, {}, {})
    classes = [each for each in reversed(protocol.__mro__) if getattr(each, "_is_protocol", False)]
    for each in classes:
        for name, member in vars(each).items():
            if name.startswith("_") or f"{each.__name__}.{name}" in LOCAL:
                continue
            if isinstance(member, property):
                assert member.fget is not None
                surface.parts[name] = Part(name, describe(_returned(member.fget)), True, False)
            elif inspect.isfunction(member):
                _add_method(surface, name, member)
        if not _is_root(each):
            surface.attributes |= {
                name: kind for name, kind in typing.get_type_hints(each).items() if not name.startswith("_")
            }
    fields = [(name, kind) for name, kind in surface.attributes.items()]
    surface.opened = msgspec.defstruct(f"{protocol.__name__}Opened", fields, array_like=True)
    return surface


def _is_root(each: type) -> bool:
    return each is typing.Protocol


def _returned(method: Callable[..., Any]) -> Any:
    return typing.get_type_hints(method)["return"]


def _is_protocol(kind: Any) -> bool:
    return isinstance(kind, type) and getattr(kind, "_is_protocol", False)


def _add_method(surface: Surface, name: str, method: types.FunctionType) -> None:
    """Add a method as a part or a verb."""
    hints = typing.get_type_hints(method)
    returned = hints["return"]
    is_async = inspect.iscoroutinefunction(method)
    opens: Surface | None = None
    answer: Any
    if _is_protocol(returned):
        other = describe(returned)
        if not (is_async and other.closes):
            surface.parts[name] = Part(name, other, False, is_async)
            return
        kind, opens, answer = Kind.OPEN, other, other.opened
    elif typing.get_origin(returned) is AsyncIterator:
        kind, (answer,) = Kind.STREAM, typing.get_args(returned)
    elif is_async:
        kind, answer = Kind.CALL, returned
    elif returned is type(None):
        kind, answer = Kind.NOTE, returned
    else:
        return  # it answers at once, so it cannot be asked over a connection
    surface.verbs[name] = _verb(name, kind, answer, opens, method, hints)


def _verb(
    name: str,
    kind: Kind,
    answer: Any,
    opens: Surface | None,
    method: types.FunctionType,
    hints: dict[str, Any],
) -> Verb:
    fields: list[Any] = []
    keywords: set[str] = set()
    upload = None
    for position, parameter in enumerate(list(inspect.signature(method).parameters.values())[1:]):
        wanted = hints[parameter.name]
        if typing.get_origin(wanted) is AsyncIterator:
            upload = position, parameter.name
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keywords.add(parameter.name)
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, wanted))
        else:
            fields.append((parameter.name, wanted, parameter.default))
    arguments = msgspec.defstruct(f"{name}_arguments", fields, array_like=True)
    return Verb(
        name,
        kind,
        arguments,
        msgspec.msgpack.Decoder(arguments),
        frozenset(keywords),
        msgspec.msgpack.Decoder(answer),
        upload,
        opens,
    )
