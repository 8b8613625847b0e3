"""Items of a batch: from the inputs of a program to requests of a bounded size, and back to results in order."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from ingle import errors
from ingle.client.results import ItemResult

MAX_ITEMS = 2000
MAX_BYTES = 16 * 1024 * 1024
"""Size of one request. More inputs are sent in several requests, one after another."""


class Item(Struct, frozen=True):
    """One run of `Client.map` that has more than an input. Files are in the folder that it starts in."""

    input: Any = None
    stdin: str = ""
    files: dict[str, str | bytes] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    id: str | int | None = None
    """Name or number in the result. Default: the place of the input, from "0" on."""


class Part:
    """Items of one request, and their results. `ordered` results come in the order of the items."""

    def __init__(self, first: int, ordered: bool) -> None:
        self.items: list[Raw] = []
        self.size = 0
        self._first = first
        self._ordered = ordered
        self._names: list[str | int | None] = []
        self._early: dict[int, ItemResult] = {}
        """Results that wait for those of earlier items."""
        self._count = 0

    @property
    def is_full(self) -> bool:
        return len(self.items) >= MAX_ITEMS or self.size >= MAX_BYTES

    def add(self, item: Item) -> None:
        """Add an item. Its number on the way is its place in this request, because names may be equal."""
        files = {path: data if isinstance(data, str) else {"base64": data} for path, data in item.files.items()}
        try:
            encoded = msgspec.json.encode(
                {
                    "id": str(len(self.items)),
                    "input": item.input,
                    "stdin": item.stdin,
                    "files": files,
                    "env": item.env,
                }
            )
        except (TypeError, ValueError) as error:
            number = self._first + len(self.items)
            raise errors.InvalidRequest(f"input {number} cannot be sent as JSON: {error}; pass plain values") from None
        self.items.append(Raw(encoded))
        self._names.append(item.id)
        self.size += len(encoded)

    def take(self, result: ItemResult) -> Iterator[ItemResult]:
        """Yield the results that are due now that this one has come."""
        number = int(result.id)
        name = self._names[number]
        result.id = str(self._first + number) if name is None else name
        if not self._ordered:
            self._count += 1
            yield result
            return
        self._early[number] = result
        while self._count in self._early:
            yield self._early.pop(self._count)
            self._count += 1

    def check_complete(self) -> None:
        """Raise Unreachable if results are missing."""
        if self._count != len(self.items):
            raise errors.Unreachable(
                f"the server ended its answer after {self._count} of {len(self.items)} results; run the others again"
            )


def parts_of(inputs: Iterable[Any], ordered: bool) -> Iterator[Part]:
    """Yield the inputs in parts, each for one request."""
    part, number = Part(0, ordered), 0
    for number, each in enumerate(inputs, 1):
        part.add(each if isinstance(each, Item) else Item(each))
        if part.is_full:
            yield part
            part = Part(number, ordered)
    if part.items:
        yield part
