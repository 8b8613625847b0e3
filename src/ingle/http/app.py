"""The application: the table of operations, and what each does: ask the service for one verb, and encode the answer.

A request never owns a cell. When its client goes away, what it started goes on. A room that lands later adds its rows
to `operations` and its handlers beside those here.
"""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ingle import __version__, errors
from ingle.callers import READ
from ingle.events import (
    AnyEvent,
    CellError,
    CellInfo,
    Exit,
    FileInfo,
    FileList,
    Result,
    SessionInfo,
    Stdlib,
    StdlibChange,
    Variables,
    VariableValue,
)
from ingle.http import docs_page, openapi, prometheus
from ingle.http.auth.guard import OPEN_PATH, SERVICE, Guard, Owner
from ingle.http.auth.principals import Principals
from ingle.http.file_response import FileResponse
from ingle.http.problems import Border
from ingle.http.routes import bodies, execute, forks, shell, snapshots
from ingle.http.routes.bodies import read_cell, read_query, read_stream
from ingle.http.routes.events import Watch
from ingle.http.routes.table import Call, Media, Operation, answer, make_router
from ingle.output.pages import OutputPage
from ingle.render import image_info
from ingle.service import Service

BODY_SPARE = 1024 * 1024
"""What a body may hold beside a cell's source."""

READY_FOR = 1.0
"""A worker that answered so recently is taken to answer still."""

EVENTS = re.compile(r"/v1/sessions/(?P<session_id>[^/]+)/events")


class Health(Struct):
    status: str = "ok"
    version: str = __version__
    isolation: str = ""
    """How far code in sessions is held."""
    network: str = ""
    """What it can reach."""


class SessionList(Struct):
    sessions: list[SessionInfo]


class CellList(Struct):
    cells: list[CellInfo]


class NotInterrupted(Struct):
    interrupted: bool = False
    notice: str = "no cell was running, so nothing was interrupted"


class Interpreted(Struct, omit_defaults=True, rename={"session_id": "sessionId"}):
    """What became of code that ran in a session of its own."""

    status: str
    stdout: str
    stderr: str
    session_id: str
    error: CellError | None = None
    exit: Exit | None = None
    timed_out: bool = False


def make_app(
    service: Service,
    principals: Principals,
    allowed_hosts: Iterable[str] = (),
    mounted: Mapping[str, ASGIApp] | None = None,
) -> ASGIApp:
    """The whole application: border, guard, routes, and what others have mounted. It starts and stops nothing."""
    return Border(Guard(make_routes(service, mounted), principals, allowed_hosts))


def make_local_app(service: Service) -> ASGIApp:
    """The same for a unix socket, where the kernel says who is at the other end, and no web page can be."""
    return Border(Owner(make_routes(service), service))


def make_routes(service: Service, mounted: Mapping[str, ASGIApp] | None = None) -> ASGIApp:
    others = mounted or {}
    limit = service.settings.max_code + BODY_SPARE
    router = make_router(operations(service), limit)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await watch(scope, receive, send)
        elif (session_id := execute.session_of(scope)) is not None:
            await execute.execute(session_id, limit, scope, receive, send)
        elif (app := others.get(scope["path"])) is not None:
            await app(scope, receive, send)
        else:
            # What is open to everybody is answered by the service of nobody in particular.
            scope.setdefault(SERVICE, service)
            await router(scope, receive, send)

    return dispatch


async def watch(scope: Scope, receive: Receive, send: Send) -> None:
    found = EVENTS.fullmatch(scope["path"])
    if found is None:
        raise errors.NotFound("the only WebSocket is /v1/sessions/{id}/events?from=N")
    query = read_query(Request({**scope, "type": "http"}), bodies.EventsQuery)
    await Watch(scope[SERVICE], found["session_id"], query.first).run(scope, receive, send)


def operations(service: Service) -> list[Operation]:
    """Every operation, in the order of the reference."""
    h = Handlers(service)
    session = "/v1/sessions/{session_id}"
    cell, files = session + "/cells/{cell}", session + "/files"
    content = Media("application/octet-stream")
    streams = [Media(execute.NDJSON, AnyEvent), Media(execute.SSE, AnyEvent)]
    rows = [
        Operation("GET", OPEN_PATH, "Whether the server lives; needs no token.", h.health, answers={200: Health}),
        Operation("GET", "/readyz", "Whether a worker answers.", h.ready, answers={200: Health}),
        Operation("GET", "/metrics", "Counters, for Prometheus.", h.metrics, answers={200: Media("text/plain")}),
        Operation("POST", "/v1/sessions", "Make a session.", h.create, body=bodies.Create, answers={201: SessionInfo}),
        Operation("GET", "/v1/sessions", "The live sessions.", h.list, answers={200: SessionList}),
        Operation("GET", session, "One session.", h.get, answers={200: SessionInfo}),
        Operation("DELETE", session, "End a session.", h.end, answers={200: SessionInfo}, headers=("Idempotency-Key",)),
        Operation(
            "POST", session + "/clear", "Reset its namespace.", h.clear, body=bodies.NoBody, answers={200: SessionInfo}
        ),
        *forks.operations(),
        Operation(
            "POST",
            session + "/execute",
            "Run a cell: its result, or its events as they come.",
            body=bodies.Execute,
            answers={200: [Result, *streams]},
            headers=("Idempotency-Key",),
        ),
        Operation(
            "POST",
            session + "/input",
            "Answer a cell that waits for input.",
            h.input,
            body=bodies.Input,
            answers={200: Result},
        ),
        Operation(
            "POST",
            session + "/interrupt",
            "Interrupt the running cell.",
            h.interrupt,
            body=bodies.Interrupt,
            answers={200: [Result, NotInterrupted]},
        ),
        Operation("GET", session + "/cells", "What ran.", h.cells, query=bodies.CellsQuery, answers={200: CellList}),
        Operation("GET", cell, "The result of a cell.", h.cell, query=bodies.CellQuery, answers={200: Result}),
        Operation(
            "GET",
            cell + "/output",
            "Lines of a cell's output.",
            h.output,
            query=bodies.OutputQuery,
            answers={200: OutputPage},
        ),
        Operation("GET", session + "/variables", "The variables.", h.variables, answers={200: Variables}),
        Operation(
            "GET",
            session + "/variables/{name}",
            "One variable in full.",
            h.variable,
            query=bodies.VariableQuery,
            answers={200: VariableValue},
        ),
        Operation(
            "GET", session + "/figures/{file}", "An image in full size.", h.figure, answers={200: Media("image/*")}
        ),
        Operation(
            "GET", files, "What is in the session's folder.", h.files, query=bodies.FilesQuery, answers={200: FileList}
        ),
        Operation(
            "GET",
            files + "/{path:path}",
            "Read a file, or a part of it.",
            h.read_file,
            answers={200: content, 206: content, 304: None},
            headers=("If-None-Match", "Range", "If-Range"),
        ),
        Operation(
            "PUT",
            files + "/{path:path}",
            "Write a file, in one step.",
            h.write_file,
            body=content,
            answers={200: FileInfo, 201: FileInfo},
        ),
        Operation("DELETE", files + "/{path:path}", "Remove a file.", h.remove_file, answers={204: None}),
        *snapshots.operations(),
        *shell.operations(),
        Operation("GET", "/v1/stdlib", "What the user's library holds.", h.stdlib, answers={200: Stdlib}),
        Operation(
            "POST",
            "/v1/stdlib",
            "Add code to the user's library, once it was seen to run.",
            h.add_to_stdlib,
            body=bodies.AddToStdlib,
            answers={200: StdlibChange},
        ),
        Operation(
            "POST",
            "/process/interpreter/execute",
            "Run code in a fresh session of its own, to its end.",
            h.interpret,
            body=bodies.Interpret,
            answers={200: Interpreted},
        ),
        Operation("GET", "/openapi.json", "This document.", h.openapi, answers={200: Media("application/json")}),
        Operation("GET", "/docs", "The reference, to read.", h.docs, answers={200: Media("text/html")}),
    ]
    document = openapi.make_document(rows)
    h.document, h.page = msgspec.json.encode(document), docs_page.render(document)
    return rows


class Handlers:
    def __init__(self, service: Service) -> None:
        self._owner = service
        self._max_file = service.settings.max_file
        self._ready_at = 0.0
        self._probing: asyncio.Task[None] | None = None
        self.document, self.page = b"", ""

    # --- the server ---

    async def health(self, call: Call[None, bodies.NoQuery]) -> Response:
        return answer(await self._health())

    async def _health(self) -> Health:
        held = await self._owner.isolation()
        return Health(isolation=held.level, network=held.network)

    async def ready(self, call: Call[None, bodies.NoQuery]) -> Response:
        call.service.check(READ)
        if time.monotonic() - self._ready_at > READY_FOR:
            # However many ask, one worker is asked.
            if self._probing is None or self._probing.done():
                self._probing = asyncio.get_running_loop().create_task(self._owner.check_ready())
            await asyncio.shield(self._probing)
            self._ready_at = time.monotonic()
        return answer(await self._health())

    async def metrics(self, call: Call[None, bodies.NoQuery]) -> Response:
        text = prometheus.render(await call.service.metrics())
        return Response(text, media_type=prometheus.MEDIA_TYPE)

    async def openapi(self, call: Call[None, bodies.NoQuery]) -> Response:
        return Response(self.document, media_type="application/json")

    async def docs(self, call: Call[None, bodies.NoQuery]) -> Response:
        return HTMLResponse(
            self.page, headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
        )

    # --- sessions ---

    async def create(self, call: Call[bodies.Create, bodies.NoQuery]) -> Response:
        body = call.body
        info = await call.service.create_session(
            body.session_id,
            python=body.python,
            cwd=body.cwd,
            env=body.env,
            idle_timeout=body.idle_timeout,
            include_stdlib=body.include_stdlib,
            durable=body.durable,
            isolation=body.isolation,
            network=body.network,
            limits=body.limits,
            checkpoints=body.checkpoints,
        )
        return answer(info, 201, {"location": f"/v1/sessions/{info.session_id}"})

    async def list(self, call: Call[None, bodies.NoQuery]) -> Response:
        return answer(SessionList(await call.service.list_sessions()))

    async def get(self, call: Call[None, bodies.NoQuery]) -> Response:
        return answer(await call.service.get_session(call.session_id))

    async def end(self, call: Call[None, bodies.NoQuery]) -> Response:
        key = call.request.headers.get("idempotency-key")
        return answer(await call.service.end_session(call.session_id, request_key=key))

    async def clear(self, call: Call[bodies.NoBody, bodies.NoQuery]) -> Response:
        return answer(await call.service.clear_session(call.session_id))

    async def stdlib(self, call: Call[None, bodies.NoQuery]) -> Response:
        return answer(await call.service.list_stdlib())

    async def add_to_stdlib(self, call: Call[bodies.AddToStdlib, bodies.NoQuery]) -> Response:
        return answer(await call.service.add_to_stdlib(call.body.function_code))

    # --- cells ---

    async def input(self, call: Call[bodies.Input, bodies.NoQuery]) -> Response:
        body = call.body
        return answer(await call.service.input(call.session_id, body.text, eof=body.eof, wait=body.wait))

    async def interrupt(self, call: Call[bodies.Interrupt, bodies.NoQuery]) -> Response:
        result = await call.service.interrupt(call.session_id, wait=call.body.wait)
        return answer(NotInterrupted() if result is None else result)

    async def cells(self, call: Call[None, bodies.CellsQuery]) -> Response:
        return answer(CellList(await call.service.cells(call.session_id, call.query.first, call.query.count)))

    async def cell(self, call: Call[None, bodies.CellQuery]) -> Response:
        number, query = read_cell(call.request), call.query
        return answer(await call.service.wait(call.session_id, number, wait=query.wait, from_event=query.from_event))

    async def output(self, call: Call[None, bodies.OutputQuery]) -> Response:
        query = call.query
        return answer(
            await call.service.read_output(
                call.session_id,
                read_cell(call.request),
                stream=query.stream,
                from_line=query.from_line,
                lines=query.lines,
                grep=query.grep,
                context=query.context,
                offset=query.offset,
                raw=query.raw,
            )
        )

    async def interpret(self, call: Call[bodies.Interpret, bodies.NoQuery]) -> Response:
        body = call.body
        result = await call.service.interpret(body.code, timeout=body.timeout, envs=body.envs)
        return answer(
            Interpreted(
                result.status,
                result.stdout,
                result.stderr,
                result.session_id,
                result.error,
                result.exit,
                result.timed_out,
            )
        )

    # --- what a session has and has shown ---

    async def variables(self, call: Call[None, bodies.NoQuery]) -> Response:
        return answer(await call.service.variables(call.session_id))

    async def variable(self, call: Call[None, bodies.VariableQuery]) -> Response:
        name = call.request.path_params["name"]
        return answer(await call.service.variable(call.session_id, name, limit=call.query.limit))

    async def figure(self, call: Call[None, bodies.NoQuery]) -> Response:
        data = await call.service.figure(call.session_id, call.request.path_params["file"])
        # Its name is its hash, so it never changes; and whatever it is, it is no page.
        headers = {"x-content-type-options": "nosniff", "cache-control": "private, max-age=31536000, immutable"}
        return Response(data, headers=headers, media_type=image_info.media_type(data))

    # --- files ---

    async def files(self, call: Call[None, bodies.FilesQuery]) -> Response:
        return answer(await call.service.list_files(call.session_id, call.query.folder))

    async def read_file(self, call: Call[None, bodies.NoQuery]) -> Response:
        reading = await call.service.open_file(call.session_id, call.request.path_params["path"])
        return FileResponse(reading, call.request, parts=True)

    async def write_file(self, call: Call[None, bodies.NoQuery]) -> Response:
        chunks = read_stream(call.request, self._max_file)
        info, new = await call.service.write_file(call.session_id, call.request.path_params["path"], chunks)
        return answer(info, 201 if new else 200)

    async def remove_file(self, call: Call[None, bodies.NoQuery]) -> Response:
        await call.service.remove_file(call.session_id, call.request.path_params["path"])
        return Response(status_code=204)
