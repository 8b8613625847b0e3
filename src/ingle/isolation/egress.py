"""An HTTP proxy that connects sessions to listed hosts, and to nothing else.

It accepts on a socket that was made inside of a session's own network, where it is the only way out. A host is compared
with the list as it is written, resolved once, and the address that was vetted is the one connected to. What is refused
is said in plain words, with the flag that would grant it. Headers, times, connections and buffers are bounded; nothing
outlives the session.

`CONNECT` makes a tunnel; a TLS greeting in it that names another host than the tunnel's is refused, since one address
often serves many hosts. A plain request is sent on alone, with `Connection: close`: one connection, one request.
"""

import asyncio
import base64
import contextlib
import logging
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ingle.isolation import greeting
from ingle.isolation.hosts import AllowList, BadHost, Entry, as_address, read_host, split_port

MAX_HEAD = 32 * 1024
MAX_HEADERS = 100
HEAD_PATIENCE = 15.0
"""For a request's head, and for the greeting in a tunnel."""

CONNECT_PATIENCE = 20.0
"""For resolving a name and connecting."""

QUIET_PATIENCE = 180.0
"""A connection on which nothing moves for so long is closed."""

WHOLE_PATIENCE = 3600.0
"""For one connection, whatever moves on it."""

MAX_CONNECTIONS = 64
"""Of one session at once."""

CHUNK = 64 * 1024
"""Read at once, and buffered in each direction before the sender has to wait."""

_METHOD = re.compile(rb"[A-Z]{1,20}")
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE = re.compile(r"http://([^/?#\s]+)([^\s#]*)", re.IGNORECASE)
_HOP_BY_HOP = {b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host"}

logger = logging.getLogger(__name__)


class Refused(Exception):
    """A request that is not carried out: the status to answer with, and a sentence."""

    def __init__(self, status: int, text: str, host: str | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.host = host
        """The host and port that was asked for and is not granted."""


@dataclass
class Counts:
    """What went through, for the metrics."""

    allowed: int = 0
    refused: int = 0
    failed: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Upstream:
    """The proxy that this machine itself goes through."""

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
    """How this machine itself reaches others, by its own proxy variables."""

    plain: Upstream | None = None
    tunnel: Upstream | None = None
    direct: tuple[str, ...] = ()

    @classmethod
    def read(cls, environ: dict[str, str]) -> "Route":
        def of(name: str) -> str:
            # In upper case HTTP_PROXY may come from a request to a CGI program, and is not heard by everybody.
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
    """The proxy of a server: one list, and a door for each session."""

    def __init__(self, allowed: AllowList, route: Route | None = None) -> None:
        self.allowed = allowed
        self._route = route or Route()
        self.counts = Counts()

    async def open(self, listening: socket.socket, on_refused: Callable[[str], None] | None = None) -> "Door":
        """Serve what comes in on this socket, until the door is closed. `on_refused` is told in words."""
        if listening.type != socket.SOCK_STREAM or not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listening.close()
            raise ValueError("only a socket that listens can be served")
        door = Door(self, on_refused or (lambda text: None))
        listening.setblocking(False)
        door.server = await asyncio.start_server(door.serve, sock=listening, limit=MAX_HEAD)
        return door

    async def connect(
        self, host: str, port: int, *, tunnel: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bool]:
        """A connection to a listed host, and whether it leads to another proxy that takes whole addresses."""
        entry = self.allowed.find(host, port)
        shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if entry is None:
            grant = f"[{host}]" if ":" in host else host
            grant += "" if port in (80, 443) else f":{port}"
            raise Refused(
                403, f"{shown} is not on the list of hosts; the operator grants it by --allow-host {grant}", shown
            )
        upstream = self._route.for_host(host, tunnel=tunnel)
        try:
            async with asyncio.timeout(CONNECT_PATIENCE):
                if upstream is not None:
                    reader, writer = await asyncio.open_connection(upstream.host, upstream.port, limit=MAX_HEAD)
                    if tunnel:
                        await _tunnel_on(reader, writer, shown, upstream)
                    return reader, writer, not tunnel
                reader, writer = await self._connect_vetted(entry, host, port, shown)
                return reader, writer, False
        except TimeoutError:
            raise Refused(504, f"{shown} did not answer within {CONNECT_PATIENCE:g} s") from None
        except OSError as error:
            raise Refused(502, f"{shown} could not be reached: {error.strerror or type(error).__name__}") from None

    async def _connect_vetted(
        self, entry: Entry, host: str, port: int, shown: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Resolve once, and connect to an address that was looked at."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        last: OSError | None = None
        near = None
        for text in addresses:
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
        grant = f"[{near}]" if near is not None and ":" in near else near
        raise Refused(
            403,
            f"{shown} has the address {near}, which is not a public one; the operator grants it by "
            f"--allow-host {grant}{'' if port in (80, 443) else f':{port}'}",
            shown,
        )


async def _tunnel_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, authority: str, upstream: Upstream
) -> None:
    """A tunnel through the machine's own proxy."""
    head = f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n"
    if upstream.authorization is not None:
        head += f"Proxy-Authorization: Basic {upstream.authorization}\r\n"
    writer.write(f"{head}\r\n".encode())
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
        status = int(answer.split(None, 2)[1])
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError):
        status = 0
    if not 200 <= status < 300:
        writer.close()
        raise Refused(502, f"this machine's own proxy does not connect to {authority} (status {status})")


@dataclass
class Request:
    method: bytes
    host: str
    port: int
    path: str
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: int = 0

    @property
    def tunnel(self) -> bool:
        return self.method == b"CONNECT"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 and not self.tunnel else f"{host}:{self.port}"

    def head(self, upstream: bool) -> bytes:
        """As it is sent on: of its own fields only those that are meant for the other end."""
        target = f"http://{self.authority}{self.path}" if upstream else self.path
        lines = [self.method + b" " + target.encode() + b" HTTP/1.1", b"Host: " + self.authority.encode()]
        lines += [name + b": " + value for name, value in self.fields]
        return b"\r\n".join([*lines, b"Connection: close", b"", b""])


def read_request(head: bytes) -> Request:
    """A request's head, or why it is none of ours."""
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]) or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise Refused(400, "this is not a request to an HTTP proxy")
    if len(lines) > MAX_HEADERS:
        raise Refused(431, f"the request has more than {MAX_HEADERS} header fields")
    method, target = words[0], words[1].decode("latin-1")
    try:
        if method == b"CONNECT":
            name, port = split_port(target)
            if port is None:
                raise BadHost("a tunnel needs a port")
            request = Request(method, read_host(name), port, "")
        else:
            found = _ABSOLUTE.fullmatch(target)
            if found is None:
                raise Refused(
                    400, "only http:// addresses can be asked for here; for others make a tunnel with CONNECT"
                )
            if "@" in found[1]:
                raise BadHost("it has a user name before it")
            name, port = split_port(found[1])
            path = found[2] if found[2].startswith("/") else f"/{found[2]}"
            request = Request(method, read_host(name), port or 80, path)
    except BadHost as error:
        raise Refused(400, f"the host in the request is refused: {error}") from None
    return _with_fields(request, lines)


def _with_fields(request: Request, lines: list[bytes]) -> Request:
    lengths: set[bytes] = set()
    dropped: set[bytes] = set(_HOP_BY_HOP)
    fields: list[tuple[bytes, bytes]] = []
    for line in lines:
        name, colon, value = line.partition(b":")
        value = value.strip(b" \t")
        if not colon or not _FIELD.fullmatch(name) or any(byte < 32 and byte != 9 for byte in value):
            raise Refused(400, "a header field of the request is malformed")
        lower = name.lower()
        if lower == b"transfer-encoding":
            raise Refused(411, "a body without a known length cannot be sent through; send a Content-Length")
        if lower == b"content-length":
            lengths.add(value)
        elif lower == b"connection":
            dropped |= {each.strip().lower() for each in value.split(b",")}
        fields.append((name, value))
    if len(lengths) > 1 or any(not each.isdigit() or len(each) > 15 for each in lengths):
        raise Refused(400, "the length of the request's body is not clear")
    request.body = int(lengths.pop()) if lengths else 0
    request.fields = [
        (name, value)
        for name, value in fields
        if name.lower() not in dropped and not name.lower().startswith(b"proxy-")
    ]
    return request


class Door:
    """One session's way out."""

    def __init__(self, egress: Egress, on_refused: Callable[[str], None]) -> None:
        self._egress = egress
        self._on_refused = on_refused
        self._serving: set[asyncio.Task[None]] = set()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None
        self.server: asyncio.Server | None = None

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    def close_soon(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """Let nothing more through, and end what goes on."""
        self._closed = True
        if self.server is not None:
            self.server.close()
        for task in list(self._serving):
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        counts = self._egress.counts
        try:
            async with asyncio.timeout(WHOLE_PATIENCE):
                try:
                    if len(self._serving) > MAX_CONNECTIONS or self._closed:
                        raise Refused(503, f"this session has {MAX_CONNECTIONS} connections open already; close some")
                    await self._carry_out(reader, writer, ends)
                except Refused as refused:
                    if refused.host is None:
                        counts.failed += 1
                    else:
                        counts.refused += 1
                        self._on_refused(refused.text)
                    await _answer(writer, refused)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in ends:
                each.close()

    async def _carry_out(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: list[asyncio.StreamWriter]
    ) -> None:
        try:
            async with asyncio.timeout(HEAD_PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise Refused(431, f"the head of the request is longer than {MAX_HEAD} bytes") from None
        except TimeoutError:
            raise Refused(408, f"no request came within {HEAD_PATIENCE:g} s") from None
        request = read_request(head)
        far_reader, far_writer, upstream = await self._egress.connect(request.host, request.port, tunnel=request.tunnel)
        ends.append(far_writer)
        self._egress.counts.allowed += 1
        for each in ends:
            each.transport.set_write_buffer_limits(high=CHUNK)
        if request.tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            first = await self._greeting(reader, request.host)
            far_writer.write(first)
            await self._both_ways(reader, writer, far_reader, far_writer, None)
        else:
            far_writer.write(request.head(upstream))
            await self._both_ways(reader, writer, far_reader, far_writer, request.body)

    async def _greeting(self, reader: asyncio.StreamReader, host: str) -> bytes:
        """The first bytes in a tunnel. If they are those of TLS they must be meant for this host."""
        said = b""
        while True:
            try:
                async with asyncio.timeout(HEAD_PATIENCE if said else QUIET_PATIENCE):
                    more = await reader.read(CHUNK)
            except TimeoutError:
                more = b""
            said += more
            found = greeting.server_name(said)
            if found is greeting.MORE and more and len(said) < greeting.MAX:
                continue
            if not said:
                return said
            if found is not None and (found is greeting.MORE or found != host):
                shown = found[:80] if isinstance(found, str) else "something that could not be told"
                text = f"a tunnel to {host} was used for {shown}; ask for that host by its own name"
                self._egress.counts.refused += 1
                self._on_refused(text)
                raise ConnectionAbortedError(text)
            return said

    async def _both_ways(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
        most: int | None,
    ) -> None:
        """Until the far end has said all. Of a plain request's side no more than its body goes on."""
        out = asyncio.create_task(self._relay(reader, far_writer, most))
        back = asyncio.create_task(self._relay(far_reader, writer, None))
        try:
            # Who has said all may still listen; what the far end says last is the end.
            await asyncio.wait({back})
        finally:
            for task in (out, back):
                task.cancel()
            await asyncio.wait({out, back})

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None) -> None:
        left = most
        try:
            while left is None or left > 0:
                async with asyncio.timeout(QUIET_PATIENCE):
                    data = await reader.read(CHUNK if left is None else min(CHUNK, left))
                if not data:
                    break
                left = None if left is None else left - len(data)
                self._egress.counts.bytes += len(data)
                writer.write(data)
                async with asyncio.timeout(QUIET_PATIENCE):
                    await writer.drain()
        except (OSError, TimeoutError):
            writer.transport.abort()
        if most is None:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()


async def _answer(writer: asyncio.StreamWriter, refused: Refused) -> None:
    # Clients show the words of the status line, and often nothing else.
    text = refused.text.encode("ascii", "replace").decode()
    body = f"ingle: {text}\n"
    writer.write(
        f"HTTP/1.1 {refused.status} {text}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        f"Connection: close\r\n\r\n{body}".encode()
    )
    async with asyncio.timeout(HEAD_PATIENCE):
        await writer.drain()
