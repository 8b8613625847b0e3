"""Routes of the server itself: health, readiness, metrics, and the reference made from the table of operations."""

import asyncio
import time
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from ingle import __version__
from ingle.callers import READ
from ingle.capacity import Drained, MachineInfo, MachineUsage
from ingle.http import docs_page, openapi, prometheus
from ingle.http.auth.guard import OPEN_PATH
from ingle.http.routes.bodies import NoQuery
from ingle.http.routes.table import Call, Media, Operation, answer
from ingle.service import DRAIN_SECONDS, Service

READY_SECONDS = 1.0
"""A worker that answered so recently is taken to answer still."""


class NodeList(Struct):
    nodes: list[MachineInfo]


class Scale(Struct, forbid_unknown_fields=True):
    count: Annotated[int, Meta(ge=1)]
    """Number of machines to have."""


class DrainNode(Struct, forbid_unknown_fields=True):
    seconds: float = DRAIN_SECONDS
    """Time for running cells to end. Sessions whose cells go on stay."""


class Health(Struct):
    status: str = "ok"
    version: str = __version__
    isolation: str = ""
    """The isolation level in force."""
    network: str = ""
    """What code in sessions can reach."""


class ServerState:
    """Health and readiness. However many callers ask, one worker is asked at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ready_at = 0.0
        self._check: asyncio.Task[None] | None = None

    def operations(self) -> list[Operation]:
        return [
            Operation(
                "GET", OPEN_PATH, "Whether the server lives; needs no token.", self.health, answers={200: Health}
            ),
            Operation("GET", "/readyz", "Whether a worker answers.", self.ready, answers={200: Health}),
            Operation("GET", "/metrics", "Counters, for Prometheus.", metrics, answers={200: Media("text/plain")}),
            Operation("GET", "/v1/usage", "CPU and memory of the machine.", machine_usage, answers={200: MachineUsage}),
            Operation("GET", "/v1/nodes", "The machines that sessions run on.", nodes, answers={200: NodeList}),
            Operation(
                "PUT", "/v1/nodes", "Ask the cluster for so many machines.", scale, body=Scale, answers={204: None}
            ),
            Operation(
                "POST",
                "/v1/nodes/{node}/drain",
                "Move the sessions of a machine to others.",
                drain,
                body=DrainNode,
                answers={200: Drained},
            ),
        ]

    async def health(self, call: Call[None, NoQuery]) -> Response:
        in_force = await self._service.isolation()
        return answer(Health(isolation=in_force.level, network=in_force.network))

    async def ready(self, call: Call[None, NoQuery]) -> Response:
        call.service.check(READ)
        if time.monotonic() - self._ready_at > READY_SECONDS:
            if self._check is None or self._check.done():
                self._check = asyncio.get_running_loop().create_task(self._service.check_ready())
            await asyncio.shield(self._check)
            self._ready_at = time.monotonic()
        return await self.health(call)


async def machine_usage(call: Call[None, NoQuery]) -> Response:
    return answer(await call.service.machine_usage())


async def nodes(call: Call[None, NoQuery]) -> Response:
    return answer(NodeList(await call.service.machines()))


async def scale(call: Call[Scale, NoQuery]) -> Response:
    await call.service.scale(call.body.count)
    return Response(status_code=204)


async def drain(call: Call[DrainNode, NoQuery]) -> Response:
    node = call.request.path_params["node"]
    return answer(await call.service.drain_machine(node, seconds=call.body.seconds))


async def metrics(call: Call[None, NoQuery]) -> Response:
    return Response(prometheus.render(await call.service.metrics()), media_type=prometheus.MEDIA_TYPE)


class Reference:
    """The OpenAPI document and the page made from it. Both list these operations, their own included.

    They are made when they are first asked for, in a thread, because that parses the sources.
    """

    def __init__(self, operations: list[Operation]) -> None:
        self._operations = [*operations, *self.operations()]
        self._making: asyncio.Task[tuple[bytes, Response]] | None = None

    def operations(self) -> list[Operation]:
        return [
            Operation("GET", "/openapi.json", "This document.", self.openapi, answers={200: Media("application/json")}),
            Operation("GET", "/docs", "The reference, to read.", self.docs, answers={200: Media("text/html")}),
        ]

    async def openapi(self, call: Call[None, NoQuery]) -> Response:
        document, _ = await self._made()
        return Response(document, media_type="application/json")

    async def docs(self, call: Call[None, NoQuery]) -> Response:
        _, page = await self._made()
        return page

    async def _made(self) -> tuple[bytes, Response]:
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(asyncio.to_thread(self._make))
        return await asyncio.shield(self._making)

    def _make(self) -> tuple[bytes, Response]:
        document = openapi.make_document(self._operations)
        return msgspec.json.encode(document), docs_page.render(document)
