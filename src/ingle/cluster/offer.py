"""What an agent offers to gateways: its node, and what only a cluster asks for."""

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct, field

from ingle.nodes import Node


class AgentStatus(Struct, frozen=True):
    """How busy an agent is."""

    sessions: int
    """Live sessions of all tenants, and those that are being made."""
    capacity: int
    """Sessions that it holds at most."""
    running: int
    """Cells that run."""
    waiting: int
    """Requests for sessions that wait for their turn."""
    memory_available: int
    environments: list[str] = field(default_factory=list)
    """Environments that are built there."""
    draining: bool = False
    """It takes no more sessions."""


class Agent(Protocol):
    """One machine of a cluster."""

    @property
    def node(self) -> Node: ...

    def statuses(self) -> AsyncIterator[AgentStatus]:
        """Yield how busy the agent is, now and after each change."""
        ...
