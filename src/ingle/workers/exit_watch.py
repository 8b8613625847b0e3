"""An init that has closed its socket, until nothing is left of it: only then is anybody told of the end.

A process that ends closes its descriptors first and is gone a moment later; on a busy machine that was seen to take
milliseconds. One that was killed leaves more: where it has a pid namespace, the kernel kills all below it, after its
descriptors were closed; where it has none, that is the work of the next subreaper above, who says when it is done.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

PATIENCE = 2.0
"""Until init is killed, and once more for all of it. A process that the kernel itself cannot end does not hold up who
waits for the session."""

logger = logging.getLogger(__name__)


class Departure:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        init: int,
        swept: "Callable[[], asyncio.Future[None]] | None",
        over: Callable[[], None],
        *,
        above: int | None = None,
    ) -> None:
        """`over` is called once, unless this is closed. `swept`: where init itself has not told that nothing is left
        below it, somebody else will. `above`: a process that goes after init, and is waited for in its place."""
        self._loop = loop
        self._init = init
        self._swept = swept
        self._over = over
        self._open = True
        self._timer = loop.call_later(PATIENCE, self._lose_patience)
        # Now, while the numbers are theirs.
        self._init_fd = _watch(init)
        self._last_fd = self._init_fd if above is None else _watch(above)
        if self._last_fd < 0:
            # It is gone, or this system does not tell.
            loop.call_soon(self._on_gone)
        else:
            loop.add_reader(self._last_fd, self._on_gone)

    def _on_gone(self) -> None:
        self._let_go()
        if self._swept is None:
            self._end()
        elif self._open:
            self._swept().add_done_callback(lambda swept: self._end())

    def _lose_patience(self) -> None:
        """It hung up, and did not go: it was stopped, and somebody who had its socket too hung up for it."""
        self._timer = self._loop.call_later(PATIENCE, self._give_up)
        if self._init_fd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)

    def _give_up(self) -> None:
        if self._open:
            logger.warning("process %d, an init, does not go, or something below it does not", self._init)
            self._end()

    def _end(self) -> None:
        if self._open:
            self.close()
            self._over()

    def _let_go(self) -> None:
        if self._last_fd >= 0:
            self._loop.remove_reader(self._last_fd)
        for fd in {self._init_fd, self._last_fd} - {-1}:
            os.close(fd)
        self._init_fd = self._last_fd = -1

    def close(self) -> None:
        self._open = False
        self._timer.cancel()
        self._let_go()


def _watch(pid: int) -> int:
    """A process, by a descriptor; -1 where it is gone, or this system has none."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


class Sweeping:
    """What inits that were killed have left behind, by their numbers, and who waits until it is gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._swept: dict[int, asyncio.Future[None]] = {}
        self._nobody = False

    def wait(self, init: int) -> "asyncio.Future[None]":
        """Done when nothing is left of this one. That may have been told before anybody waits for it; and it is all of
        a family that wait."""
        swept = self._swept.get(init)
        if swept is None:
            swept = self._swept[init] = self._loop.create_future()
            if self._nobody:
                self.tell(init)
        return swept

    def tell(self, init: int) -> None:
        swept = self.wait(init)
        if not swept.done():
            swept.set_result(None)
            # By then nobody waits any more, and the number may be another's.
            self._loop.call_later(PATIENCE, self._swept.pop, init, None)

    def tell_all(self, *, last: bool = False) -> None:
        """Nothing is left of any of them; or nobody is there, from now on, who could tell."""
        self._nobody = self._nobody or last
        for init in list(self._swept):
            self.tell(init)
