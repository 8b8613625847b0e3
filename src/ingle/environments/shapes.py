"""Public shapes of environments: the request for one, and its description."""

from msgspec import Struct, field


class NewEnvironment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Request for an environment: an interpreter and its packages."""

    python: str = ""
    """Version, as `3.12`, or path of the interpreter. Default: the server's."""
    packages: list[str] = field(default_factory=list)
    """Requirements, as pip takes them."""
    requirements: str = ""
    """Text of a file of requirements."""
    constraints: str = ""
    """Text of a file of constraints."""


class EnvironmentInfo(Struct):
    """A named environment. `building` and `failed` are about the last build; an earlier one stays usable."""

    name: str
    state: str
    """`ready`, `building`, or `failed` if it could not be built."""
    usable: bool
    """Whether sessions can ask for it now."""
    python: str = ""
    """Version of its interpreter."""
    requested: list[str] = field(default_factory=list)
    """Packages that were asked for."""
    packages: dict[str, str] = field(default_factory=dict)
    """Installed packages with their versions."""
    created_at: float | None = None
    progress: str = ""
    """What the build is doing."""
    error: str | None = None
    """Why the last build failed, in at most three lines."""
