"""The watchdog, which checks what the kernel does not limit: memory and processes of a tree, files on disk.

A check reads a few files in /proc for each process, in a thread. Between two checks a program can exceed its limit, so
a cgroup is preferred for memory and processes. Disk use has no alternative, and counting it takes time.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

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
"""Counting files may take a twentieth of the time."""

MIN_FILE_BYTES = 4096
"""Least size of a file: an empty one occupies disk too."""

CLEANUP_BYTES = 16 * 1024**2
"""Bytes that may still be written after a disk limit was reached, because cleaning up needs some."""

MAX_PATH_CHARS = 3000
MAX_OPENED_FOLDERS = 64
TOO_DEEP = 1 << 62
"""Folders with longer paths are opened, up to this number. Only an attack nests folders that deep."""


@dataclass(eq=False)
class Watched:
    """A session's process tree, and the callback for a reached limit."""

    root: int
    """The worker, or the init if no other session is below it."""
    limits: SessionLimits
    on_breach: Callable[[str], None]
    running: bool = True
    memory: bool = True
    """Whether to check the memory; the kernel may limit it."""
    processes: bool = True
    network: bool = False
    """It shares a network with its forks only, so data queued in that network counts as its memory."""
    folder: Path | None = None
    """Its own folder, with `workspace` and `tmp-N` in it."""
    init: int | None = None
    """The init that it shares with its forks. The limits hold for all of them together, as in a cgroup."""

    @property
    def tree(self) -> int:
        """Root of all processes that the limits hold for."""
        return self.init or self.root


@dataclass
class _Disk:
    allowed: dict[str, int] = field(default_factory=dict)


class Watchdog:
    """Checks the sessions that `who` returns, which is called for each check."""

    def __init__(self, who: Callable[[], Iterable[Watched]]) -> None:
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
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = loop.time()
            watched = [each for each in self._who() if each.memory or each.processes]
            if not watched:
                continue
            grown = now >= growth_at and await asyncio.to_thread(growth.is_large)
            if grown or now - all_at >= IDLE_CHECK_SECONDS:
                all_at = now
                await asyncio.to_thread(growth.restart)
            else:
                busy = {each.tree for each in watched if each.running}
                watched = [each for each in watched if each.tree in busy]
            if watched:
                for each, breach in await asyncio.to_thread(_breaches, watched):
                    each.on_breach(breach)
            if all_at == now:
                growth_at = loop.time() + (loop.time() - now) * (GROWTH_SHARE - 1)

    async def _check_disks(self) -> None:
        loop = asyncio.get_running_loop()
        pause = DISK_CHECK_SECONDS
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
            pause = max(DISK_CHECK_SECONDS, (loop.time() - began) * DISK_SHARE)

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
                    disk.allowed[name] = used + CLEANUP_BYTES
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


def size(folder: Path) -> int:
    """Return the bytes that a folder occupies on disk, without following links.

    Files that vanish meanwhile are not counted. A path longer than the kernel accepts is opened in steps.
    """
    total, todo = 0, [os.fspath(folder)]
    opened: list[int] = []
    try:
        while todo:
            path = todo.pop()
            try:
                if len(path) > MAX_PATH_CHARS:
                    if len(opened) == MAX_OPENED_FOLDERS:
                        return TOO_DEEP
                    opened.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
                    path = f"/proc/self/fd/{opened[-1]}"
                with os.scandir(path) as entries:
                    for entry in entries:
                        try:
                            total += max(entry.stat(follow_symlinks=False).st_blocks * 512, MIN_FILE_BYTES)
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
        return 0  # the session has just ended
