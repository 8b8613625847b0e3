"""Memory that a session may still take."""

from ingle.isolation.limits.cgroup_mounts import MEMORY
from ingle.isolation.limits.cgroups import Group
from ingle.support import processes

RESERVED_SHARE = 0.05
"""Share of the machine's memory that is left to others."""


def memory_room(pid: int | None, group: Group | None, limit: int | None) -> int:
    """Return how many bytes a worker may still take: what its limit and the machine leave."""
    total, free = processes.machine_memory()
    room = free - int(total * RESERVED_SHARE)
    if limit is not None:
        used = group.memory() if group is not None and MEMORY in group.places else None
        room = min(room, limit - (used if used is not None else processes.unshared_memory(pid) if pid else 0))
    return max(0, room)
