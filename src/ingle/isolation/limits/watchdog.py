"""Looks at sessions that run, where the kernel bounds nothing itself: memory and processes of a tree, files on disk.

A look costs a few reads of /proc for each process, and happens in a thread. Between two of them a program can take what
the machine gives it in that time; a cgroup has no such gap, so this is the second choice for memory and processes. For
the disk it is the only one, and comes late by as much as counting takes.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ingle.isolation.limits.limits import words
from ingle.requests import SessionLimits
from ingle.support import processes

LOOK = 0.05
"""Between two looks at the memory of running cells."""

IDLE_LOOK = 1.0
"""Between two looks at sessions that run no cell: their threads and children may."""

DISK_LOOK = 1.0
DISK_SHARE = 20
"""Counting files may take a twentieth of the time."""

ENTRY = 4096
"""What a file counts at least: an empty one takes room too."""

REGROWTH = 16 * 1024**2
"""After a breach of the disk the next worker may still write so much: it is needed to clean up."""

LONG = 3000
MOST_OPENED = 64
TOO_DEEP = 1 << 62
"""Folders whose paths are longer are opened, so many at most: nobody but who wants to hide something nests so far."""


@dataclass(eq=False)
class Watched:
    """A session's tree, and what to do when it is past a limit."""

    root: int
    limits: SessionLimits
    on_breach: Callable[[str], None]
    running: bool = True
    memory: bool = True
    """Whether memory and processes are to be looked at; the kernel may do it."""
    processes: bool = True
    network: bool = False
    """It has a network of its own, with its forks: what waits in the connections there is its memory too."""
    folder: Path | None = None
    """Its own folder, with `workspace` and `tmp-N` in it."""


@dataclass
class _Disk:
    allowed: dict[str, int] = field(default_factory=dict)


class Watchdog:
    """`who` tells whom to look at, each time anew."""

    def __init__(self, who: Callable[[], Iterable[Watched]]) -> None:
        self._who = who
        self._disks: dict[Path, _Disk] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._look_at_trees())
            both.create_task(self._look_at_disks())

    async def _look_at_trees(self) -> None:
        rounds = 0
        while True:
            await asyncio.sleep(LOOK)
            rounds += 1
            idle_too = rounds % int(IDLE_LOOK / LOOK) == 0
            watched = [each for each in self._who() if (each.memory or each.processes) and (each.running or idle_too)]
            if watched:
                for each, breach in await asyncio.to_thread(_breaches, watched):
                    each.on_breach(breach)

    async def _look_at_disks(self) -> None:
        loop = asyncio.get_running_loop()
        pause = DISK_LOOK
        while True:
            await asyncio.sleep(pause)
            watched = [
                each
                for each in self._who()
                if each.running and each.folder and (each.limits.disk is not None or each.limits.tmp is not None)
            ]
            began = loop.time()
            if watched:
                for each, breach in await asyncio.to_thread(self._full, watched):
                    each.on_breach(breach)
            pause = max(DISK_LOOK, (loop.time() - began) * DISK_SHARE)

    def _full(self, watched: list[Watched]) -> list[tuple[Watched, str]]:
        found = []
        for each in watched:
            assert each.folder is not None
            disk = self._disks.setdefault(each.folder, _Disk())
            for name, used in (("tmp", _tmp_size(each.folder)), ("disk", _own_size(each.folder))):
                limit = getattr(each.limits, name)
                if limit is None:
                    continue
                if used <= limit:
                    disk.allowed[name] = limit
                elif used > disk.allowed.get(name, limit):
                    disk.allowed[name] = used + REGROWTH
                    found.append((each, words(name, limit)))
                    break
        living = {each.folder for each in watched}
        for folder in [folder for folder in self._disks if folder not in living and not folder.exists()]:
            del self._disks[folder]
        return found


def _breaches(watched: list[Watched]) -> list[tuple[Watched, str]]:
    found = []
    for each in watched:
        limits = each.limits
        pids = [each.root, *processes.below(each.root)]
        if each.processes and limits.processes is not None and processes.threads_of(pids) > limits.processes:
            found.append((each, words("processes", limits.processes)))
        elif each.memory and limits.memory is not None and _too_much(pids, limits.memory, each.network):
            found.append((each, words("memory", limits.memory)))
    return found


def _too_much(pids: list[int], limit: int, network: bool) -> bool:
    waiting = processes.waiting_in_network(pids[0]) if network else 0
    # What forks share is counted for each at first, which is quick to read; only then exactly, which is not.
    return (
        waiting + sum(map(processes.rough_memory, pids)) > limit
        and waiting + sum(map(processes.exact_memory, pids)) > limit
    )


def size(folder: Path) -> int:
    """Bytes that a folder takes on the disk, following no link. What vanishes meanwhile is not counted.

    Nested deeply enough, a folder has a path longer than the kernel takes. It is opened on the way, then.
    """
    total, todo = 0, [os.fspath(folder)]
    opened: list[int] = []
    try:
        while todo:
            path = todo.pop()
            try:
                if len(path) > LONG:
                    if len(opened) == MOST_OPENED:
                        return TOO_DEEP
                    opened.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
                    path = f"/proc/self/fd/{opened[-1]}"
                with os.scandir(path) as entries:
                    for entry in entries:
                        try:
                            total += max(entry.stat(follow_symlinks=False).st_blocks * 512, ENTRY)
                            if entry.is_dir(follow_symlinks=False):
                                todo.append(entry.path)
                        except OSError:
                            continue
            except OSError:
                continue
    finally:
        for fd in opened:
            os.close(fd)
    return total


def _own_size(folder: Path) -> int:
    return sum(size(folder / name) for name in ("workspace", "packages"))


def _tmp_size(folder: Path) -> int:
    try:
        return sum(size(each) for each in folder.glob("tmp-*"))
    except OSError:
        return 0  # it has just gone, with its session
