"""Whose turn it is: a session runs one cell at a time, and between cells its worker may be needed for a moment.

A cell that comes while another runs is refused as busy, or stands in a queue, in order. What is done with the worker
between cells (a fork, a checkpoint) holds the turn: cells that come meanwhile wait for its end, which is near.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, NoReturn, Protocol

from ingle import errors
from ingle.sessions.cells.cell import RunningCell
from ingle.workers.worker import Worker


class Owner(Protocol):
    """The session whose turns these are."""

    @property
    def running(self) -> RunningCell | None: ...

    @property
    def worker(self) -> Worker | None: ...

    @property
    def last_cell(self) -> int: ...

    async def ensure_started(self) -> None: ...

    def before_turn(self, worker: Worker) -> "list[asyncio.Future[Any]] | None":
        """What has to be over before somebody gets his turn; None when nothing has."""
        ...


class Turns:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.queue: deque[asyncio.Future[None]] = deque()
        self.granted: asyncio.Future[None] | None = None
        """To whom the next turn was given, until he has begun."""
        self.held: asyncio.Future[None] | None = None
        """Done when somebody who needs the worker between cells is through with it."""

    async def wait(self, queue: bool) -> None:
        """Until a cell may begin: none runs, the worker is there, nothing is under way. Busy, without `queue`."""
        granted: asyncio.Future[None] | None = None
        if self._owner.running is not None or self.queue or self.granted is not None:
            granted = await self._line_up(queue)
        try:
            while True:
                await self._owner.ensure_started()
                if self._owner.running is not None or (self.granted is not None and self.granted is not granted):
                    # Somebody else was quicker when the worker came up, or when what was under way was over.
                    granted = await self._line_up(queue)
                    continue
                worker = self._owner.worker
                assert worker is not None
                under_way = self._owner.before_turn(worker)
                if under_way is None:
                    break
                if under_way:
                    await asyncio.wait(under_way)
        except BaseException:
            if granted is not None:
                self._leave(granted)
            raise
        if granted is not None:
            self.granted = None

    async def _line_up(self, queue: bool) -> "asyncio.Future[None]":
        """Until those before have had their turn; with what it is granted by."""
        if not queue:
            self.refuse()
        granted: asyncio.Future[None] = self._loop.create_future()
        self.queue.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled() or granted is self.granted:
                self._leave(granted)
            raise
        return granted

    def _leave(self, turn: "asyncio.Future[None]") -> None:
        """He does not want it any more, or cannot use it: it is the next one's."""
        if self.granted is turn:
            self.granted = None
            self.next()
        elif turn in self.queue:
            self.queue.remove(turn)

    def next(self) -> None:
        """It is the next one's turn, if somebody waits for it and nobody has it."""
        while self.queue and self.granted is None and self._owner.running is None:
            turn = self.queue.popleft()
            # Who is called off in this very moment has yet to learn of it, and to leave.
            if not turn.done():
                self.granted = turn
                turn.set_result(None)

    def refuse(self) -> NoReturn:
        running = self._owner.running
        number = running.number if running is not None else self._owner.last_cell + 1
        raise errors.Busy(number, running.age if running is not None else 0.0)

    @contextlib.asynccontextmanager
    async def own(self) -> AsyncIterator[Worker]:
        """The worker between cells, for a moment: a cell that is asked for meanwhile waits. Busy while one runs."""
        await self.wait(False)
        held = self.held = self._loop.create_future()
        try:
            worker = self._owner.worker
            assert worker is not None
            yield worker
        finally:
            self.held = None
            held.set_result(None)
            self.next()

    @contextlib.asynccontextmanager
    async def keep(self) -> AsyncIterator[None]:
        """Of one whose turn it is: it stays his, as if his cell ran, while he gets ready for it."""
        turn = self.granted = self._loop.create_future()
        try:
            yield
        except BaseException:
            self._leave(turn)
            raise
        self.granted = None

    def end(self, error: Exception) -> None:
        """There will be no more turns: who waits is told so."""
        for turn in self.queue:
            if not turn.done():
                turn.set_exception(error)
        self.queue.clear()
