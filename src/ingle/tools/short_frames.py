"""Short texts on a WebSocket, which calls of functions are: one frame each, and most often one read.

The library's parser takes a frame through six generators, and that takes longer than the call of a function. A read
that is exactly one frame with a short text needs no parser. All else is left to the library.
"""

import os

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, SERVER, Protocol
from websockets.server import ServerProtocol

try:
    from websockets.speedups import apply_mask
except ImportError:  # a build without its C extension
    from websockets.utils import apply_mask

FINAL_TEXT = 0x81
"""First byte of a frame with a whole text."""

MASKED = 0x80
"""Bit of the second byte: a key follows the length, and the text is masked with it."""

KEY_BYTES = 4
TWO_BYTES = 126
"""Length in the second byte that says that the true one follows in two bytes. A greater one is not short."""

MAX_SHORT_BYTES = 0xFFFF


class ShortFrames(Protocol):
    """Protocol of the library that handles short texts by itself."""

    _between_frames = False
    """Whether the library has read whole frames only, so that the next byte begins one."""

    def receive_data(self, data: bytes | bytearray) -> None:
        text = self._short_text(data)
        if text is not None:
            self.events.append(Frame(Opcode.TEXT, text))
            return
        self._between_frames = False
        super().receive_data(data)

    def recv_frame(self, frame: Frame) -> None:
        super().recv_frame(frame)
        # The parser may hold the head of the next frame only if there are bytes behind this one.
        self._between_frames = not self.reader.buffer

    def _short_text(self, data: bytes | bytearray) -> bytes | None:
        """Return the text of data that is exactly one frame with it; else None."""
        if not self._between_frames or len(data) < 2 or data[0] != FINAL_TEXT or self.current_size is not None:
            return None
        if self.state is not OPEN or self.extensions or self.debug:
            return None
        length, start = data[1] & ~MASKED, 2
        if length > TWO_BYTES:
            return None
        if length == TWO_BYTES:
            length, start = int.from_bytes(data[2:4], "big"), 4
        from_client = self.side is SERVER
        if from_client:
            start += KEY_BYTES
        if bool(data[1] & MASKED) is not from_client or len(data) != start + length:
            return None
        if self.max_message_size is not None and length > self.max_message_size:
            return None
        text = bytes(data[start:])
        return apply_mask(text, data[start - KEY_BYTES : start]) if from_client else text

    def send_text(self, data: bytes | bytearray | memoryview, fin: bool = True) -> None:
        size = len(data)
        plain = fin and not self.expect_continuation_frame and not self.extensions and not self.debug
        if not plain or self.state is not OPEN or size > MAX_SHORT_BYTES:
            super().send_text(data, fin)
            return
        mask = 0 if self.side is SERVER else MASKED
        head = bytes((FINAL_TEXT, mask | size)) if size < TWO_BYTES else _long_head(mask, size)
        if mask:
            key = os.urandom(KEY_BYTES)
            head, data = head + key, apply_mask(data, key)
        self.writes.append(head + data)


class ShortClientProtocol(ShortFrames, ClientProtocol):
    """Side of a client."""


class ShortServerProtocol(ShortFrames, ServerProtocol):
    """Side of a server."""


def _long_head(mask: int, size: int) -> bytes:
    return bytes((FINAL_TEXT, mask | TWO_BYTES)) + size.to_bytes(2, "big")
