"""The standard input of a worker at the host's end: a pipe that is written to, and a second reader of that pipe."""

import asyncio
import os

from ingle.workers.io.descriptors import unread
from ingle.workers.io.writer import Writer


class StdinPipe:
    """Pipe that takes answers without blocking, drops unread bytes, and opens again after an end of file."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create the pipe. The descriptor `child` goes to the worker; the caller closes it."""
        self.child, self._fd = os.pipe()
        try:
            # A second reader, to drop unread bytes and to open the pipe again after an end of file. It is opened by
            # path, so that its flags are not shared with the child's descriptor.
            self._peek = os.open(f"/proc/self/fd/{self.child}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            os.close(self.child)
            os.close(self._fd)
            raise
        os.set_blocking(self._fd, False)
        self.inode = os.fstat(self._peek).st_ino
        self._out = Writer(loop, self._fd, self._write, lambda: None)
        self._answered = False
        """Whether something was written since the last `drop`."""

    def answer(self, text: bytes, *, eof: bool) -> None:
        """Write an answer, and with `eof` an end of file after it."""
        self._answered = True
        self._out.write(text)
        if eof:
            self._out.close_when_empty(self._close)

    def _write(self, data: bytes) -> int:
        return os.write(self._fd, data)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def under_way(self) -> bool:
        """Whether more of an answer, or its end of file, is on its way to a reader that waits now."""
        return self._fd < 0 or self._out.pending

    @property
    def quiet(self) -> bool:
        """Whether the pipe is open, and no answer is in it or on its way."""
        return self._fd >= 0 and not self._answered and not self._out.pending

    def release(self) -> list[int]:
        """Return the descriptors, for the caller to give away. An answer waits until `restore`."""
        self._out.detach()
        fds = [self._fd, self._peek]
        self._fd = self._peek = -1
        return fds

    def restore(self, fds: list[int]) -> None:
        """Go on with the descriptors of `release`."""
        self._fd, self._peek = fds
        self._out.reopen(self._fd, self._write)

    def unread(self) -> int:
        """Return the number of bytes that nobody has read."""
        return 0 if self._peek < 0 else unread(self._peek)

    def drop(self) -> int:
        """Drop what a cell did not read, and open the input again. Return the number of dropped bytes."""
        if not self._answered:
            return 0
        self._answered = False
        dropped = self._out.forget()
        if self._peek < 0:
            return dropped
        left = unread(self._peek)
        while left > 0:
            try:
                data = os.read(self._peek, left)
            except BlockingIOError:
                break
            if not data:
                break
            dropped += len(data)
            left -= len(data)
        if self._fd < 0:
            self._fd = os.open(f"/proc/self/fd/{self._peek}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._out.reopen(self._fd, self._write)
        return dropped

    def close(self) -> None:
        """Close the host's descriptors."""
        self._out.close()
        self._close()
        if self._peek >= 0:
            os.close(self._peek)

    def close_both(self) -> None:
        """Close both ends, where the child's was not given away."""
        os.close(self.child)
        self.close()
