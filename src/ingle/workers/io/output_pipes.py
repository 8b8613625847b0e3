"""The stdout and stderr pipes of a worker, at the host's end.

They are read when there is something to read, and not while the consumer is behind. The bytes go to the merger with
the time around each read, by which it finds the places of marks.
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

COALESCE_SECONDS = 0.001
"""Pause after a read of a busy worker, so that many small writes become one wake-up."""

QUIET_NANOSECONDS = 10_000_000
"""A worker is busy if its last output is not older than this. Most cells print once, and need no pause."""

LARGE_PIPE_BYTES = 1 << 20
"""Size to which a busy pipe is enlarged. Other pipes keep the kernel's default."""

BUSY_BYTES = 1 << 15
"""Bytes in a pipe that make it busy: half of its capacity. Small writes leave gaps in its pages, so it is never full
to the last byte."""

FIRST_CHUNK_BYTES = 1 << 16


class OutputPipes:
    """Two pipes that feed one merger."""

    def __init__(self, loop: asyncio.AbstractEventLoop, merger: Merger, on_read: Callable[[], None]) -> None:
        """Create the pipes. The descriptors `children` go to the worker; the caller closes them.

        `on_read` is called after each read that nobody asked for.
        """
        stdout, child_out = os.pipe()
        try:
            stderr, child_err = os.pipe()
        except OSError:
            os.close(stdout)
            os.close(child_out)
            raise
        self.children = (child_out, child_err)
        self._loop = loop
        self._fds = {STDOUT: stdout, STDERR: stderr}
        self._merger = merger
        self._on_read = on_read
        self._open: set[int] = set()
        self._readable = select.poll()
        self._chunk_bytes = FIRST_CHUNK_BYTES
        self._paused = False
        self._last_read = 0
        """Monotonic nanoseconds of the last read that found something."""
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Start to read."""
        for fd in self._fds.values():
            os.set_blocking(fd, False)
            self._readable.register(fd, select.POLLIN)
            self._open.add(fd)
            self._loop.add_reader(fd, self._on_readable)

    @property
    def quiet(self) -> bool:
        """Whether both pipes are open and empty, and read without a pause."""
        return len(self._open) == len(self._fds) > 0 and not self._paused and not self._readable.poll(0)

    def release(self) -> list[int]:
        """Stop reading and return the descriptors, for the caller to give away."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        fds = list(self._fds.values())
        for fd in fds:
            self._unwatch(fd)
        self._fds = {}
        return fds

    def restore(self, fds: list[int]) -> None:
        """Go on with the descriptors of `release`."""
        self._fds = dict(zip((STDOUT, STDERR), fds, strict=True))
        self.watch()
        if self._paused:
            self._stop()

    def _unwatch(self, fd: int) -> None:
        self._open.discard(fd)
        self._readable.unregister(fd)
        self._loop.remove_reader(fd)

    def pause(self) -> None:
        """Leave bytes in the pipes, so that the worker waits."""
        self._paused = True
        self._stop()

    def resume(self) -> None:
        """Read again after a pause."""
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
        now = monotonic_ns()
        got = self.read()
        if got:
            if now - self._last_read < QUIET_NANOSECONDS:
                self._stop()
                self._timer = self._loop.call_later(COALESCE_SECONDS, self._start)
            self._last_read = now
        else:
            self._find_end()
        self._on_read()

    def read(self) -> bool:
        """Read the bytes that are there now, but not those that arrive meanwhile. Return whether there were any."""
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
                    data = os.read(fd, min(left, self._chunk_bytes))
                except BlockingIOError:
                    break
                if not data:
                    break
                got = True
                left -= len(data)
                self._merger.feed(number, data, began, monotonic_ns())
                if len(data) >= BUSY_BYTES and self._chunk_bytes != LARGE_PIPE_BYTES:
                    self._enlarge()
        return got

    def _enlarge(self) -> None:
        self._chunk_bytes = LARGE_PIPE_BYTES
        for fd in self._fds.values():
            # The user's quota for pipe memory may be used up. Then the pipes stay small, and slower.
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, LARGE_PIPE_BYTES)

    def _find_end(self) -> None:
        """Stop watching pipes that no process has open any more."""
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
        """Stop reading and close the host's ends."""
        if self._timer is not None:
            self._timer.cancel()
        for fd in list(self._open):
            self._unwatch(fd)
        for fd in self._fds.values():
            os.close(fd)
        self._on_read = _nothing


def _nothing() -> None:
    """Stand in for a callback of an owner that is gone."""
