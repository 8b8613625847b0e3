"""A worker's standard input as the host has it: the end that is written to, and a look at the one that is read.

It takes answers without blocking, tells what nobody has read, drops that, and opens again after an end of file.
"""

import asyncio
import os

from ingle.workers.io.descriptors import unread
from ingle.workers.io.writer import Sender


class Stdin:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Makes the pipe. `child` is the end that is given away."""
        self.child, self._fd = os.pipe()
        try:
            # An own look at the pipe's read end: to drop what nobody read, and to open it again after an
            # end of file. Both are done by path, so that flags are not shared with the child's descriptor.
            self._peek = os.open(f"/proc/self/fd/{self.child}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            os.close(self.child)
            os.close(self._fd)
            raise
        os.set_blocking(self._fd, False)
        self.inode = os.fstat(self._peek).st_ino
        self._out = Sender(loop, self._fd, self._write, lambda: None)
        self._answered = False
        """Something was written since it was last emptied."""

    def answer(self, text: bytes, *, eof: bool) -> None:
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
        """More of an answer is to come, or its end: whoever waits now is about to get it."""
        return self._fd < 0 or self._out.pending

    def unread(self) -> int:
        return unread(self._peek)

    def drop(self) -> int:
        """At the end of a cell: forget what it did not read, and open the input again. How many bytes were left."""
        if not self._answered:
            return 0
        self._answered = False
        dropped = self._out.forget()
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
            self._out.reopen(self._fd)
        return dropped

    def close(self) -> None:
        self._out.forget()
        self._close()
        os.close(self._peek)
