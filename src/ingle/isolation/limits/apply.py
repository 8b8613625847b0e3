"""Putting a worker under its limits before it runs anybody's code, and telling afterwards which of them it passed."""

import asyncio
import contextlib
import logging
import time

from ingle.isolation.limits import limits
from ingle.isolation.limits.cgroups import MEMORY, PROCESSES, Group, Groups
from ingle.requests import SessionLimits

REMOVE_TRIES = 20
REMOVE_PAUSE = 0.05
"""A process that has just ended may be counted in its group for a moment."""

logger = logging.getLogger(__name__)


class Bounding:
    """`defaults` are what a prepared worker is under, so that a session without limits of its own costs no more."""

    def __init__(self, defaults: SessionLimits, nice: int) -> None:
        self._defaults = defaults
        self._nice = nice
        self._groups: Groups | None = None

    def find(self) -> None:
        """Look for what the kernel can count and bound. Blocks."""
        if self._groups is None and self.wanted:
            self._groups = Groups.find()

    def _found(self) -> Groups:
        if self._groups is None:
            self._groups = Groups.find()
        return self._groups

    @property
    def groups(self) -> Groups:
        """As far as they are known: they are looked for when the first worker is prepared."""
        return self._groups or Groups()

    @property
    def wanted(self) -> bool:
        """Whether every worker is to be prepared."""
        return self._defaults != SessionLimits()

    def open(self) -> tuple[Group | None, list[int]]:
        """A group for a worker to come, and the way into it (see `Group.open`). Blocks."""
        group = self._found().make()
        if group is None:
            return None, []
        try:
            group.bound(self._defaults.memory, self._defaults.processes)
            return group, group.open()
        except OSError as error:
            self._do_without(group, error)
            return None, []

    async def hold(self, group: Group | None, pids: tuple[int, ...], *, joined: bool) -> Group | None:
        """Init and worker, which wait for their first order, under what every worker is under; their group."""
        if joined or group is None:
            if group is not None:
                group.opened_to(pids[0])
            self._set_for(pids, self._defaults, group)
            return group
        return await asyncio.to_thread(self._move, group, pids, self._defaults)

    async def prepare(self, *pids: int) -> Group | None:
        """The same for processes that were promised no group."""
        return await asyncio.to_thread(self._prepare, pids, self._defaults)

    def _prepare(self, pids: tuple[int, ...], bounds: SessionLimits) -> Group | None:
        return self._move(self._found().make(), pids, bounds)

    def _move(self, group: Group | None, pids: tuple[int, ...], bounds: SessionLimits) -> Group | None:
        try:
            if group is not None:
                for pid in pids:
                    group.attach(pid)
                group.bound(bounds.memory, bounds.processes)
        except ProcessLookupError:
            return group  # gone already, which is told as always
        except OSError as error:
            assert group is not None
            self._do_without(group, error)
            group = None
        self._set_for(pids, bounds, group)
        return group

    def _do_without(self, group: Group, error: OSError) -> None:
        logger.warning("no cgroup for sessions (%s); their memory and processes are looked at instead", error)
        self._found().give_up()
        group.remove()

    async def settle(self, group: Group | None, pids: tuple[int, ...], wanted: SessionLimits) -> Group | None:
        """The limits of one session, on its worker; its group."""
        if wanted in (SessionLimits(), self._defaults):
            # It is under them already, with or without a group: nobody waits for that.
            return group
        if group is None:
            group = await asyncio.to_thread(self._prepare, pids, wanted)
        elif (wanted.memory, wanted.processes) != (self._defaults.memory, self._defaults.processes):
            with contextlib.suppress(OSError):
                group.bound(wanted.memory, wanted.processes)
        self._set_for(pids, wanted, group)
        return group

    def _set_for(self, pids: tuple[int, ...], wanted: SessionLimits, group: Group | None) -> None:
        # The last of them is the worker, and all that a cell starts comes from it.
        limits.set_for(pids[-1], wanted, self._nice, memory_too=group is None or MEMORY not in group.places)

    @staticmethod
    def passed(group: Group | None, wanted: SessionLimits, *, ended: bool) -> list[str]:
        """Limits that were passed since this was last asked, each by its name."""
        found = []
        if group is not None and wanted.memory is not None and group.take_kills():
            found.append(limits.words("memory", wanted.memory))
        if group is not None and wanted.processes is not None and group.take_refusals() and not ended:
            found.append(limits.words("processes", wanted.processes))
        return found

    @staticmethod
    def release(group: Group | None) -> None:
        """Let go of a group whose processes are gone. Blocks."""
        if group is None or not group.let_go():
            return
        for _ in range(REMOVE_TRIES):
            if group.remove():
                return
            time.sleep(REMOVE_PAUSE)

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()

    @property
    def memory_by_kernel(self) -> bool:
        return MEMORY in self.groups.controllers

    @property
    def processes_by_kernel(self) -> bool:
        return PROCESSES in self.groups.controllers
