"""What the tree of a shell task is and uses, as others are told of it."""

from collections.abc import Iterable

from ingle.events import LeftRunning, Usage
from ingle.support import processes

SHOWN = 100
COMMAND_SHOWN = 500


def usage(root: int) -> Usage:
    """What everything below a process uses: all CPU time so far, and the memory of this moment."""
    cpu, memory = processes.waited_for(root), 0
    for pid in processes.below(root):
        cpu += processes.cpu_of(pid)
        memory += processes.unshared_memory(pid)
    return Usage(cpu, memory)


def living(pids: Iterable[int]) -> list[LeftRunning]:
    """Those that run, with their command lines; not those that have ended and wait to be reaped."""
    found: list[LeftRunning] = []
    for pid in pids:
        if len(found) == SHOWN:
            break
        if processes.lives(pid):
            found.append(LeftRunning(processes.own_number(pid), processes.command_of(pid)[:COMMAND_SHOWN]))
    return found
