"""Control plane of E2B: sandboxes are made, listed, paused, forked, saved and ended.

A snapshot is one of ingle's snapshots, and its name is a template that new sandboxes can begin with.
"""

import os
import secrets
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct, field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ingle import errors
from ingle.callers import SERVICE
from ingle.compat.e2b.contexts import Contexts
from ingle.compat.e2b.sandboxes import DEFAULT_SECONDS, ID_BYTES, MAX_SECONDS, Sandbox, Sandboxes
from ingle.compat.requests import check_scope
from ingle.events import SessionInfo
from ingle.http.routes.bodies import read_body
from ingle.http.translations import PRINCIPAL
from ingle.service import Service

ENVD_VERSION = "0.6.5"
"""Version of the sandbox side that this translation offers."""

CLIENT_ID = "ingle"
MIB = 1024 * 1024
MAX_BODY_BYTES = 1024 * MIB
MAX_LISTED = 100
DEFAULT_TEMPLATES = ("base", "code-interpreter-v1")

PUBLIC_TRAFFIC = "allowPublicTraffic"
"""Option of network that changes nothing: every request to a sandbox needs its token."""

SNAPSHOT_TAG = ":default"
"""Ends the id of a snapshot, as E2B has it."""

Seconds = Annotated[int, Meta(ge=0, le=MAX_SECONDS)]


class AutoResume(Struct):
    enabled: bool = False


class NewSandbox(Struct, rename="camel"):
    template_id: str = field(name="templateID")
    timeout: Seconds = DEFAULT_SECONDS
    auto_pause: bool = False
    auto_resume: AutoResume | None = None
    allow_internet_access: bool | None = field(default=None, name="allow_internet_access")
    metadata: dict[str, str] = {}
    env_vars: dict[str, str] = {}
    network: dict[str, Any] | None = None
    mcp: Any = None
    iam: Any = None
    volume_mounts: list[Any] = []


class Connect(Struct):
    timeout: Seconds | None = None


class Timeout(Struct):
    timeout: Seconds


class Fork(Struct):
    timeout: Seconds = DEFAULT_SECONDS
    count: int = 1


class Snapshot(Struct):
    name: str | None = None


class Control:
    """Handlers of the control plane."""

    def __init__(self, sandboxes: Sandboxes, contexts: Contexts) -> None:
        self._sandboxes = sandboxes
        self._contexts = contexts

    def routes(self) -> list[Route]:
        one = "/sandboxes/{sandbox_id}"
        return [
            *(Route(path, self._create, methods=["POST"]) for path in ("/sandboxes", "/v2/sandboxes")),
            *(Route(path, self._list, methods=["GET"]) for path in ("/sandboxes", "/v2/sandboxes")),
            *(
                Route(f"{prefix}{one}/{verb}", self._connect, methods=["POST"])
                for prefix in ("", "/v2")
                for verb in ("connect", "resume")
            ),
            Route(one, self._get, methods=["GET"]),
            Route(one, self._kill, methods=["DELETE"]),
            Route(f"{one}/timeout", self._set_timeout, methods=["POST"]),
            Route(f"{one}/refreshes", self._set_timeout, methods=["POST"]),
            Route(f"{one}/pause", self._pause, methods=["POST"]),
            Route(f"{one}/fork", self._fork, methods=["POST"]),
            Route(f"{one}/snapshots", self._save, methods=["POST"]),
            Route(f"{one}/metrics", self._metrics, methods=["GET"]),
            Route("/snapshots", self._snapshots, methods=["GET"]),
            Route("/templates/{template_id:path}", self._remove_snapshot, methods=["DELETE"]),
            # A template is the image of a virtual machine, and so is what mounts into one.
            Route("/{what:path}", self._refuse, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ]

    async def _refuse(self, request: Request) -> Response:
        raise errors.NotFound(
            f"{request.url.path[:200]!r} is no route of ingle: it runs sessions, not virtual machines, and has no "
            "templates, volumes, secrets and logs of machines"
        )

    async def _create(self, request: Request) -> Response:
        new = await read_body(request, NewSandbox, MAX_BODY_BYTES)
        for name, given in (("mcp", new.mcp), ("iam", new.iam), ("volumeMounts", new.volume_mounts)):
            if given:
                raise errors.InvalidRequest(f"{name} needs a virtual machine, which ingle does not run; leave it out")
        network = "none" if new.allow_internet_access is False else None
        rules = [name for name, given in (new.network or {}).items() if given and name != PUBLIC_TRAFFIC]
        if rules and network is None:
            raise errors.InvalidRequest(
                f"{rules[0][:80]}: rules of network are the operator's, who starts ingle with --network and "
                "--allow-host; leave them out"
            )
        sandbox = Sandbox(
            secrets.token_hex(ID_BYTES),
            request.scope[PRINCIPAL],
            new.template_id,
            new.metadata,
            new.env_vars,
            network=network,
            auto_pause=new.auto_pause,
            auto_resume=new.auto_resume is not None and new.auto_resume.enabled,
        )
        await self._contexts.begin(sandbox, _snapshot_of(new.template_id))
        self._sandboxes.add(sandbox, new.timeout)
        return JSONResponse(_created(sandbox), 201)

    async def _connect(self, request: Request) -> Response:
        sandbox = self._find(request)
        asked = await read_body(request, Connect, MAX_BODY_BYTES)
        await sandbox.service.get_session(sandbox.id)
        if sandbox.paused:
            await self._sandboxes.resume(sandbox)
        self._sandboxes.set_life(sandbox, DEFAULT_SECONDS if asked.timeout is None else asked.timeout)
        return JSONResponse(_created(sandbox))

    async def _get(self, request: Request) -> Response:
        sandbox = self._find(request)
        return JSONResponse(_described(sandbox, await sandbox.service.get_session(sandbox.id)))

    async def _list(self, request: Request) -> Response:
        query = request.query_params
        wanted = dict(parse_qsl(query.get("metadata", "")))
        states = query.get("state", "running,paused").split(",")
        newest_first = query.get("order", "desc") != "asc"
        start, limit = _number(query, "nextToken", 0), min(_number(query, "limit", MAX_LISTED), MAX_LISTED)
        service: Service = request.scope[SERVICE]
        found = [
            each
            for each in self._sandboxes.of_tenant(service.caller.tenant)
            if wanted.items() <= each.metadata.items()
            and _state(each) in states
            and query.get("template", each.template) == each.template
        ]
        if newest_first:
            found.reverse()
        infos = {each.session_id: each for each in await service.list_sessions()}
        listed = [_described(each, infos[each.id]) for each in found[start : start + limit] if each.id in infos]
        headers = {"x-next-token": str(start + limit)} if len(found) > start + limit else {}
        return JSONResponse(listed, headers=headers)

    async def _kill(self, request: Request) -> Response:
        sandbox = self._find(request)
        await self._sandboxes.end(sandbox)
        return Response(status_code=204)

    async def _set_timeout(self, request: Request) -> Response:
        sandbox = self._find(request)
        asked = await read_body(request, Timeout, MAX_BODY_BYTES)
        self._sandboxes.set_life(sandbox, asked.timeout)
        return Response(status_code=204)

    async def _pause(self, request: Request) -> Response:
        sandbox = self._find(request)
        if sandbox.paused:
            raise errors.Conflict(f"sandbox {sandbox.id!r} is paused already")
        await self._sandboxes.pause(sandbox)
        return Response(status_code=204)

    async def _fork(self, request: Request) -> Response:
        original = self._find(request)
        asked = await read_body(request, Fork, MAX_BODY_BYTES)
        made = await self._contexts.fork(original, asked.count, request.scope[PRINCIPAL])
        for sandbox in made:
            self._sandboxes.add(sandbox, asked.timeout)
        return JSONResponse([{"sandbox": _created(each)} for each in made], 201)

    async def _save(self, request: Request) -> Response:
        sandbox = self._find(request)
        asked = await read_body(request, Snapshot, MAX_BODY_BYTES)
        name = (asked.name or secrets.token_hex(ID_BYTES)).removesuffix(SNAPSHOT_TAG)
        await sandbox.service.save_session(sandbox.id, name)
        return JSONResponse({"snapshotID": name + SNAPSHOT_TAG, "names": [name + SNAPSHOT_TAG]}, 201)

    async def _snapshots(self, request: Request) -> Response:
        service: Service = request.scope[SERVICE]
        of = request.query_params.get("sandboxID")
        listed = [
            {"snapshotID": each.name + SNAPSHOT_TAG, "names": [each.name + SNAPSHOT_TAG]}
            async for each in service.each_snapshot()
            if of is None or each.session_id == of
        ]
        return JSONResponse(listed)

    async def _remove_snapshot(self, request: Request) -> Response:
        service: Service = request.scope[SERVICE]
        await service.delete_snapshot(request.path_params["template_id"].removesuffix(SNAPSHOT_TAG))
        return Response(status_code=204)

    async def _metrics(self, request: Request) -> Response:
        sandbox = self._find(request)
        info = await sandbox.service.get_session(sandbox.id)
        now = datetime.now(UTC)
        age = max(now.timestamp() - info.created_at, 0.001)
        used = 100.0 * (info.cpu_seconds or 0.0) / age
        metric = {
            "timestamp": now.isoformat(),
            "timestampUnix": int(now.timestamp()),
            "cpuCount": _cores(),
            "cpuUsedPct": round(used, 2),
            "memUsed": info.memory or 0,
            "memTotal": info.limits.memory or 0,
            "memCache": 0,
            "diskUsed": 0,
            "diskTotal": info.limits.disk or 0,
        }
        return JSONResponse([metric])

    def _find(self, request: Request) -> Sandbox:
        return self._sandboxes.find(request.path_params["sandbox_id"], check_scope(request.scope))


def _snapshot_of(template: str) -> str | None:
    """Return the name of the snapshot that a template means; None for the usual templates."""
    if template in DEFAULT_TEMPLATES:
        return None
    return template.removesuffix(SNAPSHOT_TAG)


def _number(query: Any, name: str, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    try:
        number: int = msgspec.convert(text, Annotated[int, Meta(ge=0, le=2**31)], strict=False)
        return number
    except msgspec.ValidationError:
        raise errors.InvalidRequest(f"{name} is {text[:80]!r}; it must be a whole number") from None


def _state(sandbox: Sandbox) -> str:
    return "paused" if sandbox.paused else "running"


def _created(sandbox: Sandbox) -> dict[str, Any]:
    return {
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": sandbox.token,
        "trafficAccessToken": sandbox.token,
        "domain": None,
    }


def _described(sandbox: Sandbox, info: SessionInfo) -> dict[str, Any]:
    return {
        "templateID": sandbox.template,
        "sandboxID": sandbox.id,
        "clientID": CLIENT_ID,
        "envdVersion": ENVD_VERSION,
        "startedAt": sandbox.started_at.isoformat(),
        "endAt": sandbox.end_at.isoformat(),
        "cpuCount": _cores(),
        "memoryMB": (info.limits.memory or 0) // MIB,
        "diskSizeMB": (info.limits.disk or 0) // MIB,
        "state": _state(sandbox),
        "metadata": sandbox.metadata,
        "lifecycle": {
            "autoResume": sandbox.auto_resume,
            "onTimeout": "pause" if sandbox.auto_pause else "kill",
        },
    }


def _cores() -> int:
    return os.cpu_count() or 1
