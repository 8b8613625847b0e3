"""Requests and answers on one connection, as bytes on a socket: in any pieces, and with all that HTTP/1.1 allows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ingle.http import limits
from ingle.http import server as serving
from ingle.service import Service
from support.local_http import TOKEN, open_door
from support.processes import own_mark
from support.server import PATIENCE, Server
from support.waiting import until


@pytest.fixture
async def door(service: Service, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a door in this process."""
    monkeypatch.setattr(limits, "SWEEP_SECONDS", 0.02)
    monkeypatch.setattr(serving, "KEEP_ALIVE_SECONDS", 0.3)
    async with open_door(service) as port:
        yield port


def request(line: str, body: bytes = b"", *headers: str, version: str = "1.1", token: str = TOKEN) -> bytes:
    lines = [f"{line} HTTP/{version}", "Host: localhost", f"Authorization: Bearer {token}", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def answer_to(port: int, *pieces: bytes) -> bytes:
    """All that comes back, until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    data = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    return data


async def read_answer(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The next answer of a connection: its head, without the date, and its body."""
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)).decode()
    found = re.search(r"content-length: (\d+)", head)
    body = await asyncio.wait_for(reader.readexactly(int(found[1]) if found else 0), PATIENCE)
    return re.sub(r"date: .*\r\n", "", head), body


# One request, in any number of pieces


HOSTS = ("localhost", "127.0.0.1:80", "evil.example", None)
CODES = ("1 + 1", "1 / 0", "x =", "", "print('π' * 3)", "y" * 3000)
BODIES = st.one_of(
    st.sampled_from(CODES).map(lambda code: b'{"code": "%b"}' % code.encode()),
    st.sampled_from(
        [b"", b"{}", b"[]", b"{", b"\xff", b'{"code": 1}', b'{"code": "1", "colour": 2}', b'{"code": "\\ud800"}',
         b'{"code": "1", "timeout": -1}', b'{"code": "1", "wait": 1e999}', b'{"code": "1", "envs": {"a=": "b"}}',
         b'{"code": "1", "queue": true}', b'{"code": "1", "wait": 5, "envs": {"A": "b"}}']
    ),
    st.binary(max_size=40),
)  # fmt: skip


@st.composite
def executes(draw: st.DrawFn) -> tuple[list[str], bytes]:
    """Head and body of an execute, mostly with one thing or another that is not as it should be."""
    often = st.integers(0, 3).map(bool)
    path = draw(st.sampled_from(["main", "main", "none", "..", "a%2Fb", "%00", "%ff"]))
    query = "" if draw(often) else draw(st.sampled_from(["?x=1", "?", "?token=secret"]))
    version = "1.1" if draw(often) else "1.0"
    lines = [f"POST /v1/sessions/{path}/execute{query} HTTP/{version}", "Connection: close"]
    hosts = ["localhost"] if draw(often) else draw(st.lists(st.sampled_from(HOSTS), max_size=2))
    lines += [f"Host: {host}" for host in hosts if host is not None]
    scheme = "Bearer" if draw(often) else draw(st.sampled_from(["bearer", "Basic", ""]))
    lines += [f"Authorization: {scheme} {'TOKEN' if draw(often) else 'wrong'}"] * (1 if draw(often) else 2)
    if not draw(often):
        lines.append(f"Origin: {draw(st.sampled_from(['http://localhost', 'null', 'https://evil.example']))}")
    if not draw(often):
        lines.append(f"Idempotency-Key: {draw(st.sampled_from(['one', 'two', 'k' * 300]))}")
    lines += [f"Accept: {draw(st.sampled_from(['*/*', 'application/json', 'text/html']))}"]
    return lines, draw(BODIES)


@pytest.fixture(scope="module")
def busy_server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="ingle-home-") as home:
        server = Server(Path(home), "--max-code", "2000", env=own_mark())
        server.make_session()
        yield server
        assert server.stop() == 0


@pytest.mark.req("http.problems", "safe.token", "safe.input")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(executes())
def test_however_a_request_comes_its_answer_is_the_same(busy_server: Server, asked: tuple[list[str], bytes]) -> None:
    lines, body = asked
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).replace("TOKEN", busy_server.token).encode()
    whole = answer_of(busy_server.port, head + body)
    apart = answer_of(busy_server.port, head, body)
    assert normal(whole) == normal(apart)
    assert whole.startswith(b"HTTP/1.1 ")


def answer_of(port: int, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number, piece in enumerate(pieces):
            if number:
                # The server mostly reads the pieces apart then. The answer is the same if it does not.
                time.sleep(0.002)
            with contextlib.suppress(ConnectionError):
                connection.sendall(piece)
        data = b""
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                data += chunk
        return data


def normal(answer: bytes) -> bytes:
    """Without what differs from one cell to the next."""
    answer = re.sub(rb'"(cell|seq|time|execution_time|next_event)":[-0-9.e]+|cell \d+', b"", answer)
    return re.sub(rb"(date|content-length): [^\r]+", b"", answer)


EXECUTE = "POST /v1/sessions/main/execute"
ASKED = st.sampled_from(
    [
        ("GET /healthz", "", b""),
        ("GET /v1/sessions/nobody", "", b""),
        ("POST /v1/sessions/nobody/execute", "", b'{"code": "1"}'),
        (EXECUTE, "", b'{"code": "6 * 7"}'),
        (EXECUTE, "", b'{"code": "1 / 0"}'),
        (EXECUTE, "Accept: application/x-ndjson\r\n", b'{"code": "print(1)"}'),
    ]
)
CUTS = st.lists(st.floats(0, 1), max_size=8)


@pytest.mark.req("http.problems")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(st.tuples(ASKED, st.booleans()), min_size=1, max_size=5), cuts=CUTS)
def test_wherever_bytes_are_cut_the_answers_are_the_same(
    busy_server: Server, asked: list[tuple[tuple[str, str, bytes], bool]], cuts: list[float]
) -> None:
    """Requests sent ahead, with bodies of known length and in chunks, are answered alike in one piece and in many."""
    sent = b""
    for (line, headers, body), chunked in asked:
        top = f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {busy_server.token}\r\n{headers}"
        if not body:
            sent += top.encode() + b"\r\n"
        elif chunked:
            coded = b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\nX-Behind: 1\r\n\r\n"
            sent += top.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + coded
        else:
            sent += top.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    sent += b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    places = sorted({round(cut * len(sent)) for cut in cuts} | {0, len(sent)})
    whole = answer_of(busy_server.port, sent)
    apart = answer_of(busy_server.port, *(sent[start:end] for start, end in itertools.pairwise(places)))
    # A stream may be cut into chunks in more than one way.
    assert [normal(each) for each in objects(whole)] == [normal(each) for each in objects(apart)]
    assert whole.count(b"HTTP/1.1 ") == len(asked) + 1


def objects(answers: bytes) -> list[bytes]:
    """Return the heads and the JSON objects of the answers on one connection, in their order."""
    return [line for line in re.split(rb"\r\n|\n", answers) if line and not re.fullmatch(rb"[0-9a-f]+", line)]


# What HTTP/1.1 allows


async def test_requests_sent_ahead_are_answered_in_their_order(door: int, service: Service) -> None:
    await service.create_session("main")
    slow = request("POST /v1/sessions/main/execute", b'{"code": "import time; time.sleep(0.2); 1"}')
    quick = request("POST /v1/sessions/main/execute", b'{"code": "2"}')
    last = request("GET /v1/sessions/nobody", b"", "Connection: close")
    answer = await answer_to(door, slow + quick + quick + request("GET /healthz") + last)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200"] * 4 + [b"404"]
    assert re.findall(rb'"text/plain":"(\d)"', answer) == [b"1", b"2", b"2"]
    assert answer.count(b"connection: close") == 1


async def test_a_kept_connection_is_closed_when_nobody_uses_it(door: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", door)
    for _ in range(3):
        writer.write(request("GET /healthz"))
        head, _ = await read_answer(reader)
        assert head.startswith("HTTP/1.1 200 OK")
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    writer.close()


async def test_a_body_that_is_kept_back_is_asked_for_when_it_is_wanted(door: int, service: Service) -> None:
    await service.create_session("main")
    reader, writer = await asyncio.open_connection("127.0.0.1", door)
    asked = request("POST /v1/sessions/main/execute", b'{"code": "6 * 7"}', "Expect: 100-continue")
    head, _, body = asked.partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert b'"text/plain":"42"' in (await read_answer(reader))[1]
    # Who may not come in is told so, and not asked for more.
    writer.write(head.replace(b"secret", b"wrong") + b"\r\n\r\n")
    told, _ = await read_answer(reader)
    assert told.startswith("HTTP/1.1 401 ")
    assert "connection: close" in told
    assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    writer.close()


async def test_an_answer_before_the_end_of_a_body_is_read_by_a_client_that_still_sends(door: int) -> None:
    """The client looks at the answer only after it has sent all it can."""
    asked = request("POST /v1/sessions", b"", token="wrong").replace(b"Content-Length: 0", b"Content-Length: 10000000")
    reader, writer = await asyncio.open_connection("127.0.0.1", door)
    writer.write(asked)
    with contextlib.suppress(ConnectionError):
        for _ in range(40):
            writer.write(b" " * 20_000)
            await asyncio.wait_for(writer.drain(), PATIENCE)
            await asyncio.sleep(0.005)
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"401"]
    assert answer.endswith(b"}")
    writer.close()


async def test_an_old_client_gets_a_stream_that_ends_with_its_connection(door: int, service: Service) -> None:
    await service.create_session("main")
    stream = ("Accept: application/x-ndjson",)
    answer = await answer_to(door, request("POST /v1/sessions/main/execute", b'{"code": "1"}', *stream, version="1.0"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body.endswith(b"\n")
    assert all(line.startswith(b"{") for line in body.splitlines())


async def test_a_head_is_the_answer_without_its_body(door: int) -> None:
    close = ("Connection: close",)
    whole = await answer_to(door, request("GET /healthz", b"", *close))
    head = await answer_to(door, request("HEAD /healthz", b"", *close))
    date = re.compile(rb"date: [^\r]+\r\n")
    assert date.sub(b"", head) == date.sub(b"", whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")


@pytest.mark.req("safe.token")
async def test_what_stands_behind_a_body_is_no_header(door: int) -> None:
    lines = ["POST /v1/sessions HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", "", "2", "{}", "0"]
    trailer = [f"Authorization: Bearer {TOKEN}", "", ""]
    # Nor a header of the request after it.
    following = ["GET /v1/sessions HTTP/1.1", "Host: localhost", "Connection: close", "", ""]
    answer = await answer_to(door, "\r\n".join(lines + trailer).encode() + "\r\n".join(following).encode())
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"401", b"401"]


async def test_an_offer_to_speak_another_protocol_is_not_taken_up(door: int) -> None:
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    answer = await answer_to(door, request("GET /healthz", b"", *offer), request("GET /healthz"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"200"]
    assert b"connection: close" in answer


async def test_a_websocket_is_not_opened_before_the_last_answer(door: int, service: Service) -> None:
    await service.create_session("main")
    slow = request("POST /v1/sessions/main/execute", b'{"code": "import time; time.sleep(0.3)"}')
    lines = ["GET /v1/sessions/main/events HTTP/1.1", "Host: localhost", f"Authorization: Bearer {TOKEN}"]
    lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    handshake = "\r\n".join([*lines, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "", ""]).encode()
    answer = await answer_to(door, slow + handshake)
    assert re.findall(rb'HTTP/1.1 (\d+)|"code":"(\w+)"', answer) == [(b"400", b""), (b"", b"invalid_http")]


async def test_nonsense_behind_a_request_ends_it_and_the_cell_goes_on(
    door: int, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await service.create_session("main")
    slow = request("POST /v1/sessions/main/execute", b'{"code": "import time; time.sleep(0.3); 6 * 7"}')
    reader, writer = await asyncio.open_connection("127.0.0.1", door)
    writer.write(slow)
    session = service._node.manager.get("main")  # type: ignore[attr-defined]
    assert await until(lambda: session.last_cell == 1)
    writer.write(b"no request at all\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), PATIENCE)
    writer.close()
    assert re.findall(rb'HTTP/1.1 (\d+)|"code":"(\w+)"', answer) == [(b"400", b""), (b"", b"invalid_http")]
    assert (await service.wait("main", 1, wait=PATIENCE)).result == {"text/plain": "42"}
    assert await until(lambda: not any("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks()))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
