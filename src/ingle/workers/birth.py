"""How a worker is made: decided by the launcher before there is a process, and never changed."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Birth:
    user: int = 0
    """User id of its processes, where the server chooses one; else 0."""
    network: str = ""
    """Network of its sandbox; empty for the default of the confinement."""
    pooled: bool = False
    """It is made for the pool, and nobody waits for it. It starts a session only after it was ready."""
    grouped: bool = False
    """It gets a cgroup of its own, and its init waits for that."""
    tenant: str | None = None
    """Tenant whose session its init has served before. It may serve no other tenant. None for a new init."""
    limits: dict[str, int] = field(default_factory=dict)
    """Limits that its processes set for themselves, where they differ from the default."""
