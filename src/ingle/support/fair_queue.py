"""Fair queue: a bounded number of slots, shared by owners who take turns.

Requests of one owner are served in order, and owners are served in turn. No owner has all slots, and a full queue
refuses the newest request of the owner with the most of them. So one owner never keeps another one out.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable

REMEMBERED = 0.1
"""Weight of the last use in the average time that a slot is held."""


class Slot:
    """Context in which a slot of the queue is held."""

    def __init__(self, queue: "FairQueue", owner: str, seconds: float) -> None:
        self._queue = queue
        self._owner = owner
        self._seconds = seconds
        self._began = 0.0

    async def __aenter__(self) -> None:
        await self._queue.take(self._owner, self._seconds)
        self._began = time.monotonic()

    async def __aexit__(self, *failure: object) -> None:
        self._queue.give_back(self._owner, time.monotonic() - self._began)


class FairQueue:
    """Slots and the requests that wait for one."""

    def __init__(self, slots: int, share: int, capacity: int, refuse: Callable[[float], Exception]) -> None:
        """One owner has at most `share` of the slots. `capacity` bounds the requests that wait.

        `refuse` makes the error of a refused request from the seconds after which the queue may be short again.
        """
        self._slots = slots
        self._share = share
        self._capacity = capacity
        self._refuse = refuse
        self._held: Counter[str] = Counter()
        self._used = 0
        # Owners stand in the order of their turns. Each has at least one request here.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._length = 0
        self._closed: Exception | None = None
        self._seconds = 0.0
        """Average time that a slot is held."""

    @property
    def length(self) -> int:
        """Number of requests that wait."""
        return self._length

    def slot(self, owner: str, seconds: float) -> "Slot":
        """Hold a slot. Wait for it for at most `seconds`. Raise the error of `refuse` if that is not possible."""
        return Slot(self, owner, seconds)

    def close(self, error: Exception) -> None:
        """Refuse all requests that wait, and all later ones, with this error."""
        self._closed = error
        for queue in self._waiting.values():
            for request in queue:
                if not request.done():
                    request.set_exception(error)
        self._waiting.clear()
        self._length = 0

    async def take(self, owner: str, seconds: float) -> None:
        """Take a slot, once it is this owner's turn."""
        if self._closed is not None:
            raise self._closed
        if owner not in self._waiting and self._is_free(owner):
            self._hold(owner)
            return
        if self._length >= self._capacity:
            self._make_space(owner)
        request: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(request)
        self._length += 1
        try:
            async with asyncio.timeout(seconds):
                await request
        except TimeoutError:
            self._give_up(owner, request)
            raise self._refuse(self._estimate()) from None
        except asyncio.CancelledError:
            self._give_up(owner, request)
            raise

    def _make_space(self, owner: str) -> None:
        """Refuse the newest request of the owner that has most of them waiting; that may be this one."""
        longest = max(self._waiting, key=lambda each: len(self._waiting[each]))
        if len(self._waiting[longest]) <= len(self._waiting.get(owner, ())) + 1:
            raise self._refuse(self._estimate())
        refused = self._waiting[longest][-1]
        self._remove(longest, refused)
        if not refused.done():
            refused.set_exception(self._refuse(self._estimate()))

    def _give_up(self, owner: str, request: "asyncio.Future[None]") -> None:
        """Forget a request whose caller has left."""
        if request in self._waiting.get(owner, ()):
            self._remove(owner, request)
        elif request.done() and not request.cancelled() and request.exception() is None:
            self._release(owner)  # the slot came at the same moment

    def _remove(self, owner: str, request: "asyncio.Future[None]") -> None:
        queue = self._waiting[owner]
        queue.remove(request)
        self._length -= 1
        if not queue:
            del self._waiting[owner]

    def _is_free(self, owner: str) -> bool:
        return self._used < self._slots and self._held[owner] < self._share

    def _hold(self, owner: str) -> None:
        self._used += 1
        self._held[owner] += 1

    def give_back(self, owner: str, held_seconds: float) -> None:
        """Free a slot that `take` took."""
        self._seconds += REMEMBERED * (held_seconds - self._seconds)
        self._release(owner)

    def _release(self, owner: str) -> None:
        self._used -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        while (following := next((each for each in self._waiting if self._is_free(each)), None)) is not None:
            queue = self._waiting.pop(following)
            request = queue.popleft()
            self._length -= 1
            if queue:
                self._waiting[following] = queue  # behind the other owners
            if not request.done():
                self._hold(following)
                request.set_result(None)

    def _estimate(self) -> float:
        """Return the seconds in which the requests that wait now will have been served."""
        return self._length * self._seconds / self._slots
