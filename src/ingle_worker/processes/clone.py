"""Forks that libc does not offer: into a cgroup (`fork_into`), and such whose child is not ours but our parent's, so
that neither wait() nor SIGCHLD tells the user's code of it.

With one thread the latter is one call of the kernel's (`fork_beside`). With others only libc can fork, since they may
hold its locks, and its child is ours. So that child hands over (`fork_aside`): it makes a process that shares its
memory, and is held in the kernel until that one kills it. From then on the memory is that one's alone, and it is a
child of our parent's, as orphans are. To fork again instead, which was done before, copies all memory twice.
"""

import os
import struct
import sys
from _thread import get_native_id
from collections.abc import Callable
from typing import Any

from ingle_worker.processes.linux import SIGKILL, fork_bare

PR_GET_TID_ADDRESS = 40
CLONE_VM, CLONE_VFORK, CLONE_PARENT, CLONE_PARENT_SETTID = 0x100, 0x4000, 0x8000, 0x100000
CLONE_CHILD_CLEARTID, CLONE_CHILD_SETTID, CLONE_INTO_CGROUP = 0x200000, 0x1000000, 0x200000000
SIGCHLD = 17

_MACHINE = os.uname().machine if sys.maxsize > 1 << 32 else ""
_CALLS = {"x86_64": (56, 273, 274), "aarch64": (220, 99, 100)}.get(_MACHINE)
"""The numbers of clone, set_robust_list and get_robust_list."""

CLONE3 = 435
"""The same on every machine."""

SET_TID_ADDRESS, RSEQ, ARCH_PRCTL = 218, 334, 158
"""Of x86_64, where handing over can be had: elsewhere nobody tells where libc keeps what `rseq` is given."""

RSEQ_SIZE, RSEQ_UNREGISTER, RSEQ_SIGNATURE = 32, 1, 0x53053053
ARCH_SHSTK_STATUS = 0x5005

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


def fork_aside(number: memoryview) -> int:
    """A fork by libc whose child is soon not ours. Here the number of one that is, to be waited for.

    It is killed by the child, or exits: with 0, or with that of the error for which there is no child. By then the
    child's own number is in this place, which is shared memory: whoever ends us finds it there, and spares it.
    """
    pid = fork_bare()
    if pid:
        return pid
    try:
        if not _hand_over(number):
            child = fork_bare()
            if child:
                number[0] = child
                os._exit(0)
    except OSError as error:
        os._exit(error.errno or 1)
    return 0


def _hand_over(number: memoryview) -> bool:
    """Go on as another process with the same memory, on the same stack; this one never runs again. False if not."""
    if _MACHINE != "x86_64" or not can_clone() or _has_shadow_stack():
        return False
    thread = _Thread()
    if not thread.leave():
        return False
    first = os.getpid()
    # The kernel writes its lower half; the upper one is zero.
    told = ctypes.addressof(ctypes.c_long.from_buffer(number))
    pid = thread.clone(CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, told)
    if pid == 0:
        # At once: were this process killed before it, that one would run on, over a stack that is not as it left it. By
        # its number: had it been killed by another, init would be our parent.
        os.kill(first, SIGKILL)
    elif pid > 0:
        os._exit(1)
    thread.enter()
    return pid == 0


class _Thread:
    """What libc has told the kernel of this thread, and a child has to tell again."""

    def __init__(self) -> None:
        assert _CALLS is not None
        self._clone, self._set_robust, get_robust = _CALLS
        self._tid = ctypes.c_long(_tid_address())
        self._head, self._size = ctypes.c_long(), ctypes.c_long()
        self._robust = _syscall(get_robust, 0, ctypes.byref(self._head), ctypes.byref(self._size)) == 0
        self._sequence = _sequence_address()

    def clone(self, flags: int, told: int = 0) -> int:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
        # The address stands at the fourth place on one machine, at the fifth on the other; nobody asks for the other.
        pid: int = _syscall(self._clone, flags, 0, ctypes.c_long(told), self._tid, self._tid)
        return pid

    def clone_into(self, group: int) -> int:
        flags = CLONE_INTO_CGROUP | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
        packed = struct.pack("11Q", flags, 0, self._tid.value, 0, SIGCHLD, 0, 0, 0, 0, 0, group)
        pid: int = _syscall(CLONE3, ctypes.create_string_buffer(packed, len(packed)), len(packed))
        return pid

    def set_robust_list(self) -> None:
        if self._robust:
            _syscall(self._set_robust, self._head, self._size)

    def leave(self) -> bool:
        """What the kernel does for a thread at its end, it would do in memory that is another's by then."""
        if self._sequence and _syscall(RSEQ, self._sequence, RSEQ_SIZE, RSEQ_UNREGISTER, RSEQ_SIGNATURE):
            return False  # libc has given it another size
        if self._robust:
            _syscall(self._set_robust, ctypes.c_long(0), self._size)
        _syscall(SET_TID_ADDRESS, ctypes.c_long(0))
        return True

    def enter(self) -> None:
        """The kernel knows it again."""
        _syscall(SET_TID_ADDRESS, self._tid)
        self.set_robust_list()
        if self._sequence:
            _syscall(RSEQ, self._sequence, RSEQ_SIZE, 0, RSEQ_SIGNATURE)


def _tid_address() -> int:
    """Where libc keeps the number of this thread, which a copy has to have right; 0 where it keeps it elsewhere."""
    address = ctypes.c_long()
    if _libc is None or _libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) or not address.value:
        return 0
    return address.value if ctypes.c_int.from_address(address.value).value == get_native_id() else 0


def _sequence_address() -> Any:
    """What libc has given to rseq(), by which sched_getcpu() knows the core; None where it has not.

    A process that shares its parent's memory begins without it.
    """
    assert _libc is not None
    try:
        offset = ctypes.c_long.in_dll(_libc, "__rseq_offset").value
        if ctypes.c_uint.in_dll(_libc, "__rseq_size").value == 0:
            return None
    except ValueError:  # a libc that does not know of it
        return None
    _libc.pthread_self.restype = ctypes.c_long
    return ctypes.c_long(_libc.pthread_self() + offset)


def _has_shadow_stack() -> bool:
    """It would go with the process that was killed."""
    features = ctypes.c_long()
    return _syscall(ARCH_PRCTL, ARCH_SHSTK_STATUS, ctypes.byref(features)) == 0 and features.value != 0


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
