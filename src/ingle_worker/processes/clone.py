"""Forks that libc does not offer: into a cgroup (`fork_into`), and one whose child is our parent's and not ours.

Neither wait() nor SIGCHLD reports such a child to the user's code. With one thread the kernel makes it in one call
(`fork_beside`). With other threads only libc can fork, since they may hold its locks, and its child is ours. So that
child forks again and exits (`fork_twice`), which copies all page tables twice.
"""

import os
import struct
import sys
from _thread import get_native_id
from collections.abc import Callable
from typing import Any

from ingle_worker.processes.linux import fork_bare

PR_GET_TID_ADDRESS = 40
CLONE_PARENT, CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_INTO_CGROUP = 0x8000, 0x200000, 0x1000000, 0x200000000
SIGCHLD = 17

_MACHINE = os.uname().machine if sys.maxsize > 1 << 32 else ""
_CALLS = {"x86_64": (56, 273, 274), "aarch64": (220, 99, 100)}.get(_MACHINE)
"""The numbers of clone, set_robust_list and get_robust_list."""

CLONE3 = 435
"""The same on every machine."""

try:
    import ctypes

    # The GIL stays held over a call: a fork happens between two instructions of this one thread.
    _libc = ctypes.PyDLL(None, use_errno=True) if sys.platform == "linux" else None
except (ImportError, OSError):
    _libc = None

_syscall: Any = _libc.syscall if _libc is not None else None


def can_clone() -> bool:
    """Whether libc can be gone past at all."""
    return _libc is not None and _CALLS is not None and _tid_address() != 0


def can_fork_beside(parent: int) -> bool:
    """Whether `fork_beside` can be had, and makes a child of this parent's.

    It goes past libc, whose fork() sees to locks that other threads hold: so there must be no other thread. Only then
    have the functions that libraries give to pthread_atfork() nothing to do, either.
    """
    try:
        return os.getppid() == parent and len(os.listdir("/proc/self/task")) == 1 and can_clone()
    except OSError:
        return False


def fork_beside() -> int:
    """A bare fork whose child is not ours but our parent's."""
    thread = _Thread()
    return _forked(thread, thread.clone(CLONE_PARENT))


def fork_into(group: int) -> int:
    """A bare fork of a process with one thread. Its child is in a cgroup from its first moment: one of version 2, by
    a descriptor of its folder."""
    thread = _Thread()
    return _forked(thread, thread.clone_into(group))


def _forked(thread: "_Thread", pid: int) -> int:
    if pid < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if pid == 0:
        thread.set_robust_list()
    return pid


def fork_twice(number: memoryview) -> int:
    """Fork by libc, and let the child fork again and exit, so that the second child is not ours.

    Return the number of the first child, to be waited for, or 0 in the second one. The first child writes the number of
    the second one into `number`, which is shared memory. If it cannot fork, it exits with the number of the error.
    """
    pid = fork_bare()
    if pid:
        return pid
    try:
        child = fork_bare()
    except OSError as error:
        os._exit(error.errno or 1)
    if child:
        number[0] = child
        os._exit(0)
    return 0


class _Thread:
    """What libc has told the kernel of this thread, and a child has to tell again."""

    def __init__(self) -> None:
        assert _CALLS is not None
        self._clone, self._set_robust, get_robust = _CALLS
        self._tid = ctypes.c_long(_tid_address())
        self._head, self._size = ctypes.c_long(), ctypes.c_long()
        self._robust = _syscall(get_robust, 0, ctypes.byref(self._head), ctypes.byref(self._size)) == 0

    def clone(self, flags: int) -> int:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
        # The address is the fourth argument on one machine and the fifth on the other; neither reads both.
        pid: int = _syscall(self._clone, flags, 0, ctypes.c_long(0), self._tid, self._tid)
        return pid

    def clone_into(self, group: int) -> int:
        flags = CLONE_INTO_CGROUP | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
        packed = struct.pack("11Q", flags, 0, self._tid.value, 0, SIGCHLD, 0, 0, 0, 0, 0, group)
        pid: int = _syscall(CLONE3, ctypes.create_string_buffer(packed, len(packed)), len(packed))
        return pid

    def set_robust_list(self) -> None:
        if self._robust:
            _syscall(self._set_robust, self._head, self._size)


def _tid_address() -> int:
    """Where libc keeps the number of this thread, which a copy has to have right; 0 where it keeps it elsewhere."""
    address = ctypes.c_long()
    if _libc is None or _libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) or not address.value:
        return 0
    return address.value if ctypes.c_int.from_address(address.value).value == get_native_id() else 0


def fork_whole(fork: Callable[[], int]) -> int:
    """A fork with all that Python does around it, but without its warning: that is for who called it, not for us.

    Functions registered to run before a fork run here, in the process whose threads they may have to wait for.
    """
    if _libc is None:
        return fork()
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    try:
        pid = fork()
    except OSError:
        python.PyOS_AfterFork_Parent()
        raise
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    return pid
