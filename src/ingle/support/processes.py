"""What the kernel tells of processes, in /proc. Of one that is gone meanwhile, and where there is no /proc, nothing.

Small reads that block, though never for long; what blocks longer says so. Nothing here judges, or keeps anything.
"""

import os
import signal
from collections.abc import Iterable

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")

EXITING = 0x4
"""A process's flag that says that it ends: set before any of its descriptors is closed."""

MOST = 20_000
"""Processes looked at in one tree: a fork bomb is ended, not counted."""


def read(path: str, size: int = 1 << 16) -> bytes:
    # Bare: a file object for a hundred bytes takes three times as long, and every new session is asked.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, size)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _stat(pid: int | None) -> list[bytes]:
    """State and what follows it."""
    return read(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()


def _sum(path: str, *names: bytes) -> int | None:
    """The bytes that these lines tell of, which count in KiB; None where there are none."""
    total = None
    for line in read(path).splitlines():
        if line.startswith(names):
            total = (total or 0) + int(line.split()[1]) * 1024
    return total


# --- the tree ----------------------------------------------------------------------------------------------


def children_of_thread(pid: int, thread: str) -> list[int]:
    return [int(child) for child in read(f"/proc/{pid}/task/{thread}/children").split()]


def threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def children(pid: int) -> list[int]:
    """The direct children of a process, of all its threads."""
    return [child for thread in threads(pid) for child in children_of_thread(pid, thread)]


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
        except (OSError, AttributeError):  # gone; or not Linux
            continue
        try:
            if _is_below(pid, root):
                signal.pidfd_send_signal(fd, number)
        except OSError:
            pass  # it has ended
        finally:
            os.close(fd)


# --- one process -------------------------------------------------------------------------------------------


def lives(pid: int) -> bool:
    """One that has ended and waits to be reaped does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def is_departing(pid: int) -> bool:
    """Whether a process has begun to end, or is gone. False where the system does not tell."""
    fields = _stat(pid)
    if not fields:
        return os.path.isdir("/proc/self")
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & EXITING)


def _inner_number(pid: int) -> int | None:
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return None


def own_number(pid: int) -> int:
    """What a process is called where it lives: by that, commands there can name it."""
    return _inner_number(pid) or pid


def child_called(number: int, parent: int) -> int | None:
    """The child of a process that is known by this number in its own pid namespace."""
    return next((pid for pid in children(parent) if _inner_number(pid) == number), None)


def takes_sigint(pid: int) -> bool:
    """Whether SIGINT would end a process: it neither ignores nor catches it."""
    handled = None
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith((b"SigIgn:", b"SigCgt:")):
            handled = (handled or 0) | int(line.split()[1], 16)
    return handled is not None and not handled >> (signal.SIGINT - 1) & 1


def command_of(pid: int) -> str:
    words = read(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ") or read(f"/proc/{pid}/comm").strip()
    return words.decode("utf-8", "backslashreplace")


# --- what it uses ------------------------------------------------------------------------------------------


def usage(pid: int | None) -> tuple[int | None, float | None]:
    """Resident memory in bytes and seconds of CPU of one process; None where it is not known."""
    fields = _stat(pid)
    if len(fields) <= 21:
        return None, None
    return int(fields[21]) * PAGE, (int(fields[11]) + int(fields[12])) / TICKS


def cpu_of(pid: int) -> float:
    """CPU time of a process and of those of its children that it has waited for."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / TICKS if len(fields) > 14 else 0.0


def waited_for(pid: int) -> float:
    """CPU time of the children that a process has waited for."""
    fields = _stat(pid)
    return sum(map(int, fields[13:15])) / TICKS if len(fields) > 14 else 0.0


def threads_of(pids: Iterable[int]) -> int:
    """How many all of them have together."""
    count = 0
    for pid in pids:
        fields = _stat(pid)
        count += int(fields[17]) if len(fields) > 17 else 0
    return count


def unshared_memory(pid: int) -> int:
    """Resident, without what it shares with files or with others."""
    fields = read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0


def data_memory(pid: int) -> int:
    """What it has asked for, resident or not."""
    return _sum(f"/proc/{pid}/status", b"VmData:") or 0


def rough_memory(pid: int) -> int:
    """Pages of no file, and those of shared memory."""
    return _sum(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:") or 0


def exact_memory(pid: int) -> int:
    """The same, with what several share divided among them. Blocks as the next one does."""
    return _sum(f"/proc/{pid}/smaps_rollup", b"Pss_Anon:", b"Pss_Shmem:") or rough_memory(pid)


def proportional_memory(pid: int | None) -> int | None:
    """Bytes of one process: its own pages, and its share of those it has in common with others. Blocks for as long as
    the kernel counts, which is some milliseconds for a gigabyte."""
    return _sum(f"/proc/{pid}/smaps_rollup", b"Pss:")


# --- a network ---------------------------------------------------------------------------------------------


def waiting_in_network(pid: int) -> int:
    """Bytes on their way in the TCP and UDP sockets of the network that a process is in. Blocks for a millisecond where
    there are hundreds."""
    total = 0
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        try:
            with open(f"/proc/{pid}/net/{kind}", "rb") as file:
                next(file, None)
                for line in file:
                    sent, _, received = line.split(None, 5)[4].partition(b":")
                    total += int(sent, 16) + int(received, 16)
        except OSError:
            continue
    return total
