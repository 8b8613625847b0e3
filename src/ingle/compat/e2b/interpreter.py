"""Code interpreter of E2B: runs code and streams what it shows, a line of JSON each; makes and ends contexts.

A client that disconnects interrupts its run, as with E2B. The next run of the context begins once that one has ended.
"""

import asyncio
import contextlib
import time
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
from ingle.compat.pictures import with_full_image
from ingle.compat.requests import until_disconnect
from ingle.events import Done, ErrorRaised, InputWanted
from ingle.http.routes.bodies import read_body
from ingle.requests import NewCell
from ingle_worker.wire import states

KEEPALIVE_SECONDS = 5.0
"""Time without output after which the client gets a sign of life."""

WHOLE_SECONDS = 0.01
"""Time for which the first lines wait for the end of the run. Most runs of agents are over by then."""

MAX_WAITING_BYTES = 256 * 1024
"""Bytes of lines that wait to be sent. The events behind them stay in the session's timeline."""

MAX_BODY_BESIDE_CODE = 1024 * 1024


class Execute(Struct):
    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class NewContext(Struct):
    language: str | None = None
    cwd: str | None = None


class Executor:
    """`POST /execute` as a plain ASGI endpoint, because it is the most frequent request."""

    def __init__(self, contexts: Contexts, max_body: int) -> None:
        self._contexts = contexts
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        sandbox = sandbox_of(request)
        asked = await read_body(request, Execute, self._max_body)
        if asked.context_id and asked.language:
            raise errors.InvalidRequest("Only one of context_id or language can be provided")
        check_language(asked.language)
        context = self._contexts.find(sandbox, asked.context_id or None)
        await self._contexts.prepare_again(sandbox, context)
        await Run(sandbox, context, NewCell(asked.code, envs=asked.env_vars or {}, queue=True)).answer(receive, send)


class Interpreter:
    """Handlers of the code interpreter."""

    def __init__(self, contexts: Contexts, max_code: int) -> None:
        self._contexts = contexts
        self._max_body = max_code + MAX_BODY_BESIDE_CODE

    def routes(self) -> list[Route]:
        return [
            Route("/execute", Executor(self._contexts, self._max_body), methods=["POST"]),
            Route("/contexts", self._list, methods=["GET"]),
            Route("/contexts", self._create, methods=["POST"]),
            Route("/contexts/{context_id}", self._remove, methods=["DELETE"]),
            Route("/contexts/{context_id}/restart", self._restart, methods=["POST"]),
        ]

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


class Run:
    """Run of a cell whose events are streamed to the client. One that is over soon is answered in one piece."""

    def __init__(self, sandbox: Sandbox, context: Context, new: NewCell) -> None:
        self._service = sandbox.service
        self._context = context
        self._new = new
        self._cell: int | None = None
        self._lines: list[bytes] = []
        """Lines that are not sent yet."""
        self._size = 0
        self._more: asyncio.Future[None] | None = None
        """Set by the first of them, while the answer waits for lines."""
        self._sent = asyncio.Event()
        """Set when lines were sent, for a run that has more than the client reads."""

    async def answer(self, receive: Receive, send: Send) -> None:
        running = asyncio.ensure_future(self._run())
        try:
            await asyncio.wait({running}, timeout=WHOLE_SECONDS)
            if running.done():
                running.result()
                await self._send_whole(send)
            else:
                await self._stream(running, receive, send)
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    async def _send_whole(self, send: Send) -> None:
        data = self._take()
        headers = [NDJSON, (b"content-length", b"%d" % len(data))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async def _stream(self, running: asyncio.Future[None], receive: Receive, send: Send) -> None:
        """Send lines as they come, and signs of life. Interrupt the cell if the client goes away."""
        leaving = asyncio.ensure_future(until_disconnect(receive))
        started = False
        try:
            while not (leaving.done() or (running.done() and not self._lines)):
                if not self._lines and not await self._wait_for_lines({running, leaving}):
                    self._add(results.KEEPALIVE)
                if self._lines and not leaving.done():
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": [NDJSON]})
                    await send({"type": "http.response.body", "body": self._take(), "more_body": True})
                    self._sent.set()
            if not running.done():
                await self._interrupt()
                return
            running.result()
            await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)

    async def _wait_for_lines(self, others: set[asyncio.Future[None]]) -> bool:
        """Wait for lines or for one of the others. Return False after a while without either."""
        self._more = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait(
            {self._more, *others}, timeout=KEEPALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        return bool(done)

    async def _interrupt(self) -> None:
        """Interrupt the cell if it still runs. Nothing is awaited between the two, so that no other cell is hit."""
        if self._cell is None:
            return
        with contextlib.suppress(errors.IngleError):
            result = await self._service.wait(self._context.session_id, self._cell, wait=0.0)
            if result.status not in states.FINAL_STATUSES:
                await self._service.interrupt(self._context.session_id, wait=0.0)

    def _take(self) -> bytes:
        """Return the lines that are not sent yet."""
        data, self._lines, self._size = b"".join(self._lines), [], 0
        return data

    def _add(self, event: dict[str, Any]) -> None:
        line = results.line(event)
        self._lines.append(line)
        self._size += len(line)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def _run(self) -> None:
        """Run the cell, and add a line for each event of it."""
        session_id = self._context.session_id
        self._cell = cell = await self._service.begin_cell(session_id, self._new)
        self._add(results.count(cell - self._context.hidden_cells))
        asked_for_input = False
        async for event in self._service.cell_events(session_id, cell, self._context.next_event):
            if isinstance(event, Done):
                self._note_end(event)
            if isinstance(event, InputWanted) and not asked_for_input:
                asked_for_input = True
                self._add(results.NO_INPUT)
                await self._service.interrupt(session_id, wait=0.0)
            elif not (asked_for_input and isinstance(event, ErrorRaised | Done)):
                translated = results.translate(await with_full_image(self._service, session_id, event))
                if translated is not None:
                    self._add(translated)
            while self._size > MAX_WAITING_BYTES:
                self._sent.clear()
                await self._sent.wait()
        self._add(results.END)

    def _note_end(self, done: Done) -> None:
        """Note how the run has left its context. Raise SandboxNotRunning if it was ended with its sandbox.

        The answer then ends without an end, by which the client knows a sandbox that was killed.
        """
        self._context.used_at = time.monotonic()
        self._context.exited = done.result.exit is not None
        self._context.next_event = done.seq + 1
        try:
            self._service.access.session(self._context.session_id)
        except errors.NotFound:
            raise SandboxNotRunning("the sandbox was killed during a run") from None


NDJSON = (b"content-type", b"application/x-ndjson")
