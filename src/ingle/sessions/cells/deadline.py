"""The end of a cell's time: it is interrupted, and killed when that does not stop it.

Its worker is the one it was begun on: should that end, the cell has ended too.
"""

import asyncio

from ingle.sessions.cells.cell import RunningCell
from ingle.workers.worker import Worker

RESEND_SIGINT = 0.02
"""While the worker does not take SIGINT (libc's system() ignores it), it is sent again this often."""


class Deadlines:
    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_grace: float, exit_grace: float) -> None:
        self._loop = loop
        self._timeout_grace = timeout_grace
        self._exit_grace = exit_grace
        self._timers: list[asyncio.TimerHandle] = []

    def set(self, cell: RunningCell, worker: Worker) -> None:
        """A cell has begun that has a timeout."""
        assert cell.timeout is not None
        self._timers.append(self._loop.call_later(cell.timeout, self._on_timeout, cell, worker))

    def exits(self, cell: RunningCell, worker: Worker) -> None:
        """Its process is about to exit: handlers, threads and finalizers have their time."""
        self._timers.append(self._loop.call_later(self._exit_grace, self._on_lingering, cell, worker))

    def cancel(self) -> None:
        """The cell is over."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def interrupt(self, cell: RunningCell, worker: Worker, *, again: bool = False) -> None:
        """Until it is taken, or the cell has ended."""
        if cell.final is not None:
            return
        sent = worker.interrupt(cell.number, again=again)

        def retry(sent: "asyncio.Future[bool]") -> None:
            if sent.result() and cell.final is None:
                self._loop.call_later(RESEND_SIGINT, lambda: self.interrupt(cell, worker, again=True))

        sent.add_done_callback(retry)

    def _on_timeout(self, cell: RunningCell, worker: Worker) -> None:
        cell.timed_out = True
        self.interrupt(cell, worker)
        self._timers.append(self._loop.call_later(self._timeout_grace, self._on_grace_over, cell, worker))

    def _on_grace_over(self, cell: RunningCell, worker: Worker) -> None:
        worker.kill(
            f"did not stop within {self._timeout_grace:g} s of its timeout of {cell.timeout:g} s, and was killed"
        )

    def _on_lingering(self, cell: RunningCell, worker: Worker) -> None:
        cell.notices.append(
            f"exit handlers, threads or finalizers did not end within {self._exit_grace:g} s; the process was killed"
        )
        worker.kill()
