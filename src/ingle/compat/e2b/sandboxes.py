"""Sandboxes of E2B: each is one session, and its further contexts are sessions that share its folder."""

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ingle import errors
from ingle.http.auth.principals import Principal
from ingle.service import Service
from ingle.support.background import Tasks

TOKEN_BYTES = 24
ID_BYTES = 10

DEFAULT_SECONDS = 300
MAX_SECONDS = 30 * 86400
"""Life of a sandbox: without a request for another one, and the longest."""

MAX_PROCESSES = 1000
FIRST_PID = 1000
"""Commands that are remembered for each sandbox, and the number of the first one."""

SIGNATURE_PREFIX = b"v1_"
MAX_DIGITS = 20
"""Digits of a time that are read."""

PAUSED = "The sandbox is paused; connect to it to resume it"


class SandboxNotFound(errors.NotFound):
    def __init__(self, sandbox_id: str) -> None:
        super().__init__(f"sandbox {sandbox_id[:80]!r} was not found")


class SandboxNotRunning(errors.Unavailable):
    """The sandbox cannot take requests for its code, files and commands."""

    status = 502


@dataclass(eq=False)
class Sandbox:
    """One row of the table."""

    id: str
    """Name of its session."""
    principal: Principal
    template: str
    metadata: dict[str, str]
    envs: dict[str, str]
    network: str | None = None
    """Widest network access; None is the server's."""
    auto_pause: bool = False
    """Whether it is paused at the end of its life, and not ended."""
    auto_resume: bool = False
    """Whether a request for its code, files or commands resumes it."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    """Gives access to this sandbox alone."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    end_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    life_seconds: float = DEFAULT_SECONDS
    """Its life as it was asked for last; 0 without an end."""
    paused: bool = False
    contexts: dict[str, "Context"] = field(default_factory=dict)
    """By id. The first is the default one."""
    processes: dict[int, "Process"] = field(default_factory=dict)
    """By the process id that the client knows."""
    watchers: dict[str, "Watcher"] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    """Ends its life, or pauses it."""

    @property
    def default_context(self) -> "Context":
        """Its own session. A fork has the ids of its original's contexts, so that this one may have any id."""
        return next(iter(self.contexts.values()))

    @property
    def service(self) -> Service:
        return self.principal.service

    @property
    def tenant(self) -> str:
        return self.principal.caller.tenant

    def new_pid(self) -> int:
        """Return a number that no process of the sandbox has had. The oldest of many processes is forgotten."""
        if len(self.processes) >= MAX_PROCESSES:
            del self.processes[next(iter(self.processes))]
        return max(self.processes, default=FIRST_PID - 1) + 1


@dataclass(frozen=True)
class Process:
    """A command: a shell task."""

    task_id: str
    config: dict[str, Any]
    """As the client gave it."""
    tag: str | None
    pty: bool


@dataclass(eq=False)
class Watcher:
    """A program in the session that reports changes of a folder."""

    task_id: str
    path: str
    include_entry: bool
    next_event: int = 1
    rest: str = ""
    """Beginning of a line whose end has not come yet."""

    def take(self, text: str) -> list[str]:
        """Return the lines that are complete with this text."""
        *lines, self.rest = (self.rest + text).split("\n")
        return lines


@dataclass(eq=False)
class Context:
    """A place to run code: a session."""

    id: str
    session_id: str
    cwd: str
    hidden_cells: int
    """Cells that are not the client's."""
    used_at: float = field(default_factory=time.monotonic)
    """When its last run ended."""
    exited: bool = False
    """Whether its process ended with that run."""
    next_event: int = 1
    """Number of the first event of its session after that run."""


class Sandboxes:
    """Table of all sandboxes, of all tenants."""

    def __init__(self) -> None:
        self._rows: dict[str, Sandbox] = {}
        self._endings = Tasks()

    def add(self, sandbox: Sandbox, seconds: float) -> None:
        self._rows[sandbox.id] = sandbox
        self.set_life(sandbox, seconds)

    def find(self, sandbox_id: str, service: Service) -> Sandbox:
        """Return a sandbox of this caller's tenant."""
        found = self._rows.get(sandbox_id)
        if found is None or found.tenant != service.caller.tenant:
            raise SandboxNotFound(sandbox_id)
        return found

    def has(self, sandbox_id: str) -> bool:
        return sandbox_id in self._rows

    def with_token(self, sandbox_id: str, token: str) -> Sandbox | None:
        """Return the sandbox that this token gives access to."""
        found = self._rows.get(sandbox_id)
        if found is None or not hmac.compare_digest(found.token.encode(), token.encode()):
            return None
        return found

    def with_signature(self, query: Mapping[str, str], operation: str) -> Sandbox | None:
        """Return the sandbox whose token has signed this URL of a file, for reading or for writing.

        The URL does not name the sandbox, so that all of them are tried.
        """
        parts = [query.get("path", ""), operation, query.get("username", "")]
        ends = query.get("signature_expiration", "")
        if ends and not (ends.isascii() and ends.isdecimal() and int(ends[:MAX_DIGITS]) > time.time()):
            return None
        given = query.get("signature", "").encode()
        for sandbox in self._rows.values():
            signed = ":".join([*parts, sandbox.token, *([ends] if ends else [])])
            digest = base64.b64encode(hashlib.sha256(signed.encode("utf-8", "replace")).digest()).rstrip(b"=")
            if hmac.compare_digest(SIGNATURE_PREFIX + digest, given):
                return sandbox
        return None

    def of_tenant(self, tenant: str) -> Iterator[Sandbox]:
        """Yield the sandboxes of a tenant, the oldest first."""
        return (each for each in self._rows.values() if each.tenant == tenant)

    def set_life(self, sandbox: Sandbox, seconds: float) -> None:
        """Let the sandbox live for so many seconds from now on. 0: without an end."""
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        sandbox.life_seconds = seconds
        lasts = seconds or MAX_SECONDS
        sandbox.end_at = datetime.fromtimestamp(datetime.now(UTC).timestamp() + lasts, UTC)
        loop = asyncio.get_running_loop()
        sandbox.timer = loop.call_later(lasts, partial(self._on_timer, sandbox)) if seconds else None

    def _on_timer(self, sandbox: Sandbox) -> None:
        self._endings.start(self.pause(sandbox) if sandbox.auto_pause else self.end(sandbox))

    async def pause(self, sandbox: Sandbox) -> None:
        """Refuse requests to the sandbox until it is resumed. Its commands stop; ingle may free its processes."""
        sandbox.paused = True
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        for process in list(sandbox.processes.values()):
            try:
                await sandbox.service.shell_pause(process.task_id)
            except errors.IngleError:
                continue  # it is over

    async def resume(self, sandbox: Sandbox) -> None:
        sandbox.paused = False
        for process in list(sandbox.processes.values()):
            try:
                await sandbox.service.shell_resume(process.task_id)
            except errors.IngleError:
                continue  # it is over

    async def end(self, sandbox: Sandbox) -> None:
        """End all sessions of a sandbox."""
        self._rows.pop(sandbox.id, None)
        if sandbox.timer is not None:
            sandbox.timer.cancel()
        for context in [*sandbox.contexts.values()][::-1]:
            try:
                await sandbox.service.end_session(context.session_id)
            except errors.SessionNotFound:
                continue  # it was ended by its name
