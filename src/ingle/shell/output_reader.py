"""Reading the output of a command from pipes, FIFOs or a terminal, without blocking and without being flooded.

After each read it pauses for a moment, so that many small writes become one wake-up; while its owner is behind it does
not read at all, and the writer waits. Each descriptor is closed at its end.
"""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable

COALESCE = 0.001
"""Pause after a read, so that many small writes become one wake-up."""

CHUNK = 1 << 16

AT_ONCE = 1 << 20
"""Bytes taken from one descriptor before the loop gets its turn again; also what a busy pipe is enlarged to."""

LAST_READS = 64
"""Reads at the very end: what a pipe or a terminal can still hold is less."""


class Reader:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fds: dict[int, int],
        on_data: Callable[[int, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._fds = fds
        self._on_data = on_data
        self._on_end = on_end
        self._paused = False
        self._enlarged = False
        self._timer: asyncio.TimerHandle | None = None
        for fd in fds.values():
            os.set_blocking(fd, False)
        self._watch()

    @property
    def at_end(self) -> bool:
        """Nobody holds the other ends any more."""
        return not self._fds

    def pause(self) -> None:
        """The owner is behind: leave the output where it is."""
        if not self._paused:
            self._paused = True
            self._unwatch()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._timer is None:
                self._watch()

    def read_now(self) -> None:
        """All that is there; at the end, when nobody is left who could write more."""
        for number in list(self._fds):
            for _ in range(LAST_READS):
                if not self._read(number):
                    break

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unwatch()
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _watch(self) -> None:
        self._timer = None
        if not self._paused:
            for fd in self._fds.values():
                self._loop.add_reader(fd, self._on_readable)

    def _unwatch(self) -> None:
        for fd in self._fds.values():
            self._loop.remove_reader(fd)

    def _on_readable(self) -> None:
        self._unwatch()
        if self._timer is None:
            self._timer = self._loop.call_later(COALESCE, self._watch)
        for number in list(self._fds):
            got = 0
            while got < AT_ONCE and not self._paused and (some := self._read(number)):
                got += some
                if some == CHUNK and not self._enlarged:
                    self._enlarge()
        if not self._fds:
            self.close()
            self._on_end()

    def _read(self, number: int) -> int:
        """Bytes taken; at the end of a descriptor it is let go of."""
        fd = self._fds.get(number)
        if fd is None:
            return 0
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return 0
        except OSError:  # a terminal whose other side is closed
            data = b""
        if not data:
            self._loop.remove_reader(fd)
            os.close(fd)
            del self._fds[number]
            return 0
        self._on_data(number, data)
        return len(data)

    def _enlarge(self) -> None:
        self._enlarged = True
        for fd in self._fds.values():
            # A terminal has no size to set, and a user's quota for pipe memory may be used up.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, AT_ONCE)
