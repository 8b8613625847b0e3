"""Processes that are blocked in a read of a pipe, as the kernel reports: for code that reads descriptor 0 directly.

The functions read small files in /proc and block, so they are for a thread. Where /proc does not tell, on another
platform or without permission, they find nothing, and only readers in Python are noticed.
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
    """Return those of these processes that have a blocked reader at or below them. Values are inodes of stdin pipes."""
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
    # The file says "0 0x0 0x7f..." while blocked in a call, and "running" or "-1 ..." otherwise.
    fields = processes.read(f"/proc/{pid}/task/{thread}/syscall").split()
    if len(fields) < 2 or not fields[0].isdigit() or int(fields[0]) not in _READS:
        return False
    try:
        return os.stat(f"/proc/{pid}/fd/{int(fields[1], 16)}").st_ino == inode
    except OSError:
        return False
