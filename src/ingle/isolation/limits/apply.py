"""Applies limits to a worker before it runs user code, reads them back, and reports later which were reached.

A cgroup holds memory and processes of the whole tree. The worker sets limits of single processes itself. What neither
holds is checked by the watchdog.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from ingle import errors
from ingle.events import CellError, Exit
from ingle.isolation.limits import disk_usage, in_force, limits
from ingle.isolation.limits.cgroup_mounts import MEMORY
from ingle.isolation.limits.cgroups import Group, Groups
from ingle.requests import SessionLimits
from ingle.support import processes

OF_PROCESSES = ("files", "file_size", "tmp")
"""Limits that a worker sets for itself; in addition `memory`, where no cgroup limits it."""

REMOVE_TRIES = 20
REMOVE_PAUSE_SECONDS = 0.05
"""The kernel may count an ended process in its group for a moment."""

FULL = "the disk is full, and no limit of the session was reached; free space on the disk, or use another folder"

logger = logging.getLogger(__name__)


class LimitApplier:
    """Applies limits to workers. `defaults` are set on pre-started workers, so most sessions need no change."""

    def __init__(self, defaults: SessionLimits, nice: int) -> None:
        self.defaults = defaults
        self._nice = nice
        self._groups: Groups | None = None

    def find(self) -> None:
        """Find the cgroup controllers of this machine. Blocks."""
        if self._groups is None and self.wanted:
            self._groups = Groups.find()

    def _found(self) -> Groups:
        if self._groups is None:
            self._groups = Groups.find()
        return self._groups

    @property
    def groups(self) -> Groups:
        """Return the groups found so far; the search runs when the first worker is prepared."""
        return self._groups or Groups()

    @property
    def wanted(self) -> bool:
        """Return whether every worker must be prepared."""
        return self.defaults != SessionLimits()

    def are_default(self, wanted: SessionLimits) -> bool:
        """Return whether a worker with the defaults has these limits too."""
        return wanted in (SessionLimits(), self.defaults)

    async def look(self) -> None:
        """Find the cgroup controllers of this machine, unless that was done before."""
        if self._groups is None:
            await asyncio.to_thread(self._found)

    def of_process(self, wanted: SessionLimits) -> dict[str, int]:
        """Return the limits that a worker sets for itself, where they differ from the defaults."""
        if self.are_default(wanted):
            return {}
        names = OF_PROCESSES if self.memory_by_kernel else (*OF_PROCESSES, "memory")
        changed = {
            name: value
            for name in names
            if (value := getattr(wanted, name)) is not None and value != getattr(self.defaults, name)
        }
        return {**changed, "nice": self._nice} if changed else {}

    def open(self) -> tuple[Group | None, list[int]]:
        """Create a group for a future worker, and return it with its descriptors (see `Group.open`). Blocks."""
        group = self._found().make()
        if group is None:
            return None, []
        try:
            group.bound(self.defaults.memory, self.defaults.processes)
            return group, group.open()
        except OSError as error:
            self._do_without(group, error)
            return None, []

    async def hold(self, group: Group | None, pids: tuple[int, ...], *, joined: bool) -> Group | None:
        """Apply the defaults to an init and its worker, which wait for their first order. Return their group."""
        if joined or group is None:
            return group
        return await asyncio.to_thread(self._move, group, pids, self.defaults)

    async def prepare(self, *pids: int) -> Group | None:
        """Apply the defaults to processes that have no group yet."""
        return await asyncio.to_thread(self._prepare, pids, self.defaults)

    def _prepare(self, pids: tuple[int, ...], bounds: SessionLimits) -> Group | None:
        return self._move(self._found().make(), pids, bounds)

    def _move(self, group: Group | None, pids: tuple[int, ...], bounds: SessionLimits) -> Group | None:
        try:
            if group is not None:
                for pid in pids:
                    group.attach(pid)
                group.bound(bounds.memory, bounds.processes)
        except ProcessLookupError:
            return group  # the process has ended, and its owner is notified as usual
        except OSError as error:
            assert group is not None
            self._do_without(group, error)
            return None
        return group

    def _do_without(self, group: Group, error: OSError) -> None:
        logger.warning("no cgroup for sessions (%s); their memory and processes are checked periodically", error)
        self._found().give_up()
        group.remove()

    async def settle(self, group: Group | None, pids: tuple[int, ...], wanted: SessionLimits) -> Group | None:
        """Apply the limits of one session to its worker, and return its group."""
        if self.are_default(wanted):
            # The worker has these limits already, with or without a group.
            return group
        if group is None:
            group = await asyncio.to_thread(self._prepare, pids, wanted)
        elif (wanted.memory, wanted.processes) != (self.defaults.memory, self.defaults.processes):
            try:
                group.bound(wanted.memory, wanted.processes)
            except OSError as error:
                raise errors.LimitUnavailable("memory or processes", str(error)) from None
        return group

    @staticmethod
    def in_force(group: Group | None, pid: int, wanted: SessionLimits, own_tmp: int | None) -> SessionLimits:
        """Return the limits of a worker as the kernel has them."""
        return in_force.read(pid, group, wanted, own_tmp)

    @staticmethod
    def check(group: Group | None, pid: int, wanted: SessionLimits, own_tmp: int | None) -> SessionLimits:
        """Return the limits of a worker as the kernel has them. Raise LimitUnavailable if one is not in force."""
        found = in_force.read(pid, group, wanted, own_tmp)
        if (names := in_force.missing(wanted, found)) and processes.lives(pid):
            values = [f"{name} is {getattr(found, name) or 'unlimited'}" for name in names]
            raise errors.LimitUnavailable(" and ".join(names), ", ".join(values))
        return found

    @staticmethod
    def passed(group: Group | None, wanted: SessionLimits, *, ended: bool) -> list[str]:
        """Return the limits that were reached since the last call, each by its name."""
        found = []
        if group is not None and wanted.memory is not None and group.take_kills():
            found.append(limits.words("memory", wanted.memory))
        if group is not None and wanted.processes is not None and group.take_refusals() and not ended:
            found.append(limits.words("processes", wanted.processes))
        return found

    @staticmethod
    def explain(exit: Exit, group: Group | None, wanted: SessionLimits) -> Exit:
        """Return how a worker ended, with the limit that ended it if there was one."""
        met = [] if group is None or exit.code is not None else LimitApplier.passed(group, wanted, ended=True)
        return Exit(exit.code, exit.signal, f"was killed: {met[0]}") if met else exit

    @staticmethod
    def met(group: Group | None, wanted: SessionLimits, error: CellError | None, folders: Iterable[str]) -> list[str]:
        """Return notices of the limits that refused something to a cell, or ended a process of it.

        `folders` are those that the cell writes to: where their disk is full, no limit was reached.
        """
        if wanted == SessionLimits():
            return []
        found = {
            f"{text}: what it asked for beyond that was refused, or the process that asked was killed"
            for text in LimitApplier.passed(group, wanted, ended=False)
        }
        if not found and error is not None and (text := limits.behind(error.name, error.value, wanted)) is not None:
            full = error.value.startswith(limits.NO_SPACE) and any(map(disk_usage.is_full, folders))
            found.add(FULL if full else f"{text}: reached by this cell")
        return sorted(found)

    @staticmethod
    def release(group: Group | None) -> None:
        """Release a group whose processes have ended. Blocks."""
        if group is None or not group.let_go():
            return
        for _ in range(REMOVE_TRIES):
            if group.remove():
                return
            time.sleep(REMOVE_PAUSE_SECONDS)

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()

    @property
    def memory_by_kernel(self) -> bool:
        return MEMORY in self.groups.controllers
