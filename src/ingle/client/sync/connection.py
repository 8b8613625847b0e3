# Generated from ../aio/connection.py by tools/unasync.py: edit that file, and run the script.
"""The connection to one service: requests with safe retries, and WebSockets.

A request that the server may have executed is repeated only if that changes nothing.
"""

import dataclasses
import socket as sockets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol, TypedDict, Unpack

import httpx
import msgspec

from ingle import errors
from ingle.client import discovery
from ingle.client.address import (
    FIRST_RETRY_SECONDS,
    LOCAL_URL,
    RETRY_SECONDS,
    Address,
    Folder,
    Retries,
    check_client_name,
    deadline_after,
    given_address,
    time_left,
)
from ingle.client.minimal import MinimalClient, failure, reason
from ingle.client.sync.io import (
    CallSocket,
    HttpClient,
    HttpTransport,
    LineStream,
    Lock,
    WebSocket,
    body_of,
    in_thread,
    open_near,
    sleep,
)
from ingle.settings import data_folder
from ingle.support.running_servers import connect, reachable

CONNECT_SECONDS = 10.0
ANSWER_SLACK_SECONDS = 20.0
"""Time that a server may take in addition to the requested wait."""

WRITE_SECONDS = 60.0

GRANT_SECONDS = 60.0
"""Time for a service to grant a folder: it starts an interpreter that sees it."""

STREAM_TIMEOUT = httpx.Timeout(120.0, connect=CONNECT_SECONDS, pool=None)
"""How long a body that streams may pause: a disk may be slow."""

KEEP_ALIVE_SECONDS = 30.0
"""Idle connections are closed before the server does (after 75 s), so that no request meets a closed one."""

CLOSE_SECONDS = 1.0
"""Time for closing a WebSocket; its events stay on the server."""

STABLE_SECONDS = 5.0
"""A connection that lasted this long while waiting counts as progress."""

MAX_EVENT_BYTES = 256 * 1024 * 1024


class Closable(Protocol):
    """Functions that end with the connection."""

    def close(self) -> None: ...


class RequestOptions(TypedDict, total=False):
    """Options of a request to the service."""

    body: Any
    """Sent as JSON."""
    content: bytes | None
    query: dict[str, str | int | float] | None
    headers: dict[str, str] | None
    wait: float
    """Time that the server was asked to wait."""
    repeatable: bool
    """Whether the request has the same effect if sent twice."""


class Connection:
    """Connection to a service, opened on first use. Tasks and threads may share it."""

    def __init__(
        self, url: str | None, token: str | None, start: bool, folder: Folder | None = None, name: str | None = None
    ) -> None:
        """`folder` is granted to the sessions of a service on this machine. Cells name the client as `name`."""
        self._address = given_address(url, token)
        self._agent = check_client_name(name)
        self._start = start
        self._folder = folder
        self._opening = Lock()
        self._resources = ExitStack()
        self._http: HttpClient | None = None
        self._closed = False
        self._reached = False
        self.durable: dict[str, bool] = {}
        """Whether each session in use is durable, as far as the service has told."""
        self._child: discovery.Child | None = None
        self.provided: set[Closable] = set()
        """Functions of this program that sessions may call."""

    @property
    def where(self) -> str:
        """Return the service's address for people, without the token."""
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
                raise errors.Unreachable("this client is closed; create a new one")
            if self._http is None:
                if self._address is None:
                    self._address = in_thread(self._find)
                self._address = dataclasses.replace(self._address, agent=self._agent)
                self._http = self._make_http(self._address)
            return self._http

    def _find(self) -> Address:
        home = data_folder()
        found = discovery.find(home)
        if found is None:
            if not self._start:
                raise errors.Unreachable(f"no service runs on {home}; start one with `ingle serve`, or pass a URL")
            found = discovery.start(home, None if self._folder is None else self._folder.text)
            self._child = found.child
            return Address(LOCAL_URL, path=found.path)
        address = Address(LOCAL_URL, path=found.path)
        if self._folder is not None:
            wanted = self._folder.grant
            MinimalClient(address).request("POST", "/v1/grants", wanted, timeout=GRANT_SECONDS)
        return address

    def _make_http(self, address: Address) -> HttpClient:
        timeout = httpx.Timeout(ANSWER_SLACK_SECONDS, connect=CONNECT_SECONDS, write=WRITE_SECONDS, pool=None)
        # Every waiting call needs its own connection: a bound would let some calls wait for others.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_SECONDS)
        # Without TLS there is nothing to verify, and httpx would spend 20 ms on reading all root certificates.
        if address.path is not None:
            name = self._resources.enter_context(reachable(address.path))
            transport = HttpTransport(uds=name, limits=limits, verify=False)
            return HttpClient(
                base_url=address.url,
                headers=address.headers,
                timeout=timeout,
                transport=transport,
                trust_env=False,
            )
        return HttpClient(
            base_url=address.url,
            headers=address.headers,
            timeout=timeout,
            limits=limits,
            verify=address.has_tls,
            trust_env=not address.near,
        )

    @property
    def address(self) -> Address:
        """Address of the service, known once the connection is open."""
        assert self._address is not None
        return self._address

    def close(self) -> None:
        """Disconnect, and end the service if this client started it."""
        with self._opening:
            if self._closed:
                return
            self._closed = True
            for each in list(self.provided):
                each.close()
            try:
                if self._http is not None:
                    self._http.close()
            finally:
                self._resources.close()
                if self._child is not None:
                    in_thread(self._child.stop)

    # --- requests ---

    def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> bytes:
        """Send a request, and return the body of the answer or raise the error it describes."""
        return (self.exchange(method, path, **options))[1]

    def exchange(
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
    ) -> tuple[str, bytes]:
        """Do as `request` does, and return the content type of the answer too."""
        http = self.open()
        if body is not None:
            content = msgspec.json.encode(body)
            headers = {"Content-Type": "application/json", **(headers or {})}
        retries = self.retries()
        timeout = httpx.Timeout(wait + ANSWER_SLACK_SECONDS, connect=CONNECT_SECONDS, write=WRITE_SECONDS, pool=None)
        waiting = deadline_after(wait)
        while True:
            sent = time.monotonic()
            try:
                answer = http.request(method, path, content=content, params=query, headers=headers, timeout=timeout)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                # Nothing was sent.
                self.pause(retries, error, path)
                continue
            except httpx.TransportError as error:
                if not repeatable:
                    raise errors.Unreachable(
                        f"the connection to {self._where()} broke before the answer came ({reason(error)}), so the "
                        "request may or may not have been executed; check the session before you repeat it"
                    ) from error
                lasted = time.monotonic() - sent > STABLE_SECONDS and not isinstance(error, httpx.TimeoutException)
                if lasted and time_left(waiting):
                    retries.progress()
                self.pause(retries, error, path)
                continue
            self._reached = True
            if answer.is_success:
                return answer.headers.get("content-type", ""), answer.content
            error_said = failure(answer.status_code, answer.content, answer.headers.get("retry-after"))
            if not (isinstance(error_said, errors.Unreachable) and repeatable):
                raise error_said
            # A proxy has lost its server for the moment.
            self.pause(retries, error_said, path)

    def send(self, method: str, path: str, pieces: Iterator[bytes], query: dict[str, str | int | float]) -> bytes:
        """Send a body as it comes, and return that of the answer. Nothing is sent twice."""
        http = self.open()
        try:
            answer = http.request(method, path, content=body_of(pieces), params=query, timeout=STREAM_TIMEOUT)
        except httpx.TransportError as error:
            raise errors.Unreachable(self._broken(error)) from error
        self._reached = True
        if not answer.is_success:
            raise failure(answer.status_code, answer.content, answer.headers.get("retry-after"))
        return answer.content

    def receive(
        self, method: str, path: str, take: Callable[[bytes], None], query: dict[str, str | int | float]
    ) -> None:
        """Hand the body of the answer on as it comes. `take` may block."""
        http = self.open()
        try:
            with http.stream(method, path, params=query, timeout=STREAM_TIMEOUT) as answer:
                self._reached = True
                if not answer.is_success:
                    raise failure(answer.status_code, answer.read(), answer.headers.get("retry-after"))
                for data in answer.iter_raw():
                    in_thread(take, data)
        except httpx.TransportError as error:
            raise errors.Unreachable(self._broken(error)) from error

    def lines(self, path: str, body: Any, pause: float) -> LineStream:
        """Post a body, and yield the lines of the answer as they come, at most `pause` seconds apart.

        Nothing is sent twice. Closing the stream closes the connection, and so ends the request.
        """
        http = self.open()
        timeout = httpx.Timeout(pause, connect=CONNECT_SECONDS, write=WRITE_SECONDS, pool=None)
        headers, content = {"Content-Type": "application/json"}, msgspec.json.encode(body)
        rest = b""
        try:
            with http.stream("POST", path, content=content, headers=headers, timeout=timeout) as answer:
                self._reached = True
                if not answer.is_success:
                    raise failure(answer.status_code, answer.read(), answer.headers.get("retry-after"))
                for data in answer.iter_raw():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        yield line
        except httpx.TransportError as error:
            raise errors.Unreachable(
                f"the connection to {self._where()} broke ({reason(error)}); results that have come are whole, and the "
                "others are lost"
            ) from error

    def _broken(self, error: Exception) -> str:
        return f"the connection to {self._where()} broke ({reason(error)}); some files may be copied; try again"

    def retries(self) -> Retries:
        """Return the pauses between attempts, as many as a service of this connection is worth."""
        return Retries(RETRY_SECONDS if self._reached else FIRST_RETRY_SECONDS)

    def pause(self, retries: Retries, error: Exception, path: str) -> None:
        """Wait before the next attempt. Raise the error, or Unreachable, if there is none."""
        pause = None if self._is_gone(error) else retries.next_pause()
        if pause is None:
            if isinstance(error, errors.Unreachable):
                raise error
            raise errors.Unreachable(self._advice(error, path)) from error
        sleep(pause)

    def _is_gone(self, error: Exception) -> bool:
        """Return whether retrying is useless: no service ever answered, or its socket's process has ended."""
        refused = (httpx.ConnectError, httpx.ConnectTimeout, ConnectionRefusedError, FileNotFoundError)
        return isinstance(error, refused) and (self.address.path is not None or not self._reached)

    def _where(self) -> str:
        path = self.address.path
        return f"the service behind {path}" if path is not None else self.address.url

    def _advice(self, error: Exception, path: str) -> str:
        name = path.removeprefix("/v1/sessions/").split("/")[0]
        durable = self.durable.get(name)
        if self.address.path is not None:
            fate = {
                None: "its sessions have ended with it, except durable ones, which come back with the next server",
                True: f"session {name!r} is durable: it comes back with the next server, as it was last saved",
                False: f"session {name!r} was not durable, so it is gone",
            }[durable]
            return (
                f"{self._where()} does not answer any more ({reason(error)}); {fate}; start `ingle serve` again, and "
                "connect anew"
            )
        fate = {
            None: "",
            True: f"; session {name!r} is durable: should the server have ended, it comes back with the next one",
            False: f"; session {name!r} is not durable: should the server have ended, it is gone",
        }[durable]
        return (
            f"{self._where()} cannot be reached ({reason(error)}); check the URL, and that `ingle serve` runs there "
            f"and is reachable from this machine{fate}"
        )

    # --- WebSockets ---

    def open_socket(self, path: str) -> WebSocket:
        """Open a WebSocket of the service."""
        options: dict[str, Any] = {"proxy": None} if self.address.near else {}
        sock = self._unix_socket()
        try:
            opened = WebSocket.open(
                self.address.socket_url + path,
                self.address.headers,
                sock,
                max_size=MAX_EVENT_BYTES,
                open_timeout=CONNECT_SECONDS,
                close_timeout=CLOSE_SECONDS,
                **options,
            )
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        self._reached = True
        return opened

    def open_call_socket(self, path: str) -> CallSocket:
        """Open a WebSocket of the service for calls, which many small messages make."""
        url, headers = self.address.socket_url + path, self.address.headers
        if not self.address.near or not url.startswith("ws:"):
            return self.open_socket(path)
        sock = self._unix_socket()
        try:
            return open_near(url, headers, sock, max_size=MAX_EVENT_BYTES, open_timeout=CONNECT_SECONDS)
        except BaseException:
            if sock is not None:
                sock.close()
            raise

    def _unix_socket(self) -> sockets.socket | None:
        path = self.address.path
        return in_thread(connect, path) if path is not None else None
