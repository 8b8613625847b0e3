"""Memory that every session inherits from its zygote, prepared so that sessions share it for as long as they can.

A process that writes to a shared page gets a copy of it. Most writes of an idle session are not to data of its own.
Python counts references inside each object, replaces entries in its cache of lookups, and puts new objects wherever a
block is free among old ones. The zygote avoids all three here, before its first fork.
"""

import gc
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

from ingle_worker.processes.linux import PAGE

IMMORTAL_IN = ((3, 12), (3, 13))
"""Versions of Python in which `stop_counting_references` was tried. Older ones have no immortal objects."""

POOL, POOL_HEAD = 1 << 14, 48
"""Bytes that Python's allocator divides into blocks of one size, and those of them that it needs itself."""

BLOCK_SIZES = range(48, 513, 16)
"""Sizes of blocks, in bytes. Larger objects come from libc; those of two smaller sizes take no page less."""

MAX_POOLS_USED_UP = 32
"""Pools of one block size. They end the search where Python has another allocator."""

HUGE = 1 << 21
"""Bytes of a huge page where the others have 4 KiB."""

PAGES_PER_HUGE = HUGE // PAGE

MIN_RESIDENT = PAGES_PER_HUGE * 3 // 4
"""Resident pages that a range needs. The kernel adds the missing ones, so that a thread's empty stack would grow."""

MADV_COLLAPSE = 25
"""Advice that makes huge pages of existing memory at once (Linux 6.1 and later)."""

try:
    import ctypes

    _libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
except (ImportError, OSError):
    _libc = None

_held: list[bytes] = []
"""Objects without a use, in blocks that would otherwise be free."""


def forget_lookups() -> None:
    """Clear the cache of lookups in classes, after libraries were loaded and before a session is rehearsed.

    To replace an entry writes to the page of the name that it had. The rehearsal fills the entries that sessions need.
    """
    sys._clear_type_cache()


def keep_shared() -> None:
    """Prepare the memory of this process for its forks. Objects that it creates later are not prepared."""
    gc.collect()
    use_up_free_blocks()
    stop_counting_references()
    # Frozen objects are left out of later collections. A collection in a session would otherwise write to, and thereby
    # copy, every shared page.
    gc.freeze()
    use_huge_pages()


def stop_counting_references() -> None:
    """Make all objects immortal: to use one writes nothing to it, and it is never freed.

    CPython has no function for this. None is immortal, and an object with its number of references is so too.
    """
    # Debug and free-threaded builds, and other machines, have the number at another place.
    known = sys.abiflags == "" and sys.byteorder == "little" and sys.maxsize > 1 << 32
    if _libc is None or not known or sys.version_info[:2] not in IMMORTAL_IN:
        return
    memory = (ctypes.c_uint32 * (sys.maxsize // 4)).from_address(0)
    immortal = memory[id(None) // 4]
    found: list[Any] = gc.get_objects()
    while found:
        fresh = []
        for each in found:
            place = id(each) // 4
            if memory[place] != immortal:
                memory[place] = immortal
                fresh.append(each)
        found = gc.get_referents(*fresh)
        # The collector does not look into code.
        found += [each.co_consts for each in fresh if type(each) is CodeType]


def use_up_free_blocks() -> None:
    """Fill the free blocks between objects, so that a session's own objects lie together on new pages."""
    for size in BLOCK_SIZES:
        in_pool = (POOL - POOL_HEAD) // size
        last = in_row = 0
        for _ in range(MAX_POOLS_USED_UP * in_pool):
            block = bytes(size - sys.getsizeof(b""))
            _held.append(block)
            in_row = in_row + 1 if id(block) == last + size else 1
            last = id(block)
            if in_row == in_pool:
                break  # a used pool has other objects in between, so this was a new one, and the next block begins one


def use_huge_pages() -> None:
    """Move the anonymous memory of this process to huge pages. Where the kernel has none, it stays as it is.

    A fork copies the entries of all pages, and the end of a process walks through them again. That is a seventh of a
    microsecond for each page, or 1.7 ms for a session with pandas. A huge page is one entry instead of 512. A process
    that writes to it copies 4 KiB, as before.
    """
    if _libc is None:
        return
    resident = ctypes.create_string_buffer(PAGES_PER_HUGE)
    for first, last in _anonymous_memory():
        begin = first = -(-first // HUGE) * HUGE
        while first + HUGE <= last:
            found = _libc.mincore(ctypes.c_void_p(first), ctypes.c_size_t(HUGE), resident) == 0
            if not found or sum(resident.raw) < MIN_RESIDENT:
                _collapse(begin, first)
                begin = first + HUGE
            first += HUGE
        _collapse(begin, first)


def _collapse(first: int, last: int) -> None:
    # One call for all neighbours: each call waits for all processors.
    if first < last and _libc is not None:
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


def _anonymous_memory() -> Iterator[tuple[int, int]]:
    """Yield the ranges of addresses that no file is behind."""
    try:
        with open("/proc/self/maps") as file:
            lines = file.readlines()
    except OSError:
        return
    for line in lines:
        places, rights, _, _, _, *name = line.split(None, 5)
        if rights == "rw-p" and (not name or name == ["[heap]\n"]):
            first, last = places.split("-")
            yield int(first, 16), int(last, 16)
