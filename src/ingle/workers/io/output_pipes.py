"""stdout and stderr of a worker, at our end: read when there is something, and never more than the reader can take.

What was read goes to the merger, with the time around each read: with that, it finds the places that marks speak of.
"""

import asyncio
import contextlib
import fcntl
import os
import select
from collections.abc import Callable
from time import monotonic_ns

from ingle.workers.io.descriptors import unread
from ingle.workers.io.output_order import STDERR, STDOUT, Merger

COALESCE = 0.001
"""Pause after a read of output, so that many small writes become one wake-up."""

PIPE_SIZE = 1 << 20
"""A pipe that was seen busy is enlarged to this; others stay as the kernel makes them."""

BUSY = 1 << 15
"""Bytes in a pipe that make it busy: half of what it takes. Small writes leave gaps in its pages, so it is never full
to the last byte."""


class Pipes:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, stdout: int, stderr: int, merger: Merger, on_read: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._fds = {STDOUT: stdout, STDERR: stderr}
        self._merger = merger
        self._on_read = on_read
        """Told after each read that was not asked for."""
        self._open: set[int] = set()
        self._readable = select.poll()
        self._chunk = 1 << 16
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        for fd in self._fds.values():
            os.set_blocking(fd, False)
            self._readable.register(fd, select.POLLIN)
            self._open.add(fd)
            self._loop.add_reader(fd, self._on_readable)

    def _unwatch(self, fd: int) -> None:
        self._open.discard(fd)
        self._readable.unregister(fd)
        self._loop.remove_reader(fd)

    def pause(self) -> None:
        """The reader is behind, so the writer waits."""
        self._paused = True
        self._stop()

    def resume(self) -> None:
        self._paused = False
        if self._timer is None:
            self._start()

    def _stop(self) -> None:
        for fd in self._open:
            self._loop.remove_reader(fd)

    def _start(self) -> None:
        self._timer = None
        if not self._paused:
            for fd in self._open:
                self._loop.add_reader(fd, self._on_readable)

    def _on_readable(self) -> None:
        self._stop()
        self._timer = self._loop.call_later(COALESCE, self._start)
        got = self.read()
        self._on_read()
        if not got:
            self._find_end()

    def read(self) -> bool:
        """What is there now, but not what comes meanwhile. Whether there was anything."""
        got = False
        if not self._readable.poll(0):
            return got
        for number, fd in self._fds.items():
            if fd not in self._open:
                continue
            left = unread(fd)
            while left > 0:
                began = monotonic_ns()
                try:
                    data = os.read(fd, min(left, self._chunk))
                except BlockingIOError:
                    break
                if not data:
                    break
                got = True
                left -= len(data)
                self._merger.feed(number, data, began, monotonic_ns())
                if len(data) >= BUSY and self._chunk != PIPE_SIZE:
                    self._enlarge()
        return got

    def _enlarge(self) -> None:
        self._chunk = PIPE_SIZE
        for fd in self._fds.values():
            # A user's quota for pipe memory may be used up; then the pipes stay small and slower.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_SIZE)

    def _find_end(self) -> None:
        for number, fd in self._fds.items():
            if fd in self._open:
                began = monotonic_ns()
                try:
                    data = os.read(fd, 1)
                except BlockingIOError:
                    continue
                if data:
                    self._merger.feed(number, data, began, monotonic_ns())
                else:
                    self._unwatch(fd)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for fd in list(self._open):
            self._unwatch(fd)
        for fd in self._fds.values():
            os.close(fd)
