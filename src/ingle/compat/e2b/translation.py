"""The translation of E2B: its routes, its tokens, and its three forms of an error.

In redirected mode the SDK sends everything to one URL and names the sandbox in a header. In debug mode it knows no
sandboxes and sends no token; there is one for all its clients then.
"""

import asyncio
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.compat.e2b import connect
from ingle.compat.e2b.contexts import Contexts
from ingle.compat.e2b.control import Control
from ingle.compat.e2b.filesystem import Filesystem
from ingle.compat.e2b.interpreter import Interpreter
from ingle.compat.e2b.processes import Processes
from ingle.compat.e2b.requests import ACCESS_HEADER, ID_HEADER, KEY_HEADER, SANDBOX, TRAFFIC_HEADER
from ingle.compat.e2b.sandboxes import Sandbox, Sandboxes, SandboxNotRunning
from ingle.compat.requests import authorization, check_scope, header
from ingle.http.auth.principals import Principal, Principals
from ingle.http.problems import MEDIA_TYPE, Problem, encode
from ingle.http.translations import PRINCIPAL
from ingle.service import Service

INTERPRETER_PATHS = ("/execute", "/contexts")
RPC_PATHS = ("/process.Process", "/filesystem.Filesystem")
HEALTH_PATH = "/health"
SANDBOX_PATHS = (*INTERPRETER_PATHS, *RPC_PATHS, "/files", HEALTH_PATH)
CONTROL_PATHS = ("/sandboxes", "/v2/sandboxes", "/snapshots", "/templates", "/v2/templates", "/v3/templates")

DEBUG_ID = "debug_sandbox_id"
DEBUG_TEMPLATE = "debug"

SIGNED = {"GET": "read", "POST": "write"}
"""What a signed URL of a file allows, by method."""

NOT_FOUND = "The sandbox was not found"


class E2b:
    """Translation of E2B's API."""

    name = "e2b"
    DEBUG_PORTS = (49999, 49983)

    def __init__(self, service: Service, *, debug: bool = False) -> None:
        self._debug = debug
        self._making_debug = asyncio.Lock()
        self._sandboxes = Sandboxes()
        self._contexts = Contexts()
        interpreter = Interpreter(self._contexts, service.settings.max_code)
        inside = [*Filesystem(service.settings.max_file).routes(), *Processes().routes()]
        self._sandbox_routes = Router([*interpreter.routes(), *inside], redirect_slashes=False)
        self._control_routes = Router(Control(self._sandboxes, self._contexts).routes(), redirect_slashes=False)

    @property
    def paths(self) -> Sequence[str]:
        return SANDBOX_PATHS if self._debug else (*SANDBOX_PATHS, *CONTROL_PATHS)

    async def authenticate(self, scope: Scope, principals: Principals) -> Principal | None:
        """Return the caller: by its key, or for requests to a sandbox by the token of that sandbox."""
        if key := header(scope, KEY_HEADER):
            return await principals.find(key.encode())
        scheme, credentials = authorization(scope)
        if scheme == "bearer":
            return await principals.find(credentials)
        if not _is_about_sandbox(scope):
            return None
        token = header(scope, TRAFFIC_HEADER) or header(scope, ACCESS_HEADER)
        if not token and (signer := self._signer(scope)) is not None:
            scope[SANDBOX] = signer
            return signer.principal
        if not self._sandboxes.has(header(scope, ID_HEADER)):
            # A client must not take a sandbox that ended for a wrong token.
            raise SandboxNotRunning(NOT_FOUND)
        sandbox = self._sandboxes.with_token(header(scope, ID_HEADER), token)
        return None if sandbox is None else sandbox.principal

    def _signer(self, scope: Scope) -> Sandbox | None:
        """Return the sandbox that has signed the URL of this request for a file. No log gets the signature."""
        operation = SIGNED.get(scope.get("method", ""))
        if scope["path"] != "/files" or operation is None or b"signature" not in scope["query_string"]:
            return None
        query = dict(parse_qsl(scope["query_string"].decode("ascii", "replace")))
        signer = self._sandboxes.with_signature(query, operation)
        scope["query_string"] = urlencode({name: query[name] for name in ("path",) if name in query}).encode()
        return signer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise errors.NotFound("there is no WebSocket here")
        if not _is_about_sandbox(scope):
            await self._control_routes(scope, receive, send)
            return
        scope[SANDBOX] = sandbox = await self._find(scope)
        if scope["path"] == HEALTH_PATH:
            await self._health(sandbox)(scope, receive, send)
        else:
            if sandbox.paused and sandbox.auto_resume:
                await self._sandboxes.resume(sandbox)
                self._sandboxes.set_life(sandbox, sandbox.life_seconds)
            await self._sandbox_routes(scope, receive, send)

    async def _find(self, scope: Scope) -> Sandbox:
        service = check_scope(scope)
        if self._debug:
            return await self._debug_sandbox(scope[PRINCIPAL])
        signer: Sandbox | None = scope.get(SANDBOX)
        try:
            sandbox = signer or self._sandboxes.find(header(scope, ID_HEADER), service)
            # Its session may have been ended by its name. A description of it would take longer than a short run.
            service.access.session(sandbox.id)
        except errors.NotFound:
            raise SandboxNotRunning(NOT_FOUND) from None
        return sandbox

    async def _debug_sandbox(self, principal: Principal) -> Sandbox:
        """Return the one sandbox of the debug mode."""
        async with self._making_debug:
            for sandbox in self._sandboxes.of_tenant(principal.caller.tenant):
                try:
                    await sandbox.service.get_session(sandbox.id)
                    return sandbox
                except errors.NotFound:
                    await self._sandboxes.end(sandbox)
                    break
            sandbox = Sandbox(DEBUG_ID, principal, DEBUG_TEMPLATE, {}, {})
            await self._contexts.begin(sandbox)
            self._sandboxes.add(sandbox, 0)
            return sandbox

    def _health(self, sandbox: Sandbox) -> Response:
        if sandbox.paused:
            raise SandboxNotRunning(NOT_FOUND)
        return Response(status_code=204)

    def refuse(self, scope: Scope, error: errors.IngleError) -> Response:
        if scope["path"] == HEALTH_PATH and isinstance(error, SandboxNotRunning) and not header(scope, ID_HEADER):
            # It names no sandbox: this is a probe of the server, by the name that many servers have for it.
            error = errors.NotFound("there is no route '/health'; GET /healthz tells whether this server works")
            return Response(encode(Problem.of(error)), error.status, media_type=MEDIA_TYPE)
        if scope["path"].startswith(RPC_PATHS):
            return connect.refuse(scope, error)
        status = 400 if error.status == 422 else error.status
        if isinstance(error, SandboxNotRunning):
            body = {"sandboxId": header(scope, ID_HEADER), "message": error.message, "code": status}
            return JSONResponse(body, status)
        if scope["path"].startswith(INTERPRETER_PATHS):
            return PlainTextResponse(error.message, status)
        return JSONResponse({"code": status, "message": error.message}, status)


def _is_about_sandbox(scope: Scope) -> bool:
    return any(scope["path"] == path or scope["path"].startswith(path + "/") for path in SANDBOX_PATHS)
