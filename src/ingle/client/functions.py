"""Functions that a client provides to a session: described by a schema, called with checked arguments."""

import asyncio
import inspect
import typing
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from ingle.errors import InvalidRequest
from ingle.tools.shapes import FunctionCall, FunctionCancelled, ToolSpec

MAX_ERROR_CHARS = 10_000


class Accepted(Struct, tag_field="type", tag="provided"):
    """The functions can be called now."""

    server: str


class Refused(Struct, tag_field="type", tag="refused"):
    problem: Raw


decode_message = msgspec.json.Decoder(Accepted | Refused | FunctionCall | FunctionCancelled).decode


class Function:
    """A Python function as a tool. Its annotations are the schema, its docstring the description."""

    def __init__(
        self, function: Callable[..., Any], name: str | None = None, read_only: bool = False, destructive: bool = False
    ) -> None:
        self._function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self._arguments, self._open = _arguments_of(function)
        self._has_defaults = bool(self._arguments.__struct_defaults__)
        self._decode = msgspec.json.Decoder(self._arguments).decode
        (schema,), components = msgspec.json.schema_components([self._arguments])
        schema = components.pop(self._arguments.__name__)
        schema.pop("title", None)
        if components:
            schema["$defs"] = components
            schema = _point_to(schema, "#/$defs/")
        if self._open:
            schema["additionalProperties"] = True
        for parameter, value in _defaults_of(function).items():
            schema["properties"][parameter]["default"] = value
        self.spec = ToolSpec(
            name or function.__name__,
            inspect.getdoc(function) or "",
            schema,
            None,
            read_only,
            destructive,
        )

    def bind(self, arguments: bytes) -> dict[str, Any]:
        """Return the keyword arguments of a call. Raise a msgspec error if they do not fit."""
        given = msgspec.structs.asdict(self._decode(arguments))
        if self._open:
            given = {**msgspec.json.decode(arguments), **given}
        if not self._has_defaults:
            return given
        return {name: value for name, value in given.items() if value is not msgspec.UNSET}

    def __call__(self, arguments: dict[str, Any]) -> Any:
        return self._function(**arguments)

    def call_blocking(self, arguments: bytes) -> bytes:
        """Call the function in this thread. Return the frame with its result, without the number of the call."""
        made = self(self.bind(arguments))
        if hasattr(made, "__await__"):  # `inspect.isawaitable` takes ten times as long
            made = asyncio.run(_await(made))
        return result_of(made)


class DescribedFunction(Function):
    """A function whose schema is given. It checks nothing: the session has checked its arguments."""

    def __init__(self, spec: ToolSpec, function: Callable[..., Any]) -> None:
        self.spec = spec
        self._function = function
        self.is_async = inspect.iscoroutinefunction(function)

    def bind(self, arguments: bytes) -> dict[str, Any]:
        return msgspec.json.decode(arguments, type=dict[str, Any])


async def _await(made: Any) -> Any:
    return await made


def result_of(value: Any) -> bytes:
    """Return the fields of an answer with this value."""
    if isinstance(value, (bytes, bytearray, memoryview)):  # a union is made anew for each call
        return b'"op":"return","data":"' + b64encode(value) + b'"}'
    return b'"op":"return","value":' + msgspec.json.encode(value) + b"}"


def failure_of(error: BaseException) -> bytes:
    """Return the fields of an answer with this failure, in the words of the exception."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    return b'"op":"raise","message":' + msgspec.json.encode(text[:MAX_ERROR_CHARS]) + b"}"


def frame(number: int, fields: bytes) -> bytes:
    """Return the text of an answer to the call of this number."""
    return b'{"id":%d,' % number + fields


def _arguments_of(function: Callable[..., Any]) -> tuple[type[Struct], bool]:
    """Return a struct with the parameters of a function, and whether it takes others too."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidRequest(f"{function!r} has no signature; wrap it in a function that has one") from None
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # annotations are the user's code: what cannot be evaluated means any value
        hints = {}
    fields: list[tuple[str, Any, Any]] = []
    takes_others = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            takes_others = True
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise InvalidRequest(f"the parameter {name!r} has no name that a call could give; make it a keyword")
        elif parameter.default is parameter.empty:
            fields.append((name, _kind(hints.get(name, Any)), msgspec.field()))
        else:
            # The default stays the function's own: it may be any object.
            kind = _kind(hints.get(name, Any))
            fields.append((name, kind | msgspec.UnsetType if kind is not Any else Any, msgspec.UNSET))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=not takes_others), takes_others


def _defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults that a schema can show."""
    given = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in given if isinstance(each.default, str | int | float | None)}


def _kind(hint: Any) -> Any:
    """Return a type that msgspec can check, or else any value."""
    try:
        msgspec.json.schema(hint)
        _ = hint | msgspec.UnsetType  # fails for what cannot be one of several
    except (TypeError, ValueError):
        return Any
    return hint


def _point_to(schema: Any, prefix: str) -> Any:
    if isinstance(schema, dict):
        return {
            key: _moved(value, prefix) if key == "$ref" else _point_to(value, prefix) for key, value in schema.items()
        }
    return [_point_to(each, prefix) for each in schema] if isinstance(schema, list) else schema


def _moved(reference: Any, prefix: str) -> Any:
    return prefix + reference.rpartition("/")[2] if isinstance(reference, str) else reference
