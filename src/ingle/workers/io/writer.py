"""Writing to a descriptor without blocking."""

import asyncio
import errno
from collections.abc import Callable

MAX_WRITE_BYTES = 1 << 18


class Writer:
    """Buffered writer for a non-blocking descriptor. It writes at once what fits, and the rest when it can."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fd: int,
        write: Callable[[bytes], int],
        on_lost: Callable[[], None],
    ) -> None:
        """`write` writes some bytes to `fd`. `on_lost` is called when nobody reads them any more."""
        self._loop = loop
        self._fd = fd
        self._write = write
        self._on_lost = on_lost
        self._waiting = bytearray()
        self._detached = False
        self._at_end: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        """Write `data` behind all that waits."""
        if not self._waiting and not self._detached:
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
        del self._waiting[: self._try(bytes(self._waiting[:MAX_WRITE_BYTES]))]
        if not self._waiting:
            self._loop.remove_writer(self._fd)
            if self._at_end is not None:
                self._at_end()
                self._at_end = None

    @property
    def pending(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """Number of bytes that wait to be written."""
        return len(self._waiting)

    def close_when_empty(self, at_end: Callable[[], None]) -> None:
        """Call `at_end` when nothing waits any more, or all was dropped."""
        if self._waiting:
            self._at_end = at_end
        else:
            at_end()

    def detach(self) -> None:
        """Let bytes wait until `reopen`. None may wait now."""
        self._detached = True

    def reopen(self, fd: int, write: Callable[[bytes], int]) -> None:
        """Write to another descriptor from now on."""
        self._fd, self._write = fd, write
        self._detached = False
        if self._waiting:
            self._loop.add_writer(self._fd, self._on_writable)

    def forget(self) -> int:
        """Drop what waits. Return the number of bytes."""
        left = len(self._waiting)
        if left:
            if not self._detached:
                self._loop.remove_writer(self._fd)
            self._waiting.clear()
        if self._at_end is not None:
            self._at_end()
            self._at_end = None
        return left

    def close(self) -> None:
        """Drop what waits, and all that is written from now on. Let go of the owner, which holds this writer."""
        self.forget()
        self._write, self._on_lost = len, _nothing


def _nothing() -> None:
    """Stand in for a callback of an owner that is gone."""
