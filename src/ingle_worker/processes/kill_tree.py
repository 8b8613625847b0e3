"""Ending a tree of processes completely.

A process that is a subreaper inherits every orphan below it: double forks and new sessions do not get away.
So: kill the children, wait for them, and their children are ours; until there are none.
"""

import os
import resource  # noqa: F401  os.wait4() imports it: here once, instead of once in every init
import signal
from collections.abc import Callable, Collection

from ingle_worker.processes import linux

SWEEPS = 10_000
"""A bound on rounds, so that a fork bomb which outruns us ends in an answer and not in an endless loop."""

GROUP_ROUNDS = 50
GROUP_MEMBERS = 500
"""Processes looked at for their groups in one round: few groups have many members, and those go in one step."""


def kill_quietly(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def reap(on_exit: Callable[[int, int, object], None]) -> bool:
    """Take every exit status that is there. True while children are left."""
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
    """Everything below a process but the spared children of it, or below the chosen ones; with `most`, no more than
    so many."""
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


def _kill_groups(on_exit: Callable[[int, int, object], None], spare: Collection[int], chosen: Choice | None) -> None:
    """Kill whole process groups: the kernel does that in one step, so that no fork gets away.

    Process by process, a fork bomb was seen to make them faster than they could be killed. Groups are made by the
    members of a session, and all sessions below us were begun below us: nobody else can be in one of these. But a copy
    of a worker that has just been forked is still in that one's group: groups of those that are spared are, too.
    """
    own = _groups_of((os.getpid(), *spare))
    for _ in range(GROUP_ROUNDS):
        groups = _groups_of(below(os.getpid(), spare, GROUP_MEMBERS, chosen)) - own
        if not groups:
            return
        for group in groups:
            kill_quietly(-group, signal.SIGKILL)
        reap(on_exit)


def sweep(
    on_exit: Callable[[int, int, object], None], spare: Collection[int] = (), chosen: Choice | None = None
) -> None:
    """Kill everything below this process but the spared children, or all but the chosen ones, and wait until it is
    gone."""
    me = os.getpid()
    _kill_groups(on_exit, spare, chosen)
    for _ in range(SWEEPS):
        if not reap(on_exit):
            return
        doomed = below(me, spare, chosen=chosen)
        if not doomed:
            return
        # Stopped first, so that none of them forks while the others are being killed.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in doomed:
                kill_quietly(pid, number)
        for pid in doomed:
            # Only own children can be waited for; the others become ours when their parents are gone.
            try:
                _, status, usage = os.wait4(pid, 0)
            except ChildProcessError:
                continue
            on_exit(pid, status, usage)
