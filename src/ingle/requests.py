"""What is asked for: a session to be made, and how much it or a shell task may use. What is told is in `events`.

Nothing in here does anything.
"""

from msgspec import Struct, field


class SessionLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a session may use; null is no limit. Sizes are bytes."""

    memory: int | None = None
    """Of all its processes together."""
    processes: int | None = None
    """At once, threads included."""
    files: int | None = None
    """Open at once, in each process."""
    file_size: int | None = None
    """Of any file it writes."""
    tmp: int | None = None
    """Of its folder for temporary files."""
    disk: int | None = None
    """Of its own folder."""


class Bounds(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a token allows of what the server does; null is all of it."""

    isolation: str | None = None
    """Confined at least so far."""
    network: str | None = None
    """Reaching at most this."""
    limits: SessionLimits = SessionLimits()
    """Each session using at most this."""


class NewSession(Struct, frozen=True, kw_only=True):
    """How a session is to be made. What is null is as the server's settings say."""

    session_id: str | None = None
    """Its name; without one a random one is given."""
    tenant: str = ""
    python: str | None = None
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    idle_timeout: float | None = None
    one_off: bool = False
    """It ends once its one result was read."""
    include_stdlib: bool = True
    """Load the user's library into it."""
    durable: bool = False
    """Save it after each cell, and have it come back after a restart of the server."""
    isolation: str | None = None
    """Confined at least so far; never less than the server does it."""
    network: str | None = None
    """Reaching at most this; never more than the server allows."""
    limits: SessionLimits = SessionLimits()
    """Using at most this; never more than the server allows."""
    checkpoints: str | None = None
    """`auto`: one before each cell; `manual`: when asked for."""
    bounds: Bounds = Bounds()
    """What the caller's token allows."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a shell task may use; null is no limit. Sizes are bytes."""

    memory: int | None = None
    """Of all its processes together, without what they share with files."""
    cpu_seconds: float | None = None
    """Of all its processes together."""
    processes: int | None = None
    files: int | None = None
    """Open at once, in each process."""
    file_size: int | None = None
    """Of any file it writes."""
    output: int | None = None
    """On stdout and stderr together."""
