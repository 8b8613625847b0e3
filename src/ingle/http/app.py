"""The routes: each decodes a request, asks the service for one verb, and encodes the answer.

A request never owns a cell. When its client goes away, what it started goes on.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ingle import __version__, errors
from ingle.events import CellInfo, SessionInfo
from ingle.http import bodies
from ingle.http.bodies import read_body, read_cell, read_query
from ingle.http.guard import OPEN_PATH, Guard
from ingle.http.problems import Border
from ingle.http.watching import Watch
from ingle.service import Service

NDJSON = "application/x-ndjson"

BODY_SPARE = 1024 * 1024
"""What a body may hold beside a cell's source."""

EVENTS = re.compile(r"/v1/sessions/(?P<session_id>[^/]+)/events")

Handler = Callable[[Request], Awaitable[Response]]

_encoder = msgspec.json.Encoder()


class Health(msgspec.Struct):
    status: str = "ok"
    version: str = __version__


class SessionList(msgspec.Struct):
    sessions: list[SessionInfo]


class CellList(msgspec.Struct):
    cells: list[CellInfo]


class NotInterrupted(msgspec.Struct):
    interrupted: bool = False
    notice: str = "no cell was running, so nothing was interrupted"


def make_app(
    service: Service, token: str, allowed_hosts: Iterable[str] = (), mounted: Mapping[str, ASGIApp] | None = None
) -> ASGIApp:
    """The whole application: border, guard, routes, and what others have mounted. It starts and stops nothing."""
    return Border(Guard(make_routes(service, mounted or {}), token, allowed_hosts))


def make_local_app(service: Service) -> ASGIApp:
    """The same for a unix socket, where the kernel says who is at the other end, and no web page can be."""
    return Border(make_routes(service, {}))


def make_routes(service: Service, mounted: Mapping[str, ASGIApp]) -> ASGIApp:
    handlers = Handlers(service)
    session = "/v1/sessions/{session_id}"
    cell = session + "/cells/{cell}"
    routes = [
        route(OPEN_PATH, GET=handlers.health),
        route("/v1/sessions", GET=handlers.list, POST=handlers.create),
        route(session, GET=handlers.get, DELETE=handlers.end),
        route(session + "/execute", POST=handlers.execute),
        route(session + "/input", POST=handlers.input),
        route(session + "/interrupt", POST=handlers.interrupt),
        route(session + "/cells", GET=handlers.cells),
        route(cell, GET=handlers.cell),
        route(cell + "/output", GET=handlers.output),
    ]
    router = Router(routes, redirect_slashes=False)

    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await watch(service, scope, receive, send)
        elif (app := mounted.get(scope["path"])) is not None:
            await app(scope, receive, send)
        else:
            await router(scope, receive, send)

    return dispatch


async def watch(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    found = EVENTS.fullmatch(scope["path"])
    if found is None:
        raise errors.NotFound("the only WebSocket is /v1/sessions/{id}/events?from=N")
    query = read_query(Request({**scope, "type": "http"}), bodies.EventsQuery)
    await Watch(service, found["session_id"], query.first).run(scope, receive, send)


def route(path: str, **by_method: Handler) -> Route:
    """All methods of a path as one route: of two routes with one path only the first would be told as allowed."""

    async def dispatch(request: Request) -> Response:
        return await by_method["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=list(by_method))


class Handlers:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._limit = service.settings.max_code + BODY_SPARE

    async def health(self, request: Request) -> Response:
        return answer(Health())

    # --- sessions ---

    async def create(self, request: Request) -> Response:
        body = await read_body(request, bodies.Create, self._limit)
        info = await self._service.create_session(
            body.session_id, python=body.python, cwd=body.cwd, env=body.env, idle_timeout=body.idle_timeout
        )
        return answer(info, 201, {"location": f"/v1/sessions/{info.session_id}"})

    async def list(self, request: Request) -> Response:
        read_query(request, bodies.NoQuery)
        return answer(SessionList(await self._service.list_sessions()))

    async def get(self, request: Request) -> Response:
        read_query(request, bodies.NoQuery)
        return answer(await self._service.get_session(_session_id(request)))

    async def end(self, request: Request) -> Response:
        return answer(await self._service.end_session(_session_id(request)))

    # --- cells ---

    async def execute(self, request: Request) -> Response:
        session_id = _session_id(request)
        body = await read_body(request, bodies.Execute, self._limit)
        if NDJSON not in request.headers.get("accept", ""):
            return answer(
                await self._service.execute(
                    session_id, body.code, timeout=body.timeout, wait=body.wait, envs=body.envs, queue=body.queue
                )
            )
        # Begun before the answer is: a refusal still is a problem with its status.
        cell = await self._service.begin(session_id, body.code, timeout=body.timeout, envs=body.envs, queue=body.queue)
        return StreamingResponse(
            self._stream(session_id, cell), media_type=NDJSON, headers={"cache-control": "no-store"}
        )

    async def _stream(self, session_id: str, cell: int) -> AsyncIterator[bytes]:
        async for event in self._service.cell_events(session_id, cell):
            yield _encoder.encode(event) + b"\n"

    async def input(self, request: Request) -> Response:
        body = await read_body(request, bodies.Input, self._limit)
        return answer(await self._service.input(_session_id(request), body.text, eof=body.eof, wait=body.wait))

    async def interrupt(self, request: Request) -> Response:
        body = await read_body(request, bodies.Interrupt, self._limit)
        result = await self._service.interrupt(_session_id(request), wait=body.wait)
        return answer(NotInterrupted() if result is None else result)

    async def cells(self, request: Request) -> Response:
        query = read_query(request, bodies.CellsQuery)
        return answer(CellList(await self._service.cells(_session_id(request), query.first, query.count)))

    async def cell(self, request: Request) -> Response:
        query = read_query(request, bodies.CellQuery)
        return answer(
            await self._service.wait(
                _session_id(request), read_cell(request), wait=query.wait, from_event=query.from_event
            )
        )

    async def output(self, request: Request) -> Response:
        query = read_query(request, bodies.OutputQuery)
        return answer(
            await self._service.read_output(
                _session_id(request),
                read_cell(request),
                stream=query.stream,
                from_line=query.from_line,
                lines=query.lines,
                grep=query.grep,
                context=query.context,
                offset=query.offset,
                raw=query.raw,
            )
        )


def answer(value: msgspec.Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encoder.encode(value), status, headers, media_type="application/json")


def _session_id(request: Request) -> str:
    session_id: str = request.path_params["session_id"]
    return session_id
