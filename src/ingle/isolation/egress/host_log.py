"""Hosts that a session has asked for: reached and refused, with the flag that would allow them. Bounded."""

import time
from collections.abc import Callable

from ingle.capacity import HostUse

MAX_HOSTS = 200
"""Hosts of one session that are remembered; those asked for longest ago are forgotten first."""


class HostLog:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._hosts: dict[str, HostUse] = {}
        self.forgotten = 0
        """Number of hosts that were forgotten."""

    def reached(self, host: str) -> None:
        """Note a connection to `host:port`."""
        self._use(host).reached += 1

    def refused(self, host: str, grant: str | None) -> None:
        """Note a refused connection. `grant` is the host as an operator would grant it."""
        use = self._use(host)
        use.refused += 1
        use.flag = None if grant is None else f"--allow-host {grant}"

    def _use(self, host: str) -> HostUse:
        # The hosts are in the order of their last use.
        use = self._hosts.pop(host, None) or HostUse(host)
        self._hosts[host] = use
        use.last = self._clock()
        if len(self._hosts) > MAX_HOSTS:
            del self._hosts[next(iter(self._hosts))]
            self.forgotten += 1
        return use

    def read(self) -> list[HostUse]:
        """Return the hosts, the last used first."""
        return list(reversed(self._hosts.values()))
