"""Live copies of a worker: processes below the same init, forked between two cells.

Copies are made all or none. If the caller gives up meanwhile, they are ended. A copy of a worker that uses a GPU cannot
use it: such a copy is only saved, and its values are loaded in another process.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingle.errors import StartFailed
from ingle.isolation.limits.room import memory_room
from ingle.workers.io.descriptors import ChildEnds
from ingle_worker.wire import messages

if TYPE_CHECKING:
    from ingle.workers.worker import Worker

MAX_UNSENT_BYTES = 1024 * 1024
"""Bytes of answers that may wait for a worker to read them."""

MAX_SLOTS_PER_MESSAGE = 64
"""Copies for which a worker may request descriptors in one message."""

FORK_PATIENCE_SECONDS = 10.0
"""Time for a worker to begin with a copy, since a task of its event loop may block it. The same for the copy."""

HOLD_BYTES_PER_SECOND = 200_000_000
"""Slowest pace at which a worker copies data of a GPU to memory, before it is given up."""

MAX_HELD_BYTES = 1 << 42
MAX_NOTICES = 10
MAX_NOTICE_CHARS = 1000


class UsesGpu(StartFailed):
    """The worker uses a GPU, and the caller wants a copy that goes on in its place."""


@dataclass(frozen=True)
class ForkOptions:
    """How copies are made."""

    folder: str = ""
    """In open files below it, each copy has a position of its own."""
    tracked: Sequence[str] = ()
    """More folders of that kind."""
    live_only: bool = False
    """Raise UsesGpu rather than copy a worker that uses a GPU."""
    loads: bool = False
    """The values of such a copy are loaded in another process, which needs memory for them too."""
    announced: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when init knows of the copies, and has time for other orders while they are forked."""


PLAIN = ForkOptions()


@dataclass(frozen=True)
class Copies:
    """Copies of one worker, which may still be starting."""

    workers: "list[Worker]"
    notices: list[str]
    """Parts of the original that the copies lack."""
    by_value: bool = False
    """The original uses a GPU, so that its copies can only be saved."""

    async def up(self) -> "list[Worker]":
        """Wait until all of them are ready. Raises StartFailed, and then there are none."""
        readies: list[asyncio.Future[messages.Ready]] = [each.ready for each in self.workers]
        try:
            _, late = await asyncio.wait(readies, timeout=FORK_PATIENCE_SECONDS)
            if late:
                raise StartFailed("a copy hung before it was ready; try again")
            for ready in readies:
                if (failure := ready.exception()) is not None:
                    raise StartFailed(f"a copy ended before it was ready: {failure}; free memory or processes")
        except BaseException:
            self.kill()
            raise
        return self.workers

    def kill(self) -> None:
        """End all of them."""
        for worker in self.workers:
            worker.kill()


Answer = messages.EndsWanted | messages.Holding | messages.Copied


class Forks:
    """Fork orders to one worker, one at a time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._current: Forking | None = None
        self._tickets = 0

    @property
    def busy(self) -> bool:
        """Return whether an order is under way."""
        return self._current is not None

    async def make(self, origin: "Worker", count: int, options: ForkOptions) -> Copies:
        """Make copies of `origin`. Raises StartFailed, and then there are none."""
        making = asyncio.get_running_loop().create_task(self._make(origin, count, options))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_end_unwanted)
            raise

    async def _make(self, origin: "Worker", count: int, options: ForkOptions) -> Copies:
        async with self._lock:
            if not origin.alive:
                raise StartFailed("the session's process has ended, and cannot be copied")
            self._tickets += 1
            self._current = Forking(origin, self._tickets, count, options)
            try:
                return await self._current.run()
            finally:
                self._current = None

    def on_message(self, origin: "Worker", message: Answer) -> None:
        """Handle what `origin` says about an order."""
        if isinstance(message, messages.EndsWanted) and not message.slots:
            origin.break_off("it asked for the ends of no copy")
        elif self._current is not None and self._current.ticket == message.ticket:
            self._current.on_message(message)
        elif isinstance(message, messages.EndsWanted):
            if origin.wire.unsent > MAX_UNSENT_BYTES:
                origin.break_off("it asks, and does not take the answers")
                return
            # The caller of that order has given up.
            for slot in message.slots[:MAX_SLOTS_PER_MESSAGE]:
                origin.send(messages.Ends(message.ticket, slot))


def _end_unwanted(making: "asyncio.Task[Copies]") -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().kill()


class Forking:
    """One fork order under way."""

    def __init__(self, origin: "Worker", ticket: int, count: int, options: ForkOptions) -> None:
        self._origin = origin
        self._options = options
        self._loop = asyncio.get_running_loop()
        self.ticket = ticket
        self._made: dict[int, Worker] = {}
        self._slots = origin.siblings.take_slots(count)
        self._copied: asyncio.Future[messages.Copied] = self._loop.create_future()
        self._until = self._loop.time() + 2 * FORK_PATIENCE_SECONDS + 1
        self._giving: set[asyncio.Task[None]] = set()
        self._trouble = ""

    async def run(self) -> Copies:
        """Make the copies and wait until the worker goes on. Raises StartFailed, and then there are none."""
        origin = self._origin
        until = time.monotonic() + FORK_PATIENCE_SECONDS
        options = self._options
        room = memory_room(origin.pid, origin.group, origin.siblings.memory_limit) // (2 if options.loads else 1)
        origin.send(
            messages.ForkSelf(
                self.ticket, self._slots, until, options.folder, list(options.tracked), room, options.live_only
            )
        )
        try:
            await self._wait_copied()
            if origin.gone.done():
                raise StartFailed(f"the session's process {origin.gone.result().message} while it was copied")
            if not self._copied.done():
                raise StartFailed("the session did not come to it: a task of its event loop blocks it; try again")
            copied = self._copied.result()
            if copied.by_value and options.live_only:
                raise UsesGpu("the session uses a GPU")
            if copied.by_value and copied.reason:
                raise StartFailed(f"the session uses a GPU, and cannot be copied: {copied.reason}")
            if copied.failed or len(self._made) != len(self._slots):
                raise StartFailed(f"{self._trouble or copied.reason or 'a copy is missing'}; free memory or processes")
        except BaseException:
            for worker in self._made.values():
                worker.kill()
            # The other copies get no descriptors any more, so they are never made.
            origin.siblings.give_back(slot for slot in self._slots if slot not in self._made)
            raise
        finally:
            for task in self._giving:
                task.cancel()
        workers = [self._made[slot] for slot in self._slots]
        notices = [each[:MAX_NOTICE_CHARS] for each in copied.notices[:MAX_NOTICES]]
        return Copies(workers, notices, copied.by_value)

    async def _wait_copied(self) -> None:
        """Wait for the worker's answer. A worker that announces much data to copy has more time for it."""
        # The worker itself ends what it has begun.
        ends: list[asyncio.Future[Any]] = [self._copied, self._origin.gone]
        while (left := self._until - self._loop.time()) > 0:
            done, _ = await asyncio.wait(ends, timeout=left, return_when="FIRST_COMPLETED")
            if done:
                return

    def on_message(self, message: Answer) -> None:
        if isinstance(message, messages.Holding):
            self._until += min(max(message.size, 0), MAX_HELD_BYTES) / HOLD_BYTES_PER_SECOND
            return
        if isinstance(message, messages.Copied):
            if not self._copied.done():
                self._copied.set_result(message)
            return
        task = self._loop.create_task(self._give_ends(message.slots))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _give_ends(self, slots: list[int]) -> None:
        """Announce each copy to init before it exists, so that no exit goes unnoticed; then send its descriptors."""
        given: dict[int, ChildEnds] = {}
        try:
            for slot in slots:
                if slot not in self._slots or slot in self._made:
                    self._origin.break_off(f"it asked for a copy that nobody wants ({slot})")
                    return
                worker = self._origin.make_sibling(slot)
                try:
                    given[slot] = worker.make_ends()
                    worker.watch()
                except OSError:
                    self._origin.siblings.leave(worker, exited=False)
                    raise
                self._made[slot] = worker
                await self._origin.init.give(messages.Adopt(slot), given[slot].fds.pop())
            await asyncio.wait({self._made[slot].init_up for slot in slots}, timeout=FORK_PATIENCE_SECONDS)
            self._options.announced.set()
        except OSError as error:
            self._trouble = f"no pipe could be made: {error.strerror}"
        finally:
            try:
                for slot in slots:
                    ends = given.get(slot)
                    fds = ends.fds[: messages.FDS_PER_COPY] if ends is not None and not self._trouble else []
                    await self._origin.give_ends(messages.Ends(self.ticket, slot), fds)
            except OSError:  # the origin is gone, which is reported as always
                pass
            finally:
                for ends in given.values():
                    ends.close()
