"""Live copies of a worker: all that descend from one another are a family below one init.

Each member has a place in the memory that init shares with them, by number. A place is given again only after the
process that had it was seen to end. Copies are made all or none; whoever asked may go meanwhile, then they are ended.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ingle.errors import StartFailed
from ingle_worker.wire import messages
from ingle_worker.wire.constants import MAX_WORKERS_PER_INIT

if TYPE_CHECKING:
    from ingle.workers.worker import ChildEnds, Worker

MOST_UNTAKEN = 1024 * 1024
"""Bytes of answers that wait for a worker to read them."""

BATCH = 64
"""Copies that a worker may ask for at once, and be answered."""

PATIENCE = 10.0
"""Until a worker begins with a copy: a task of its event loop may be in the way. The same for making one."""


@dataclass(frozen=True)
class Copies:
    workers: "list[Worker]"
    notices: list[str]
    """What of the original they do not have."""

    async def up(self) -> "list[Worker]":
        """All of them, ready. Raises StartFailed, and then there are none."""
        readies: list[asyncio.Future[messages.Ready]] = [each.ready for each in self.workers]
        try:
            _, late = await asyncio.wait(readies, timeout=PATIENCE)
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
        for worker in self.workers:
            worker.kill()


class Family:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = 1
        self._free: list[int] = []
        self.members: set[Worker] = set()
        """Those that are not gone."""
        self.over: asyncio.Future[None] = loop.create_future()
        """The last of them is."""
        self.swept: asyncio.Future[None] | None = None
        """Nothing is left of it; asked for when its init was killed."""

    def take_places(self, count: int) -> list[int]:
        """So many, or none."""
        fresh = max(0, count - len(self._free))
        if self._next + fresh > MAX_WORKERS_PER_INIT:
            raise StartFailed("this session and its forks have had too many copies; save it and load it anew")
        taken = [self._free.pop(0) for _ in range(count - fresh)]
        taken += range(self._next, self._next + fresh)
        self._next += fresh
        return taken

    def give_back(self, places: Iterable[int]) -> None:
        """No process has had them."""
        self._free += places

    def leave(self, worker: "Worker") -> None:
        """A member is gone."""
        self.members.discard(worker)
        if worker.place and worker.exit_seen:
            self._free.append(worker.place)
        if not self.members and not self.over.done():
            self.over.set_result(None)


class Forks:
    """What one worker is asked for: one order at a time."""

    def __init__(self, origin: "Worker") -> None:
        self._origin = origin
        self._one = asyncio.Lock()
        self._under_way: Forking | None = None
        self.count = 0

    async def make(self, count: int) -> Copies:
        making = asyncio.get_running_loop().create_task(self._make(count))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            making.add_done_callback(_end_unwanted)
            raise

    async def _make(self, count: int) -> Copies:
        async with self._one:
            if not self._origin.alive:
                raise StartFailed("the worker has ended, and cannot be copied")
            self.count += 1
            self._under_way = Forking(self._origin, self.count, count)
            try:
                return await self._under_way.run()
            finally:
                self._under_way = None

    def on_message(self, message: "messages.EndsWanted | messages.Copied") -> None:
        if isinstance(message, messages.EndsWanted) and not message.slots:
            self._origin.break_off("it asked for the ends of no copy")
        elif self._under_way is not None and self._under_way.ticket == message.ticket:
            self._under_way.on_message(message)
        elif isinstance(message, messages.EndsWanted):
            if self._origin.untaken > MOST_UNTAKEN:
                self._origin.break_off("it asks, and does not take the answers")
                return
            # Whoever wanted these has given up.
            for place in message.slots[:BATCH]:
                self._origin.send(messages.Ends(message.ticket, place))


def _end_unwanted(making: "asyncio.Task[Copies]") -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().kill()


class Forking:
    """Copies of one worker while they are being made."""

    def __init__(self, origin: "Worker", ticket: int, count: int) -> None:
        self._origin = origin
        self._loop = asyncio.get_running_loop()
        self.ticket = ticket
        self._made: dict[int, Worker] = {}
        self._places = origin.family.take_places(count)
        self._copied: asyncio.Future[messages.Copied] = self._loop.create_future()
        self._giving: set[asyncio.Task[None]] = set()
        self._trouble = ""

    async def run(self) -> Copies:
        """Until the worker goes on. Raises StartFailed when they cannot be had; then there are none."""
        origin = self._origin
        until = time.monotonic() + PATIENCE
        origin.send(messages.ForkSelf(self.ticket, self._places, until))
        try:
            # The worker ends by itself what it has begun.
            ends: list[asyncio.Future[Any]] = [self._copied, origin.gone]
            await asyncio.wait(ends, timeout=2 * PATIENCE + 1, return_when="FIRST_COMPLETED")
            if origin.gone.done():
                raise StartFailed(f"the worker {origin.gone.result().message} while it was copied")
            if not self._copied.done():
                raise StartFailed("the session did not come to it: a task of its event loop blocks it; try again")
            copied = self._copied.result()
            if copied.failed or len(self._made) != len(self._places):
                raise StartFailed(f"{self._trouble or copied.reason or 'a copy is missing'}; free memory or processes")
        except BaseException:
            for worker in self._made.values():
                worker.kill()
            # Nobody is given the ends of the others any more.
            origin.family.give_back(place for place in self._places if place not in self._made)
            raise
        finally:
            for task in self._giving:
                task.cancel()
        workers = [self._made[place] for place in self._places]
        return Copies(workers, [each[:1000] for each in copied.notices[:10]])

    def on_message(self, message: "messages.EndsWanted | messages.Copied") -> None:
        if isinstance(message, messages.Copied):
            if not self._copied.done():
                self._copied.set_result(message)
            return
        task = self._loop.create_task(self._give_ends(message.slots))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def _give_ends(self, places: list[int]) -> None:
        """Init learns of each copy before there is any, so that no end of one goes unnoticed."""
        given: dict[int, ChildEnds] = {}
        try:
            for place in places:
                if place not in self._places or place in self._made:
                    self._origin.break_off(f"it asked for a copy that nobody wants ({place})")
                    return
                worker = self._origin.make_sibling(place)
                try:
                    given[place] = worker.make_ends()
                    worker.watch()
                except OSError:
                    self._origin.family.leave(worker)
                    raise
                self._made[place] = worker
                await self._origin.introduce(place, given[place].fds.pop())
            await asyncio.wait({self._made[place].init_up for place in places}, timeout=PATIENCE)
        except OSError as error:
            self._trouble = f"no pipe could be made: {error.strerror}"
        finally:
            try:
                for place in places:
                    ends = given.get(place)
                    fds = ends.fds[: messages.FDS_PER_COPY] if ends is not None and not self._trouble else []
                    await self._origin.give_ends(messages.Ends(self.ticket, place), fds)
            except OSError:  # the origin is gone, and tells so itself
                pass
            finally:
                for ends in given.values():
                    ends.close()
