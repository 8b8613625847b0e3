"""Frames: a length, a kind, a small JSON header and a raw payload. Pure functions on bytes.

    u32  length of header and payload together
    u32  length of the header
    u8   kind, a number from `messages`

Both lengths come first, so a reader can refuse a frame before it reads the content.
"""

import struct
from typing import NamedTuple

PREFIX = struct.Struct(">IIB")
MAX_FRAME = 64 * 1024 * 1024
"""Limit of a frame. The largest legitimate message is a cell's source or one mime bundle."""


class WireError(Exception):
    """A protocol error of the other side. Nothing more can be read from it."""


class FrameTooLarge(WireError):
    """A frame length above the limit."""


class BadFrame(WireError):
    """A header length above the frame length."""


class Frame(NamedTuple):
    kind: int
    header: bytes
    payload: bytes


def encode_frame(kind: int, header: bytes, payload: bytes = b"", limit: int = MAX_FRAME) -> bytes:
    """Return the bytes of one frame, or raise FrameTooLarge."""
    size = len(header) + len(payload)
    if size > limit:
        raise FrameTooLarge(f"a frame of {size} bytes is above the limit of {limit}")
    return PREFIX.pack(size, len(header), kind) + header + payload


class FrameReader:
    """Incremental parser: takes bytes in pieces of any size and returns complete frames in order.

    After an error it stays broken, because the position of the next frame is unknown.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._broken: WireError | None = None

    def feed(self, data: bytes) -> list[Frame]:
        if self._broken is not None:
            raise self._broken
        if self._buffer:
            self._buffer += data
        # The usual case, a complete frame, is not copied into the buffer first.
        # A slice of a view is no copy: a long frame is in memory twice at most, in the buffer and by itself.
        whole: bytes | memoryview = memoryview(self._buffer) if self._buffer else data
        frames: list[Frame] = []
        start, end = 0, len(whole)
        while end - start >= PREFIX.size:
            size, header_size, kind = PREFIX.unpack_from(whole, start)
            if size > self._limit:
                self._broken = FrameTooLarge(f"a frame of {size} bytes is above the limit of {self._limit}")
                break
            if header_size > size:
                self._broken = BadFrame(f"a header of {header_size} bytes in a frame of {size}")
                break
            body = start + PREFIX.size
            if end - body < size:
                break
            header_end = body + header_size
            start = body + size
            frames.append(Frame(kind, bytes(whole[body:header_end]), bytes(whole[header_end:start])))
        if isinstance(whole, memoryview):
            whole.release()
            del self._buffer[:start]
        elif start < end:
            self._buffer += data[start:]
        if self._broken is not None:
            self._buffer.clear()
            if not frames:
                raise self._broken
        return frames

    @property
    def held(self) -> int:
        """Buffered bytes of an incomplete frame."""
        return len(self._buffer)
