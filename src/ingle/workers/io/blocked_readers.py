"""Who is blocked reading a pipe, told by the kernel: for code that reads descriptor 0 without asking Python.

Blocking reads of small files in /proc, for a thread. Where /proc does not tell (another platform, or no right to
look), nobody is found, and only Python's own readers are announced.
"""

import os
import platform

from ingle.support import processes

_READS = {
    "x86_64": {0, 17, 19},
    "aarch64": {63, 65, 67},
}.get(platform.machine(), set())
"""System call numbers of read, pread64 and readv."""


def find_blocked(roots: dict[int, int]) -> set[int]:
    """Of these processes (with the inode of their stdin pipe), those with a reader at or below them."""
    return {root for root, inode in roots.items() if _READS and _any_blocked(root, inode)}


def _any_blocked(root: int, inode: int) -> bool:
    todo = [root]
    while todo:
        pid = todo.pop()
        for thread in processes.threads(pid):
            if _is_blocked(pid, thread, inode):
                return True
            todo += processes.children_of_thread(pid, thread)
    return False


def _is_blocked(pid: int, thread: str, inode: int) -> bool:
    # "0 0x0 0x7f..." while blocked in a call; "running" or "-1 ..." otherwise.
    fields = processes.read(f"/proc/{pid}/task/{thread}/syscall").split()
    if len(fields) < 2 or not fields[0].isdigit() or int(fields[0]) not in _READS:
        return False
    try:
        return os.stat(f"/proc/{pid}/fd/{int(fields[1], 16)}").st_ino == inode
    except OSError:
        return False
