"""Deadline of code that runs in a worker: SIGINT when its time is over, SIGKILL when that does not stop it."""

import asyncio
from collections.abc import Callable

from ingle.workers.worker import Worker

RESEND_SIGINT_SECONDS = 0.02
"""Pause before SIGINT is sent again while the worker does not receive it. libc's system() ignores SIGINT, for one."""


class Deadline:
    """Time limit of one cell or one call, and the way to interrupt it.

    The worker is the one that the code was begun on. If that worker ends, the code has ended too.
    """

    expired = False
    """Whether the time was over before the code ended."""
    killed_at_exit = False
    """Whether the process was killed because it did not exit in time."""
    abandoned: asyncio.Future[None] | None = None
    _over = False

    def __init__(
        self,
        worker: Worker,
        number: int,
        grace_seconds: float,
        reason: str,
        *,
        interrupts: int = 1,
        kill_undelivered: bool = True,
    ) -> None:
        """`number` is what init compares before it sends SIGINT: of the cell, or of the call.

        After each of the `interrupts` the code has `grace_seconds` to end. Then the worker is killed for this `reason`.
        Without `kill_undelivered`, a worker that never received SIGINT is not killed: the deadline is `abandoned`.
        """
        self._worker = worker
        self._number = number
        self._grace_seconds = grace_seconds
        self._reason = reason
        self._interrupts = interrupts
        self._kill_undelivered = kill_undelivered
        self._timers: list[asyncio.TimerHandle] = []
        if not kill_undelivered:
            self.abandoned = asyncio.get_running_loop().create_future()

    def set(self, seconds: float) -> None:
        """Begin to count the time."""
        self._later(seconds, self.expire)

    def set_exit(self, seconds: float) -> None:
        """Limit the time of exit handlers, threads and finalizers of a process that is about to exit."""
        self._later(seconds, self._kill_at_exit)

    def cancel(self) -> None:
        """Stop everything: the code has ended."""
        self._over = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def interrupt(self) -> None:
        """Send SIGINT until the worker receives it, or the code ends. Nothing is killed."""
        self._send(None)

    def expire(self) -> None:
        """Interrupt the code now, and kill the worker if that does not stop it."""
        if self._over:
            return
        self.expired = True
        self._send(asyncio.get_running_loop().time() + self._grace_seconds)
        if self._kill_undelivered:
            self._later(self._grace_seconds, self._escalate)

    def _escalate(self) -> None:
        self._interrupts -= 1
        if self._interrupts > 0:
            self.expire()
        else:
            self._kill()

    def _send(self, give_up_at: float | None, again: bool = False) -> None:
        if not self._over:
            sent = self._worker.interrupt(self._number, again=again)
            sent.add_done_callback(lambda sent: self._on_sent(sent.result(), give_up_at))

    def _on_sent(self, undelivered: bool, give_up_at: float | None) -> None:
        if self._over:
            return
        loop = asyncio.get_running_loop()
        if not undelivered:
            if give_up_at is not None and not self._kill_undelivered:
                self._later(self._grace_seconds, self._kill)
        elif self.abandoned is not None and give_up_at is not None and loop.time() >= give_up_at:
            if not self.abandoned.done():
                self.abandoned.set_result(None)
        else:
            self._timers.append(loop.call_later(RESEND_SIGINT_SECONDS, self._send, give_up_at, True))

    def _kill(self) -> None:
        self._worker.kill(self._reason)

    def _kill_at_exit(self) -> None:
        self.killed_at_exit = True
        self._worker.kill()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(seconds, action))
