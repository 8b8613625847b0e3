"""Kernels of Jupyter: each is a session. The table knows which of them Jupyter has started.

A kernel's id is made from its tenant and the name of its session, so that every session has one and none is stored.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from ingle import errors
from ingle.compat.requests import moment
from ingle.events import SessionInfo
from ingle.requests import NewSession
from ingle.service import Service
from ingle_worker.wire import states

NAMESPACE = UUID("6f1c3c5e-3a0e-5f0b-9b7e-2f6b1f3c9a41")
"""Namespace of the ids of kernels. Another one would change the id of every session."""

DEFAULT_SPEC = "python3"
"""Kernelspec of the server's own interpreter. Many clients ask for it by this name."""

JOIN = "session."
"""Prefix of kernelspecs that join a session."""

MAX_SESSION_SPECS = 50
"""Sessions that can be chosen as a kernelspec: those used last."""

PREFIX = "jupyter-"
"""Prefix of the names of sessions that Jupyter starts."""

NAME_BYTES = 5

RESTART_SECONDS = 10.0
"""Time for the running cell of a session to end before the session is restarted."""

EXIT_CODE = "raise SystemExit"


class KernelNotFound(errors.NotFound):
    def __init__(self, kernel_id: str) -> None:
        super().__init__(f"Kernel does not exist: {kernel_id[:80]}")


@dataclass(frozen=True)
class Kernel:
    id: str
    session_id: str


def kernel_id(tenant: str, session_id: str) -> str:
    return str(uuid5(NAMESPACE, f"{tenant}/{session_id}"))


class Kernels:
    """Table of kernels of all tenants."""

    def __init__(self) -> None:
        self._started: dict[str, NewSession] = {}
        """Sessions that Jupyter has started, by the id of their kernel."""
        self._restarting: dict[str, asyncio.Event] = {}
        """Set once the kernel of this id has its new session."""
        self.connections: Counter[str] = Counter()
        """WebSockets by the id of their kernel."""

    async def specs(self, service: Service) -> dict[str, Any]:
        """Return a kernelspec for the server's interpreter, for each environment, and for each session to join.

        Jupyter Server lists only kernels that it has started itself, so that a person finds other sessions this way.
        """
        names = {DEFAULT_SPEC: "Python 3 (ingle)"}
        for each in await service.list_environments():
            names.setdefault(each.name, f"{each.name} (ingle)")
        tenant = service.caller.tenant
        others = [
            each async for each in service.each_session() if kernel_id(tenant, each.session_id) not in self._started
        ]
        others.sort(key=lambda each: each.last_executed or each.created_at, reverse=True)
        for info in others[:MAX_SESSION_SPECS]:
            names.setdefault(JOIN + info.session_id, f"session {info.session_id} (ingle)")
        return {"default": DEFAULT_SPEC, "kernelspecs": {name: _spec(name, shown) for name, shown in names.items()}}

    async def list(self, service: Service) -> list[dict[str, Any]]:
        return [self._model(service, info) for info in await service.list_sessions()]

    async def model(self, service: Service, kernel: Kernel) -> dict[str, Any]:
        return self._model(service, await service.get_session(kernel.session_id))

    async def find(self, service: Service, wanted: str) -> Kernel:
        """Return the kernel of this id, out of the sessions of the caller's tenant."""
        tenant = service.caller.tenant
        started = self._started.get(wanted)
        if started is not None and kernel_id(tenant, started.session_id or "") == wanted:
            await self.restarted(Kernel(wanted, started.session_id or ""))
            try:
                return Kernel(wanted, (await service.get_session(started.session_id or "")).session_id)
            except errors.SessionNotFound:
                self._started.pop(wanted, None)  # it was ended by its name
                raise KernelNotFound(wanted) from None
        async for info in service.each_session():
            if kernel_id(tenant, info.session_id) == wanted:
                return Kernel(wanted, info.session_id)
        raise KernelNotFound(wanted)

    async def start(self, service: Service, spec: str, env: dict[str, str]) -> Kernel:
        """Create a session for a kernel of this spec."""
        known = (await self.specs(service))["kernelspecs"]
        if spec not in known:
            raise errors.NotFound(f"No such kernel: {spec[:80]}; known are {', '.join(known)}")
        if spec.startswith(JOIN) and (joined := await self._joined(service, spec.removeprefix(JOIN))) is not None:
            return joined
        name = PREFIX + secrets.token_hex(NAME_BYTES)
        new = NewSession(session_id=name, environment=None if spec == DEFAULT_SPEC else spec, env=env)
        await service.create(new)
        kernel = Kernel(kernel_id(service.caller.tenant, name), name)
        self._started[kernel.id] = new
        return kernel

    @staticmethod
    async def _joined(service: Service, session_id: str) -> Kernel | None:
        """Return the kernel of a session that is there already."""
        try:
            await service.get_session(session_id)
        except errors.SessionNotFound:
            return None
        return Kernel(kernel_id(service.caller.tenant, session_id), session_id)

    async def end(self, service: Service, kernel: Kernel) -> None:
        """End the session of a kernel that Jupyter has started. Leave every other session alone."""
        service.check("execute")
        if self._started.pop(kernel.id, None) is not None:
            await service.end_session(kernel.session_id)

    async def restart(self, service: Service, kernel: Kernel) -> None:
        """Give a kernel a new process without variables. A session that Jupyter did not start keeps its timeline."""
        new = self._started.get(kernel.id)
        if new is None:
            await self._exit(service, kernel)
            return
        over = self._restarting[kernel.id] = asyncio.Event()
        try:
            await service.end_session(kernel.session_id)
            await service.create(new)
        finally:
            del self._restarting[kernel.id]
            over.set()

    @staticmethod
    async def _exit(service: Service, kernel: Kernel) -> None:
        result = await service.interrupt(kernel.session_id, wait=RESTART_SECONDS)
        if result is not None and result.status not in states.FINAL_STATUSES:
            raise errors.Busy(result.cell, result.execution_time)
        await service.execute(kernel.session_id, EXIT_CODE, wait=RESTART_SECONDS)

    async def restarted(self, kernel: Kernel) -> bool:
        """Wait until a restart is over. Return False if there is none."""
        over = self._restarting.get(kernel.id)
        if over is not None:
            await over.wait()
        return over is not None

    def _model(self, service: Service, info: SessionInfo) -> dict[str, Any]:
        made = kernel_id(service.caller.tenant, info.session_id)
        last = datetime.fromtimestamp(info.last_executed or info.created_at, UTC)
        return {
            "id": made,
            "name": (info.environment or DEFAULT_SPEC) if made in self._started else JOIN + info.session_id,
            "last_activity": moment(last),
            "execution_state": execution_state(info.state),
            "connections": self.connections[made],
            "session_name": info.session_id,
        }

    @contextlib.contextmanager
    def connected(self, kernel: Kernel) -> Iterator[None]:
        """Count a WebSocket while the context lasts."""
        self.connections[kernel.id] += 1
        try:
            yield
        finally:
            self.connections[kernel.id] -= 1
            if not self.connections[kernel.id]:
                del self.connections[kernel.id]


def execution_state(state: str) -> str:
    """Return the state of a session in Jupyter's words."""
    if state in (states.RUNNING, states.WAITING):
        return "busy"
    return state if state in ("starting", "dead") else "idle"


def _spec(name: str, shown: str) -> dict[str, Any]:
    spec = {
        "argv": ["ingle", "kernel", "run", "-f", "{connection_file}"],
        "display_name": shown,
        "language": "python",
        "interrupt_mode": "message",
        "env": {},
        "metadata": {},
    }
    return {"name": name, "spec": spec, "resources": {}}
