"""HTTP proxy that connects sessions to allowed hosts only.

It accepts connections on a socket inside a session's own network, which has no other way out. A host is compared with
the list as written and resolved once; the checked address is the one connected to. Refusals name the flag that would
grant them. Headers, times, connections and buffers are bounded, and nothing outlives the session.

`CONNECT` opens a tunnel. A TLS ClientHello for another host is refused, because one address often serves many hosts.
A plain request is forwarded alone with `Connection: close`, also in a tunnel to port 80, since each names its own host.
"""

import asyncio
import base64
import contextlib
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from ingle.isolation.egress import tls_hello
from ingle.isolation.egress.allow_list import USUAL_PORTS, AllowList, BadHost, Entry, as_address, read_host
from ingle.isolation.egress.host_log import HostLog
from ingle.isolation.egress.request_head import Refused, Request, read_inner, read_request

MAX_HEAD = 32 * 1024
HEAD_TIMEOUT_SECONDS = 15.0
"""For a request's head, and for the ClientHello in a tunnel."""

CONNECT_TIMEOUT_SECONDS = 20.0
"""For resolving a name and connecting."""

IDLE_TIMEOUT_SECONDS = 180.0
"""A connection without traffic in either direction is closed after this time."""

CONNECTION_TIMEOUT_SECONDS = 3600.0
"""Maximum life of one connection."""

MAX_CONNECTIONS = 64
"""Per session. A connection counts until all of its data was taken."""

DESCRIPTOR_SHARE = 8
"""Connections of all sessions may use one in this many of the server's file descriptors. Each uses two."""

REPORTS_PER_MINUTE = 60
"""Reported refusals of one session: each may become a line in a log."""

PLAIN_PORT = 80

CHUNK_BYTES = 64 * 1024
"""Bytes read at once, and buffered in each direction before the sender has to wait."""


@dataclass
class Counts:
    """Counters for the metrics."""

    allowed: int = 0
    refused: int = 0
    failed: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Upstream:
    """The proxy that this machine itself uses."""

    host: str
    port: int
    authorization: str | None = None

    @classmethod
    def read(cls, url: str) -> "Upstream | None":
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port or 80
        except ValueError:
            return None
        if parts.scheme != "http" or not parts.hostname:
            return None
        login = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            login = base64.b64encode(pair.encode()).decode()
        return cls(parts.hostname, port, login)


@dataclass
class Route:
    """How this machine itself reaches other hosts, by its proxy variables."""

    plain: Upstream | None = None
    tunnel: Upstream | None = None
    direct: tuple[str, ...] = ()

    @classmethod
    def read(cls, environ: dict[str, str]) -> "Route":
        def of(name: str) -> str:
            # The lower case has priority: a CGI request can set HTTP_PROXY in upper case.
            return (
                environ.get(name)
                or environ.get(name.upper())
                or environ.get("all_proxy")
                or environ.get("ALL_PROXY", "")
            )

        direct = environ.get("no_proxy") or environ.get("NO_PROXY", "")
        return cls(
            Upstream.read(of("http_proxy")) if of("http_proxy") else None,
            Upstream.read(of("https_proxy")) if of("https_proxy") else None,
            tuple(each.strip().lower().lstrip(".") for each in direct.split(",") if each.strip()),
        )

    def for_host(self, host: str, *, tunnel: bool) -> Upstream | None:
        if any(each == "*" or host == each or host.endswith("." + each) for each in self.direct):
            return None
        return self.tunnel if tunnel else self.plain


class Egress:
    """The proxy of a server: one allow-list, and one listener for each session."""

    def __init__(self, allowed: AllowList, route: Route | None = None, *, held: bool = False) -> None:
        """`held`: it serves a trial that may connect to no host, whatever the session may."""
        self.allowed = allowed
        self._held = held
        self._route = route or Route()
        self.counts = Counts()
        self.connections = 0
        """Of all sessions."""
        self._lookups: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    @property
    def is_full(self) -> bool:
        return self.connections > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // DESCRIPTOR_SHARE // 2

    async def open(
        self,
        listening: socket.socket,
        on_refused: Callable[[str], None] | None = None,
        hosts: HostLog | None = None,
    ) -> "Listener":
        """Serve connections on this socket until the listener is closed.

        `on_refused` gets each refusal as text. `hosts` notes the hosts that are asked for.
        """
        if listening.type != socket.SOCK_STREAM or not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listening.close()
            raise ValueError("only a listening socket can be served")
        listener = Listener(self, on_refused or (lambda text: None), hosts or HostLog())
        listening.setblocking(False)
        for kind in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            # Connections inherit this. By default the kernel buffers megabytes for a client that does not read, which
            # only helps over long distances.
            listening.setsockopt(socket.SOL_SOCKET, kind, 2 * CHUNK_BYTES)
        listener.server = await asyncio.start_server(listener.serve, sock=listening, limit=MAX_HEAD)
        return listener

    async def connect(
        self, host: str, port: int, *, tunnel: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
        """Connect to an allowed host. Also return whether the peer is a proxy that expects absolute URLs."""
        entry = self.allowed.find(host, port)
        shown = shown_host(host, port)
        if entry is None:
            grant = _grant(host, port)
            text = f"{shown} is not on the list of hosts; the operator grants it with `ingle grant --host {grant}`"
            if self._held:
                text = f"{shown} is held by this trial; run it with --network allowed, or without a trial"
            raise Refused(403, text, shown, grant)
        upstream = self._route.for_host(host, tunnel=tunnel)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                if upstream is not None:
                    reader, writer = await asyncio.open_connection(upstream.host, upstream.port, limit=MAX_HEAD)
                    if tunnel:
                        await _tunnel_on(reader, writer, shown, upstream)
                    return reader, writer, not tunnel
                reader, writer = await self._connect_vetted(entry, host, port, shown)
                return reader, writer, False
        except TimeoutError:
            raise Refused(504, f"{shown} did not answer within {CONNECT_TIMEOUT_SECONDS:g} s") from None
        except OSError as error:
            raise Refused(502, f"{shown} could not be reached: {error.strerror or type(error).__name__}") from None

    async def _connect_vetted(
        self, entry: Entry, host: str, port: int, shown: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Resolve the host once, and connect to an allowed address of it."""
        last: OSError | None = None
        near = None
        for text in await self._look_up(host, port):
            address = as_address(text)
            if address is None or not self.allowed.allows_address(entry, address, port):
                near = near or text
                continue
            try:
                return await asyncio.open_connection(address.compressed, port, limit=MAX_HEAD)
            except OSError as error:
                last = error
        if last is not None:
            raise last
        grant = _grant(str(near), port)
        raise Refused(
            403,
            f"{shown} has the address {near}, which is not public; the operator grants it with "
            f"`ingle grant --host {grant}`",
            shown,
            grant,
        )

    async def _look_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host. Concurrent lookups of one host share a task.

        The threads that wait for a slow resolver are few, and one session must not occupy all of them.
        """
        looking = self._lookups.get((host, port))
        if looking is None:
            looking = asyncio.create_task(_resolve(host, port))
            self._lookups[host, port] = looking
            looking.add_done_callback(lambda done: self._forget_lookup(host, port, done))
        return await asyncio.shield(looking)

    def _forget_lookup(self, host: str, port: int, done: "asyncio.Task[list[str]]") -> None:
        del self._lookups[host, port]
        if not done.cancelled():
            done.exception()  # retrieved here, because there may be no waiter left


def shown_host(host: str, port: int) -> str:
    """Return host and port as one text."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _grant(host: str, port: int) -> str:
    """Return the host as an operator grants it."""
    grant = f"[{host}]" if ":" in host else host
    return grant if port in USUAL_PORTS else f"{grant}:{port}"


async def _resolve(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _tunnel_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str, upstream: Upstream
) -> None:
    """Open a tunnel through the machine's own proxy."""
    head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
    if upstream.authorization is not None:
        head += f"Proxy-Authorization: Basic {upstream.authorization}\r\n"
    writer.write(f"{head}\r\n".encode())
    status = 0
    try:
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError):
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer.split(None, 2)[1])
    finally:
        if not 200 <= status < 300:
            writer.transport.abort()  # also after a cancellation
    if not 200 <= status < 300:
        raise Refused(502, f"this machine's own proxy refuses to connect to {authority} (status {status})")


class Listener:
    """The proxy's listener in one session's network."""

    def __init__(self, egress: Egress, on_refused: Callable[[str], None], hosts: HostLog) -> None:
        self._egress = egress
        self._hosts = hosts
        self._on_refused = on_refused
        self._serving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self._minute = 0.0
        self._reported = 0
        self.server: asyncio.Server | None = None

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        self._egress.connections += 1
        task.add_done_callback(self._served)

    def _served(self, task: "asyncio.Task[None]") -> None:
        self._serving.discard(task)
        self._egress.connections -= 1

    def close_soon(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """Accept no more connections, and end the open ones."""
        self._closed = True
        if self.server is not None:
            self.server.close()
        for task in list(self._serving):
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            async with asyncio.timeout(CONNECTION_TIMEOUT_SECONDS):
                try:
                    self._check_capacity()
                    await self._carry_out(reader, writer, ends)
                except Refused as refused:
                    self._note(refused)
                    await _answer(writer, refused)
            await _flush(ends)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in ends:
                each.transport.abort()

    def _check_capacity(self) -> None:
        if len(self._serving) > MAX_CONNECTIONS or self._closed:
            raise Refused(503, f"this session already has {MAX_CONNECTIONS} open connections; close some")
        if self._egress.is_full:
            raise Refused(503, "all sessions together have as many open connections as this server allows; retry later")

    def _note(self, refused: Refused) -> None:
        if refused.host is None:
            self._egress.counts.failed += 1
        else:
            self._egress.counts.refused += 1
            self._hosts.refused(refused.host, refused.grant)
            self._report(refused.text)

    def _report(self, text: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._minute > 60:
            self._minute, self._reported = now, 0
        self._reported += 1
        if self._reported <= REPORTS_PER_MINUTE:
            self._on_refused(text)

    async def _carry_out(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: list[asyncio.StreamWriter]
    ) -> None:
        request = read_request(await _read_head(reader))
        far_reader, far_writer, upstream = await self._egress.connect(request.host, request.port, tunnel=request.tunnel)
        ends.append(far_writer)
        self._egress.counts.allowed += 1
        self._hosts.reached(shown_host(request.host, request.port))
        for each in ends:
            each.transport.set_write_buffer_limits(high=CHUNK_BYTES)
        most: int | None = request.body
        if request.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            first, most = await self._begin_tunnel(reader, request)
        else:
            first = request.head(upstream)
        far_writer.write(first)
        await _Relay(self._egress.counts).carry(reader, writer, far_reader, far_writer, most)

    async def _begin_tunnel(self, reader: asyncio.StreamReader, tunnel: Request) -> tuple[bytes, int | None]:
        """Return the first bytes of a tunnel, and how many more may follow (None: any number).

        A TLS ClientHello must name the tunnel's host.
        """
        async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
            first = await reader.read(1)
        if not first or first[0] not in tls_hello.RECORDS:
            if not first or tunnel.port != PLAIN_PORT:
                return first, None
            inner = read_inner(await _read_head(reader, first), tunnel)
            return inner.head(upstream=False), inner.body
        hello = tls_hello.ClientHello()
        found = hello.feed(first)
        async with asyncio.timeout(HEAD_TIMEOUT_SECONDS):
            while (
                found is tls_hello.MORE
                and len(hello.data) < tls_hello.MAX_BYTES
                and (more := await reader.read(CHUNK_BYTES))
            ):
                found = hello.feed(more)
        if found is None or found == tunnel.host:
            return bytes(hello.data), None
        text = f"a tunnel to {tunnel.host} was used for {_shown(found)}; request that host by its own name"
        self._egress.counts.refused += 1
        self._report(text)
        raise ConnectionAbortedError(text)


def _shown(found: object) -> str:
    """Return the host of a ClientHello if it is valid: text made up by a session is not repeated."""
    with contextlib.suppress(BadHost):
        if isinstance(found, str):
            return read_host(found)
    return "a host that could not be read"


class _Relay:
    """Copies bytes between two connections, in both directions."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._loop = asyncio.get_running_loop()
        self._moved = self._loop.time()

    async def carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
        most: int | None,
    ) -> None:
        """Copy until the far end is finished. If `most` is set, the session's side sends no more bytes than that."""
        out = asyncio.create_task(self._relay(reader, far_writer, most))
        back = asyncio.create_task(self._relay(far_reader, writer, None))
        try:
            # The session may close its sending side and still read, so only the far end decides.
            while not back.done():
                left = self._moved + IDLE_TIMEOUT_SECONDS - self._loop.time()
                if left <= 0:
                    raise TimeoutError
                await asyncio.wait({back}, timeout=left)
        finally:
            for task in (out, back):
                task.cancel()
            await asyncio.wait({out, back})

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None) -> None:
        left = most
        try:
            while left is None or left > 0:
                data = await reader.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
                if not data:
                    break
                left = None if left is None else left - len(data)
                self._counts.bytes += len(data)
                self._moved = self._loop.time()
                writer.write(data)
                await writer.drain()
                self._moved = self._loop.time()
        except OSError:
            writer.transport.abort()
        if most is None:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()


async def _read_head(reader: asyncio.StreamReader, first: bytes = b"") -> bytes:
    try:
        async with asyncio.timeout(HEAD_TIMEOUT_SECONDS):
            return first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise Refused(431, f"the head of the request is longer than {MAX_HEAD} bytes") from None
    except TimeoutError:
        raise Refused(408, f"no request came within {HEAD_TIMEOUT_SECONDS:g} s") from None


async def _flush(ends: list[asyncio.StreamWriter]) -> None:
    """Close the connections and wait until the other ends have read everything.

    The wait is bounded: a peer that reads nothing could keep a closing connection open for ever.
    """
    for each in ends:
        each.close()
    async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
        for each in ends:
            with contextlib.suppress(OSError):
                await each.wait_closed()


async def _answer(writer: asyncio.StreamWriter, refused: Refused) -> None:
    # Clients show the reason in the status line, and often nothing else.
    text = refused.text.encode("ascii", "replace").decode()
    body = f"ingle: {text}\n"
    writer.write(
        f"HTTP/1.1 {refused.status} {text}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n{body}".encode()
    )
    async with asyncio.timeout(HEAD_TIMEOUT_SECONDS):
        await writer.drain()
