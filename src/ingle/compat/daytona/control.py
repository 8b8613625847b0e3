"""Sandboxes of Daytona: made, listed, started, stopped, labelled and removed."""

import contextlib
import os
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ingle import errors
from ingle.callers import SERVICE
from ingle.compat.daytona.sandboxes import STARTED, STOPPED, Sandbox, Sandboxes, SandboxNotFound, new_id
from ingle.compat.requests import check_scope, moment
from ingle.http.routes.bodies import read_body
from ingle.http.translations import PRINCIPAL
from ingle.service import Service

MAX_BODY_BYTES = 1024 * 1024
GIB = 1024**3
MAX_LISTED = 200


class NewSandbox(Struct, rename="camel"):
    name: str | None = None
    snapshot: str | None = None
    env: dict[str, str] = {}
    labels: dict[str, str] = {}
    network_block_all: bool | None = None
    volumes: list[Any] = []
    build_info: Any = None


class Labels(Struct):
    labels: dict[str, str]


class Control:
    """Handlers of `/api/sandbox`."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def routes(self) -> list[Route]:
        one = "/api/sandbox/{name}"
        return [
            Route("/api/sandbox", self._create, methods=["POST"]),
            Route("/api/sandbox", self._list, methods=["GET"]),
            Route(one, self._get, methods=["GET"]),
            Route(one, self._delete, methods=["DELETE"]),
            Route(f"{one}/start", self._start, methods=["POST"]),
            Route(f"{one}/stop", self._stop, methods=["POST"]),
            Route(f"{one}/pause", self._stop, methods=["POST"]),
            Route(f"{one}/labels", self._label, methods=["PUT"]),
            Route(f"{one}/last-activity", self._get, methods=["POST"]),
            Route(f"{one}/toolbox-proxy-url", self._toolbox_url, methods=["GET"]),
            Route("/api/{what:path}", self._refuse, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ]

    async def _refuse(self, request: Request) -> Response:
        raise errors.NotFound(
            f"{request.url.path[:200]!r} is no route of ingle: it runs sessions, not virtual machines, and has no "
            "snapshots of machines, volumes, previews and intervals"
        )

    async def _create(self, request: Request) -> Response:
        new = await read_body(request, NewSandbox, MAX_BODY_BYTES)
        for name, given in (("volumes", new.volumes), ("buildInfo", new.build_info), ("snapshot", new.snapshot)):
            if given:
                raise errors.InvalidRequest(f"{name} needs a virtual machine, which ingle does not run; leave it out")
        service: Service = request.scope[SERVICE]
        sandbox_id = new_id()
        if new.name is not None:
            for other in self._sandboxes.of_tenant(service.caller.tenant):
                if new.name in (other.id, other.name):
                    raise errors.Conflict(f"Sandbox with name {new.name[:80]} already exists")
        sandbox = Sandbox(
            sandbox_id,
            new.name or sandbox_id,
            request.scope[PRINCIPAL],
            new.env,
            new.labels,
            "none" if new.network_block_all else None,
        )
        made = msgspec.structs.replace(sandbox.options(), session_id=sandbox_id)
        sandbox.home = (await sandbox.service.create(made)).cwd
        self._sandboxes.add(sandbox)
        return JSONResponse(await self._described(request, sandbox))

    async def _list(self, request: Request) -> Response:
        service: Service = request.scope[SERVICE]
        query = request.query_params
        try:
            wanted = msgspec.json.decode(query.get("labels") or "{}", type=dict[str, str])
            start = int(query.get("cursor") or 0)
            limit = min(max(1, int(query.get("limit") or MAX_LISTED)), MAX_LISTED)
        except (msgspec.DecodeError, ValueError):
            raise errors.InvalidRequest("labels must be JSON, and cursor and limit numbers") from None
        found = [
            each
            for each in self._sandboxes.of_tenant(service.caller.tenant)
            if wanted.items() <= each.labels.items() and query.get("name", each.name) == each.name
        ]
        page = []
        for each in found[start : start + limit]:
            with contextlib.suppress(SandboxNotFound):
                page.append(await self._described(request, each))
        more = str(start + limit) if len(found) > start + limit else None
        return JSONResponse({"items": page, "nextCursor": more})

    async def _get(self, request: Request) -> Response:
        return JSONResponse(await self._described(request, self._find(request)))

    async def _delete(self, request: Request) -> Response:
        sandbox = self._find(request)
        body = await self._described(request, sandbox)
        await self._sandboxes.end(sandbox)
        return JSONResponse({**body, "state": sandbox.state})

    async def _start(self, request: Request) -> Response:
        return await self._set_state(request, STARTED)

    async def _stop(self, request: Request) -> Response:
        return await self._set_state(request, STOPPED)

    async def _set_state(self, request: Request, state: str) -> Response:
        """Refuse or accept requests to its toolbox. ingle frees the processes of what is not used by itself."""
        sandbox = self._find(request)
        sandbox.state = state
        return JSONResponse(await self._described(request, sandbox))

    async def _label(self, request: Request) -> Response:
        sandbox = self._find(request)
        asked = await read_body(request, Labels, MAX_BODY_BYTES)
        sandbox.labels = asked.labels
        return JSONResponse({"labels": sandbox.labels})

    async def _toolbox_url(self, request: Request) -> Response:
        self._find(request)
        return JSONResponse({"url": toolbox_url(request)})

    def _find(self, request: Request) -> Sandbox:
        return self._sandboxes.find(request.path_params["name"], check_scope(request.scope))

    async def _described(self, request: Request, sandbox: Sandbox) -> dict[str, Any]:
        try:
            limits = (await sandbox.service.get_session(sandbox.id)).limits
        except errors.SessionNotFound:
            # It was ended by its name.
            await self._sandboxes.end(sandbox)
            raise SandboxNotFound(sandbox.name) from None
        return {
            "id": sandbox.id,
            "organizationId": "ingle",
            "name": sandbox.name,
            "user": "daytona",
            "env": sandbox.env,
            "labels": sandbox.labels,
            "public": False,
            "networkBlockAll": sandbox.network == "none",
            "kvm": False,
            "target": "ingle",
            "cpu": os.cpu_count() or 1,
            "gpu": 0,
            "memory": (limits.memory or 0) // GIB,
            "disk": (limits.disk or 0) // GIB,
            "state": sandbox.state,
            "createdAt": moment(sandbox.created_at),
            "toolboxProxyUrl": toolbox_url(request),
        }


def toolbox_url(request: Request) -> str:
    """Return the URL of toolboxes, on the host that the client has named."""
    return f"{request.url.scheme}://{request.url.netloc}/toolbox"
