"""Settings of the C allocator for a server process.

glibc keeps freed blocks for the thread that had them, and raises the size of blocks that it keeps when larger ones are
freed. Each thread of a pool then holds the largest message that it ever wrote to disk: 20 MB a thread, and more threads
on a machine with more cores. With a fixed size, every larger block goes back to the system when it is freed.
"""

import ctypes

M_MMAP_THRESHOLD = -3
"""Parameter of `mallopt`: blocks from this size on are mapped one by one."""

MAX_KEPT_BYTES = 256 * 1024


def return_freed_memory() -> None:
    """Have the allocator return large freed blocks to the system. Without glibc, nothing changes."""
    try:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MAX_KEPT_BYTES)
    except (OSError, AttributeError):
        pass
