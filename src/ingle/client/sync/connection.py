# Made from ../aio/connection.py by tools/unasync.py: change that one, and run it.
"""The way to one service: requests that are repeated where that is safe, and events that are missed by nobody.

A request that a server may have acted on already is repeated only if that changes nothing. Events have numbers: after
a connection broke, the next one begins with the number that comes next, so none is lost and none comes twice.
"""

import time
from contextlib import ExitStack
from typing import Any

import httpx
import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from ingle import errors
from ingle.client import discovery
from ingle.client.address import (
    FIRST_PATIENCE,
    LOCAL_URL,
    PATIENCE,
    Address,
    Retries,
    deadline_after,
    given_address,
    time_left,
)
from ingle.client.decode import read_event
from ingle.client.minimal import failure, reason
from ingle.client.sync.io import EventStream, HttpClient, HttpTransport, Lock, WebSocket, in_thread, sleep
from ingle.settings import data_folder
from ingle.support.running_servers import connect, reachable

CONNECT_PATIENCE = 10.0
ANSWER_SLACK = 20.0
"""How much longer than it was asked to wait a server may take to answer."""

WRITE_PATIENCE = 60.0

KEEP_ALIVE = 30.0
"""Idle connections are closed before the server would (after 75 s), so that a request never meets its end."""

CLOSE_PATIENCE = 1.0
"""How long the end of a WebSocket may take; its events are on the server, whatever happens."""

LASTED = 5.0
"""A connection that held for so long, while there was something to wait for, was a good one."""

MAX_EVENT = 256 * 1024 * 1024

STOPPING, POLICY, BAD_MESSAGE, NO_SESSION = 1001, 1008, 4400, 4404
"""Codes with which a server closes a WebSocket for good; docs/http.md has them. Others mean: come again."""

TOO_BIG = 1009


class Connection:
    """Opened at its first use. May be shared."""

    def __init__(self, url: str | None, token: str | None, start: bool) -> None:
        self._address = given_address(url, token)
        self._start = start
        self._opening = Lock()
        self._resources = ExitStack()
        self._http: HttpClient | None = None
        self._closed = False
        self._reached = False
        self._child: discovery.Child | None = None

    @property
    def where(self) -> str:
        """Which service, for people. Never the token."""
        if self._closed:
            return "closed"
        if self._address is None:
            return "not connected yet"
        return str(self._address)

    def open(self) -> HttpClient:
        if self._http is not None and not self._closed:
            return self._http
        with self._opening:
            if self._closed:
                raise errors.Unreachable("this client is closed; make a new one")
            if self._http is None:
                if self._address is None:
                    self._address = in_thread(self._find)
                self._http = self._make_http(self._address)
            return self._http

    def _find(self) -> Address:
        home = data_folder()
        found = discovery.find(home)
        if found is None:
            if not self._start:
                raise errors.Unreachable(f"no service runs on {home}; start one with `ingle serve`, or name a URL")
            found = discovery.start(home)
            self._child = found.child
        return Address(LOCAL_URL, path=found.path)

    def _make_http(self, address: Address) -> HttpClient:
        timeout = httpx.Timeout(ANSWER_SLACK, connect=CONNECT_PATIENCE, write=WRITE_PATIENCE, pool=None)
        # Every call that waits has a connection of its own: a bound would let some wait for others.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE)
        if address.path is not None:
            name = self._resources.enter_context(reachable(address.path))
            transport = HttpTransport(uds=name, limits=limits)
            return HttpClient(base_url=address.url, timeout=timeout, transport=transport, trust_env=False)
        return HttpClient(
            base_url=address.url,
            headers=address.headers,
            timeout=timeout,
            limits=limits,
            trust_env=not address.near,
        )

    @property
    def address(self) -> Address:
        """Where the service is; known once the connection is open."""
        assert self._address is not None
        return self._address

    def close(self) -> None:
        """Let go of it, and end the service if this client started it."""
        with self._opening:
            if self._closed:
                return
            self._closed = True
            try:
                if self._http is not None:
                    self._http.close()
            finally:
                self._resources.close()
                if self._child is not None:
                    in_thread(self._child.stop)

    # --- requests ---

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        content: bytes | None = None,
        query: dict[str, str | int | float] | None = None,
        headers: dict[str, str] | None = None,
        wait: float = 0.0,
        repeatable: bool = False,
    ) -> bytes:
        """The body of the answer; a refusal is raised as what it says.

        `wait` is what the server was asked to wait. What is `repeatable` changes nothing when it is done twice.
        """
        http = self.open()
        if body is not None:
            content = msgspec.json.encode(body)
            headers = {"Content-Type": "application/json", **(headers or {})}
        retries = self._retries()
        timeout = httpx.Timeout(wait + ANSWER_SLACK, connect=CONNECT_PATIENCE, write=WRITE_PATIENCE, pool=None)
        waiting = deadline_after(wait)
        while True:
            sent = time.monotonic()
            try:
                answer = http.request(method, path, content=content, params=query, headers=headers, timeout=timeout)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                # Nothing was sent.
                self._pause(retries, error)
                continue
            except httpx.TransportError as error:
                if not repeatable:
                    raise errors.Unreachable(
                        f"the connection to {self._where()} broke before the answer came ({reason(error)}), so it is "
                        "not known whether the request was carried out; look at the session before you ask again"
                    ) from error
                lasted = time.monotonic() - sent > LASTED and not isinstance(error, httpx.TimeoutException)
                if lasted and time_left(waiting):
                    retries.progress()
                self._pause(retries, error)
                continue
            self._reached = True
            if answer.is_success:
                return answer.content
            error_said = failure(answer.status_code, answer.content, answer.headers.get("retry-after"))
            if not (isinstance(error_said, errors.Unreachable) and repeatable):
                raise error_said
            # A proxy in front has lost the server for the moment.
            self._pause(retries, error_said)

    def _retries(self) -> Retries:
        return Retries(PATIENCE if self._reached else FIRST_PATIENCE)

    def _pause(self, retries: Retries, error: Exception) -> None:
        pause = None if self._is_gone(error) else retries.next_pause()
        if pause is None:
            if isinstance(error, errors.Unreachable):
                raise error
            raise errors.Unreachable(self._advice(error)) from error
        sleep(pause)

    def _is_gone(self, error: Exception) -> bool:
        """Whether waiting is of no use: nobody was ever there, or it was the socket of a process that has ended."""
        refused = (httpx.ConnectError, httpx.ConnectTimeout, ConnectionRefusedError, FileNotFoundError)
        return isinstance(error, refused) and (self.address.path is not None or not self._reached)

    def _where(self) -> str:
        path = self.address.path
        return f"the service behind {path}" if path is not None else self.address.url

    def _advice(self, error: Exception) -> str:
        if self.address.path is not None:
            return (
                f"{self._where()} does not answer any more ({reason(error)}); its sessions ended with it: "
                "make a new client"
            )
        return (
            f"{self._where()} cannot be reached ({reason(error)}); check the URL, and that `ingle serve` runs there "
            "and is reachable from this machine"
        )

    # --- events ---

    def events(self, path: str, first: int, deadline: float | None = None) -> EventStream:
        """Every event of the session at `path` from number `first` on, until it ends or the deadline is over."""
        self.open()
        retries = self._retries()
        following = first
        while True:
            opened = time.monotonic()
            socket = None
            try:
                socket = self._open_socket(f"{path}/events?from={following}")
                self._reached = True
                while True:
                    event = read_event(socket.receive(time_left(deadline)))
                    if event is not None and event.seq >= following:
                        following = event.seq + 1
                        retries.progress()
                        yield event
            except TimeoutError as error:
                if socket is not None:
                    return
                broken: Exception = error
            except ConnectionClosed as error:
                if _has_ended(error):
                    return
                broken = error
            except InvalidStatus as error:
                refusal = failure(error.response.status_code, bytes(error.response.body or b""))
                if not isinstance(refusal, errors.Unreachable):
                    raise refusal from None
                broken = refusal
            except (OSError, EOFError, WebSocketException) as error:
                broken = error
            finally:
                if socket is not None:
                    socket.close()
            if time.monotonic() - opened > LASTED:
                retries.progress()
            left = time_left(deadline)
            if left is not None and left <= 0:
                return
            self._pause(retries, broken)

    def _open_socket(self, path: str) -> WebSocket:
        address = self.address
        sock = in_thread(connect, address.path) if address.path is not None else None
        options: dict[str, Any] = {"proxy": None} if address.near else {}
        try:
            return WebSocket.open(
                address.socket_url + path,
                address.headers,
                sock,
                max_size=MAX_EVENT,
                open_timeout=CONNECT_PATIENCE,
                close_timeout=CLOSE_PATIENCE,
                **options,
            )
        except BaseException:
            if sock is not None:
                sock.close()
            raise


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _has_ended(closed: ConnectionClosed) -> bool:
    """Whether the session ended in order; False to come again. What will not be better next time is raised."""
    if closed.sent is not None and closed.sent.code == TOO_BIG and not closed.rcvd_then_sent:
        raise errors.TooLarge(f"an event is above {MAX_EVENT} bytes, which is more than this client takes") from None
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
        raise errors.Unavailable(f"{reason}; its sessions end with it") from None
    if code == POLICY:
        raise errors.Unauthorized(reason or "the server closed the connection; check the token") from None
    if code == BAD_MESSAGE:
        raise errors.InvalidRequest(reason) from None
    return False
