"""Inits whose session has ended, and which wait for another session of the same tenant.

A new init is a fork of the loaded interpreter, and in a sandbox it needs namespaces. An init that stays saves both. No
process of the ended session is left below it, and it has run no user code.
"""

import asyncio
import contextlib
import socket
from dataclasses import dataclass

from ingle.isolation.limits.apply import LimitApplier
from ingle.isolation.limits.cgroups import Group
from ingle.support.processes import usable_cores
from ingle.workers.exit_watch import Sweeper
from ingle.workers.io.descriptors import ChildEnds
from ingle_worker.wire import messages

MAX_IDLE_PER_CORE = 4
MIN_IDLE = 32
"""Idle inits that are kept: so many per core, and these on every machine. Sessions of many clients end in bursts. With
fewer idle inits, every ninth one-off of 32 clients on two cores needed a new init."""

IDLE_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class IdleInit:
    """An init without workers. It waits for a `Fork` on its socket, and ends when that is closed."""

    socket: socket.socket
    pid: int
    user: int
    """User id of its sessions, where the server chooses one; else 0."""
    tenant: str
    network: str
    """Tenant and network of the sessions that it may serve."""
    sweeper: Sweeper | None
    swept_pid: int
    group: Group | None
    """Its cgroup, which the next session takes over."""

    def order(self, ends: ChildEnds, *, pooled: bool, limits: dict[str, int]) -> None:
        """Order a worker with these descriptors. Raises OSError when init is gone."""
        order = messages.encode(messages.Fork(0, pooled, self.user, limits=limits))
        socket.send_fds(self.socket, [order], ends.fds)


class IdleInits:
    """The idle inits of one launcher."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timers: dict[IdleInit, asyncio.TimerHandle] = {}
        """The end of each idle init, in the order in which they became idle."""
        self._released: set[asyncio.Future[None]] = set()
        self._max = max(MIN_IDLE, MAX_IDLE_PER_CORE * usable_cores())

    def __len__(self) -> int:
        return len(self._timers)

    def add(self, init: IdleInit) -> None:
        """Keep an init for a while. The oldest one ends if there are too many."""
        if len(self._timers) >= self._max:
            self._end(next(iter(self._timers)))
        self._timers[init] = self._loop.call_later(IDLE_SECONDS, self._end, init)
        # Init sends nothing, so its socket becomes readable only when it ends.
        self._loop.add_reader(init.socket.fileno(), self._end, init)

    def take(self, tenant: str, network: str) -> IdleInit | None:
        """Return the init that was used last, if there is one. The caller owns it from now on."""
        for init in reversed(self._timers):
            if (init.tenant, init.network) == (tenant, network):
                self._forget(init)
                return init
        return None

    def _forget(self, init: IdleInit) -> None:
        self._timers.pop(init).cancel()
        self._loop.remove_reader(init.socket.fileno())

    def _end(self, init: IdleInit) -> None:
        self._forget(init)
        self.discard(init)

    def discard(self, init: IdleInit) -> None:
        """End an init that no session will have."""
        init.socket.close()
        if init.group is not None:
            released = self._loop.run_in_executor(None, LimitApplier.release, init.group)
            self._released.add(released)
            released.add_done_callback(self._released.discard)

    async def stop(self) -> None:
        """End all of them, and wait until their cgroups are removed."""
        for init in list(self._timers):
            self._end(init)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._released)
