"""What an agent offers to gateways: its node, and what only a cluster asks for."""

from collections.abc import AsyncIterator
from typing import Protocol

from msgspec import Struct, field

from ingle.events import Restored, SessionInfo
from ingle.nodes import Node
from ingle.requests import NewSession
from ingle.store.claims import Claim
from ingle.store.leases import Renewal
from ingle.store.saves import FoundSave


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


class LeftSession(Struct, frozen=True):
    """A session that has left its agent."""

    snapshot: str
    """Name of the snapshot that has its state."""
    made: NewSession
    """Request for a session like it. It gets a folder of its own on its new machine."""


class Agent(Protocol):
    """One machine of a cluster.

    The agent claims the name of a new session `after` an epoch: that of the last claim on it, or 0 if there is none.
    None: its name is a signed one, which needs no claim.
    """

    @property
    def node(self) -> Node: ...

    def statuses(self) -> AsyncIterator[AgentStatus]:
        """Yield how busy the agent is, now and after each change."""
        ...

    def renewals(self) -> AsyncIterator[Renewal]:
        """Yield the renewals of the agent's lease, each before it is written."""
        ...

    async def create(self, new: NewSession, after: int | None) -> SessionInfo:
        """Create a session. Raise SessionExists if another agent has claimed the name."""
        ...

    async def fork(
        self, key: str, names: list[str], after: list[int | None], *, at: int | None, reseed: bool, shares: str | None
    ) -> list[SessionInfo]:
        """Make one live copy of a session for each name, or none at all."""
        ...

    async def load(
        self, new: NewSession, after: int | None, source: str, start: str | None, *, trust: bool, rerun: bool
    ) -> Restored:
        """Create a session with the variables of a snapshot."""
        ...

    async def saved_session(self, tenant: str, snapshot: str) -> str:
        """Return the name of the session that was saved as a snapshot: a load without a name uses it."""
        ...

    async def has(self, key: str) -> bool:
        """Return whether this agent has a session, is about to, or is moving it to another agent."""
        ...

    async def adopt(self, claim: Claim, save: FoundSave | None) -> bool:
        """Take a session over from the agent of this claim, which has ended or given it up. Its next call restores it.

        `save` is one that the gateway has read. The agent uses it if it is the newest one.
        Return False if another agent was faster, or if it has no save. Raise SessionHeldBack if this agent may not have
        it. Then its claim is released again.
        """
        ...

    async def drain(self) -> list[str]:
        """Take no more sessions, and return the keys of those that are here."""
        ...

    async def leave(self, key: str, seconds: float) -> LeftSession | None:
        """Save a session once its cell has ended, for at most `seconds`, and end it here.

        Return what another agent has to load. Return None if the session is durable, so that any agent can adopt it.
        If no other one does, this agent takes the session back. Raise Busy if the cell still runs.
        """
        ...
