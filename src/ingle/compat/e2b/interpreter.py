"""Code interpreter of E2B: runs code and streams what it shows, a line of JSON each; makes and ends contexts.

A client that disconnects interrupts its run, as with E2B. The next run of the context begins once that one has ended.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.compat.e2b import results
from ingle.compat.e2b.contexts import PYTHON, Contexts, check_language
from ingle.compat.e2b.requests import sandbox_of
from ingle.compat.e2b.sandboxes import Context, Sandbox, SandboxNotRunning
from ingle.events import DisplayShown, Done, ErrorRaised, InputWanted, ResultShown
from ingle.http.routes.bodies import read_body
from ingle.requests import NewCell
from ingle_worker.wire import states

KEEPALIVE_SECONDS = 5.0
"""Time without output after which the client gets a sign of life."""

MAX_BODY_BESIDE_CODE = 1024 * 1024
IMAGE = "image/png"


class Execute(Struct):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class NewContext(Struct):
    language: str | None = None
    cwd: str | None = None


class Interpreter:
    """Handlers of the code interpreter."""

    def __init__(self, contexts: Contexts, max_code: int) -> None:
        self._contexts = contexts
        self._max_body = max_code + MAX_BODY_BESIDE_CODE

    def routes(self) -> list[Route]:
        return [
            Route("/execute", self._execute, methods=["POST"]),
            Route("/contexts", self._list, methods=["GET"]),
            Route("/contexts", self._create, methods=["POST"]),
            Route("/contexts/{context_id}", self._remove, methods=["DELETE"]),
            Route("/contexts/{context_id}/restart", self._restart, methods=["POST"]),
        ]

    async def _execute(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_body(request, Execute, self._max_body)
        if asked.context_id and asked.language:
            raise errors.InvalidRequest("Only one of context_id or language can be provided")
        check_language(asked.language)
        context = self._contexts.find(sandbox, asked.context_id or None)
        await self._contexts.prepare_again(sandbox, context)
        return Run(sandbox, context, NewCell(asked.code, envs=asked.env_vars or {}, queue=True))

    async def _list(self, request: Request) -> Response:
        return JSONResponse([_described(each) for each in sandbox_of(request).contexts.values()])

    async def _create(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        asked = await read_body(request, NewContext, MAX_BODY_BESIDE_CODE)
        check_language(asked.language)
        return JSONResponse(_described(await self._contexts.create(sandbox, asked.cwd)))

    async def _restart(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        await self._contexts.restart(sandbox, self._contexts.find(sandbox, request.path_params["context_id"]))
        return JSONResponse(None)

    async def _remove(self, request: Request) -> Response:
        sandbox = sandbox_of(request)
        await self._contexts.remove(sandbox, self._contexts.find(sandbox, request.path_params["context_id"]))
        return JSONResponse(None)


def _described(context: Context) -> dict[str, Any]:
    return {"id": context.id, "language": PYTHON, "cwd": context.cwd}


class Run(Response):
    """Answer that runs a cell and streams its events."""

    def __init__(self, sandbox: Sandbox, context: Context, new: NewCell) -> None:
        super().__init__()
        self._service = sandbox.service
        self._context = context
        self._new = new
        self._cell: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        streaming = asyncio.ensure_future(self._stream(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({streaming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not streaming.done():
                await self._interrupt()
        finally:
            for task in (streaming, leaving):
                task.cancel()
            await asyncio.gather(streaming, leaving, return_exceptions=True)
        if not streaming.cancelled():
            streaming.result()

    async def _interrupt(self) -> None:
        """Interrupt the cell if it still runs. Nothing is awaited between the two, so that no other cell is hit."""
        if self._cell is None:
            return
        with contextlib.suppress(errors.IngleError):
            result = await self._service.wait(self._context.session_id, self._cell, wait=0.0)
            if result.status not in states.FINAL_STATUSES:
                await self._service.interrupt(self._context.session_id, wait=0.0)

    async def _stream(self, send: Send) -> None:
        session_id = self._context.session_id
        begun = asyncio.ensure_future(self._service.begin_cell(session_id, self._new))
        started = False

        async def write(event: dict[str, Any]) -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", NDJSON)]})
            await send({"type": "http.response.body", "body": results.line(event), "more_body": True})

        try:
            while not (await asyncio.wait({begun}, timeout=KEEPALIVE_SECONDS))[0]:
                await write(results.KEEPALIVE)
            self._cell = begun.result()
        finally:
            begun.cancel()
        await write(results.count(self._cell - self._context.hidden_cells))
        async for event in self._lines():
            await write(event)
        await write(results.END)
        await send({"type": "http.response.body", "body": b""})

    async def _lines(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of the cell, and a sign of life while there are none."""
        session_id, cell = self._context.session_id, self._cell
        assert cell is not None
        events = aiter(self._service.cell_events(session_id, cell))
        asked_for_input = False
        following = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                if not (await asyncio.wait({following}, timeout=KEEPALIVE_SECONDS))[0]:
                    yield results.KEEPALIVE
                    continue
                event = following.result()
                if event is None:
                    return
                if isinstance(event, Done):
                    self._note_end(event)
                following = asyncio.ensure_future(anext(events, None))
                if isinstance(event, InputWanted) and not asked_for_input:
                    asked_for_input = True
                    yield results.NO_INPUT
                    await self._service.interrupt(session_id, wait=0.0)
                elif isinstance(event, ErrorRaised | Done) and asked_for_input:
                    continue
                else:
                    if isinstance(event, ResultShown | DisplayShown):
                        event = await self._with_full_image(event)
                    translated = results.translate(event)
                    if translated is not None:
                        yield translated
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    def _note_end(self, done: Done) -> None:
        """Note how the run has left its context. Raise SandboxNotRunning if it was ended with its sandbox.

        The answer then ends without an end, by which the client knows a sandbox that was killed.
        """
        self._context.used_at = time.monotonic()
        self._context.exited = done.result.exit is not None
        try:
            self._service.access.session(self._context.session_id)
        except errors.NotFound:
            raise SandboxNotRunning("the sandbox was killed during a run") from None

    async def _with_full_image(self, event: ResultShown | DisplayShown) -> ResultShown | DisplayShown:
        """Return the event with its image in full size, where ingle shows it smaller."""
        full = event.metadata.get(IMAGE, {}).get("full")
        if not full:
            return event
        with contextlib.suppress(errors.IngleError):
            image = await self._service.figure(self._context.session_id, full["file"])
            return results.with_image(event, image)
        return event


NDJSON = b"application/x-ndjson"


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
