"""Linux calls beyond `os`: prctl by ctypes, the process tree from /proc, and the removal of empty folders.

Without ctypes or /proc the functions return empty values or False and never raise.
"""

import os
import resource
import signal
import sys

SIGKILL = int(signal.SIGKILL)
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")

try:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
except (ImportError, OSError):
    _libc = None


_call_prctl = _libc.prctl if _libc is not None else None


def _prctl(option: int, value: int) -> bool:
    # No declared types: small numbers do not need them, and the call touches fewer shared pages.
    return _call_prctl is not None and _call_prctl(option, value, 0, 0, 0) == 0


# PyDLL holds the GIL during the call, so no other code of this thread runs between call and fork.
_libc_fork = ctypes.PyDLL(None, use_errno=True).fork if _libc is not None else os.fork


def fork_bare() -> int:
    """Fork without Python's after-fork work, for a child that does very little. Raises OSError like os.fork().

    That work (new locks, reseeded generators, library hooks) writes to half a megabyte of shared pages. A process with
    one thread that only waits for others needs none of it.
    """
    pid: int = _libc_fork()
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


TAG_BASE = 1 << 60
"""A tag is stored in a limit that is never reached: RLIMIT_RTTIME is set to this number plus the tag.

Limits are inherited by forks and executed programs, and anybody can read them from /proc. The timer slack was tried
first, but only privileged processes can read it.
"""


def tag(number: int) -> bool:
    """Mark this process and all its future descendants."""
    try:
        hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
        resource.setrlimit(resource.RLIMIT_RTTIME, (TAG_BASE + number, hard))
    except (AttributeError, OSError, ValueError):
        return False
    return True


def tag_of(pid: int) -> int:
    """Return the tag of a process, 0 if it has none, -1 if it cannot be read."""
    for line in _read(f"/proc/{pid}/limits").splitlines():
        if line.startswith(b"Max realtime timeout"):
            soft = line.split()[3]
            return int(soft) - TAG_BASE if soft.isdigit() and int(soft) >= TAG_BASE else 0
    return -1


def command_line(pid: int) -> bytes:
    """Return the arguments of a process as stored in its memory, or nothing if it is gone."""
    return _read(f"/proc/{pid}/cmdline")


def parent_of(pid: int) -> int:
    """Return the parent's pid, or 0 if there is no such process."""
    after_name = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(after_name[1]) if len(after_name) > 1 else 0


def mounts_of(pid: int) -> int:
    """Return the number of a process's mount namespace, or 0 if it is gone or belongs to another user."""
    try:
        return os.stat(f"/proc/{pid}/ns/mnt").st_ino
    except OSError:
        return 0


def session_of(pid: int) -> int:
    """Return the terminal session of a process, or 0 if it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def use_batch_scheduling() -> None:
    """Use batch scheduling for this process and its descendants.

    On wake-up they do not preempt a running process, such as the host. Their share of the CPU stays the same.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (OSError, AttributeError):
        return  # not Linux, or not allowed: this costs only speed


def become_subreaper() -> bool:
    """Make orphans below this process its children, instead of the machine's init's."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    """Ask the kernel to kill this process when its parent ends."""
    return _prctl(PR_SET_PDEATHSIG, SIGKILL)


def set_name(name: bytes) -> None:
    """Set the name shown by `ps` and `top`, at most 15 bytes."""
    if _call_prctl is not None:
        _call_prctl(PR_SET_NAME, name, 0, 0, 0)


def name_of(pid: int) -> str:
    """Return the name of a process, or an empty string if it is gone."""
    return _read(f"/proc/{pid}/comm").decode("utf-8", "replace").rstrip("\n")


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
    finally:
        os.close(fd)


def children(pid: int) -> list[int]:
    """Return the direct children of all threads of a process."""
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    if not os.path.exists(f"/proc/{pid}/task/{pid}/children"):
        return _children_by_scan(pid)
    for task in tasks:
        found += [int(child) for child in _read(f"/proc/{pid}/task/{task}/children").split()]
    return found


def _children_by_scan(parent: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            pid = int(name)
            if parent_of(pid) == parent:
                found.append(pid)
    return found


def sigint_state(pid: int) -> tuple[bool, bool]:
    """Return whether a process ignores SIGINT now, and whether it is stopped."""
    ignored = stopped = False
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigIgn:"):
            ignored = bool(int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1)
        elif line.startswith(b"State:"):
            stopped = b"T" in line.split()[1]
    return ignored, stopped


def takes_sigint(pid: int) -> bool:
    """Return whether SIGINT would end a process: it neither ignores nor handles it, and is no zombie."""
    found = {}
    for line in _read(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(b":")
        found[name] = value.split()
    if b"SigIgn" not in found or found[b"State"][0] in (b"Z", b"X"):
        return False
    handled = int(found[b"SigIgn"][0], 16) | int(found[b"SigCgt"][0], 16)
    return not handled >> (signal.SIGINT - 1) & 1


def own_memory(pid: int) -> int:
    """Return the bytes of a process's memory that no file backs, roughly what its end would free."""
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of its children that it has waited for."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS if len(fields) > 14 else 0.0


def remove_empty(folders: list[str]) -> None:
    """Remove those of these folders that are empty."""
    for folder in folders:
        try:
            os.rmdir(folder)
        except OSError:
            pass
