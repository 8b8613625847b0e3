"""Objects of an agent, as a gateway sees them: made from the protocols of `ingle.nodes`.

`handle` returns an object that has the methods of a protocol. Each method sends its arguments as they are described
in `surface`. There is no code for single methods.
"""

from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any, Protocol

import msgspec

from ingle.cluster.offer import Agent
from ingle.cluster.wire.link import Link, Target
from ingle.cluster.wire.surface import Kind, Part, Surface, Verb, describe


class Caller(Protocol):
    """Carries out verbs: a connection, or what chooses one."""

    async def call(self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def stream(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AsyncIterator[Any]: ...

    async def open_on(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Link, int, msgspec.Struct]:
        """Open an object. Return its connection, its number and its attributes."""
        ...


class Direct:
    """Calls over one connection."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.call = link.call
        self.stream = link.stream

    async def open_on(
        self, target: Target, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Link, int, msgspec.Struct]:
        return self.link, *await self.link.open_handle(target, verb, args, kwargs)


class Handle:
    """Base of all handles: an object at an agent, by the steps to it or by the number of what was opened."""

    def __init__(self, caller: Caller, target: Target) -> None:
        self._caller = caller
        self._target = target


def handle(protocol: Any, caller: Caller, target: Target) -> Any:
    """Return an object with the methods of `protocol`."""
    return _class_of(describe(protocol))(caller, target)


def opened(surface: Surface, link: Link, number: int, attributes: msgspec.Struct) -> Any:
    """Return an object that a call has opened, with its attributes."""
    made = _class_of(surface)(Direct(link), number)
    for name in attributes.__struct_fields__:
        setattr(made, name, getattr(attributes, name))
    return made


@cache
def _class_of(surface: Surface) -> type[Handle]:
    members: dict[str, Any] = {name: _METHODS[verb.kind](verb) for name, verb in surface.verbs.items()}
    members |= {name: _step(part) for name, part in surface.parts.items()}
    return type(f"Remote{surface.name}", (Handle,), members)


def _call(verb: Verb) -> Callable[..., Any]:
    def method(self: Handle, *args: Any, **kwargs: Any) -> Any:
        return self._caller.call(self._target, verb, args, kwargs)

    return method


def _open(verb: Verb) -> Callable[..., Any]:
    async def method(self: Handle, *args: Any, **kwargs: Any) -> Any:
        assert verb.opens is not None
        return opened(verb.opens, *await self._caller.open_on(self._target, verb, args, kwargs))

    return method


def _stream(verb: Verb) -> Callable[..., Any]:
    def method(self: Handle, *args: Any, **kwargs: Any) -> Any:
        return self._caller.stream(self._target, verb, args, kwargs)

    return method


def _note(verb: Verb) -> Callable[..., Any]:
    def method(self: Handle, *args: Any, **kwargs: Any) -> None:
        assert isinstance(self._caller, Direct)
        assert isinstance(self._target, int)
        self._caller.link.note(self._target, verb, args, kwargs)

    return method


_METHODS = {Kind.CALL: _call, Kind.OPEN: _open, Kind.STREAM: _stream, Kind.NOTE: _note}


def _step(part: Part) -> Any:
    def go(self: Handle, *args: str) -> Handle:
        assert isinstance(self._target, list)
        return _class_of(part.surface)(self._caller, [*self._target, [part.name, *args]])

    if part.is_property:
        return property(go)
    if not part.is_async:
        return go

    async def go_later(self: Handle, *args: str) -> Handle:
        return go(self, *args)

    return go_later


def remote_agent(link: Link) -> Agent:
    """Return the agent at the other end of a connection. Its `node` is a `Node`, as the one of this machine is."""
    found: Agent = handle(Agent, Direct(link), [])
    return found
