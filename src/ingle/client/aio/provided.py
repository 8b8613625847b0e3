"""Functions of this program that the code of a session may call while it is connected."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

from websockets.exceptions import ConnectionClosed

from ingle import errors
from ingle.client.aio.connection import CONNECT_SECONDS, AsyncConnection
from ingle.client.aio.io import Calls, CallSocket
from ingle.client.functions import Accepted, Function, Refused, decode_message, failure_of, frame
from ingle.client.minimal import failure
from ingle.tools.shapes import FunctionCall, FunctionCancelled

REFUSED_STATUS = 422


class AsyncProvided:
    """Functions that a session may call, made by `session.provide`. Closing withdraws them."""

    def __init__(self, connection: AsyncConnection, path: str, server: str, functions: list[Function]) -> None:
        self._connection = connection
        self._path = path
        self._server = server
        self._functions = {each.spec.name: each for each in functions}
        self._socket: CallSocket | None = None
        self._calls = Calls()

    async def open(self) -> None:
        """Connect, and offer the functions."""
        await self._connection.open()
        socket = self._socket = await self._connection.open_call_socket(f"{self._path}/functions")
        specs = [each.spec for each in self._functions.values()]
        await socket.send({"op": "provide", "server": self._server, "functions": specs})
        try:
            said = decode_message(await socket.receive(CONNECT_SECONDS))
        except ConnectionClosed as closed:
            raise errors.InvalidRequest(f"the functions were refused: {closed.reason}") from None
        if isinstance(said, Refused):
            await socket.close()
            raise failure(REFUSED_STATUS, bytes(said.problem))
        assert isinstance(said, Accepted)
        self._connection.provided.add(self)
        self._calls.start(socket, self._receive, self._answer)

    async def _receive(self) -> FunctionCall | FunctionCancelled | None:
        """Return the next call or cancellation; None at the end of the connection."""
        assert self._socket is not None
        while True:
            try:
                said = decode_message(await self._socket.receive(None))
            except (ConnectionClosed, OSError, EOFError):
                return None
            if isinstance(said, (FunctionCall, FunctionCancelled)):  # a union is made anew for each call
                return said

    async def _answer(self, wanted: FunctionCall) -> None:
        assert self._socket is not None
        try:
            fields = await self._calls.run(self._functions[wanted.tool], bytes(wanted.arguments))
        except Exception as error:  # the edge of a user's function: its failure is the answer
            fields = failure_of(error)
        try:
            await self._socket.send_text(frame(wanted.id, fields))
        except (ConnectionClosed, OSError):
            return  # the session or the connection has ended

    async def close(self) -> None:
        """Withdraw the functions. Calls in flight fail in the session."""
        self._connection.provided.discard(self)
        if self._socket is not None:
            await self._socket.close()
        await self._calls.stop()

    async def __aenter__(self) -> "AsyncProvided":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def as_functions(functions: tuple[Callable[..., Any], ...], name: str | None, read_only: bool) -> list[Function]:
    """Return the functions with their schemas. `name` is for a single one."""
    if not functions:
        raise errors.InvalidRequest("provide needs a function")
    if name is not None and len(functions) > 1:
        raise errors.InvalidRequest("a name is for one function; provide them one by one")
    return [each if isinstance(each, Function) else Function(each, name, read_only) for each in functions]
