"""The workers below one init: the first one and its live copies, with the slots that they hold there."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ingle.errors import StartFailed
from ingle.isolation.egress.host_log import HostLog
from ingle_worker.wire.constants import MAX_WORKERS_PER_INIT

if TYPE_CHECKING:
    from ingle.workers.worker import Worker


class Siblings:
    """Registry of the workers that share an init.

    Each copy has a slot in the memory that init shares with its workers. A slot is reused only after init has
    reported the exit of the process that held it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next_slot = 1
        self._free_slots: list[int] = []
        self.members: set[Worker] = set()
        """The workers that are not gone."""
        self.hosts: HostLog | None = None
        """Hosts that they asked for; None where they are not known. They share one network."""
        self.memory_limit: int | None = None
        """Bytes of memory that they may use together."""
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when the last member is gone."""
        self.swept: asyncio.Future[None] | None = None
        """Done when nothing is left below the init; requested once, after the init was killed."""

    @property
    def shared(self) -> bool:
        """Whether the init has more than one worker."""
        return len(self.members) > 1

    def take_slots(self, count: int) -> list[int]:
        """Return `count` slots. Raises StartFailed, and takes none, if there are not enough."""
        fresh = max(0, count - len(self._free_slots))
        if self._next_slot + fresh > MAX_WORKERS_PER_INIT:
            raise StartFailed("this session and its forks have had too many copies; save it and load it anew")
        taken = [self._free_slots.pop(0) for _ in range(count - fresh)]
        taken += range(self._next_slot, self._next_slot + fresh)
        self._next_slot += fresh
        return taken

    def give_back(self, slots: Iterable[int]) -> None:
        """Return slots that no process has used."""
        self._free_slots += slots

    def leave(self, worker: "Worker", *, exited: bool) -> None:
        """Remove a worker that is gone. `exited`: init has reported its exit, so that its slot can be reused."""
        self.members.discard(worker)
        if worker.slot and exited:
            self._free_slots.append(worker.slot)
        if all(each.is_blank for each in self.members):
            for each in self.members:
                each.kill("was of no more use")
        if not self.members and not self.over.done():
            self.over.set_result(None)
