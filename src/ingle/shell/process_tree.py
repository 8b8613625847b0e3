"""Usage and processes of a shell task, as clients see them."""

from collections.abc import Iterable

from ingle.events import LeftRunning, Usage
from ingle.support import processes

MAX_PROCESSES_SHOWN = 100
MAX_COMMAND_CHARS = 500


def usage(root: int) -> Usage:
    """Return the CPU time so far and the current memory of everything below a process."""
    cpu, memory = processes.waited_for(root), 0
    for pid in processes.below(root):
        cpu += processes.cpu_of(pid)
        memory += processes.unshared_memory(pid)
    return Usage(cpu, memory)


def living(pids: Iterable[int]) -> list[LeftRunning]:
    """Return the processes that run, with their command lines, without those that only wait to be reaped."""
    found: list[LeftRunning] = []
    for pid in pids:
        if len(found) == MAX_PROCESSES_SHOWN:
            break
        if processes.lives(pid):
            found.append(LeftRunning(processes.own_number(pid), processes.command_of(pid)[:MAX_COMMAND_CHARS]))
    return found
