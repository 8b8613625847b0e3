"""The border between the service and a node: small protocols, and nothing but data that can be sent."""

import inspect
import typing
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from ingle import nodes

PROTOCOLS = [
    each for each in vars(nodes).values() if getattr(each, "_is_protocol", False) and each is not typing.Protocol
]

MAX_METHODS = {"Node": 12, "SessionHandle": 24}


def methods_of(protocol: type) -> dict[str, Any]:
    return {name: each for name, each in vars(protocol).items() if inspect.isfunction(each) and name[0] != "_"}


def values_of(method: Any) -> Iterator[tuple[str, Any]]:
    """Arguments and answer of a method, each with its type; of a stream, that of its items."""
    for name, hint in typing.get_type_hints(method).items():
        if typing.get_origin(hint) is AsyncIterator:
            (hint,) = typing.get_args(hint)
        yield name, hint


def objects_in(info: msgspec.inspect.Type) -> list[Any]:
    """Types below this one that cannot be sent. `Any` stands in mime bundles, which are JSON."""
    found, queue, seen = [], [info], []
    while queue:
        each = queue.pop()
        if isinstance(each, msgspec.inspect.CustomType):
            found.append(each)
        elif isinstance(each, msgspec.Struct) and all(each is not other for other in seen):
            seen.append(each)
            for value in msgspec.structs.asdict(each).values():
                queue += [one for one in (value if isinstance(value, tuple) else [value]) if _describes(one)]
    return found


def _describes(value: object) -> bool:
    return isinstance(value, msgspec.inspect.Type | msgspec.inspect.Field)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.__name__)
def test_what_crosses_the_border_of_a_node_can_be_sent(protocol: type) -> None:
    for method_name, method in methods_of(protocol).items():
        for name, hint in values_of(method):
            if hint in PROTOCOLS:
                assert name == "return", f"{method_name} takes an object: {name}"
                continue
            live = objects_in(msgspec.inspect.type_info(hint))
            assert not live, f"{protocol.__name__}.{method_name}: {name} holds {live}"


@pytest.mark.parametrize(("name", "most"), MAX_METHODS.items())
def test_the_protocols_of_a_node_stay_small(name: str, most: int) -> None:
    assert 0 < len(methods_of(getattr(nodes, name))) <= most
