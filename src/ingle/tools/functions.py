"""Functions of clients that sessions may call while the client is connected."""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from ingle.errors import InvalidRequest
from ingle.tools.content import encode
from ingle.tools.mcp_server import Listing
from ingle.tools.shapes import FunctionCall, FunctionCancelled, ToolFailed, ToolSpec

MAX_FUNCTIONS = 1000
MAX_SCHEMAS_BYTES = 1024 * 1024

GONE = "the client that provides it has disconnected"


Outgoing = FunctionCall | FunctionCancelled


@dataclass
class _Waiting:
    """A call that the client has not answered yet."""

    on_answer: Callable[[bytes | ToolFailed], None]
    deadline: float


class Provider:
    """Connection of one client that answers calls.

    A call needs neither a task nor a future: its answer is handed on in the turn of the loop that brings it.
    """

    def __init__(self, tools: list[ToolSpec], seconds: float | None = None) -> None:
        """`seconds` is the time for each answer; None for any time."""
        if not tools or len(tools) > MAX_FUNCTIONS:
            raise InvalidRequest(f"a client provides 1 to {MAX_FUNCTIONS} functions")
        if len(msgspec.json.encode(tools)) > MAX_SCHEMAS_BYTES:
            raise InvalidRequest(f"the descriptions of the functions have more than {MAX_SCHEMAS_BYTES} bytes")
        self.tools = {tool.name: tool for tool in tools}
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Waiting] = {}
        """In the order in which they began, which is that of their deadlines."""
        self._timer: asyncio.TimerHandle | None = None
        """One for all calls: it ends those that are late, and is set anew for the next. Most calls end before."""
        self._send_now: Callable[[Outgoing], bool] | None = None
        self._outgoing: deque[Outgoing | None] = deque()
        self._more: asyncio.Future[None] | None = None
        """What `calls` waits for."""
        self.closed = False

    def call(self, tool: str, arguments: bytes, on_answer: Callable[[bytes | ToolFailed], None]) -> int:
        """Send a call to the client and return its number.

        `on_answer` gets the payload of the answer or the failure, once, unless the call is cancelled before.
        """
        if self.closed:
            raise ToolFailed("unavailable", f"{tool} cannot be called: {GONE}")
        number = next(self._numbers)
        if self._seconds is None:
            self._calls[number] = _Waiting(on_answer, math.inf)
        else:
            deadline = self._loop.time() + self._seconds
            self._calls[number] = _Waiting(on_answer, deadline)
            if self._timer is None:
                self._timer = self._loop.call_at(deadline, self._end_late)
        self._put(FunctionCall(number, tool, msgspec.Raw(arguments)))
        return number

    def cancel(self, number: int) -> None:
        """Tell the client that this call has no caller any more."""
        if self._calls.pop(number, None) is not None:
            self._put(FunctionCancelled(number))

    def _end_late(self) -> None:
        self._timer = None
        now = self._loop.time()
        for number, waiting in list(self._calls.items()):
            if waiting.deadline > now:
                self._timer = self._loop.call_at(waiting.deadline, self._end_late)
                return
            self._put(FunctionCancelled(number))
            self._end(number, ToolFailed("timeout", f"the client did not answer within {self._seconds:g} s"))

    def _end(self, number: int, answer: bytes | ToolFailed) -> None:
        """Hand the answer on. An answer whose call is over is dropped."""
        waiting = self._calls.pop(number, None)
        if waiting is not None:
            waiting.on_answer(answer)

    # --- messages to the client ---

    def send_by(self, send_now: Callable[[Outgoing], bool]) -> None:
        """Send by this function. Messages that it refuses, because the client does not read, wait for `calls`."""
        self._send_now = send_now

    def _put(self, message: Outgoing | None) -> None:
        # Nothing overtakes what waits: a cancellation comes behind its call.
        if not self._outgoing and message is not None and self._send_now is not None and self._send_now(message):
            return
        self._outgoing.append(message)
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def calls(self) -> AsyncIterator[Outgoing]:
        """Yield calls to carry out and calls to give up, until the connection is closed."""
        while True:
            while self._outgoing:
                message = self._outgoing[0]
                if message is None:
                    return
                yield message
                self._outgoing.popleft()
            self._more = self._loop.create_future()
            await self._more

    # --- answers of the client ---

    def answer(self, number: int, payload: bytes) -> None:
        """Take the client's result."""
        self._end(number, payload)

    def fail(self, number: int, message: str) -> None:
        """Take the client's failure."""
        self._end(number, ToolFailed("tool", message))

    def end(self) -> None:
        """Tell the client that the session has ended. Its functions may still serve a fork."""
        self._put(None)

    def close(self) -> None:
        """End the connection. Calls in flight fail."""
        self.closed = True
        self.end()
        if self._timer is not None:
            self._timer.cancel()
        for number in list(self._calls):
            self._end(number, ToolFailed("unavailable", f"the call was given up: {GONE}"))


class Functions:
    """Functions of all clients of a session, by server and name. The newest of a name is called."""

    def __init__(self) -> None:
        self._providers: dict[str, list[Provider]] = {}

    def add(self, server: str, provider: Provider) -> None:
        self._providers.setdefault(server, []).append(provider)

    def remove(self, server: str, provider: Provider) -> None:
        provider.close()
        left = [each for each in self._providers.get(server, ()) if each is not provider]
        if left:
            self._providers[server] = left
        else:
            self._providers.pop(server, None)

    def copy(self) -> "Functions":
        """Return the same functions for a fork."""
        made = Functions()
        made._providers = {server: list(providers) for server, providers in self._providers.items()}
        return made

    @property
    def servers(self) -> list[str]:
        return [name for name, providers in self._providers.items() if not all(each.closed for each in providers)]

    def has(self, server: str) -> bool:
        return server in self._providers

    def listing(self, server: str) -> Listing:
        found: dict[str, ToolSpec] = {}
        for provider in self._providers.get(server, ()):
            if not provider.closed:
                found |= provider.tools
        return Listing(list(found.values()))

    def find(self, server: str, tool: str) -> tuple[ToolSpec, Provider]:
        for provider in reversed(self._providers.get(server, [])):
            spec = provider.tools.get(tool)
            if spec is not None and not provider.closed:
                return spec, provider
        raise ToolFailed("unknown", f"no client provides {tool[:200]!r} now")


def payload_of(value: msgspec.Raw, data: str | None, mime_type: str) -> bytes:
    """Return the payload of a client's answer: a JSON value, or bytes in base64."""
    if data is not None:
        return encode({"content": [{"type": "bytes", "data": data, "mime_type": mime_type}]})
    return b'{"value":' + bytes(value) + b"}"
