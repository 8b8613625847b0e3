"""What a tree of processes is and uses, by the kernel's word. What is gone meanwhile is left out."""

import os
import signal
from collections.abc import Iterable

from ingle.events import LeftRunning, Usage

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
MOST = 10_000
"""Processes looked at: a fork bomb is ended, not counted."""

SHOWN = 100
COMMAND_SHOWN = 500


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""
    finally:
        os.close(fd)


def children_of_thread(pid: int, thread: str) -> list[int]:
    return [int(child) for child in _read(f"/proc/{pid}/task/{thread}/children").split()]


def children(pid: int) -> list[int]:
    """The direct children of a process, of all its threads."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in children_of_thread(pid, thread)]


def below(root: int) -> list[int]:
    """Everything below a process, parents before their children."""
    found = children(root)
    for pid in found:
        if len(found) > MOST:
            break
        found += children(pid)
    return found


def _is_below(pid: int, root: int) -> bool:
    for _ in range(MOST):
        fields = _stat(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid in (root, 0):
            break
    return pid == root


def send_signal(root: int, pids: Iterable[int], number: int) -> None:
    """A signal for those of these processes that are below another one now, and for nobody else.

    They may have ended, and their numbers be others' by now; or somebody who is not trusted has named them.
    """
    for pid in pids:
        try:
            # First: from here on it is the same process that is looked at and that is signalled.
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _is_below(pid, root):
                signal.pidfd_send_signal(fd, number)
        except OSError:
            pass  # it has ended
        finally:
            os.close(fd)


def outside(parent: int, inside: int) -> int | None:
    """The child of a process that is known by this number in its own pid namespace."""
    for pid in children(parent):
        for line in _read(f"/proc/{pid}/status").splitlines():
            if line.startswith(b"NSpid:") and int(line.split()[-1]) == inside:
                return pid
    return None


def _own_number(pid: int) -> int:
    """What a process is called where it lives: by that, commands there can name it."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def _stat(pid: int) -> list[bytes]:
    """State and what follows it."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def cpu_of(pid: int) -> float:
    """CPU time of a process and of those of its children that it has waited for."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / TICKS if len(fields) > 14 else 0.0


def waited_for(pid: int) -> float:
    """CPU time of the children that a process has waited for."""
    fields = _stat(pid)
    return sum(map(int, fields[13:15])) / TICKS if len(fields) > 14 else 0.0


def takes_sigint(pid: int) -> bool:
    """Whether SIGINT would end a process: it neither ignores nor catches it."""
    handled = None
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith((b"SigIgn:", b"SigCgt:")):
            handled = (handled or 0) | int(line.split()[1], 16)
    return handled is not None and not handled >> (signal.SIGINT - 1) & 1


def usage(root: int) -> Usage:
    """What everything below a process uses: all CPU time so far, and the memory of this moment."""
    cpu, memory = waited_for(root), 0
    for pid in below(root):
        cpu += cpu_of(pid)
        fields = _read(f"/proc/{pid}/statm").split()
        if len(fields) > 2:
            memory += (int(fields[1]) - int(fields[2])) * PAGE
    return Usage(cpu, memory)


def living(pids: Iterable[int]) -> list[LeftRunning]:
    """Those that run, with their command lines; not those that have ended and wait to be reaped."""
    found: list[LeftRunning] = []
    for pid in pids:
        if len(found) == SHOWN:
            break
        state = _stat(pid)
        if not state or state[0] in (b"Z", b"X"):
            continue
        words = _read(f"/proc/{pid}/cmdline")
        text = words.rstrip(b"\0").replace(b"\0", b" ") or _read(f"/proc/{pid}/comm").strip()
        found.append(LeftRunning(_own_number(pid), text.decode("utf-8", "backslashreplace")[:COMMAND_SHOWN]))
    return found
