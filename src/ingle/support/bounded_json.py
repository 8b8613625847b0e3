"""Typed decoder of JSON from untrusted writers. Elements, depth and text are counted before anything is decoded.

A few bytes of JSON can take a hundred bytes of memory: `[],` is three bytes and a list of ninety. The count looks at
the text in blocks, so it takes little memory itself and releases the interpreter's lock between blocks.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")

MAX_UNCHECKED_BYTES = 64 * 1024
"""Size up to which JSON is decoded without a count: it takes at most a few megabytes of memory."""

BLOCK_BYTES = 64 * 1024

_OPENING, _CLOSING = b"[{", b"]}"
_STEPS = bytes(1 if each in _OPENING else 255 if each in _CLOSING else 0 for each in range(256))
"""Change of depth for each character; 255 is -1 as a signed byte."""

_NOT_BRACKETS = bytes(each for each in range(256) if each not in _OPENING + _CLOSING)
_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes of UTF-8 that do not begin a character."""


class OutOfBounds(ValueError):
    """JSON that would take more memory than its reader allows."""


class Bounds(msgspec.Struct, frozen=True):
    """Most that JSON may decode to."""

    elements: int
    """Values, keys and containers together. An empty container counts twice. Each takes about 100 bytes at most."""
    text: int
    """Bytes of all texts in memory, where one wide character makes every character of its text wide."""
    depth: int = 32


class Decoder(Generic[T]):
    """Decoder of one type within bounds."""

    def __init__(self, kind: type[T], bounds: Bounds) -> None:
        self._decode = msgspec.json.Decoder(kind).decode
        self._bounds = bounds

    def decode(self, data: "bytes | bytearray") -> T:
        """Return the value. Raises OutOfBounds, or what msgspec raises."""
        check(data, self._bounds)
        return self._decode(data)


def check(data: "bytes | bytearray", bounds: Bounds) -> None:
    """Raise OutOfBounds if this JSON would decode to more than the bounds allow."""
    if len(data) <= MAX_UNCHECKED_BYTES:
        return
    elements = depth = characters = 0
    width = 1
    in_text = 0
    for block in _blocks(data):
        if width == 1 and (not block.isascii() or b"\\u" in block):
            width = 4
        characters += len(block) if block.isascii() else len(block.translate(None, _CONTINUATION))
        if characters * width > bounds.text:
            raise OutOfBounds(f"it takes more than {bounds.text} bytes in memory")
        parts = block.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[in_text::2])
        in_text ^= (len(parts) - 1) & 1
        brackets = outside.translate(_STEPS, _NOT_BRACKETS)
        elements += sum(map(outside.count, (b",", b":", b"[", b"{")))
        if elements > bounds.elements:
            raise OutOfBounds(f"it has more than {bounds.elements} elements")
        if brackets:
            depths = list(accumulate(memoryview(brackets).cast("b"), initial=depth))
            depth = depths[-1]
            if max(depths) > bounds.depth:
                raise OutOfBounds(f"it is nested more than {bounds.depth} deep")


def _blocks(data: "bytes | bytearray") -> Iterator[bytes]:
    """Yield the data in blocks that divide no escape sequence."""
    start = 0
    while start < len(data):
        block = bytes(data[start : start + BLOCK_BYTES])
        if (len(block) - len(block.rstrip(b"\\"))) % 2:
            block += data[start + len(block) : start + len(block) + 1]
        yield block
        start += len(block)
