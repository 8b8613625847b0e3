"""Limits that are in force, read back from the kernel. Only files that everyone may read are used."""

import re

import msgspec

from ingle.isolation.limits.cgroup_mounts import MEMORY, PROCESSES
from ingle.isolation.limits.cgroups import Group
from ingle.requests import SessionLimits
from ingle.support import processes

HARD = {
    "files": re.compile(rb"^Max open files +\S+ +(\d+)", re.MULTILINE),
    "file_size": re.compile(rb"^Max file size +\S+ +(\d+)", re.MULTILINE),
}
"""Hard limits in /proc/PID/limits. One that is `unlimited` is not found."""

PAGE_BYTES = 4096
IN_PAGES = ("memory", "tmp")
"""Limits that the kernel rounds to whole pages."""


def read(pid: int, group: Group | None, wanted: SessionLimits, own_tmp: int | None) -> SessionLimits:
    """Return the limits of a worker. Those that were not asked for are left out.

    Limits that the watchdog keeps are as wanted. `own_tmp` is the size of the worker's own file system for temporary
    files, which init has read; None without one.
    """
    found: dict[str, int | None] = {}
    rows = processes.read(f"/proc/{pid}/limits")
    if not rows:
        return wanted  # the process has just ended
    for name, hard in HARD.items():
        limit = hard.search(rows)
        found[name] = int(limit[1]) if limit is not None else None
    if group is not None:
        if MEMORY in group.places:
            found["memory"] = group.limit(MEMORY)
        if PROCESSES in group.places:
            found["processes"] = group.limit(PROCESSES)
    if own_tmp is not None:
        found["tmp"] = own_tmp or None
    return msgspec.structs.replace(
        wanted, **{name: value for name, value in found.items() if getattr(wanted, name) is not None}
    )


def missing(wanted: SessionLimits, found: SessionLimits) -> list[str]:
    """Return the names of limits that are not in force, or are higher than wanted."""
    return [
        name
        for name in SessionLimits.__struct_fields__
        if (most := getattr(wanted, name)) is not None
        and not _holds(getattr(found, name), most + (PAGE_BYTES - 1 if name in IN_PAGES else 0))
    ]


def _holds(value: int | None, most: int) -> bool:
    return value is not None and value <= most
