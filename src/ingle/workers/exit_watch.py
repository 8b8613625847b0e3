"""The last moments of an init: from the close of its socket until no process is left of it or below it.

A process that ends closes its descriptors first and is gone a moment later; on a busy machine that took milliseconds.
An init that was killed also leaves processes behind. In a pid namespace the kernel kills them, after the descriptors
of init were closed. Elsewhere the next subreaper above kills them, and reports when that is done.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

EXIT_PATIENCE_SECONDS = 2.0
"""Time until init is killed, and then until the watch gives up.

The second bound is for processes that the kernel itself cannot end: they must not hold up a session's end."""

logger = logging.getLogger(__name__)


class ExitWatch:
    """Watch over one init that calls `over` once, when nothing is left, unless it is closed before."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        init_pid: int,
        swept: "Callable[[], asyncio.Future[None]] | None",
        over: Callable[[], None],
        *,
        parent_pid: int | None = None,
    ) -> None:
        """Start to watch `init_pid`.

        `swept` returns a future that is done when nothing is left below init. It is None where init itself has
        reported that, or the kernel takes care of it. `parent_pid` is a process that exits after init; if given, its
        exit is awaited instead of init's.
        """
        self._loop = loop
        self._init_pid = init_pid
        self._swept = swept
        self._over = over
        self._open = True
        self._timer = loop.call_later(EXIT_PATIENCE_SECONDS, self._kill_init)
        # Opened at once, while the process ids cannot have been reused.
        self._init_fd = _open_pidfd(init_pid)
        self._last_fd = self._init_fd if parent_pid is None else _open_pidfd(parent_pid)
        if self._last_fd < 0:
            loop.call_soon(self._on_exit)
        else:
            loop.add_reader(self._last_fd, self._on_exit)

    def _on_exit(self) -> None:
        self._close_pidfds()
        if self._swept is None:
            self._end()
        elif self._open:
            self._swept().add_done_callback(lambda swept: self._end())

    def _kill_init(self) -> None:
        """Kill an init that lives on: it was stopped, and another process closed the socket."""
        self._timer = self._loop.call_later(EXIT_PATIENCE_SECONDS, self._give_up)
        if self._init_fd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)

    def _give_up(self) -> None:
        if self._open:
            logger.warning("process %d, an init, does not go, or something below it does not", self._init_pid)
            self._end()

    def _end(self) -> None:
        if self._open:
            self.close()
            self._over()

    def _close_pidfds(self) -> None:
        if self._last_fd >= 0:
            self._loop.remove_reader(self._last_fd)
        for fd in {self._init_fd, self._last_fd} - {-1}:
            os.close(fd)
        self._init_fd = self._last_fd = -1

    def close(self) -> None:
        """Stop watching, without calling `over`."""
        self._open = False
        self._timer.cancel()
        self._close_pidfds()


def _open_pidfd(pid: int) -> int:
    """Return a descriptor of the process; -1 if it is gone, or the system has no such descriptors."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


class Sweeper:
    """Reports about inits that were killed, by process id: when a subreaper has ended all that they left behind."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._swept: dict[int, asyncio.Future[None]] = {}
        self._closed = False

    def wait(self, init_pid: int) -> "asyncio.Future[None]":
        """Return a future that is done when nothing is left of this init. The report may have come before."""
        swept = self._swept.get(init_pid)
        if swept is None:
            swept = self._swept[init_pid] = self._loop.create_future()
            if self._closed:
                self.report(init_pid)
        return swept

    def report(self, init_pid: int) -> None:
        """Note that nothing is left of this init."""
        swept = self.wait(init_pid)
        if not swept.done():
            swept.set_result(None)
            # Forgotten when nobody can be waiting any more, since the process id may be reused.
            self._loop.call_later(EXIT_PATIENCE_SECONDS, self._swept.pop, init_pid, None)

    def report_all(self, *, last: bool = False) -> None:
        """Note that nothing is left of any init; with `last`, also that no further report will come."""
        self._closed = self._closed or last
        for init_pid in list(self._swept):
            self.report(init_pid)
