"""Sandboxes of Daytona: each is one session, and its contexts are sessions that share its folder."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ingle import errors
from ingle.http.auth.principals import Principal
from ingle.requests import NewSession
from ingle.service import Service

HOME = "/home/daytona"
STARTED, STOPPED, DESTROYED = "started", "stopped", "destroyed"


class SandboxNotFound(errors.NotFound):
    def __init__(self, name: str) -> None:
        super().__init__(f"Sandbox with ID or name {name[:80]} not found")


class NotStarted(errors.InvalidRequest):
    status = 400

    def __init__(self, name: str) -> None:
        super().__init__(f"Sandbox {name[:80]} is not started; start it first")


@dataclass(frozen=True)
class Context:
    """A further session of a sandbox."""

    id: str
    cwd: str
    created_at: datetime


@dataclass(frozen=True)
class Terminal:
    """A shell task with a terminal."""

    id: str
    task_id: str
    cols: int
    rows: int
    cwd: str
    envs: dict[str, str]
    created_at: datetime


@dataclass(eq=False)
class Sandbox:
    """One row of the table."""

    id: str
    """Name of its session."""
    name: str
    principal: Principal
    env: dict[str, str]
    labels: dict[str, str]
    network: str | None
    home: str = ""
    """Folder of its session."""
    state: str = STARTED
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    contexts: dict[str, Context] = field(default_factory=dict)
    shells: dict[str, dict[str, str]] = field(default_factory=dict)
    """Persistent shells, each with the ids of its commands and their text."""
    terminals: dict[str, Terminal] = field(default_factory=dict)
    """By the id that the client gave."""

    @property
    def service(self) -> Service:
        return self.principal.service

    def options(self) -> NewSession:
        """Return what all sessions of the sandbox have in common."""
        return NewSession(env=self.env, network=self.network, home=HOME, include_stdlib=False, own_folder=True)


class Sandboxes:
    """Table of all sandboxes, of all tenants."""

    def __init__(self) -> None:
        self._rows: dict[str, Sandbox] = {}

    def add(self, sandbox: Sandbox) -> None:
        self._rows[sandbox.id] = sandbox

    def find(self, name: str, service: Service) -> Sandbox:
        """Return a sandbox of the caller's tenant by its id or its name."""
        for sandbox in self.of_tenant(service.caller.tenant):
            if name in (sandbox.id, sandbox.name):
                return sandbox
        raise SandboxNotFound(name)

    def of_tenant(self, tenant: str) -> Iterator[Sandbox]:
        return (each for each in self._rows.values() if each.principal.caller.tenant == tenant)

    async def end(self, sandbox: Sandbox) -> None:
        self._rows.pop(sandbox.id, None)
        sandbox.state = DESTROYED
        for name in (*sandbox.contexts, sandbox.id):
            try:
                await sandbox.service.end_session(name)
            except errors.SessionNotFound:
                continue  # it was ended by its name


def new_id() -> str:
    return str(uuid.uuid4())
