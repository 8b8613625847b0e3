"""Flow control of one stream: what its sender may still send."""

import asyncio

from ingle.cluster.wire.frames import WINDOW_BYTES


class SendWindow:
    """Bytes that the sender of a stream may send before its reader has read some."""

    def __init__(self) -> None:
        self._left = WINDOW_BYTES
        self._open = asyncio.Event()
        self._open.set()

    async def take(self, size: int) -> None:
        """Wait until the reader has room, then take it. One item may be larger than the room."""
        await self._open.wait()
        self._left -= size
        if self._left <= 0:
            self._open.clear()

    def give(self, size: int) -> None:
        self._left += size
        if self._left > 0:
            self._open.set()


class ReadWindow:
    """Bytes that the reader of a stream has taken and not told the sender of."""

    def __init__(self) -> None:
        self._taken = 0

    def take(self, size: int) -> int:
        """Return the credit to send after an item of this size was read; 0: none yet."""
        self._taken += size
        if self._taken < WINDOW_BYTES // 2:
            return 0
        taken, self._taken = self._taken, 0
        return taken
