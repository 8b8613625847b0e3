"""The proxy that is a sandbox's only way out: what it lets through, what it refuses, and in which words."""

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from ingle.isolation.egress import package_index, tls_hello
from ingle.isolation.egress import proxy as egress_module
from ingle.isolation.egress.allow_list import AllowList, BadHost, Entry, as_address, public, read_entry, read_host
from ingle.isolation.egress.proxy import Egress, Listener, Route, Upstream
from support.package_index import serve_index

LOOP = "127.0.0.1"


def listening() -> socket.socket:
    sock = socket.socket()
    sock.bind((LOOP, 0))
    sock.listen(16)
    return sock


class Origin:
    """Another host: remembers what it was asked, and answers the same to everybody."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, TimeoutError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if b"\r\nContent-Length: 5\r\n" in head:
                self.bodies.append(await reader.readexactly(5))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            await writer.drain()
            # What else is sent here must not have got through.
            self.bodies.append(await asyncio.wait_for(reader.read(), 0.3))
        writer.close()


@pytest.fixture
async def origin() -> AsyncIterator[Origin]:
    made = Origin()
    server = await asyncio.start_server(made.serve, LOOP, 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


Opening = Callable[..., Any]


@pytest.fixture
async def opened() -> AsyncIterator[Opening]:
    """Open a listener with this list; its port, the proxy, and what it said of refusals."""
    listeners: list[Listener] = []

    async def make(*hosts: str, route: Route | None = None, near: bool = False) -> tuple[int, Egress, list[str]]:
        proxy = Egress(AllowList(read_entry(each, near=near) for each in hosts), route)
        said: list[str] = []
        sock = listening()
        port = sock.getsockname()[1]
        listeners.append(await proxy.open(sock, said.append))
        return port, proxy, said

    yield make
    for listener in listeners:
        await listener.close()


async def exchange(port: int, data: bytes, *, eof: bool = False) -> bytes:
    """Send these bytes to the proxy; all that comes back."""
    reader, writer = await asyncio.open_connection(LOOP, port)
    writer.write(data)
    if eof:
        writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()


def request(target: str, *fields: str, method: str = "GET", body: str = "") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", *fields, "", body]).encode("latin-1")


async def test_a_listed_host_is_reached_and_only_its_own_request_goes_on(opened: Opening, origin: Origin) -> None:
    port, proxy, said = await opened(f"{LOOP}:{origin.port}")
    target = f"http://{LOOP}:{origin.port}/a?b=c"
    fields = ["Host: evil", "X-Kept: 1", "Proxy-Authorization: Basic eA==", "Connection: keep-alive, X-Hop", "X-Hop: 2"]
    second = request(f"http://{LOOP}:{origin.port}/second", "Host: other")
    answer = await exchange(port, request(target, *fields) + second, eof=True)
    assert answer.endswith(b"\r\n\r\nhello")
    expected = f"GET /a?b=c HTTP/1.1\r\nHost: {LOOP}:{origin.port}\r\nX-Kept: 1\r\nConnection: close\r\n\r\n"
    assert origin.heads == [expected.encode()]
    assert (proxy.counts.allowed, proxy.counts.refused, said) == (1, 0, [])


async def test_a_body_goes_on_and_no_byte_more(opened: Opening, origin: Origin) -> None:
    port, *_ = await opened(f"{LOOP}:{origin.port}")
    target = f"http://{LOOP}:{origin.port}/"
    data = request(target, "Content-Length: 5", method="POST", body="12345GET /smuggled HTTP/1.1\r\n\r\n")
    assert (await exchange(port, data)).endswith(b"hello")
    assert origin.bodies[0] == b"12345"
    assert origin.connections == 1


async def test_a_tunnel_carries_both_ways_and_ends_with_either(opened: Opening, origin: Origin) -> None:
    port, proxy, _ = await opened(f"{LOOP}:{origin.port}")
    reader, writer = await asyncio.open_connection(LOOP, port)
    writer.write(request(f"{LOOP}:{origin.port}", method="CONNECT"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert (await reader.readuntil(b"hello")).endswith(b"hello")
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert proxy.counts.bytes > 60
    writer.close()


@pytest.mark.parametrize("tunnel", [True, False])
async def test_what_is_not_listed_is_refused_with_the_command_that_grants_it(opened: Opening, tunnel: bool) -> None:
    port, proxy, said = await opened("pypi.org")
    data = request("files.example.org:8443", method="CONNECT") if tunnel else request("http://files.example.org:8443/x")
    text = (
        "files.example.org:8443 is not on the list of hosts; the operator grants it with "
        "`ingle grant --host files.example.org:8443`"
    )
    answer = await exchange(port, data)
    assert answer.startswith(f"HTTP/1.1 403 {text}\r\n".encode())
    assert answer.endswith(f"\r\n\r\ningle: {text}\n".encode())
    assert (said, proxy.counts.refused, proxy.counts.allowed) == ([text], 1, 0)


async def test_an_empty_list_allows_nothing(opened: Opening, origin: Origin) -> None:
    port, *_ = await opened()
    for host in (f"{LOOP}:{origin.port}", "pypi.org:443", "localhost:80"):
        assert (await exchange(port, request(host, method="CONNECT"))).startswith(b"HTTP/1.1 403 ")
    assert origin.connections == 0


ODD = [
    "127.1:PORT",
    "0x7f.0.0.1:PORT",
    "0x7f000001:PORT",
    "2130706433:PORT",
    "0177.0.0.1:PORT",
    "127.0.0.01:PORT",
    "[::ffff:127.0.0.1]:PORT",
    "[::127.0.0.1]:PORT",
    "[64:ff9b::7f00:1]:PORT",
    "[2002:7f00:1::]:PORT",
    "[::1%lo]:PORT",
    "127.0.0.1.:PORT",
    "localhost.:PORT",
    "local\0host:PORT",
    "127.0.0.1\0.pypi.org:PORT",
    "127.0.0.1%00.pypi.org:PORT",
    "127.0.0.1 pypi.org:PORT",
    "user@127.0.0.1:PORT",
    "127。0。0。1:PORT",
    "①27.0.0.1:PORT",
    "-x:PORT",
    ".:PORT",
    "..:PORT",
    ":PORT",
    "[::1:PORT",
    "127.0.0.1:",
    "127.0.0.1:0",
    "127.0.0.1:99999",
    "127.0.0.1:+80",
    "127.0.0.1:8o",
    f"{'a' * 64}:PORT",
    f"{'a.' * 127}org:PORT",
]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("tunnel", [True, False])
async def test_an_odd_spelling_of_a_host_gets_nowhere(opened: Opening, origin: Origin, odd: str, tunnel: bool) -> None:
    port, *_ = await opened(f"{LOOP}:{origin.port}", f"localhost:{origin.port}")
    target = odd.replace("PORT", str(origin.port))
    line = f"CONNECT {target} HTTP/1.1\r\n\r\n" if tunnel else f"GET http://{target}/ HTTP/1.1\r\n\r\n"
    answer = await exchange(port, line.encode("utf-8"))
    assert answer.split(b" ")[1] in (b"400", b"403"), answer
    assert origin.connections == 0


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1",
        "GET https://pypi.org/ HTTP/1.1",
        "GET ftp://pypi.org/ HTTP/1.1",
        "GET http://pypi.org/ HTTP/2",
        "get http://pypi.org/ HTTP/1.1",
        "GET  http://pypi.org/ HTTP/1.1",
        "GET http://pypi.org/\tx HTTP/1.1",
        "GET http://pypi.org/ HTTP/1.1\r\nTransfer-Encoding: chunked",
        "GET http://pypi.org/ HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6",
        "GET http://pypi.org/ HTTP/1.1\r\nContent-Length: -5",
        "GET http://pypi.org/ HTTP/1.1\r\nContent-Length: 0x5",
        "GET http://pypi.org/ HTTP/1.1\r\nContent-Length : 5",
        "GET http://pypi.org/ HTTP/1.1\r\nBad Name: 5",
        "GET http://pypi.org/ HTTP/1.1\r\nX: a\nY: b",
        "GET http://pypi.org/ HTTP/1.1\r\n folded",
        "GET http://pypi.org/ HTTP/1.1\r\n" + "\r\n".join(["X: 1"] * 101),
        "GET http://pypi.org/ HTTP/1.1\r\nX: " + "x" * 40000,
        "\x16\x03\x01\x02\x00",
    ],
)
async def test_a_request_that_could_mean_two_things_is_none(opened: Opening, head: str) -> None:
    port, proxy, _ = await opened("pypi.org")
    answer = await exchange(port, head.encode("latin-1") + b"\r\n\r\n")
    assert answer.split(b" ")[1][:1] == b"4", answer
    assert proxy.counts.allowed == 0


def resolving(monkeypatch: pytest.MonkeyPatch, **names: list[str]) -> list[str]:
    """Names that have these addresses; which were asked for."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **more: Any) -> list[Any]:
        asked.append(host)
        if host not in names:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET6 if ":" in each else socket.AF_INET, 1, 6, "", (each, port)) for each in names[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return asked


async def test_a_name_is_resolved_once_and_a_near_address_refused_unless_listed(
    opened: Opening, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, *_ = await opened(f"rebinding:{origin.port}")
    connected: list[str] = []
    real = asyncio.open_connection

    async def connect(host: str, *more: Any, **options: Any) -> Any:
        connected.append(host)
        return await real(host, *more, **options)

    monkeypatch.setattr(asyncio, "open_connection", connect)
    monkeypatch.setattr(egress_module.asyncio, "open_connection", connect)
    asked = resolving(monkeypatch, rebinding=[LOOP, "10.0.0.7", "169.254.169.254", "::ffff:127.0.0.1", "fe80::1"])
    data = request(f"rebinding:{origin.port}", method="CONNECT")
    reader, writer = await real(LOOP, port)
    writer.write(data)
    answer = await reader.read()
    writer.close()
    text = (
        f"rebinding:{origin.port} has the address {LOOP}, which is not public; "
        f"the operator grants it with `ingle grant --host {LOOP}:{origin.port}`"
    )
    assert answer.startswith(f"HTTP/1.1 403 {text}\r\n".encode())
    assert (asked, connected, origin.connections) == (["rebinding"], [], 0)
    both, *_ = await opened(f"rebinding:{origin.port}", f"{LOOP}:{origin.port}")
    reader, writer = await real(LOOP, both)
    writer.write(data)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()
    assert connected == [LOOP]


async def test_what_cannot_be_reached_is_told_as_that(
    opened: Opening, monkeypatch: pytest.MonkeyPatch, origin: Origin
) -> None:
    with listening() as closed:
        free = closed.getsockname()[1]
    port, proxy, said = await opened(f"{LOOP}:{free}", "nowhere.example")
    assert (await exchange(port, request(f"{LOOP}:{free}", method="CONNECT"))).startswith(b"HTTP/1.1 502 ")
    resolving(monkeypatch)
    assert (await exchange(port, request("http://nowhere.example/"))).startswith(b"HTTP/1.1 502 ")
    assert (proxy.counts.failed, said) == (2, [])


async def test_the_machines_own_proxy_is_gone_through(opened: Opening, origin: Origin) -> None:
    heads: list[bytes] = []

    async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 fine\r\nContent-Length: 3\r\n\r\nyes")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(upstream, LOOP, 0)
    address = f"http://me:p%40ss@{LOOP}:{server.sockets[0].getsockname()[1]}"
    environ = {"HTTPS_PROXY": address, "http_proxy": address, "no_proxy": "direct.example, .near.example"}
    port, *_ = await opened("inner.example", route=Route.read(environ))
    reader, writer = await asyncio.open_connection(LOOP, port)
    writer.write(request("inner.example:443", method="CONNECT"))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()
    await exchange(port, request("http://inner.example/x"))
    assert (await exchange(port, request("other.example:443", method="CONNECT"))).startswith(b"HTTP/1.1 403 ")
    assert heads == [
        b"CONNECT inner.example:443 HTTP/1.1\r\nHost: inner.example:443\r\n"
        b"Proxy-Authorization: Basic bWU6cEBzcw==\r\n\r\n",
        b"GET http://inner.example/x HTTP/1.1\r\nHost: inner.example\r\nConnection: close\r\n\r\n",
    ]
    route = Route.read(environ)
    for host in ("direct.example", "near.example", "a.near.example"):
        assert route.for_host(host, tunnel=True) is None
    assert route.for_host("indirect.example", tunnel=True) == Upstream(LOOP, route.tunnel.port, "bWU6cEBzcw==")  # type: ignore[union-attr]
    server.close()


def hello(name: str | None) -> bytes:
    """The first bytes that a client of TLS sends."""
    out = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


def split_records(data: bytes, size: int) -> bytes:
    """The same greeting in many records."""
    message = data[5:]
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def named(data: bytes) -> object:
    """What a greeting that came at once tells."""
    return tls_hello.ClientHello().feed(data)


def test_a_greeting_tells_its_host_in_whatever_pieces_it_comes() -> None:
    whole = hello("pypi.org")
    assert named(whole) == "pypi.org"
    assert named(split_records(whole, 7)) == "pypi.org"
    for end in range(len(whole)):
        assert named(whole[:end]) is tls_hello.MORE
    for data in (whole, split_records(whole, 1)):
        coming = tls_hello.ClientHello()
        assert [coming.feed(bytes([byte])) for byte in data] == [tls_hello.MORE] * (len(data) - 1) + ["pypi.org"]
    assert named(hello(None)) is None
    assert named(b"GET / HTTP/1.1\r\n") is None
    for place in range(5, len(whole)):
        damaged = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
        named(damaged)


def test_a_greeting_is_looked_at_once_in_however_many_pieces_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte that is sent alone would make the server look at all before it: a minute's work for one connection."""
    read = 0

    class Counted(bytearray):
        def __getitem__(self, at: Any) -> Any:
            nonlocal read
            read += 1
            return super().__getitem__(at)

    coming = tls_hello.ClientHello()
    coming.data = Counted()
    pieces = split_records(b"\x16\x03\x01\x00\x00" + b"\x01\x00\x40\x00" + bytes(3000), 1)
    for byte in pieces:
        assert coming.feed(bytes([byte])) is tls_hello.MORE
    assert read < 8 * len(pieces)


@pytest.mark.parametrize("kind", [20, 21, 23, 24])
def test_what_comes_before_a_greeting_is_none(kind: int) -> None:
    """Servers have been seen to pass over an empty record, and to take the greeting behind it."""
    assert named(bytes([kind, 3, 1, 0, 0]) + hello("elsewhere.example")) == tls_hello.ODD
    assert named(b"\x16\x03\x01\x00\x04\x00\x00\x00\x00" + hello("elsewhere.example")) == tls_hello.ODD


@pytest.mark.parametrize("pieces", [1, 100000])
async def test_a_tunnel_to_one_host_is_not_used_for_another(
    opened: Opening, monkeypatch: pytest.MonkeyPatch, origin: Origin, pieces: int
) -> None:
    port, _, said = await opened(f"pypi.org:{origin.port}", f"{LOOP}:{origin.port}")
    resolving(monkeypatch, **{"pypi.org": [LOOP]})

    async def greet(data: bytes) -> list[bytes]:
        reader, writer = await asyncio.open_connection(LOOP, port)
        writer.write(request(f"pypi.org:{origin.port}", method="CONNECT"))
        await reader.readuntil(b"\r\n\r\n")
        for at in range(0, len(data), pieces):
            writer.write(data[at : at + pieces])
            await writer.drain()
        writer.write_eof()
        with contextlib.suppress(ConnectionResetError):  # it may be refused before all of it was read
            await reader.read()
        writer.close()
        return origin.bodies

    await greet(hello("elsewhere.example") if pieces > 1 else split_records(hello("elsewhere.example"), 1))
    assert said == ["a tunnel to pypi.org was used for elsewhere.example; request that host by its own name"]
    await greet(hello("pypi.org")[:100])
    assert len(said) == 2
    await greet(hello("PyPI.org"))
    assert len(said) == 2
    behind = await greet(b"\x14\x03\x01\x00\x00" + hello("elsewhere.example"))
    assert len(said) == 3
    assert b"elsewhere" not in b"".join(behind)


async def test_what_a_greeting_makes_up_is_not_said_in_our_words(
    opened: Opening, monkeypatch: pytest.MonkeyPatch, origin: Origin
) -> None:
    port, _, said = await opened(f"pypi.org:{origin.port}", f"{LOOP}:{origin.port}")
    resolving(monkeypatch, **{"pypi.org": [LOOP]})
    made_up = hello("xxxxxxxxxx.example").replace(b"xxxxxxxxxx", b"\n\x1b[2J ok; ")
    await exchange(port, request(f"pypi.org:{origin.port}", method="CONNECT") + made_up)
    assert said == [
        "a tunnel to pypi.org was used for a host that could not be read; request that host by its own name"
    ]


async def test_a_plain_request_in_a_tunnel_is_for_the_tunnels_host_and_the_only_one(
    opened: Opening, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many hosts share an address: there the request says which is meant, and the next one may say another."""
    monkeypatch.setattr(egress_module, "PLAIN_PORT", origin.port, raising=False)
    port, *_ = await opened(f"{LOOP}:{origin.port}")
    inner = request("/a", "Host: elsewhere.example", "Upgrade: h2c", "Connection: upgrade", "X-Kept: 1")
    second = request("/b", "Host: elsewhere.example")
    answer = await exchange(port, request(f"{LOOP}:{origin.port}", method="CONNECT") + inner + second)
    assert answer.endswith(b"\r\n\r\nhello")
    expected = f"GET /a HTTP/1.1\r\nHost: {LOOP}:{origin.port}\r\nX-Kept: 1\r\nConnection: close\r\n\r\n"
    assert origin.heads == [expected.encode()]
    assert b"elsewhere" not in b"".join(origin.bodies)
    for odd in (b"\r\nGET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET http://a/ HTTP/1.1\r\n\r\n"):
        refused = await exchange(port, request(f"{LOOP}:{origin.port}", method="CONNECT") + odd)
        assert b"\r\n\r\nHTTP/1.1 400 " in refused
    assert len(origin.heads) == 1


async def test_a_body_keeps_its_length(opened: Opening, origin: Origin) -> None:
    """A field that `Connection` names is dropped on the way. Without a length, the body would be the next request."""
    port, *_ = await opened(f"{LOOP}:{origin.port}")
    body = "GET http://elsewhere.example/ HTTP/1.1\r\n\r\n"
    fields = [f"Content-Length: {len(body)}", "Connection: close, Content-Length"]
    answer = await exchange(port, request(f"http://{LOOP}:{origin.port}/", *fields, method="POST", body=body))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert origin.connections == 0


async def test_a_download_may_last_longer_than_silence(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who downloads says nothing meanwhile."""
    monkeypatch.setattr(egress_module, "IDLE_TIMEOUT_SECONDS", 0.4)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(10):
                writer.write(b"drop")
                await writer.drain()
                await asyncio.sleep(0.1)
        writer.close()

    server = await asyncio.start_server(drip, LOOP, 0)
    far = server.sockets[0].getsockname()[1]
    port, *_ = await opened(f"{LOOP}:{far}")
    reader, writer = await asyncio.open_connection(LOOP, port)
    writer.write(request(f"{LOOP}:{far}", method="CONNECT"))
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await asyncio.wait_for(reader.read(), 10) == b"drop" * 10
    writer.close()
    server.close()


async def test_a_connection_on_which_nothing_moves_is_closed(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "IDLE_TIMEOUT_SECONDS", 0.2)
    ended = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        ended.set()
        writer.close()

    server = await asyncio.start_server(listen, LOOP, 0)
    far = server.sockets[0].getsockname()[1]
    port, *_ = await opened(f"{LOOP}:{far}")
    reader, writer = await asyncio.open_connection(LOOP, port)
    writer.write(request(f"{LOOP}:{far}", method="CONNECT") + b"hello")
    await reader.readuntil(b"\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    await asyncio.wait_for(ended.wait(), 10)
    writer.close()
    server.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_who_does_not_take_the_last_of_an_answer_holds_no_connection_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is left to be sent when the far end is done would be kept, and its connection with it, for as long as the
    session likes; and no longer counted among its connections."""
    monkeypatch.setattr(egress_module, "IDLE_TIMEOUT_SECONDS", 0.3)
    body = bytes(6 << 20)

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            writer.write(body[: sizes.pop()])
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(pour, LOOP, 0)
    far = server.sockets[0].getsockname()[1]
    sock = listening()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    port = sock.getsockname()[1]
    proxy = Egress(AllowList([read_entry(f"{LOOP}:{far}")]))
    listener = await proxy.open(sock)
    # Around what the kernel takes of it: one of these ends while some of the rest waits, and not all.
    sizes = list(range(4096, 400_000, 8192))
    before = descriptors()
    held = []
    for _ in range(len(sizes)):
        way = socket.socket()
        way.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        way.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            way.connect((LOOP, port))
        await asyncio.get_running_loop().sock_sendall(way, request(f"http://{LOOP}:{far}/"))
        held.append(way)
    while sizes or proxy.connections:
        await asyncio.sleep(0.05)
    assert proxy.counts.allowed == len(held)
    assert descriptors() - before == len(held)
    for way in held:
        way.close()
    await listener.close()
    server.close()


async def test_who_does_not_read_makes_the_sender_wait(opened: Opening) -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            while sent < 256 << 20:
                writer.write(bytes(1 << 16))
                await writer.drain()
                sent += 1 << 16
        writer.close()

    server = await asyncio.start_server(pour, LOOP, 0)
    port = server.sockets[0].getsockname()[1]
    listener, *_ = await opened(f"{LOOP}:{port}")
    sock = socket.create_connection((LOOP, listener))
    sock.sendall(request(f"http://{LOOP}:{port}/"))
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.3)
    assert 0 < sent < 64 << 20
    sock.close()
    server.close()


def unsent(port: int) -> int:
    """Bytes that the kernel has from us for those who connected to this port, and they have not taken."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return sum(int(row[4].partition(":")[0], 16) for row in established)


async def test_the_kernel_keeps_little_for_who_does_not_read_on(opened: Opening) -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(pour, LOOP, 0)
    far = server.sockets[0].getsockname()[1]
    port, *_ = await opened(f"{LOOP}:{far}")
    loop = asyncio.get_running_loop()
    with socket.socket() as way:
        way.setblocking(False)
        await loop.sock_connect(way, (LOOP, port))
        await loop.sock_sendall(way, request(f"http://{LOOP}:{far}/"))
        taken = 0
        while taken < 32 << 20:  # as long as one reads, the kernel takes it for a way on which more pays
            taken += len(await loop.sock_recv(way, 1 << 20))
        before = -1
        while before != (now := unsent(port)) or now == 0:
            before = now
            await asyncio.sleep(0.2)
        assert 0 < now < 1 << 20
    server.close()


async def test_connections_are_bounded_and_end_with_the_session(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(egress_module, "MAX_CONNECTIONS", 3)
    sock = listening()
    port = sock.getsockname()[1]
    proxy = Egress(AllowList([read_entry(f"{LOOP}:{origin.port}")]))
    listener = await proxy.open(sock)
    held = []
    for _ in range(3):
        reader, writer = await asyncio.open_connection(LOOP, port)
        writer.write(request(f"{LOOP}:{origin.port}", method="CONNECT"))
        await reader.readuntil(b"\r\n\r\n")
        held.append((reader, writer))
    assert (await exchange(port, b"")).startswith(b"HTTP/1.1 503 ")
    await listener.close()
    for reader, writer in held:
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(LOOP, port)


async def test_connections_of_all_sessions_leave_the_server_descriptors_of_its_own(
    opened: Opening, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setattr(egress_module, "DESCRIPTOR_SHARE", descriptors // 4)
    port, *_ = await opened(f"{LOOP}:{origin.port}")
    held = []
    for _ in range(2):
        reader, writer = await asyncio.open_connection(LOOP, port)
        writer.write(request(f"{LOOP}:{origin.port}", method="CONNECT"))
        await reader.readuntil(b"\r\n\r\n")
        held.append(writer)
    assert (await exchange(port, b"")).startswith(b"HTTP/1.1 503 all sessions together")
    for writer in held:
        writer.close()


async def test_of_many_refusals_only_some_are_told(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may become a line of a log, and asking is cheap."""
    monkeypatch.setattr(egress_module, "REPORTS_PER_MINUTE", 3, raising=False)
    port, proxy, said = await opened("pypi.org")
    for number in range(5):
        await exchange(port, request(f"a{number}.example:443", method="CONNECT"))
    assert (len(said), proxy.counts.refused) == (3, 5)


async def test_a_slow_resolver_is_asked_once_for_all_who_wait(
    opened: Opening, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question waits in a thread, of which there are a few for everybody."""
    port, *_ = await opened(f"slow.example:{origin.port}", f"{LOOP}:{origin.port}")
    answering, asked = asyncio.Event(), 0

    async def getaddrinfo(host: str, port: int, **more: Any) -> list[Any]:
        nonlocal asked
        asked += 1
        await answering.wait()
        return [(socket.AF_INET, 1, 6, "", (LOOP, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    ways = [await asyncio.open_connection(LOOP, port) for _ in range(5)]
    for _, writer in ways:
        writer.write(request(f"slow.example:{origin.port}", method="CONNECT"))
    ways[0][1].close()
    while not asked:
        await asyncio.sleep(0)
    refused = await exchange(port, request("elsewhere.example:443", method="CONNECT"))  # after all of them
    assert refused.startswith(b"HTTP/1.1 403 ")
    answering.set()
    for reader, writer in ways[1:]:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()
    assert asked == 1


async def test_silence_is_not_waited_for_without_end(opened: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_module, "HEAD_TIMEOUT_SECONDS", 0.2)
    port, *_ = await opened("pypi.org")
    assert (await exchange(port, b"CONNECT pypi")).startswith(b"HTTP/1.1 408 ")


async def test_only_a_socket_that_listens_is_served() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(ValueError, match="listening"):
        await Egress(AllowList()).open(ours)


# --- hosts ---


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("PyPI.org", Entry("pypi.org")),
        ("pypi.org:8080", Entry("pypi.org", 8080)),
        ("10.0.0.1", Entry("10.0.0.1")),
        ("[2606:4700::1]:443", Entry("2606:4700::1", 443)),
        ("2606:4700:0::1", Entry("2606:4700::1")),
        ("my_host", Entry("my_host")),
    ],
)
def test_an_entry_has_one_spelling(text: str, entry: Entry) -> None:
    assert read_entry(text) == entry


@pytest.mark.parametrize("text", ["*", "*.pypi.org", "http://pypi.org", "pypi.org/simple", "", "a b", "bücher.example"])
def test_what_is_no_host_is_no_entry(text: str) -> None:
    with pytest.raises(BadHost):
        read_entry(text)


def test_ports_without_an_entry_of_their_own_are_the_usual_ones() -> None:
    allowed = AllowList([Entry("a"), Entry("b", 8080)])
    reached = {(host, port) for host in "ab" for port in (22, 80, 443, 8080) if allowed.find(host, port)}
    assert reached == {("a", 80), ("a", 443), ("b", 8080)}


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "::",
        "::1",
        "fe80::1",
        "fec0::2",
        "fc00::1",
        "ff02::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "2002:808:808::1",
        "2001:db8::1",
    ],
)
def test_near_and_special_addresses_are_not_public(text: str) -> None:
    address = as_address(text)
    assert address is not None
    assert not public(address)


def test_public_addresses_are() -> None:
    assert all(public(as_address(text)) for text in ("8.8.8.8", "151.101.0.223", "2a04:4e42::223"))  # type: ignore[arg-type]


def test_read_host_keeps_plain_names() -> None:
    assert [read_host(each) for each in ("A-b.c0", "x", "1a.b")] == ["a-b.c0", "x", "1a.b"]


# --- the package index ---


def test_the_index_is_what_pip_is_configured_with(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pip.conf").write_text(
        "[global]\nindex-url = https://me:secret@pip.corp.example:8443/simple\n"
        "extra-index-url = http://10.0.0.9/simple\n    file:///srv/index/simple\ncert = /etc/ssl/certs/ca.pem\n"
    )
    found = package_index.find(
        {"HOME": str(tmp_path), "PIP_FIND_LINKS": "/srv/wheels", "UV_INDEX": "own=https://uv.example/s"}, root=tmp_path
    )
    assert [(each.host, each.port, each.near) for each in found.hosts] == [
        ("pip.corp.example", 8443, True),
        ("10.0.0.9", 80, True),
        ("uv.example", 443, True),
    ]
    assert set(found.folders) == {"/srv/index/simple", "/srv/wheels"}
    assert found.environment == {
        "PIP_INDEX_URL": "https://pip.corp.example:8443/simple",
        "PIP_EXTRA_INDEX_URL": "http://10.0.0.9/simple file:///srv/index/simple",
        "PIP_CERT": "/etc/ssl/certs/ca.pem",
        "PIP_FIND_LINKS": "/srv/wheels",
        "UV_INDEX": "own=https://uv.example/s",
    }


def test_without_a_configuration_it_is_pypi_with_its_host_of_files(tmp_path: Path) -> None:
    found = package_index.find({"HOME": str(tmp_path)}, root=tmp_path)
    assert found.hosts == (Entry("pypi.org", 443), Entry("files.pythonhosted.org", 443))
    assert found.environment == {}


def test_what_pip_itself_says_is_in_force_is_what_is_found(tmp_path: Path) -> None:
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/pip/pip.conf").write_text("[global]\nindex-url = https://user.example/simple\n")
    (tmp_path / "own.conf").write_text("[install]\nindex-url = https://own.example/simple\n")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "own.conf"), "PATH": os.environ["PATH"]}
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], env=environ, capture_output=True, text=True, check=True
    ).stdout
    assert "own.example" in said
    assert package_index.find(environ).hosts[0].host == "own.example"


async def test_pip_installs_through_it(opened: Opening, tmp_path: Path) -> None:
    """pip with no other way out, a package index that is near, and a wheel made by hand."""
    with serve_index(tmp_path / "index") as index_port:
        found = package_index.find(
            {"HOME": str(tmp_path), "PIP_INDEX_URL": f"http://{LOOP}:{index_port}/simple"}, root=tmp_path
        )
        proxy = Egress(AllowList(found.hosts))
        sock = listening()
        port = sock.getsockname()[1]
        said: list[str] = []
        listener = await proxy.open(sock, said.append)
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PIP_PROXY": f"http://{LOOP}:{port}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_RETRIES": "1",
            **found.environment,
        }
        command = [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target", str(tmp_path / "to")]
        done = await asyncio.create_subprocess_exec(*command, "hearth", env=environ, stdout=-1, stderr=-1)
        out, err = await done.communicate()
        assert done.returncode == 0, out + err
        assert (tmp_path / "to/hearth.py").exists()
        assert (proxy.counts.allowed >= 2, proxy.counts.refused) == (True, 0)
        environ["PIP_INDEX_URL"] = "https://elsewhere.example/simple"
        done = await asyncio.create_subprocess_exec(*command, "hearth", env=environ, stdout=-1, stderr=-1)
        out, err = await done.communicate()
        assert done.returncode != 0
        assert b"ingle grant --host elsewhere.example" in out + err
        await listener.close()
