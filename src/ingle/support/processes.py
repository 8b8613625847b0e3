"""Information about processes from /proc. It is empty for ended processes, and without /proc.

Functions block for short reads; those that take longer say so. They keep no state.
"""

import contextlib
import os
import signal
from collections.abc import Iterable

PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")

EXITING = 0x4
"""Process flag PF_EXITING, set before any file descriptor of the process is closed."""

MAX_PROCESSES = 20_000
"""Maximum number of processes to visit in one tree, because a fork bomb must not be counted."""


def read(path: str, size: int = 1 << 16) -> bytes:
    # A file object would take three times as long, and every new session calls this.
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


def read_whole(path: str, most: int) -> bytes:
    """Return a file of the kernel's that may be long: one read returns a page of it."""
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def _stat(pid: int | None) -> list[bytes]:
    """Return the state and the fields after it."""
    return read(f"/proc/{pid}/stat", 4096).rpartition(b")")[2].split()


def _sum(path: str, *names: bytes) -> int | None:
    """Return the sum of these lines in bytes, or None if there are none. The lines count in KiB."""
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
    """Return the direct children of all threads of a process."""
    return [child for thread in threads(pid) for child in children_of_thread(pid, thread)]


def below(root: int) -> list[int]:
    """Return all descendants of a process, parents before their children."""
    found = children(root)
    for pid in found:
        if len(found) > MAX_PROCESSES:
            break
        found += children(pid)
    return found


def _is_below(pid: int, root: int) -> bool:
    for _ in range(MAX_PROCESSES):
        fields = _stat(pid)
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid in (root, 0):
            break
    return pid == root


def send_signal(root: int, pids: Iterable[int], number: int) -> None:
    """Send a signal to those of these processes that are descendants of `root`.

    The pids may be reused meanwhile, or may come from untrusted code.
    """
    for pid in pids:
        try:
            # From here on the descriptor refers to the same process.
            fd = os.pidfd_open(pid)
        except (OSError, AttributeError):  # ended, or not Linux
            continue
        try:
            if _is_below(pid, root):
                signal.pidfd_send_signal(fd, number)
        except OSError:
            pass  # the process has ended
        finally:
            os.close(fd)


# --- one process -------------------------------------------------------------------------------------------


def lives(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X")


def is_exiting(pid: int) -> bool:
    """Return whether a process is ending or has ended. False if the system does not tell."""
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
    """Return the pid of a process in its own pid namespace."""
    return _inner_number(pid) or pid


def child_called(number: int, parent: int) -> int | None:
    """Return the child with this pid in its own pid namespace."""
    return next((pid for pid in children(parent) if _inner_number(pid) == number), None)


def takes_sigint(pid: int) -> bool:
    """Return whether SIGINT would end a process, because it neither ignores nor catches it."""
    handled = None
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith((b"SigIgn:", b"SigCgt:")):
            handled = (handled or 0) | int(line.split()[1], 16)
    return handled is not None and not handled >> (signal.SIGINT - 1) & 1


def command_of(pid: int) -> str:
    words = read(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ") or read(f"/proc/{pid}/comm").strip()
    return words.decode("utf-8", "backslashreplace")


# --- resources ---------------------------------------------------------------------------------------------


def usage(pid: int | None) -> tuple[int | None, float | None]:
    """Return resident bytes and CPU seconds of one process; None where unknown."""
    fields = _stat(pid)
    if len(fields) <= 21:
        return None, None
    return int(fields[21]) * PAGE, (int(fields[11]) + int(fields[12])) / TICKS


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and of its reaped children."""
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / TICKS if len(fields) > 14 else 0.0


def waited_for(pid: int) -> float:
    """Return the CPU seconds of the reaped children of a process."""
    fields = _stat(pid)
    return sum(map(int, fields[13:15])) / TICKS if len(fields) > 14 else 0.0


def threads_of(pids: Iterable[int]) -> int:
    """Return the number of threads of all these processes."""
    count = 0
    for pid in pids:
        fields = _stat(pid)
        count += int(fields[17]) if len(fields) > 17 else 0
    return count


def runs_of(pids: Iterable[int]) -> bytes:
    """Return what changes whenever a thread of these processes runs; nothing if the kernel does not tell."""
    found = b""
    for pid in pids:
        for thread in threads(pid):
            schedule = read(f"/proc/{pid}/task/{thread}/schedstat", 256)
            if not schedule:
                return b""
            found += b"%s %s" % (thread.encode(), schedule)
    return found


def of_machine() -> tuple[int, int]:
    """Return the bytes of anonymous and shared memory, and the threads, of all programs of this machine."""
    fields = read("/proc/loadavg", 256).split()
    threads = fields[3].partition(b"/")[2] if len(fields) > 3 else b"0"
    return _sum("/proc/meminfo", b"AnonPages:", b"Shmem:") or 0, int(threads)


def machine_memory() -> tuple[int, int]:
    """Return the bytes of this machine's memory: all, and those that programs may still take."""
    return _sum("/proc/meminfo", b"MemTotal:") or 0, _sum("/proc/meminfo", b"MemAvailable:") or 0


def unshared_memory(pid: int) -> int:
    """Return resident bytes, without memory shared with files or other processes."""
    fields = read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0


def rough_memory(pid: int) -> int:
    """Return bytes of anonymous and shared memory."""
    return _sum(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:") or 0


def exact_memory(pid: int) -> int:
    """Return the same with shared pages divided among their users. Blocks for milliseconds per gigabyte."""
    return _sum(f"/proc/{pid}/smaps_rollup", b"Pss_Anon:", b"Pss_Shmem:") or rough_memory(pid)


def proportional_memory(pid: int | None) -> int | None:
    """Return bytes of one process, with its share of common pages. Blocks for milliseconds per gigabyte."""
    return _sum(f"/proc/{pid}/smaps_rollup", b"Pss:")


def kill_first(pid: int) -> None:
    """Have the kernel end a process before all others when memory is short."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
        file.write("1000")


# --- network -----------------------------------------------------------------------------------------------


def waiting_in_network(pid: int) -> int:
    """Return the bytes queued in TCP and UDP sockets of a process's network. Takes a millisecond for hundreds."""
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


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
