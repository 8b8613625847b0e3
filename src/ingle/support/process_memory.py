"""Memory of a process that runs for long: its C allocator, and its garbage collector.

glibc keeps freed blocks for the thread that had them, and raises the size of blocks that it keeps when larger ones are
freed. Each thread of a pool then holds the largest message that it ever wrote to disk: 20 MB a thread, and more threads
on a machine with more cores. With a fixed size, every larger block goes back to the system when it is freed.
"""

import ctypes
import gc

M_MMAP_THRESHOLD = -3
"""Parameter of `mallopt`: blocks from this size on are mapped one by one."""

MAX_KEPT_BYTES = 256 * 1024

GC_THRESHOLD = 10_000
"""Objects made and not freed before the garbage collector looks at the young ones. At the usual 700 it looks at what a
request is about to free."""


def return_freed_memory() -> None:
    """Have the allocator return large freed blocks to the system. Without glibc, nothing changes."""
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAX_KEPT_BYTES)
    except (OSError, AttributeError):
        pass


def leave_loaded() -> None:
    """Leave what is loaded by now to the end of the process: modules stay, so walking them finds nothing.

    The collector is not asked to look for garbage first. That would walk all modules, to free a tenth of a megabyte.
    """
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
