"""The translation of Daytona: its routes, its tokens and its errors."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router, compile_path
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.compat.daytona import files, interpreter, processes, terminals
from ingle.compat.daytona.control import Control
from ingle.compat.daytona.sandboxes import STARTED, NotStarted, Sandbox, Sandboxes
from ingle.compat.requests import authorization, check_scope, moment
from ingle.http.auth.principals import Principal, Principals
from ingle.service import Service

TOOLBOX = "/toolbox"

Handler = Callable[[Sandbox, Request], Awaitable[Response]]
SocketHandler = Callable[[Sandbox, Scope, Receive, Send], Awaitable[None]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/process/interpreter/context", interpreter.create_context),
    ("GET", "/process/interpreter/context", interpreter.list_contexts),
    ("DELETE", "/process/interpreter/context/{context_id}", interpreter.delete_context),
    ("POST", "/process/execute", processes.execute),
    ("POST", "/process/code-run", processes.run_code),
    ("POST", "/process/session", processes.create_shell),
    ("GET", "/process/session", processes.list_shells),
    ("GET", "/process/session/{shell}", processes.get_shell),
    ("DELETE", "/process/session/{shell}", processes.delete_shell),
    ("POST", "/process/session/{shell}/exec", processes.run_in_shell),
    ("GET", "/process/session/{shell}/command/{command}", processes.get_command),
    ("GET", "/process/session/{shell}/command/{command}/logs", processes.command_logs),
    ("POST", "/process/session/{shell}/command/{command}/input", processes.command_input),
    ("POST", "/process/pty", terminals.create),
    ("GET", "/process/pty", terminals.list_all),
    ("GET", "/process/pty/{terminal}", terminals.get),
    ("DELETE", "/process/pty/{terminal}", terminals.delete),
    ("POST", "/process/pty/{terminal}/resize", terminals.resize),
    ("GET", "/files", files.list_files),
    ("DELETE", "/files", files.delete),
    ("GET", "/files/info", files.file_info),
    ("POST", "/files/folder", files.make_folder),
    ("POST", "/files/move", files.move),
    ("GET", "/files/download", files.download),
    ("POST", "/files/upload", files.upload),
    ("POST", "/files/upload-v2", files.upload),
    ("POST", "/files/bulk-upload", files.upload),
    ("POST", "/files/bulk-download", files.download_many),
    ("GET", "/user-home-dir", files.home),
    ("GET", "/work-dir", files.home),
)
"""Method, path below a sandbox's toolbox, and handler."""

SOCKETS: tuple[tuple[str, SocketHandler], ...] = (
    ("/process/interpreter/execute", interpreter.execute),
    ("/process/session/{shell}/command/{command}/logs", processes.follow_logs),
    ("/process/pty/create-connect", terminals.create_and_connect),
    ("/process/pty/{terminal}/connect", terminals.connect),
)
"""Path of a WebSocket below a sandbox's toolbox, and handler."""


class Daytona:
    """Translation of Daytona's API."""

    name = "daytona"
    paths = ("/api/sandbox", "/api/config", "/api/socket.io", TOOLBOX)

    def __init__(self, service: Service) -> None:
        self._sandboxes = Sandboxes()
        self._sockets = [(compile_path(f"{TOOLBOX}/{{sandbox_id}}{path}")[0], handler) for path, handler in SOCKETS]
        inside = [self._route(*row) for row in ROUTES]
        self._router = Router([*inside, *Control(self._sandboxes).routes()], redirect_slashes=False)

    def _route(self, method: str, path: str, handler: Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            return await handler(self._find(request.path_params["sandbox_id"], request.scope), request)

        return Route(f"{TOOLBOX}/{{sandbox_id}}{path}", endpoint, methods=[method])

    def _find(self, sandbox_id: str, scope: Scope) -> Sandbox:
        sandbox = self._sandboxes.find(sandbox_id, check_scope(scope))
        if sandbox.state != STARTED:
            raise NotStarted(sandbox.name)
        return sandbox

    async def authenticate(self, scope: Scope, principals: Principals) -> Principal | None:
        scheme, token = authorization(scope)
        return await principals.find(token) if scheme == "bearer" else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._router(scope, receive, send)
            return
        for pattern, handler in self._sockets:
            if (found := pattern.match(scope["path"])) is not None:
                scope["path_params"] = found.groupdict()
                await handler(self._find(found["sandbox_id"], scope), scope, receive, send)
                return
        raise errors.NotFound("the WebSockets here are those of the interpreter, of logs and of terminals")

    def refuse(self, scope: Scope, error: errors.IngleError) -> Response:
        status = 400 if error.status == 422 else error.status
        body = {
            "statusCode": status,
            "message": error.message,
            "code": error.code.upper(),
            "timestamp": moment(datetime.now(UTC)),
            "path": scope["path"],
            "method": scope.get("method", "GET"),
        }
        return JSONResponse(body, status)
