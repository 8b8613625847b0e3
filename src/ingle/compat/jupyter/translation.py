"""The translation of Jupyter: routes below `/api`, tokens in three places, and the form of its errors."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct, field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.callers import SERVICE
from ingle.compat.jupyter.channels import Channels
from ingle.compat.jupyter.kernels import DEFAULT_SPEC, Kernel, Kernels
from ingle.compat.jupyter.sessions import ChangedSession, JupyterSessions, NewJupyterSession
from ingle.compat.requests import authorization, moment, no_route
from ingle.http.auth.principals import Principal, Principals
from ingle.http.routes.bodies import read_body
from ingle.service import Service

API_VERSION = "2.21.1"
"""Version of Jupyter Server whose API this is."""

MAX_BODY_BYTES = 1024 * 1024
MAX_QUERY_BYTES = 8192
OWN_VARIABLES = "KERNEL_"
"""Prefix of variables by which gateways talk among themselves. They are not for sessions."""

CHANNELS = re.compile(r"/api/kernels/(?P<kernel_id>[^/]+)/channels")


class NewKernel(Struct):
    name: str | None = None
    path: str | None = None
    env: dict[str, str] = field(default_factory=dict)


class Jupyter:
    """Translation of Jupyter's API."""

    name = "jupyter"
    paths: Sequence[str] = ("/api",)

    def __init__(self, service: Service) -> None:
        self._started_at = moment(datetime.now(UTC))
        self._kernels = Kernels()
        self._sessions = JupyterSessions(self._kernels)
        kernel = "/api/kernels/{kernel_id}"
        self._routes = Router(
            [
                Route("/api", self._version),
                Route("/api/", self._version),
                Route("/api/status", self._status),
                Route("/api/kernelspecs", self._specs),
                Route("/api/kernelspecs/{name}", self._spec),
                Route("/api/kernels", self._kernels_route, methods=["GET", "POST"]),
                Route(kernel, self._kernel, methods=["GET", "DELETE"]),
                Route(kernel + "/interrupt", self._interrupt, methods=["POST"]),
                Route(kernel + "/restart", self._restart, methods=["POST"]),
                Route("/api/sessions", self._sessions_route, methods=["GET", "POST"]),
                Route("/api/sessions/{session_id}", self._session, methods=["GET", "PATCH", "DELETE"]),
            ],
            redirect_slashes=False,
            default=no_route,
        )

    async def authenticate(self, scope: Scope, principals: Principals) -> Principal | None:
        """Return the caller by its token: a header with `token` or `Bearer`, or `?token=`, which is then removed."""
        asked = _take_token(scope)
        scheme, token = authorization(scope)
        if scheme:
            return await principals.find(token) if scheme in ("token", "bearer") else None
        return None if asked is None else await principals.find(asked.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _take_token(scope)
        if scope["type"] == "websocket":
            await self._channels(scope, receive, send)
        else:
            await self._routes(scope, receive, send)

    def refuse(self, scope: Scope, error: errors.IngleError) -> Response:
        status = 400 if error.status == 422 else error.status
        return JSONResponse({"message": error.message, "reason": None}, status)

    # --- the server ---

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": API_VERSION})

    async def _status(self, request: Request) -> Response:
        models = await self._kernels.list(request.scope[SERVICE])
        last = max((each["last_activity"] for each in models), default=self._started_at)
        connections = sum(each["connections"] for each in models)
        return JSONResponse(
            {"started": self._started_at, "last_activity": last, "connections": connections, "kernels": len(models)}
        )

    async def _specs(self, request: Request) -> Response:
        return JSONResponse(await self._kernels.specs(request.scope[SERVICE]))

    async def _spec(self, request: Request) -> Response:
        specs = (await self._kernels.specs(request.scope[SERVICE]))["kernelspecs"]
        name = request.path_params["name"]
        if name not in specs:
            raise errors.NotFound(f"Kernel spec {name[:80]} not found")
        return JSONResponse(specs[name])

    # --- kernels ---

    async def _kernels_route(self, request: Request) -> Response:
        service: Service = request.scope[SERVICE]
        if request.method != "POST":
            return JSONResponse(await self._kernels.list(service))
        new = await read_body(request, NewKernel, MAX_BODY_BYTES)
        env = {name: value for name, value in new.env.items() if not name.startswith(OWN_VARIABLES)}
        kernel = await self._kernels.start(service, new.name or DEFAULT_SPEC, env)
        model = await self._kernels.model(service, kernel)
        return JSONResponse(model, 201, {"Location": f"/api/kernels/{kernel.id}"})

    async def _find(self, request: Request) -> tuple[Service, Kernel]:
        service: Service = request.scope[SERVICE]
        return service, await self._kernels.find(service, request.path_params["kernel_id"])

    async def _kernel(self, request: Request) -> Response:
        service, kernel = await self._find(request)
        if request.method == "DELETE":
            await self._kernels.end(service, kernel)
            return Response(status_code=204)
        return JSONResponse(await self._kernels.model(service, kernel))

    async def _interrupt(self, request: Request) -> Response:
        service, kernel = await self._find(request)
        await service.interrupt(kernel.session_id, wait=0.0)
        return Response(status_code=204)

    async def _restart(self, request: Request) -> Response:
        service, kernel = await self._find(request)
        await self._kernels.restart(service, kernel)
        return JSONResponse(await self._kernels.model(service, kernel))

    async def _channels(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = CHANNELS.fullmatch(scope["path"])
        if found is None:
            raise errors.NotFound("the only WebSocket is /api/kernels/{id}/channels")
        service: Service = scope[SERVICE]
        kernel = await self._kernels.find(service, found["kernel_id"])
        await Channels(service, self._kernels, kernel).run(scope, receive, send)

    # --- Jupyter's sessions: documents and their kernels ---

    async def _sessions_route(self, request: Request) -> Response:
        service: Service = request.scope[SERVICE]
        if request.method != "POST":
            return JSONResponse(await self._sessions.list(service))
        made = await self._sessions.create(service, await read_body(request, NewJupyterSession, MAX_BODY_BYTES))
        return JSONResponse(made, 201, {"Location": f"/api/sessions/{made['id']}"})

    async def _session(self, request: Request) -> Response:
        service: Service = request.scope[SERVICE]
        wanted = request.path_params["session_id"]
        if request.method == "DELETE":
            await self._sessions.end(service, wanted)
            return Response(status_code=204)
        if request.method == "PATCH":
            changes = await read_body(request, ChangedSession, MAX_BODY_BYTES)
            return JSONResponse(await self._sessions.change(service, wanted, changes))
        return JSONResponse(await self._sessions.get(service, wanted))


def _take_token(scope: Scope) -> str | None:
    """Return the token of the query, and remove it from the scope: no log gets it."""
    query: bytes = scope["query_string"]
    if b"token" not in query or len(query) > MAX_QUERY_BYTES:
        return None
    pairs = parse_qsl(query.decode("ascii", "replace"), keep_blank_values=True)
    scope["query_string"] = urlencode([pair for pair in pairs if pair[0] != "token"]).encode()
    return next((value for name, value in pairs if name == "token"), None)
