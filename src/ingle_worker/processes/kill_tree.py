"""Complete termination of a process tree.

A subreaper inherits every orphan below it, also after double forks and in new sessions. So killing and waiting for all
children, again and again, ends everything below.
"""

import os
import resource  # noqa: F401  os.wait4() imports it: once here, not once in every init
import signal
from collections.abc import Callable, Collection

from ingle_worker.processes import linux

MAX_ROUNDS = 10_000
"""Bound on the rounds, so that a fork bomb that outruns us does not cause an endless loop."""

MAX_GROUP_ROUNDS = 50
MAX_GROUP_CHECKS = 500
"""Processes checked for their group in one round. A large group dies in one step anyway."""


def kill_quietly(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def reap(on_exit: Callable[[int, int, object], None]) -> bool:
    """Reap all children that have exited. Return True while children are left."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        on_exit(pid, status, usage)


Choice = Callable[[int], bool]


def below(pid: int, spare: Collection[int] = (), most: int = 0, chosen: Choice | None = None) -> list[int]:
    """Return the descendants of a process, except those below `spare`, or only those below chosen children.

    `most` bounds their number.
    """
    found: list[int] = []
    todo = [child for child in linux.children(pid) if child not in spare and (chosen is None or chosen(child))]
    while todo and not 0 < most <= len(found):
        child = todo.pop()
        found.append(child)
        todo += linux.children(child)
    return found


def _groups_of(pids: Collection[int]) -> set[int]:
    groups = set()
    for pid in pids:
        try:
            groups.add(os.getpgid(pid))
        except ProcessLookupError:
            continue
    return groups


class _Remembered:
    """A choice of children that keeps every process it led to, until that process is reaped.

    A dying process has no namespaces any more, and one whose parent has died has become a child that was not chosen.
    """

    def __init__(self, chosen: Choice, on_exit: Callable[[int, int, object], None]) -> None:
        self._chosen = chosen
        self._on_exit = on_exit
        self.found: set[int] = set()

    def __call__(self, pid: int) -> bool:
        return pid in self.found or self._chosen(pid)

    def reaped(self, pid: int, status: int, usage: object) -> None:
        self.found.discard(pid)
        self._on_exit(pid, status, usage)


def _doomed(spare: Collection[int], chosen: "_Remembered | None", most: int = 0) -> list[int]:
    """Return what is to be killed below this process, as `below` does."""
    found = below(os.getpid(), spare, most, chosen)
    if chosen is not None:
        chosen.found.update(found)
    return found


def _kill_groups(
    on_exit: Callable[[int, int, object], None], spare: Collection[int], chosen: "_Remembered | None"
) -> None:
    """Kill whole process groups: the kernel does that in one step, so that no fork escapes.

    A fork bomb creates processes faster than they can be killed one by one. All sessions below us began below us, so
    nobody else is in these groups. Groups of spared processes are left out: a new copy is still in its worker's group.
    """
    own = _groups_of((os.getpid(), *spare))
    for _ in range(MAX_GROUP_ROUNDS):
        groups = _groups_of(_doomed(spare, chosen, MAX_GROUP_CHECKS)) - own
        if not groups:
            return
        for group in groups:
            kill_quietly(-group, signal.SIGKILL)
        reap(on_exit)


def sweep(
    on_exit: Callable[[int, int, object], None], spare: Collection[int] = (), chosen: Choice | None = None
) -> None:
    """Kill all descendants, except below `spare`, or only those below chosen children. Wait until they are gone."""
    if not reap(on_exit):
        return  # the usual end: the worker has exited and left nothing
    remembered = None
    if chosen is not None:
        remembered = _Remembered(chosen, on_exit)
        on_exit = remembered.reaped
    _kill_groups(on_exit, spare, remembered)
    for _ in range(MAX_ROUNDS):
        if not reap(on_exit):
            return
        doomed = _doomed(spare, remembered)
        if not doomed:
            return
        # Stop them first, so that none forks while the others are killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in doomed:
                kill_quietly(pid, number)
        for pid in doomed:
            # Only children can be waited for. The others become children when their parents are gone.
            try:
                _, status, usage = os.wait4(pid, 0)
            except ChildProcessError:
                continue
            on_exit(pid, status, usage)
