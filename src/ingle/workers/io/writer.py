"""Writing to a descriptor that must not block: at once what it takes, the rest when it can."""

import asyncio
import errno
from collections.abc import Callable


class Sender:
    """Writes bytes to a non-blocking descriptor: at once if it takes them, the rest when it can."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        write: Callable[[bytes], int],
        on_lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._write = write
        self._on_lost = on_lost
        self._waiting = bytearray()
        self._at_end: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        if not self._waiting:
            sent = self._try(data)
            if sent == len(data):
                return
            data = data[sent:]
            self._loop.add_writer(self._fd, self._on_writable)
        self._waiting += data

    def _try(self, data: bytes) -> int:
        try:
            return self._write(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET, errno.EBADF, errno.ENOTCONN):
                raise
            self._on_lost()
            return len(data)

    def _on_writable(self) -> None:
        del self._waiting[: self._try(bytes(self._waiting[: 1 << 18]))]
        if not self._waiting:
            self._loop.remove_writer(self._fd)
            if self._at_end is not None:
                self._at_end()
                self._at_end = None

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """Bytes not written yet."""
        return len(self._waiting)

    def close_when_empty(self, at_end: Callable[[], None]) -> None:
        if self._waiting:
            self._at_end = at_end
        else:
            at_end()

    def reopen(self, fd: int) -> None:
        self._fd = fd

    def forget(self) -> int:
        """Drop what was not written yet."""
        left = len(self._waiting)
        if left:
            self._loop.remove_writer(self._fd)
            self._waiting.clear()
        if self._at_end is not None:
            self._at_end()
            self._at_end = None
        return left
