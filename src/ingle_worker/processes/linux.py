"""What the guest asks of the kernel beyond `os`: prctl by ctypes, the process tree from /proc.

Everything degrades: without ctypes or /proc the answers are empty or False, never an exception.
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
    # Small numbers need no declared types, and without them a call touches fewer of the pages that are shared.
    return _call_prctl is not None and _call_prctl(option, value, 0, 0, 0) == 0


# The GIL stays held over the call: the fork happens between two instructions of this one thread.
_libc_fork = ctypes.PyDLL(None, use_errno=True).fork if _libc is not None else os.fork


def fork_bare() -> int:
    """Fork without Python's own after-fork work, for a child that runs next to nothing.

    That work (new locks, reseeded generators, hooks of imported libraries) writes to half a megabyte of pages
    which the child would otherwise share. A process with one thread, which only waits for others, needs none
    of it. Raises OSError as os.fork() does.
    """
    pid: int = _libc_fork()
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return pid


TAGS = 1 << 60
"""A tag is written into a limit that is never reached: microseconds of real-time scheduling, this many and the tag.

Limits are inherited by whatever a process forks or executes, new sessions included, and can be read from /proc without
any right. (A process's timer slack, tried first, is readable by the privileged only.)
"""


def tag(number: int) -> bool:
    """Mark this process, and all that will descend from it."""
    try:
        hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
        resource.setrlimit(resource.RLIMIT_RTTIME, (TAGS + number, hard))
    except (AttributeError, OSError, ValueError):
        return False
    return True


def tag_of(pid: int) -> int:
    """The tag of a process, 0 for one that never got any; -1 when it cannot be told."""
    for line in _read(f"/proc/{pid}/limits").splitlines():
        if line.startswith(b"Max realtime timeout"):
            soft = line.split()[3]
            return int(soft) - TAGS if soft.isdigit() and int(soft) >= TAGS else 0
    return -1


def command_line(pid: int) -> bytes:
    """Its arguments, as they lie in its memory; empty when there is no such process."""
    return _read(f"/proc/{pid}/cmdline")


def parent_of(pid: int) -> int:
    """0 when there is no such process."""
    after_name = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(after_name[1]) if len(after_name) > 1 else 0


def session_of(pid: int) -> int:
    """The terminal session that a process is in; 0 when it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def wait_for_a_core() -> None:
    """Who is woken gets a core that is idle, or waits: he does not push aside who is at work there, the host above all.

    For this process and all that it starts. Their share of the machine is as before.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except (OSError, AttributeError):
        return  # not Linux, or not allowed: it only costs speed


def become_subreaper() -> bool:
    """Orphans below this process become its children instead of the machine's init's."""
    return _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    """SIGKILL for this process when its parent ends."""
    return _prctl(PR_SET_PDEATHSIG, SIGKILL)


def set_name(name: bytes) -> None:
    """What `ps` and `top` call this process, in fifteen bytes."""
    if _call_prctl is not None:
        _call_prctl(PR_SET_NAME, name, 0, 0, 0)


def name_of(pid: int) -> str:
    """What `set_name` has set; empty when there is no such process."""
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
    """The direct children of a process, of all its threads."""
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
    """Whether a process ignores SIGINT just now, and whether it is stopped."""
    ignored = stopped = False
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith(b"SigIgn:"):
            ignored = bool(int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1)
        elif line.startswith(b"State:"):
            stopped = b"T" in line.split()[1]
    return ignored, stopped


def takes_sigint(pid: int) -> bool:
    """Whether SIGINT would end a process: it neither ignores nor catches it, and is no zombie."""
    found = {}
    for line in _read(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(b":")
        found[name] = value.split()
    if b"SigIgn" not in found or found[b"State"][0] in (b"Z", b"X"):
        return False
    handled = int(found[b"SigIgn"][0], 16) | int(found[b"SigCgt"][0], 16)
    return not handled >> (signal.SIGINT - 1) & 1


def own_memory(pid: int) -> int:
    """Bytes of memory that a process shares with no file: what would be free without it, about."""
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * PAGE if len(fields) > 2 else 0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of those of its children that it has waited for."""
    fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS if len(fields) > 14 else 0.0
