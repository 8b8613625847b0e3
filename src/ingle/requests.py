"""Requests as data: a new session, and what it or a shell task may use. Answers are in `events`."""

from msgspec import Struct, field


class SessionLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Resources that a session may use; null is no limit. Sizes are in bytes."""

    memory: int | None = None
    """Of all its processes together."""
    processes: int | None = None
    """At the same time, threads included."""
    files: int | None = None
    """Open at the same time, in each process."""
    file_size: int | None = None
    """Of any file it writes."""
    tmp: int | None = None
    """Of its folder for temporary files."""
    disk: int | None = None
    """Of its own folder."""


class Bounds(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a token allows within the server's settings; null adds no restriction."""

    isolation: str | None = None
    """Weakest level of its sessions."""
    network: str | None = None
    """Most access that its sessions get."""
    limits: SessionLimits = SessionLimits()
    """Upper limits of each of its sessions."""


class NewSession(Struct, frozen=True, kw_only=True):
    """A session to create. Null means the server's setting."""

    session_id: str | None = None
    """Its name; null gives it a random one."""
    tenant: str = ""
    python: str | None = None
    cwd: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    idle_timeout: float | None = None
    one_off: bool = False
    """End the session once its one result was read."""
    include_stdlib: bool = True
    """Load the user's library into the session."""
    durable: bool = False
    """Save the session after each cell, and restore it when the server restarts."""
    isolation: str | None = None
    """Requested level; never weaker than the server's."""
    network: str | None = None
    """Requested network; never more than the server allows."""
    limits: SessionLimits = SessionLimits()
    """Requested limits; never above the server's."""
    checkpoints: str | None = None
    """`auto`: one before each cell; `manual`: on request."""
    bounds: Bounds = Bounds()
    """What the caller's token allows."""


class Limits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Resources that a shell task may use; null is no limit. Sizes are in bytes."""

    memory: int | None = None
    """Of all its processes together, without memory shared with files."""
    cpu_seconds: float | None = None
    """Of all its processes together."""
    processes: int | None = None
    files: int | None = None
    """Open at the same time, in each process."""
    file_size: int | None = None
    """Of any file it writes."""
    output: int | None = None
    """On stdout and stderr together."""
