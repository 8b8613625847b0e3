"""Forks that libc does not offer: into a cgroup, and with our parent process as the child's parent.

Neither wait() nor SIGCHLD reports a child of our parent to user code. With one thread the kernel makes it in one call
(`fork_beside`). With other threads only libc can fork safely, since they may hold its locks. Then the child forks again
and exits (`fork_twice`), which copies all page tables twice.
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
"""System call numbers of clone, set_robust_list and get_robust_list."""

CLONE3 = 435
"""System call number, the same on every machine."""

try:
    import ctypes

    # PyDLL holds the GIL during a call, so no other code of this thread runs between call and fork.
    _libc = ctypes.PyDLL(None, use_errno=True) if sys.platform == "linux" else None
except (ImportError, OSError):
    _libc = None

_syscall: Any = _libc.syscall if _libc is not None else None


def can_clone() -> bool:
    """Return whether this process can fork without libc."""
    return _libc is not None and _CALLS is not None and _tid_address() != 0


def can_fork_beside(parent: int) -> bool:
    """Return whether `fork_beside` works here and its child would belong to `parent`.

    It bypasses libc, whose fork() handles locks of other threads, so there must be no other thread. Then functions
    registered with pthread_atfork() have nothing to do either.
    """
    try:
        return os.getppid() == parent and len(os.listdir("/proc/self/task")) == 1 and can_clone()
    except OSError:
        return False


def fork_beside() -> int:
    """Fork without hooks. The child belongs to our parent process."""
    thread = _Thread()
    return _forked(thread, thread.clone(CLONE_PARENT))


def fork_into(group: int) -> int:
    """Fork a process with one thread, without hooks. The child starts in a cgroup (version 2), given as a folder's
    descriptor."""
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

    Return the pid of the first child, which must be waited for, or 0 in the second child. The first child writes the
    pid of the second to `number`, which is shared memory. If it cannot fork, it exits with the errno.
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
    """Per-thread state that libc registered with the kernel and that a child must register again."""

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
    """Return the address where libc stores this thread's id, or 0 if libc stores it elsewhere."""
    address = ctypes.c_long()
    if _libc is None or _libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) or not address.value:
        return 0
    return address.value if ctypes.c_int.from_address(address.value).value == get_native_id() else 0


def fork_whole(fork: Callable[[], int]) -> int:
    """Fork with all of Python's fork hooks, but without its warning about threads, which is meant for the user's calls.

    Hooks that run before a fork run here, in the process whose threads they may wait for.
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
