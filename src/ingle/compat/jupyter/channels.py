"""WebSocket of a kernel: requests of one client, and what its session shows to all of them.

Requests to run code are carried out one after another, as a kernel does; other requests are answered meanwhile. The
session's timeline is read once for all of them: the output of a cell of this client goes to its request, and cells of
others are shown below an invented request.
"""

import asyncio
import itertools
import sys
from collections import deque
from typing import Any
from uuid import uuid4

import msgspec
from starlette.types import Receive, Scope, Send

from ingle import errors
from ingle.compat.jupyter.framing import V1, BadFrame, Message, decode, encode, new_header
from ingle.compat.jupyter.inbox import Inbox
from ingle.compat.jupyter.kernels import Kernel, Kernels
from ingle.compat.jupyter.requests import ExecuteRequest, InputReply, Requests
from ingle.compat.pictures import with_full_image
from ingle.events import AnyEvent, Done, ErrorRaised, InputWanted, Result, StateChanged
from ingle.http.limits import CLOSE
from ingle.render import jupyter
from ingle.render.prompts import without_prompts
from ingle.requests import NewCell
from ingle.service import Service
from ingle_worker.wire import states

MAX_QUEUED = 1000
"""Requests of one client to run code that wait. Further ones are refused."""

MAX_OPS = 32
"""Other requests of one client that are answered at once. The next is not read until one of them is."""

MAX_CELLS = 1000
"""Cells of this client whose late output still finds its request."""

MAX_EXPRESSIONS = 100
"""Expressions of one request whose values are returned."""

REVOKED_SECONDS = 2.0
"""Interval between two looks whether the token still holds."""

BAD_MESSAGE, REVOKED, GOING = 1007, 1008, 1000

NO_INPUT = jupyter.error(
    "StdinNotImplementedError", "raw_input was called, but this frontend does not support input requests.", ""
)


class Channels:
    """Connection of one client to one kernel."""

    def __init__(self, service: Service, kernels: Kernels, kernel: Kernel) -> None:
        self._service = service
        self._kernels = kernels
        self._kernel = kernel
        self._requests = Requests(service, kernels, kernel)
        self._session_id = kernel.session_id
        self._id = uuid4().hex
        self._numbers = itertools.count(1)
        """Ids of messages are that of this connection and a number, as Jupyter's are."""
        self._waiting: deque[Message] = deque()
        self._arrived = asyncio.Event()
        self._writing = asyncio.Lock()
        self._ops: set[asyncio.Task[None]] = set()
        self._closing: tuple[int, str] = (GOING, "")
        self._cells: dict[int, Inbox] = {}
        """Events of the cells of this client, by their number."""
        self._last_cell = 0
        """The last cell of others that was shown."""
        self._settled = asyncio.Event()
        """Set unless a cell of this client was asked for and has no number yet."""
        self._settled.set()

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send = send
        self._subprotocol = V1 if V1 in scope.get("subprotocols", ()) else None
        await receive()
        first = await self._next_event()
        await send({"type": "websocket.accept", "subprotocol": self._subprotocol})
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(each)
            for each in (self._take_messages(receive), self._run_cells(), self._follow(first), self._end_if_revoked())
        ]
        try:
            with self._kernels.connected(self._kernel):
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, *self._ops):
                task.cancel()
            await asyncio.gather(*tasks, *self._ops, return_exceptions=True)
        for task in done:
            failure = task.exception()
            # Sending to a client that is gone raises OSError.
            if failure is not None and not isinstance(failure, OSError):
                raise failure
        code, reason = self._closing
        close_now = scope.get("extensions", {}).get(CLOSE)
        if close_now is not None:
            close_now(code, reason)

    async def _next_event(self) -> int:
        """Return the number of the session's next event."""
        count = (await self._service.get_session(self._session_id)).execution_count
        if not count:
            return 1
        try:
            # A result from the highest event on holds no text.
            return (await self._service.wait(self._session_id, count, wait=0.0, from_event=sys.maxsize)).next_event
        except errors.CellNotFound:
            return 1

    async def _end_if_revoked(self) -> None:
        while True:
            await asyncio.sleep(REVOKED_SECONDS)
            if self._service.caller.revoked:
                break
        self._closing = (REVOKED, "the token was revoked")

    # --- sending ---

    async def _write(self, channel: str, kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        header = new_header(kind, self._kernel.id, f"{self._id}_{next(self._numbers)}")
        message = Message(channel, header, content, parent)
        frame = encode(message, self._subprotocol)
        async with self._writing:
            await self._send({"type": "websocket.send", "text" if isinstance(frame, str) else "bytes": frame})

    async def _publish(self, kind: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
        await self._write("iopub", kind, content, parent)

    async def _status(self, state: str, parent: dict[str, Any]) -> None:
        await self._publish("status", {"execution_state": state}, parent)

    async def _reply(self, request: Message, content: dict[str, Any]) -> None:
        kind = request.type.removesuffix("_request") + "_reply"
        await self._write(request.channel, kind, content, request.header)

    # --- requests ---

    async def _take_messages(self, receive: Receive) -> None:
        while True:
            said = await receive()
            if said["type"] != "websocket.receive":
                return
            try:
                message = decode(said.get("bytes") or said.get("text") or "", self._subprotocol)
            except BadFrame as error:
                self._closing = (BAD_MESSAGE, str(error)[:100])
                return
            if message.type == "execute_request":
                if len(self._waiting) >= MAX_QUEUED:
                    await self._reply(message, {"status": "aborted"})
                    continue
                self._waiting.append(message)
                self._arrived.set()
                continue
            if len(self._ops) >= MAX_OPS:
                await asyncio.wait(self._ops, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._ops.add(task)
            task.add_done_callback(self._ops.discard)

    async def _answer(self, message: Message) -> None:
        if message.type == "input_reply":
            await self._take_input(message)
            return
        await self._status("busy", message.header)
        content = await self._requests.answer(message.type, message.content)
        if message.type == "comm_open":
            await self._publish("comm_close", {"comm_id": message.content.get("comm_id"), "data": {}}, message.header)
        elif content is not None:
            await self._reply(message, content)
        await self._status("idle", message.header)

    async def _take_input(self, message: Message) -> None:
        try:
            given = msgspec.convert(message.content, InputReply)
            await self._service.input(self._session_id, given.value, wait=0.0)
        except (errors.IngleError, msgspec.ValidationError):
            return  # no cell waits any more, and the protocol has no answer to an answer

    # --- cells of this client ---

    async def _run_cells(self) -> None:
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            message = self._waiting.popleft()
            await self._status("busy", message.header)
            aborts = False
            try:
                request = msgspec.convert(message.content, ExecuteRequest)
                content = await self._execute(message.header, request)
                aborts = content["status"] == "error" and request.stop_on_error
            except (errors.IngleError, msgspec.ValidationError) as error:
                content = jupyter.refusal(error)
            await self._reply(message, content)
            await self._status("idle", message.header)
            if aborts:
                await self._abort_waiting()

    async def _abort_waiting(self) -> None:
        """Refuse the requests that were sent before this client could know of an error."""
        while self._waiting:
            message = self._waiting.popleft()
            await self._status("busy", message.header)
            await self._reply(message, {"status": "aborted"})
            await self._status("idle", message.header)

    async def _execute(self, header: dict[str, Any], request: ExecuteRequest) -> dict[str, Any]:
        """Run a cell, show what it shows, and return the content of the reply."""
        if not request.code.strip():
            count = (await self._service.get_session(self._session_id)).execution_count
            return {"status": "ok", "execution_count": count, "user_expressions": {}, "payload": []}
        cell, inbox = await self._begin(header, request.code)
        try:
            return await self._show_cell(cell, inbox, request)
        finally:
            inbox.leave()

    async def _show_cell(self, cell: int, inbox: Inbox, request: ExecuteRequest) -> dict[str, Any]:
        header = inbox.header
        if not request.silent:
            await self._publish("execute_input", {"code": request.code, "execution_count": cell}, header)
        refused_input = False
        async for event in without_prompts(inbox):
            if isinstance(event, InputWanted):
                if request.allow_stdin:
                    asked = {"prompt": event.prompt, "password": event.secret}
                    await self._write("stdin", "input_request", asked, header)
                elif not refused_input:
                    refused_input = True
                    await self._publish("error", NO_INPUT, header)
                    await self._service.interrupt(self._session_id, wait=0.0)
            elif isinstance(event, Done):
                await self._show_end(event.result, header)
                if refused_input:
                    return {"status": "error", "execution_count": cell, **NO_INPUT}
                content = jupyter.execute_reply(event.result)
                if content["status"] == "ok" and request.user_expressions:
                    content["user_expressions"] = await self._evaluate(header, request.user_expressions)
                return content
            elif not (request.silent or (refused_input and isinstance(event, ErrorRaised))):
                await self._show(event, header)
        died = jupyter.error(jupyter.DIED, "the session was ended", "")
        return {"status": "error", "execution_count": cell, **died}

    async def _begin(self, header: dict[str, Any], code: str) -> tuple[int, Inbox]:
        """Begin a cell. Return its number and where its events come."""
        self._settled.clear()
        try:
            cell = await self._service.begin_cell(self._session_id, NewCell(code, queue=True))
            inbox = self._cells[cell] = Inbox(header)
            if len(self._cells) > MAX_CELLS:
                del self._cells[next(iter(self._cells))]
            return cell, inbox
        finally:
            self._settled.set()

    async def _evaluate(self, header: dict[str, Any], expressions: dict[str, str]) -> dict[str, Any]:
        """Return the values of expressions that a client wants with its reply. Each is a cell that shows nothing."""
        found = {}
        for name, code in list(expressions.items())[:MAX_EXPRESSIONS]:
            _, inbox = await self._begin(header, code)
            try:
                async for event in inbox:
                    if isinstance(event, InputWanted):
                        await self._service.interrupt(self._session_id, wait=0.0)
                    elif isinstance(event, Done):
                        found[name] = jupyter.user_expression(event.result)
                        break
            finally:
                inbox.leave()
        return found

    async def _show(self, event: AnyEvent, parent: dict[str, Any]) -> None:
        event = await with_full_image(self._service, self._session_id, event)
        if (shown := jupyter.output(event)) is not None:
            await self._publish(*shown, parent)

    async def _show_end(self, result: Result, parent: dict[str, Any]) -> None:
        for kind, content in jupyter.ending(result):
            await self._publish(kind, content, parent)

    # --- what else happens in the session ---

    async def _follow(self, first: int) -> None:
        """Hand on the events of own cells and show those of others, until the session ends for good."""
        while True:
            try:
                async for event in self._service.events(self._session_id, first):
                    await self._take_event(event)
            except errors.SessionNotFound:
                pass
            for inbox in self._cells.values():
                inbox.close()
            if self._service.stopping or not await self._kernels.restarted(self._kernel):
                await self._status("dead", {})
                return
            self._cells.clear()
            self._last_cell = 0
            first = 1
            await self._status("starting", {})
            await self._status("idle", {})

    async def _take_event(self, event: AnyEvent) -> None:
        cell = event.cell
        if cell is None:
            await self._show(event, {})
            return
        if cell not in self._cells and cell > self._last_cell:
            # It may be a cell of this client that has no number yet.
            await self._settled.wait()
        own = self._cells.get(cell)
        if own is None:
            self._last_cell = max(cell, self._last_cell)
            await self._show_other(cell, event)
        elif own.over:
            await self._show(event, own.header)
        else:
            await own.put(event)
            own.over = own.over or isinstance(event, Done)

    async def _show_other(self, cell: int, event: AnyEvent) -> None:
        parent = self._other_header(cell)
        if isinstance(event, StateChanged):
            if event.state == states.RUNNING and event.code is not None:
                await self._status("busy", parent)
                await self._publish("execute_input", {"code": event.code, "execution_count": cell}, parent)
        elif isinstance(event, Done):
            await self._show_end(event.result, parent)
            await self._status("idle", parent)
        else:
            await self._show(event, parent)

    def _other_header(self, cell: int) -> dict[str, Any]:
        """Return the header of an invented request, for a cell of another client."""
        return new_header("execute_request", self._session_id, f"{self._kernel.id}-{cell}")
