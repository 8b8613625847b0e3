"""Calls of tools in one session: from the worker's request to its reply.

Policy, budgets and approvals are decided here, on the host; the worker is not trusted with any of it. Each call belongs
to the worker that made it and ends with it, however that ends.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from ingle import events
from ingle.grants import ApprovalInfo
from ingle.requests import Author
from ingle.sessions.cells.journal import Journal
from ingle.sessions.cells.runner import CellRunner
from ingle.sessions.metrics import Telemetry
from ingle.sessions.spec import SessionSpec
from ingle.sessions.tools.approvals import MAX_ARGUMENT_CHARS, Approval, Approvals
from ingle.sessions.tools.budget import Budget, Spent
from ingle.sessions.tools.sources import ClientSource, McpSource, Source, arguments_of
from ingle.settings import Settings
from ingle.support.background import Tasks
from ingle.tools import config, policy
from ingle.tools.content import encode
from ingle.tools.functions import Functions, Provider
from ingle.tools.search import Place, find_places, line_of, places_of
from ingle.tools.servers import ToolServers
from ingle.tools.shapes import (
    ASK,
    CLIENT,
    DENY,
    NewServer,
    ServerInfo,
    ToolFailed,
    ToolInfo,
    ToolSpec,
)
from ingle.workers.worker import Worker
from ingle_worker.wire import messages, signatures
from ingle_worker.wire.cells import CALL, LIST_SERVERS, LIST_TOOLS, SEARCH

MAX_CALLS = 1000
"""Calls of a session in flight. More are refused."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Bytes of the arguments of all calls in flight."""

MAX_EVENT_CHARS = 1000
"""Characters of arguments in an event."""

MAX_FOUND = 100
LISTING_SECONDS = 20.0
"""Time for the listing of each server in a search. A server that is not ready then is left out."""

_decode_asked = msgspec.json.Decoder(dict[str, Any]).decode


class SessionTools:
    def __init__(
        self,
        spec: SessionSpec,
        settings: Settings,
        servers: ToolServers,
        journal: Journal,
        runner: CellRunner,
        telemetry: Telemetry,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._servers = servers
        self._journal = journal
        self._runner = runner
        self._telemetry = telemetry
        self._own: dict[str, NewServer] = {}
        """Servers that were named for this session alone."""
        self._functions = Functions()
        self._provided: list[Provider] = []
        """Providers of this session itself. A fork has those of its original without owning them."""
        self._budget = Budget(settings)
        self.approvals = Approvals(spec.session_id)
        self._tasks = Tasks()
        self._calls: dict[tuple[Worker, int], InFlight] = {}
        self._workers: set[Worker] = set()
        """Workers that have called, and whose end ends their calls."""
        self._waiting_bytes = 0

    # --- where tools come from ---

    def inherit(self, origin: "SessionTools") -> None:
        """Take over the tools of the session that this one is a fork of. Its calls are its own."""
        self._own = dict(origin._own)
        self._functions = origin._functions.copy()

    def add_server(self, name: str, server: NewServer) -> None:
        """Name a server for this session alone, until the session or this server ends."""
        self._own[name] = config.checked(name, server)

    async def remove_server(self, name: str) -> bool:
        """Remove a server that was named for this session alone, and stop it."""
        if self._own.pop(name, None) is None:
            return False
        await self._servers.end_server(name, self._spec.key)
        return True

    def provide(self, server: str, tools: list[ToolSpec]) -> Provider:
        """Add functions of a client. They stay until `withdraw`."""
        provider = Provider(tools, self._settings.tool_timeout or None)
        self._functions.add(server, provider)
        self._provided.append(provider)
        return provider

    def withdraw(self, server: str, provider: Provider) -> None:
        self._functions.remove(server, provider)
        self._provided.remove(provider)

    @property
    def _named(self) -> dict[str, NewServer]:
        return {**self._servers.configured(self._spec.tenant), **self._own}

    def _has_functions(self, name: str) -> bool:
        """Return whether this is the name of functions of clients. They come before an MCP server of that name."""
        return name == CLIENT or self._functions.has(name)

    def _source(self, name: str) -> Source:
        """Return where the tools of this name come from. Raise ToolFailed if this session has none."""
        return ClientSource(self._functions, name) if self._has_functions(name) else self._server(name)

    def _server(self, name: str) -> McpSource:
        """Return an MCP server by name. Raise ToolFailed if this session has none."""
        own = self._own.get(name)
        named = own or self._servers.find(name, self._spec.tenant)
        if named is None:
            raise ToolFailed("unknown", f"there is no server of tools {name[:200]!r}")
        server = self._servers.get(name, named, self._spec.tenant, self._spec.key, own=own is not None)
        return McpSource(server, named)

    @property
    def _names(self) -> list[str]:
        return [*self._functions.servers, *(name for name in self._named if not self._functions.has(name))]

    async def listing(self) -> list[ServerInfo]:
        """Return all servers with their tools and what the policy says of each."""
        return list(await asyncio.gather(*(self._describe(name) for name in self._names)))

    async def _describe(self, name: str) -> ServerInfo:
        kind = CLIENT
        try:
            source = self._source(name)
            kind = source.kind
            async with asyncio.timeout(LISTING_SECONDS):
                found = await source.tools()
        except (ToolFailed, TimeoutError) as error:
            return ServerInfo(name, kind, problem=str(error) or "it does not answer")
        module = signatures.python_name(name)
        return ServerInfo(
            name,
            kind,
            [
                ToolInfo(
                    place.tool.name,
                    signatures.signature_text(place.name, place.tool.input_schema, place.tool.output_schema),
                    signatures.visible(place.tool.description, 2000),
                    self._policy(place.tool, source.config),
                    place.tool.read_only,
                    place.tool.destructive,
                )
                for place in places_of(name, module, found.tools)
            ],
        )

    def _policy(self, tool: ToolSpec, server: NewServer) -> str:
        return policy.decide(tool, server, self._settings.tool_policy)

    async def search(self, query: str, limit: int) -> list[str]:
        """Return the tools that fit these words best, a line each."""
        names = self._names
        modules = signatures.python_names(names, frozenset(("search",)))
        found = await asyncio.gather(*(self._places(*each) for each in zip(names, modules, strict=True)))
        among = [place for places in found for place in places]
        return [line_of(place) for place in find_places(query, among, min(limit, MAX_FOUND))]

    async def _places(self, name: str, module: str) -> list[Place]:
        try:
            async with asyncio.timeout(LISTING_SECONDS):
                source = self._source(name)
                tools = (await source.tools()).tools
        except (ToolFailed, TimeoutError):
            return []
        places = places_of(name, module, tools)
        return [place for place in places if self._policy(place.tool, source.config) != DENY]

    def decide(self, approval_id: str, allow: bool, author: Author) -> ApprovalInfo:
        """Answer a call that waits for a person, in the name of this author."""
        info = self.approvals.decide(approval_id, allow=allow)
        self._show_waiting(author)
        name = f"{info.server}.{info.tool}"
        self._telemetry.note("approval", self._spec.key, caller=author.name, approval=info.id, tool=name, allowed=allow)
        return info

    # --- requests of the worker ---

    def on_request(self, worker: Worker, request: messages.ToolRequest) -> None:
        """Begin to answer a request. What comes is bounded: requests in flight and their bytes are."""
        if len(self._calls) >= MAX_CALLS or self._waiting_bytes + len(request.data) > MAX_WAITING_BYTES:
            text = f"more than {MAX_CALLS} calls of tools at once, or too large ones; wait for some of them"
            _refuse(worker, request.call, ToolFailed("budget", text))
            return
        key = (worker, request.call)
        if key in self._calls:
            worker.break_off("it used the number of a call twice")
            return
        if worker not in self._workers:
            self._workers.add(worker)
            worker.gone.add_done_callback(lambda gone: self._cancel_of(worker))
        self._waiting_bytes += len(request.data)
        running = self._runner.running
        cell = running.number if running is not None and not request.background else None
        call = self._calls[key] = InFlight(worker, request, cell)
        if request.kind == CALL and self._has_functions(request.server):
            self._call_function(call)
        else:
            call.task = self._tasks.start(self._answer(call))

    def _forget(self, call: "InFlight") -> None:
        if self._calls.pop((call.worker, call.request.call), None) is not None:
            self._waiting_bytes -= len(call.request.data)

    def on_cancel(self, worker: Worker, call: int) -> None:
        """Give up a call that the code does not wait for any more."""
        found = self._calls.get((worker, call))
        if found is not None:
            self._cancel(found)

    def _cancel_of(self, worker: Worker) -> None:
        self._workers.discard(worker)
        for call in list(self._calls.values()):
            if call.worker is worker:
                self._cancel(call)

    def _cancel(self, call: "InFlight") -> None:
        # Told at once: the cell may end before the task does.
        self._tell(call, "cancelled", 0)
        if call.task is not None:
            call.task.cancel()
            # It may not have begun, and then it does not forget itself.
            call.task.add_done_callback(lambda task: self._forget(call))
        elif call.cancel is not None:
            call.cancel()
            call.count(0)
            self._forget(call)

    async def close(self) -> None:
        """End all calls, and the servers that only this session had."""
        for call in list(self._calls.values()):
            self._cancel(call)
        for provider in self._provided:
            provider.end()
        await self._servers.end_session(self._spec.key)

    async def _answer(self, call: "InFlight") -> None:
        """Answer a request that takes more than one turn of the loop."""
        outcome, size = "cancelled", 0
        try:
            if call.request.kind == CALL:
                data = await self._carry_out(call)
            else:
                data = encode(await self._look(call.request))
            outcome, size = "ok", len(data)
            _reply(call, self._bounded(data))
        except ToolFailed as failed:
            outcome = _outcome(failed)
            _reply(call, failed)
        finally:
            self._tell(call, outcome, size)
            self._forget(call)

    def _bounded(self, data: bytes) -> bytes | ToolFailed:
        """Return a result, or the failure in its place if it is above the limit."""
        limit = self._settings.tool_result
        if len(data) <= limit:
            return data
        return ToolFailed("tool", f"the result has {len(data)} bytes, above the limit of {limit} (tool_result)")

    async def _look(self, request: messages.ToolRequest) -> dict[str, Any]:
        try:
            asked = _decode_asked(request.data) if request.data else {}
        except msgspec.MsgspecError:
            raise ToolFailed("tool", "the request is not JSON") from None
        if request.kind == LIST_SERVERS:
            named = self._named
            return {"servers": [{"name": each, "description": _about(named.get(each))} for each in self._names]}
        if request.kind == LIST_TOOLS:
            source = self._source(request.server)
            listing = await source.tools()
            if asked.get("known") == listing.version:
                return {"version": listing.version, "tools": []}
            tools = [self._shown(tool, source.config) for tool in listing.tools]
            return {"version": listing.version, "tools": tools}
        if request.kind == SEARCH:
            limit = asked.get("limit")
            return {"found": await self.search(str(asked.get("query", "")), limit if type(limit) is int else 10)}
        raise ToolFailed("tool", f"no request has the kind {request.kind[:80]!r}")

    def _shown(self, tool: ToolSpec, server: NewServer) -> dict[str, Any]:
        asks = self._policy(tool, server) == ASK
        return {**msgspec.to_builtins(tool), **({"asks": True} if asks else {})}

    # --- functions of clients ---

    def _call_function(self, call: "InFlight") -> None:
        """Send a call to the client that provides the function. Its answer is handed on as it comes, by no task."""
        request = call.request
        try:
            tool, provider = self._functions.find(request.server, request.tool)
            self._admit(call, tool)
            arguments_of(request.data)  # a client gets an object, whatever the worker sends
            number = provider.call(tool.name, request.data, partial(self._on_answer, call))
        except ToolFailed as failed:
            self._on_answer(call, failed)
        else:
            call.cancel = partial(provider.cancel, number)

    def _on_answer(self, call: "InFlight", answer: bytes | ToolFailed) -> None:
        if isinstance(answer, ToolFailed):
            outcome, size = _outcome(answer), 0
            _reply(call, answer)
        else:
            outcome, size = "ok", len(answer)
            _reply(call, self._bounded(answer))
        # The code goes on meanwhile. What it does next is read after this, and so comes behind it.
        call.count(size)
        self._tell(call, outcome, size)
        self._forget(call)

    # --- tools of MCP servers ---

    async def _carry_out(self, call: "InFlight") -> bytes:
        request = call.request
        source = self._server(request.server)
        tool = await source.find(request.tool)
        decision = self._policy(tool, source.config)
        if decision == DENY:
            raise ToolFailed("denied", f"the policy of this server denies {request.server}.{tool.name}")
        self._admit(call, tool)
        if decision == ASK:
            await self._ask(request, tool, call.cell)
            call.sent_at = time.monotonic()
        data = b""
        try:
            data = await source.call(tool, request.data, self._settings.tool_timeout or None)
        finally:
            call.count(len(data))
        return data

    def _admit(self, call: "InFlight", tool: ToolSpec) -> None:
        """Count a call against the budgets. Raise ToolFailed if it may not be made now."""
        request = call.request
        if self._holds(tool):
            text = f"a trial calls tools that only read; {request.server}.{tool.name} does not say so"
            raise ToolFailed("denied", f"{text}; call it in a cell of the session")
        call.counted = self._budget.begin(call.cell, len(request.data))
        call.sent_at = time.monotonic()

    def _holds(self, tool: ToolSpec) -> bool:
        """Return whether a call is held back because its effect could not be discarded with the trial."""
        return self._spec.trial and not tool.read_only

    async def _ask(self, request: messages.ToolRequest, tool: ToolSpec, cell: int | None) -> None:
        """Wait until a person allows the call. Raise ToolFailed if that does not happen."""
        # Decoded and encoded again: a person sees what is sent, and no key twice.
        shown = msgspec.json.encode(arguments_of(request.data)).decode()
        name = f"{request.server}.{tool.name}"
        if len(shown) > MAX_ARGUMENT_CHARS:
            raise ToolFailed("denied", f"{name} needs approval, and its arguments are too long to be shown to a person")
        approval = Approval(request.server, tool, shown, cell)
        info = approval.info
        self.approvals.add(approval)
        self._journal.append(events.ApprovalWanted, info.id, info.server, info.tool, info.arguments)
        self._show_waiting()
        self._telemetry.note("approval_wanted", self._spec.key, approval=info.id, tool=name)
        seconds = self._settings.approval_timeout
        try:
            async with asyncio.timeout(seconds or None):
                allowed = await approval.answer
        except TimeoutError:
            raise ToolFailed("denied", f"{name} was not approved within {seconds:g} s") from None
        finally:
            self.approvals.remove(approval)
            self._show_waiting()
        if not allowed:
            raise ToolFailed("denied", f"{name} was not approved")

    def _show_waiting(self, author: Author | None = None) -> None:
        """Have the running cell wait for its first approval, if it has one."""
        cell = self._runner.running
        if cell is not None:
            self._runner.show_approval(self.approvals.of_cell(cell.number), author)

    def _tell(self, call: "InFlight", outcome: str, size: int) -> None:
        """Append the event of a call that is over, once."""
        request = call.request
        if call.told or request.kind != CALL:
            return
        call.told = True
        seconds = time.monotonic() - call.began
        server, tool = signatures.visible(request.server, 100), signatures.visible(request.tool, 200)
        shown = signatures.visible(request.data[: 4 * MAX_EVENT_CHARS].decode("utf-8", "replace"), MAX_EVENT_CHARS)
        self._journal.append(events.ToolCalled, server, tool, shown, round(seconds, 6), outcome)
        self._telemetry.tool_called(self._spec.key, server, tool, seconds, outcome, len(request.data), size)


class InFlight:
    """One request of a worker that is not answered yet."""

    def __init__(self, worker: Worker, request: messages.ToolRequest, cell: int | None) -> None:
        self.worker = worker
        self.request = request
        self.cell = cell
        """The cell that waits with it; None for a thread of an earlier one."""
        self.began = self.sent_at = time.monotonic()
        self.counted: list[Spent] = []
        """What its use is added to."""
        self.task: asyncio.Task[None] | None = None
        self.cancel: Callable[[], None] | None = None
        """Gives up a call of a client's function, which has no task."""
        self.told = False

    def count(self, size: int) -> None:
        """Add the seconds and the bytes of its answer to the budgets."""
        seconds = time.monotonic() - self.sent_at
        for spent in self.counted:
            spent.add(seconds, size)


def _about(server: NewServer | None) -> str:
    return "Functions of the client." if server is None else server.description


def _outcome(failed: ToolFailed) -> str:
    return failed.kind if failed.kind != "tool" else "error"


def _reply(call: InFlight, answer: bytes | ToolFailed) -> None:
    if isinstance(answer, ToolFailed):
        _refuse(call.worker, call.request.call, answer)
    elif call.worker.alive:
        call.worker.send(messages.ToolReply(call.request.call, True, answer))


def _refuse(worker: Worker, call: int, failed: ToolFailed) -> None:
    if worker.alive:
        data = encode({"kind": failed.kind, "message": failed.message})
        worker.send(messages.ToolReply(call, False, data))
