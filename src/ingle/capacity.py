"""Public shape: how many sessions a node holds at once."""

from msgspec import Struct


class Capacity(Struct, frozen=True):
    """How many sessions a node holds at once, and what bounds the number."""

    sessions: int
    bound: str
    """What bounds the number, in words."""
    remedy: str
    """How to raise it, in the imperative."""
    connections: int
    """How many connections of clients it has file descriptors for."""

    @property
    def sentence(self) -> str:
        """Return the number and its bound, for a banner."""
        return f"up to {self.sessions} sessions at once, because {self.bound}"
