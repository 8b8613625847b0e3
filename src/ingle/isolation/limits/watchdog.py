"""The watchdog, which checks what the kernel does not limit: memory and processes of a tree, files on disk.

A check reads a few files in /proc for each process, in a thread. Between two checks a program can exceed its limit, so
a cgroup is preferred for memory and processes. Disk use has no alternative, and counting it takes time.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ingle.isolation.limits import disk_usage
from ingle.isolation.limits.limits import words
from ingle.requests import SessionLimits
from ingle.support import processes

CHECK_SECONDS = 0.05
"""Time between two checks of running cells."""

IDLE_CHECK_SECONDS = 1.0
"""Most time between two checks of sessions that run no cell: their commands, threads and children may grow."""

GROWTH_BYTES = 32 * 1024**2
GROWTH_THREADS = 64
"""Growth of all programs of the machine together after which these sessions are checked at once."""

GROWTH_SHARE = 4
"""These additional checks may take a quarter of the time."""

DISK_CHECK_SECONDS = 1.0
DISK_SHARE = 20
"""Counting the files of one session may take a twentieth of the time."""

REST_CHECK_SECONDS = 5.0
"""Time between two looks at a session that has not run since the last one."""

RECOUNT_SECONDS = 30.0
"""Time after which the files of such a session are counted all the same: others may write in a shared folder."""

CLEANUP_BYTES = 16 * 1024**2
"""Bytes that may still be written after a disk limit was reached, because cleaning up needs some."""


@dataclass(eq=False)
class Watched:
    """A session's process tree, and the callback for a reached limit."""

    root: int
    """The worker, or the init if no other session is below it."""
    limits: SessionLimits
    on_breach: Callable[[str], None]
    memory: bool = True
    """Whether to check the memory; the kernel may limit it."""
    processes: bool = True
    soft_memory: int = 0
    """Bytes at which `on_soft` is called; 0: never."""
    on_soft: Callable[[], None] = lambda: None
    network: bool = False
    """It shares a network with its forks only, so data queued in that network counts as its memory."""
    folder: Path | None = None
    """Its own folder, with `workspace` and `tmp-N` in it."""
    init: int | None = None
    """The init that it shares with its forks. The limits hold for all of them together, as in a cgroup."""
    kept: tuple[str, ...] = ()
    """Names in that folder that the host writes."""
    user: int = 0
    """User of its processes, if that is another one than the server's."""

    @property
    def tree(self) -> int:
        """Root of all processes that the limits hold for."""
        return self.init or self.root


@dataclass
class _Disk:
    """What is known of the files of one session. Times are on the monotonic clock."""

    allowed: dict[str, int] = field(default_factory=dict)
    """Bytes that a session may have after a breach, to clean up. They are not raised by the next breach."""
    tree: int = 0
    due: float = 0.0
    counted: float = 0.0
    runs: bytes = b""
    """How often its processes had run before its files were counted."""

    def is_due(self, tree: int, now: float) -> bool:
        return tree != self.tree or now >= self.due

    def is_at_rest(self, runs: bytes, now: float) -> bool:
        """Return whether nothing of the session has run since its files were counted."""
        return bool(runs) and runs == self.runs and now < self.counted + RECOUNT_SECONDS


class Watchdog:
    """Checks the sessions that `who` returns, which is called for each check.

    Its argument is whether only those count that have a running cell, themselves or in another session of their tree.
    """

    def __init__(self, who: Callable[[bool], Iterable[Watched]]) -> None:
        self._who = who
        self._disks: dict[Path, _Disk] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._check_trees())
            both.create_task(self._check_disks())

    async def _check_trees(self) -> None:
        loop = asyncio.get_running_loop()
        growth = Growth()
        all_at = growth_at = loop.time()
        any_found = True
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = loop.time()
            grown = any_found and now >= growth_at and await asyncio.to_thread(growth.is_large)
            check_all = grown or now - all_at >= IDLE_CHECK_SECONDS
            watched = [each for each in self._who(not check_all) if each.memory or each.processes or each.soft_memory]
            if check_all:
                all_at, any_found = now, bool(watched)
            if not watched:
                continue
            if check_all:
                await asyncio.to_thread(growth.restart)
            for each, breach in await asyncio.to_thread(_breaches, watched):
                each.on_breach(breach)
            soft = [each for each in watched if each.soft_memory]
            for each in await asyncio.to_thread(_short, soft) if soft else ():
                each.on_soft()
            if check_all:
                growth_at = loop.time() + (loop.time() - now) * (GROWTH_SHARE - 1)

    async def _check_disks(self) -> None:
        """Check the files of all sessions. One that runs no cell may have processes and threads that write."""
        while True:
            await asyncio.sleep(DISK_CHECK_SECONDS)
            bounded = (each for each in self._who(False) if each.folder is not None)
            watched = [each for each in bounded if (each.limits.disk, each.limits.tmp) != (None, None)]
            if watched:
                for each, breach in await asyncio.to_thread(self._full, watched):
                    each.on_breach(breach)

    def _full(self, watched: list[Watched]) -> list[tuple[Watched, str]]:
        found = []
        for each in watched:
            assert each.folder is not None
            disk = self._disks.setdefault(each.folder, _Disk())
            began = time.monotonic()
            if not disk.is_due(each.tree, began):
                continue
            pids = [each.tree, *processes.below(each.tree)]
            runs = processes.runs_of(pids)
            if disk.is_at_rest(runs, began):
                disk.due = began + REST_CHECK_SECONDS
                continue
            # Init runs no code of the user, so it holds no file of the session.
            holders = [pid for pid in pids if pid != each.init]
            usage = disk_usage.of_session(each.folder, each.kept, holders, each.user)
            ended = time.monotonic()
            disk.tree, disk.runs, disk.counted = each.tree, runs, began
            # Many files of one session must not delay the count of another's.
            disk.due = ended + (ended - began) * DISK_SHARE
            for name, used in (("tmp", usage.tmp), ("disk", usage.disk)):
                limit = getattr(each.limits, name)
                if limit is None:
                    continue
                if used <= limit:
                    disk.allowed.pop(name, None)
                elif used > disk.allowed.get(name, limit):
                    disk.allowed.setdefault(name, used + CLEANUP_BYTES)
                    found.append((each, words(name, limit)))
                    break
        living = {each.folder for each in watched}
        for folder in [folder for folder in self._disks if folder not in living and not folder.exists()]:
            del self._disks[folder]
        return found


class Growth:
    """How much all programs of this machine have grown. Two small files tell, however many sessions there are."""

    def __init__(self) -> None:
        self._bytes, self._threads = processes.of_machine()

    def restart(self) -> None:
        """Count from now on."""
        self._bytes, self._threads = processes.of_machine()

    def is_large(self) -> bool:
        """Return whether a session could have passed a limit since then."""
        size, threads = processes.of_machine()
        if size - self._bytes >= GROWTH_BYTES or threads - self._threads >= GROWTH_THREADS:
            return True
        # What was freed meanwhile must not hide what is taken next.
        self._bytes, self._threads = min(size, self._bytes), min(threads, self._threads)
        return False


def _breaches(watched: list[Watched]) -> list[tuple[Watched, str]]:
    """Return the sessions to end, each with its limit. Of several below one init, that is the largest."""
    trees: dict[int, list[Watched]] = {}
    for each in watched:
        trees.setdefault(each.tree, []).append(each)
    found = []
    for root, members in trees.items():
        one, limits = members[0], members[0].limits
        pids = [root, *processes.below(root)]
        if one.processes and limits.processes is not None and processes.threads_of(pids) > limits.processes:
            found.append((_largest(members, processes.threads_of), words("processes", limits.processes)))
        elif one.memory and limits.memory is not None and _too_much(pids, limits.memory, one.network):
            found.append((_largest(members, _memory_of), words("memory", limits.memory)))
    return found


def _short(watched: list[Watched]) -> list[Watched]:
    """Return the sessions that use more memory than their soft limit."""
    return [
        each for each in watched if _too_much([each.tree, *processes.below(each.tree)], each.soft_memory, each.network)
    ]


def _largest(members: list[Watched], size: Callable[[list[int]], int]) -> Watched:
    if len(members) == 1:
        return members[0]
    return max(members, key=lambda each: size([each.root, *processes.below(each.root)]))


def _memory_of(pids: list[int]) -> int:
    return sum(map(processes.exact_memory, pids))


def _too_much(pids: list[int], limit: int, network: bool) -> bool:
    waiting = processes.waiting_in_network(pids[0]) if network else 0
    # The quick count includes shared memory once per process; the exact count is slow and comes second.
    return waiting + sum(map(processes.rough_memory, pids)) > limit and waiting + _memory_of(pids) > limit
