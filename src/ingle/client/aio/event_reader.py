"""Events of a session as they come, over as many connections as that takes.

Events are numbered: a new connection continues at the next number, so no event is lost or repeated.

Readers are no generators. At the end of an event loop, asyncio closes all asynchronous generators at the same time, and
one that closes another one meanwhile fails. So the generator that a user has is the only one of its stream.
"""

import time

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from ingle import errors
from ingle.client.address import time_left
from ingle.client.aio.connection import MAX_EVENT_BYTES, STABLE_SECONDS, AsyncConnection
from ingle.client.aio.io import WebSocket
from ingle.client.decode import Event, read_event
from ingle.client.minimal import failure
from ingle.events import Done

STOPPING, POLICY, BAD_MESSAGE, NO_SESSION = 1001, 1008, 4400, 4404
"""Close codes of a WebSocket that is closed for good: docs/reference/http.md. After others the client reconnects."""

TOO_BIG = 1009


class AsyncEventReader:
    """Iterator over the events of the session at `path` from number `first` on, until its end or the deadline."""

    def __init__(self, connection: AsyncConnection, path: str, first: int, deadline: float | None = None) -> None:
        self._connection = connection
        self._path = path
        self._following = first
        self._deadline = deadline
        self._retries = connection.retries()
        self._socket: WebSocket | None = None
        self._opened = 0.0

    def __aiter__(self) -> "AsyncEventReader":
        return self

    async def __anext__(self) -> Event:
        while True:
            try:
                if self._socket is None:
                    self._opened = time.monotonic()
                    self._socket = await self._connection.open_socket(f"{self._path}/events?from={self._following}")
                event = read_event(await self._socket.receive(time_left(self._deadline)))
            except TimeoutError as error:
                if self._socket is not None:
                    raise StopAsyncIteration from None
                broken: Exception = error
            except ConnectionClosed as error:
                if _has_ended(error):
                    raise StopAsyncIteration from None
                broken = error
            except InvalidStatus as error:
                refusal = failure(error.response.status_code, bytes(error.response.body or b""))
                if not isinstance(refusal, errors.Unreachable):
                    raise refusal from None
                broken = refusal
            except (OSError, EOFError, WebSocketException) as error:
                broken = error
            else:
                if event is None or event.seq < self._following:
                    continue
                self._following = event.seq + 1
                self._retries.progress()
                return event
            await self._reconnect_after(broken)

    async def _reconnect_after(self, broken: Exception) -> None:
        """Wait before the next connection. Raise StopAsyncIteration after the deadline, and what ends the attempts."""
        await self.aclose()
        if time.monotonic() - self._opened > STABLE_SECONDS:
            self._retries.progress()
        if self.expired:
            raise StopAsyncIteration
        await self._connection.pause(self._retries, broken, self._path)

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        left = time_left(self._deadline)
        return left is not None and left <= 0

    async def aclose(self) -> None:
        """Close the connection. The events stay on the server."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()


class AsyncCellReader:
    """Iterator over the events of one cell, until its `done` or the deadline.

    Raises SessionNotFound if the session ends before.
    """

    def __init__(self, events: AsyncEventReader, cell: int, session_id: str) -> None:
        self._events = events
        self._cell = cell
        self._session_id = session_id
        self._done = False

    def __aiter__(self) -> "AsyncCellReader":
        return self

    async def __anext__(self) -> Event:
        if self._done:
            raise StopAsyncIteration
        async for event in self._events:
            if event.cell == self._cell:
                self._done = isinstance(event, Done)
                return event
        if self._events.expired:
            raise StopAsyncIteration
        raise errors.SessionNotFound(self._session_id)

    async def aclose(self) -> None:
        await self._events.aclose()


def _has_ended(closed: ConnectionClosed) -> bool:
    """Return whether the session ended normally; False to reconnect. Raise errors that reconnecting cannot solve."""
    if closed.sent is not None and closed.sent.code == TOO_BIG and not closed.rcvd_then_sent:
        raise errors.TooLarge(f"an event has more than {MAX_EVENT_BYTES} bytes, the limit of this client") from None
    if closed.rcvd is None:
        return False
    code, reason = closed.rcvd.code, closed.rcvd.reason
    if code == NO_SESSION:
        if reason.endswith("has ended"):
            return True
        error: errors.IngleError = errors.SessionNotFound.__new__(errors.SessionNotFound)
        errors.IngleError.__init__(error, reason)
        raise error from None
    if code == STOPPING:
        raise errors.Unavailable(
            f"{reason}; its sessions end with it, and durable ones come back with the next server"
        ) from None
    if code == POLICY:
        raise errors.Unauthorized(
            reason or "the server closed the connection; check the token: set INGLE_TOKEN, or pass token="
        ) from None
    if code == BAD_MESSAGE:
        raise errors.InvalidRequest(reason) from None
    return False
