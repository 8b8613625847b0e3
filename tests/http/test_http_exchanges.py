"""One connection's requests and answers, byte for byte: both ways that a request may come, and what HTTP/1.1 allows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from conftest import until
from ingle.http import limits
from ingle.http import server as serving
from ingle.http.exchanges import Answer
from ingle.http.limits import Lobby, Protocol
from ingle.http.problems import Border
from ingle.http.routes import execute as execute_module
from ingle.service import Service
from support.local_http import TOKEN, open_door
from support.server import PATIENCE, Server


@pytest.fixture
async def door(service: Service, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a door in this process."""
    monkeypatch.setattr(limits, "SWEEP", 0.02)
    monkeypatch.setattr(serving, "KEEP_ALIVE", 0.3)
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


# Two ways of one request


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way each execute went."""
    went: list[str] = []
    whole, execute = execute_module.Whole._answer, execute_module.execute

    async def watched_whole(self: execute_module.Whole, *args: Any) -> Answer | None:
        answer = await whole(self, *args)
        if answer is not None:
            went.append("whole")
        return answer

    async def watched_execute(*args: Any) -> None:
        went.append("in messages")
        await execute(*args)

    monkeypatch.setattr(execute_module.Whole, "_answer", watched_whole)
    monkeypatch.setattr(execute_module, "execute", watched_execute)
    return went


async def test_what_has_come_to_its_end_is_answered_in_one_step_and_what_has_not_in_messages(
    door: int, service: Service, ways: list[str]
) -> None:
    await service.create_session("main")
    body = b'{"code": "6 * 7"}'
    asked = request("POST /v1/sessions/main/execute", body)
    reader, writer = await asyncio.open_connection("127.0.0.1", door)
    answers = []
    writer.write(asked)
    answers.append(await read_answer(reader))
    writer.write(asked[:-10])
    assert await until(lambda: ways == ["whole", "in messages"])
    writer.write(asked[-10:])
    answers.append(await read_answer(reader))
    writer.write(request("POST /v1/sessions/main/execute", body, "Accept: application/x-ndjson"))
    head, _ = await read_answer(reader)
    assert "transfer-encoding: chunked" in head
    assert ways == ["whole", "in messages", "in messages"]
    writer.close()
    first, second = (normal(head.encode() + body) for head, body in answers)
    assert first == second
    assert answers[0][0].startswith("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")


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
        server = Server(Path(home), "--max-code", "2000")
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
                time.sleep(
                    0.002
                )  # that the server looks at the head before the body is there; whether it has is all one
            with contextlib.suppress(ConnectionError):
                connection.sendall(piece)
        data = b""
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(65536):
                data += chunk
        return data


def normal(answer: bytes) -> bytes:
    """Without what differs from one cell to the next."""
    answer = re.sub(rb'"(cell|execution_time|next_event)":[-0-9.e]+|cell \d+', b"", answer)
    return re.sub(rb"(date|content-length): [^\r]+", b"", answer)


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and is never full."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """Nothing comes by itself."""

    def resume_reading(self) -> None:
        """Nor then."""

    def close(self) -> None:
        self.closed = True


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it was sent, in as many pieces as it came, where the length is not to be known."""
    pieces = []
    while True:
        message = await receive()
        assert message["type"] == "http.request"
        pieces.append(message["body"])
        if not message["more_body"]:
            break
    body = scope["path"].encode() + b" " + b"".join(pieces)
    headers = [] if scope["query_string"] == b"stream" else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": body[:5], "more_body": True})
    await send({"type": "http.response.body", "body": body[5:]})


def echo_whole(scope: Scope, body: bytes | bytearray) -> Coroutine[Any, Any, Answer | None] | None:
    async def answer() -> Answer | None:
        await asyncio.sleep(0)
        if scope["path"] == "/declined":
            return None
        said = scope["path"].encode() + b" " + bytes(body)
        return Answer(200, [(b"content-length", b"%d" % len(said))], said)

    return None if scope["query_string"] or scope["path"] == "/long" else answer()


Asked = tuple[str, bytes, bool]
PATHS = st.sampled_from(["/short", "/long", "/declined", "/long?stream"])
ASKED = st.lists(
    st.tuples(PATHS, st.just(b"") | st.binary(min_size=10, max_size=60), st.booleans()), min_size=1, max_size=6
)
CUTS = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@settings(max_examples=300, deadline=None)
@given(asked=ASKED, cuts=CUTS, quick=st.booleans())
def test_wherever_bytes_are_cut_the_answers_are_the_same(asked: list[Asked], cuts: list[float], quick: bool) -> None:
    sent, expected = b"", b""
    for path, body, chunked in asked:
        if chunked:
            coded = b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\nX-Behind: 1\r\n\r\n"
            sent += b"POST %b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" % path.encode() + coded
        else:
            sent += b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body)) + body
        said = path.partition("?")[0].encode() + b" " + body
        if path.endswith("stream"):
            coded = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (said[:5], len(said) - 5, said[5:])
            expected += b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + coded
        else:
            expected += b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(said) + said

    async def answers() -> bytes:
        state = ServerState()
        made = Protocol(
            app=Border(echo, echo_whole), lobby=Lobby(10), config=uvicorn.Config(echo), server_state=state, app_state={}
        )
        wire = Wire()
        made.connection_made(wire)
        places = sorted({round(cut * len(sent)) for cut in cuts} | {0, len(sent)})
        for start, end in itertools.pairwise(places):
            made.data_received(sent[start:end])
            if not quick:
                await asyncio.sleep(0)
        while state.tasks:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        made.connection_lost(None)
        return wire.written

    assert asyncio.run(answers()) == expected


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
    assert (await read_answer(reader))[0].startswith("HTTP/1.1 401 ")
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


async def test_nonsense_behind_a_request_ends_it_and_the_cell_goes_on(
    door: int, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    await service.create_session("main")
    slow = request("POST /v1/sessions/main/execute", b'{"code": "import time; time.sleep(0.3); 6 * 7"}')
    answer = await answer_to(door, slow, b"no request at all\r\n\r\n")
    assert re.findall(rb'HTTP/1.1 (\d+)|"code":"(\w+)"', answer) == [(b"400", b""), (b"", b"invalid_http")]
    assert (await service.wait("main", 1, wait=PATIENCE)).result == {"text/plain": "42"}
    assert await until(lambda: not any("Exchange" in repr(task.get_coro()) for task in asyncio.all_tasks()))
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
