"""Sessions of Jupyter: a document and the kernel that it uses. The table keeps paths and ids, and no document."""

from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from msgspec import Struct, field

from ingle import errors
from ingle.compat.jupyter.kernels import DEFAULT_SPEC, Kernel, Kernels
from ingle.service import Service

MAX_SESSIONS = 10_000
"""Rows of each tenant."""


class KernelName(Struct):
    id: str | None = None
    name: str | None = None


class NewJupyterSession(Struct):
    path: str
    type: str = "notebook"
    name: str = ""
    kernel: KernelName = field(default_factory=KernelName)


class ChangedSession(Struct):
    path: str | None = None
    type: str | None = None
    name: str | None = None
    kernel: KernelName | None = None


class JupyterSessionNotFound(errors.NotFound):
    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session not found: session_id={session_id[:80]!r}")


@dataclass(frozen=True)
class Row:
    id: str
    path: str
    type: str
    name: str
    kernel: Kernel


class JupyterSessions:
    """Table of documents with a kernel, by tenant."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._rows: dict[str, dict[str, Row]] = {}

    async def list(self, service: Service) -> list[dict[str, Any]]:
        found = []
        for row in [*self._of(service).values()]:
            try:
                found.append(await self._model(service, row))
            except errors.NotFound:
                self._of(service).pop(row.id, None)  # its kernel has ended
        return found

    async def get(self, service: Service, session_id: str) -> dict[str, Any]:
        return await self._model(service, self._row(service, session_id))

    async def create(self, service: Service, new: NewJupyterSession) -> dict[str, Any]:
        """Return the session of this document, with a kernel that is started if none is named."""
        rows = self._of(service)
        for row in rows.values():
            if row.path == new.path and row.type == new.type:
                try:
                    return await self._model(service, row)
                except errors.NotFound:
                    break  # its kernel has ended
        if len(rows) >= MAX_SESSIONS:
            raise errors.QuotaExceeded(f"there are {MAX_SESSIONS} sessions of documents; delete one", 10.0)
        made = Row(str(uuid4()), new.path, new.type, new.name, await self._kernel(service, new.kernel))
        rows[made.id] = made
        return await self._model(service, made)

    async def change(self, service: Service, session_id: str, changes: ChangedSession) -> dict[str, Any]:
        row = self._row(service, session_id)
        given = {name: getattr(changes, name) for name in ("path", "type", "name")}
        row = replace(row, **{name: value for name, value in given.items() if value is not None})
        if changes.kernel is not None and (changes.kernel.id or changes.kernel.name):
            row = replace(row, kernel=await self._kernel(service, changes.kernel))
        self._of(service)[row.id] = row
        return await self._model(service, row)

    async def end(self, service: Service, session_id: str) -> None:
        """Forget the document, and end its kernel if Jupyter has started it."""
        row = self._row(service, session_id)
        service.check("execute")
        del self._of(service)[row.id]
        try:
            await self._kernels.end(service, row.kernel)
        except errors.NotFound:
            return  # it has ended before

    async def _kernel(self, service: Service, wanted: KernelName) -> Kernel:
        if wanted.id:
            return await self._kernels.find(service, wanted.id)
        return await self._kernels.start(service, wanted.name or DEFAULT_SPEC, {})

    def _of(self, service: Service) -> dict[str, Row]:
        return self._rows.setdefault(service.caller.tenant, {})

    def _row(self, service: Service, session_id: str) -> Row:
        try:
            return self._of(service)[session_id]
        except KeyError:
            raise JupyterSessionNotFound(session_id) from None

    async def _model(self, service: Service, row: Row) -> dict[str, Any]:
        kernel = await self._kernels.model(service, row.kernel)
        document = {"path": row.path, "name": row.name}
        return {"id": row.id, **document, "type": row.type, "kernel": kernel, "notebook": document}
