"""The output of a command, read from pipes, FIFOs or a terminal with back-pressure."""

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable

COALESCE_SECONDS = 0.001
"""Pause after a read, so that many small writes become one wake-up."""

CHUNK_BYTES = 1 << 16

MAX_TURN_BYTES = 1 << 20
"""Bytes read from one descriptor in one turn of the loop. A busy pipe is enlarged to this size."""

MAX_LAST_READS = 64
"""Reads at the end of a command. A pipe or terminal cannot hold more."""


class OutputReader:
    """Reader of one descriptor for each stream. It never blocks, and closes each descriptor at its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fds: dict[int, int],
        on_data: Callable[[int, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        """Start to read `fds`, by stream number. `on_end` is called when all of them are at their end."""
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
        """Whether no process has the other ends open any more."""
        return not self._fds

    def pause(self) -> None:
        """Leave output where it is, because its consumer is behind. The writers wait."""
        if not self._paused:
            self._paused = True
            self._unwatch()

    def resume(self) -> None:
        """Read again after a pause."""
        if self._paused:
            self._paused = False
            if self._timer is None:
                self._watch()

    def read_now(self) -> None:
        """Read all that is there, at the end, when no process is left to write more."""
        for number in list(self._fds):
            for _ in range(MAX_LAST_READS):
                if not self._read(number):
                    break

    def close(self) -> None:
        """Stop reading and close the descriptors."""
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
            self._timer = self._loop.call_later(COALESCE_SECONDS, self._watch)
        for number in list(self._fds):
            got = 0
            while got < MAX_TURN_BYTES and not self._paused and (some := self._read(number)):
                got += some
                if some == CHUNK_BYTES and not self._enlarged:
                    self._enlarge()
        if not self._fds:
            self.close()
            self._on_end()

    def _read(self, number: int) -> int:
        """Read once, and close the descriptor at its end. Return the number of bytes."""
        fd = self._fds.get(number)
        if fd is None:
            return 0
        try:
            data = os.read(fd, CHUNK_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # the other side of a terminal was closed
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
            # A terminal has no size to set, and the user's quota for pipe memory may be used up.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, MAX_TURN_BYTES)
