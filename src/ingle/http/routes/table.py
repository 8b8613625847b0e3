"""Table of operations: method, path, what each takes and answers. Routing and the OpenAPI document are made from it.

A row's body and query are decoded by the structs that describe them in the document, so the two cannot differ.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from ingle.http.auth.guard import SERVICE
from ingle.http.routes import bodies
from ingle.service import Service
from ingle.support import bounded_json

BodyType = TypeVar("BodyType")
QueryType = TypeVar("QueryType")

JSON = "application/json"

SESSION = "/v1/sessions/{session_id}"
"""Path of one session."""

PART_BYTES = 64 * 1024
"""Most bytes that are handed to a connection at once."""

_encoder = msgspec.json.Encoder()


@dataclass(frozen=True)
class Call(Generic[BodyType, QueryType]):
    """One request, decoded."""

    service: Service
    request: Request
    body: BodyType
    query: QueryType

    @property
    def session_id(self) -> str:
        session_id: str = self.request.path_params["session_id"]
        return session_id

    @property
    def task_id(self) -> str:
        task_id: str = self.request.path_params["task_id"]
        return task_id


Handler = Callable[[Call[Any, Any]], Awaitable[Response]]


@dataclass(frozen=True)
class Media:
    """An answer that is not JSON of one shape."""

    type: str
    shape: Any = None
    """Type of each line or event, where the answer has such."""


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    summary: str
    handler: Handler | None = None
    """None for a route that never comes to the router: execute has an ASGI endpoint of its own."""
    query: type[Struct] = bodies.NoQuery
    body: type[Struct] | Media | None = None
    """A struct that is decoded, or bytes that the handler reads as they come."""
    answers: dict[int, Any] = field(default_factory=dict)
    """By status: a type, a `Media`, a list of either, or None for an empty answer."""
    headers: tuple[str, ...] = ()
    """Request headers that the operation reads."""
    max_body: int | None = None
    """Largest body in bytes. Default: that of all operations."""
    bounds: bounded_json.Bounds | None = None
    """Bounds of the body. Default: those of all operations."""


def make_router(operations: list[Operation], limit: int) -> ASGIApp:
    """Make one route per path. With two, the `Allow` header would name the methods of the first only."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    routes = [Route(path, Endpoint(rows, limit), methods=list(rows)) for path, rows in by_path.items()]
    router = Router(routes, redirect_slashes=False)
    # The router tries one pattern after another. Paths without parameters need none.
    exact: dict[str, ASGIApp] = {route.path: route for route in routes if not route.param_convertors}

    def dispatch(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return exact.get(scope["path"], router)(scope, receive, send)

    return dispatch


class Endpoint:
    """Operations of one path. Their errors go up to the outermost middleware, so nothing else has to handle them."""

    def __init__(self, by_method: dict[str, Operation], limit: int) -> None:
        self._by_method = by_method
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        operation = self._by_method["GET" if request.method == "HEAD" else request.method]
        query = bodies.read_query(request, operation.query)
        body = None
        if isinstance(operation.body, type):
            limit = operation.max_body or self._limit
            body = await bodies.read_body(request, operation.body, limit, operation.bounds)
        assert operation.handler is not None
        response = await operation.handler(Call(scope[SERVICE], request, body, query))
        await response(scope, receive, send)


def answer(value: Struct, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encoder.encode(value), status, headers, media_type=JSON)


async def answer_list(name: str, items: AsyncIterator[Struct]) -> Response:
    """Answer `{name: [...]}` as the items come. Only one of them is in memory at a time, however many there are."""
    # An error before the first item is answered as a problem. Later the status is sent, and the answer breaks off.
    first = await anext(items, None)
    return StreamingResponse(_list_parts(name, first, items), media_type=JSON)


async def _list_parts(name: str, first: Struct | None, items: AsyncIterator[Struct]) -> AsyncIterator[bytes]:
    yield b'{"%s":[' % name.encode()
    if first is not None:
        for part in _parts(_encoder.encode(first)):
            yield part
        del first
        async for item in items:
            yield b","
            for part in _parts(_encoder.encode(item)):
                yield part
    yield b"]}"


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield the data in parts that a connection takes one by one."""
    if len(data) <= PART_BYTES:
        yield data
        return
    for start in range(0, len(data), PART_BYTES):
        yield data[start : start + PART_BYTES]
