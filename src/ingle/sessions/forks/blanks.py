"""Blank workers of a session: copies of its worker from before the first cell, which have run nothing.

A session that uses a GPU is copied by value, into a fork of its blank worker: a forked process cannot use the driver
that its parent has initialised. A blank worker shares its memory with the zygote, and costs little.
"""

import asyncio

from ingle import errors
from ingle.events import Exit
from ingle.workers.copies import ForkOptions
from ingle.workers.views import View
from ingle.workers.worker import Worker
from ingle_worker.wire import messages

SETTLE_SECONDS = 10.0
"""Time for a blank worker to enter the folders of a fork."""


class Blanks:
    def __init__(self, *, wanted: bool) -> None:
        """`wanted`: the session may use a GPU. A one-off needs none: it ends with its answer, uncopied."""
        self.wanted = wanted
        self.workers: list[Worker] = []

    async def make(self, worker: Worker) -> None:
        """Copy a worker that has run nothing, if it may need it."""
        if self.wanted:
            (worker.blank,) = self._keep((await worker.fork()).workers)

    async def make_for_fork(self, worker: Worker, order: messages.Rehome, view: View | None) -> None:
        """Copy the blank worker of a fork's original, into the folders of the fork."""
        if worker.blank is None or not worker.blank.alive:
            return
        (blank,) = self._keep(await (await worker.blank.fork(1, ForkOptions(order.source))).up())
        if view is not None:
            await view.give_to(blank)
        settled = blank.owner = _Settled()
        blank.send(order)
        await asyncio.wait({settled.done}, timeout=SETTLE_SECONDS)
        if not settled.done.done() or not blank.alive:
            raise errors.StartFailed("a process for copies of the fork could not be prepared; try again")
        blank.owner = None
        worker.blank = blank

    def _keep(self, made: list[Worker]) -> list[Worker]:
        self.workers = [each for each in self.workers if each.alive] + made
        for each in made:
            each.is_blank = True
        return made

    async def end(self) -> None:
        """End all of them, before the session's worker ends."""
        for each in self.workers:
            each.kill()
        for each in self.workers:
            await each.gone


class _Settled:
    """Owner of a worker that waits for its answer to an order."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_message(self, message: object) -> None:
        if isinstance(message, messages.Started):
            self._end()

    def on_output(self, stream: int, data: bytes, background: bool) -> None:
        """Drop it: a blank worker prints nothing."""

    def on_gone(self, exit: Exit) -> None:
        self._end()

    def _end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
