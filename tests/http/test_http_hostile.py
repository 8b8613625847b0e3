"""Slow and hostile clients: each is refused clearly, costs little, and disturbs no normal client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from ingle.http import limits
from ingle.http import server as serving
from ingle.http.routes import events
from ingle.service import Service
from support.internals import session_of
from support.local_http import TOKEN, open_door
from support.server import PATIENCE, Server, raw_exchange
from support.waiting import until, wait_until


@pytest.fixture
async def door(service: Service, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a door in this process, so that its patience can be made short."""
    for name, value in (("SWEEP_SECONDS", 0.05), ("HEAD_SECONDS", 0.5), ("BODY_WINDOW_SECONDS", 0.5)):
        monkeypatch.setattr(limits, name, value)
    monkeypatch.setattr(events, "PATIENCE_SECONDS", 1.0)
    async with open_door(service) as port:
        yield port


async def exchange(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Send these with pauses between; all that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.ensure_future(reader.read())
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
    answer = await asyncio.wait_for(reading, PATIENCE)
    writer.close()
    return answer


def head(line: str = "GET /v1/sessions", more: str = "") -> bytes:
    return f"{line} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n{more}".encode()


def told(answer: bytes) -> tuple[int, str]:
    """Status and code of the problem."""
    top, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in top, answer
    return int(top.split()[1]), json.loads(body)["code"]


@pytest.mark.req("safe.input")
async def test_a_request_that_comes_in_drops_is_given_up(door: int) -> None:
    drops = [head()] + [b"X-Drop: 1\r\n"] * 100
    body = [head("POST /v1/sessions", "Content-Length: 1000\r\n\r\n")] + [b" "] * 200
    answers = await asyncio.gather(
        exchange(door, *drops, pause=0.05),
        exchange(door, pause=0.0),
        exchange(door, b"\r\n" * 3),
        exchange(door, *body, pause=0.05),
        exchange(door, head() + b"Connection: close\r\n\r\n"),
    )
    assert [told(answer) for answer in answers[:4]] == [(408, "too_slow")] * 4
    assert answers[4].startswith(b"HTTP/1.1 200 ")


@pytest.mark.req("safe.input")
async def test_what_is_too_large_or_too_many_is_refused(door: int) -> None:
    many = "".join(f"X-{number}: 1\r\n" for number in range(200))
    ahead = (head("GET /healthz") + b"\r\n") * 100
    answers = [
        told(await exchange(door, head(more="X-Long: " + "x" * 300_000))),
        told(await exchange(door, head(more=many) + b"\r\n")),
        told(await exchange(door, head(f"GET /{'x' * 9000}") + b"\r\n")),
        told(await exchange(door, head("POST /v1/sessions", "Content-Length: 1000000000\r\n\r\n"))),
        told(await exchange(door, head("GET /v1/sessions?" + "a=1&" * 200) + b"Connection: close\r\n\r\n")),
    ]
    assert answers == [
        (431, "head_too_large"),
        (431, "head_too_large"),
        (414, "url_too_long"),
        (413, "too_large"),
        (422, "invalid_request"),
    ]
    assert b'"code":"invalid_http"' in await exchange(door, ahead)


@pytest.mark.req("safe.input")
async def test_the_bound_on_a_head_holds_however_it_comes(door: int) -> None:
    """In one read, in many, in one header that does not end, behind a body, and between two chunks."""
    lines = "".join(f"X-{number}: {'x' * 1000}\r\n" for number in range(80))
    whole = head(more=lines) + b"\r\n"
    chunked = head("POST /v1/sessions", "Transfer-Encoding: chunked\r\n\r\n") + b"2\r\n{ \r\n"
    endless = [b"x" * 100_000] * 5
    answers = [
        await exchange(door, whole),
        await exchange(door, whole[:30_000], whole[30_000:60_000], whole[60_000:], pause=0.01),
        await exchange(door, head(more="X-Long: "), *endless, pause=0.01),
        await exchange(door, chunked + b"0\r\nX-Behind: ", *endless, pause=0.01),
        await exchange(door, chunked + b"0\r\n", *[lines.encode()] * 5, pause=0.01),
        await exchange(door, chunked + b"1;", *endless, pause=0.01),
    ]
    assert [told(answer) for answer in answers] == [(431, "head_too_large")] * len(answers)
    # A large body is no head, nor is a small head with many requests behind it.
    body = b" " * 500_000 + b"{}"
    large = head("POST /v1/sessions", f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n")
    assert (await exchange(door, large + body)).startswith(b"HTTP/1.1 201 ")


@pytest.mark.req("safe.input")
async def test_a_client_that_does_not_take_its_answer_is_cut_off(
    door: int, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ANSWER_SECONDS", 1.0)
    await service.create_session("main")
    reader, writer = await asyncio.open_connection("127.0.0.1", door, limit=1024)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = json.dumps({"code": "for _ in range(400): print('x' * 99_999)"}).encode()
    more = f"Accept: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head("POST /v1/sessions/main/execute", more) + body)
    # It was cut, not ended: what was not taken by then never comes, while the cell came to its end.
    session = session_of(service, "main")
    assert await until(lambda: session.last_cell == 1)
    await service.wait("main", 1, wait=PATIENCE)
    await asyncio.sleep(2.5)
    rest = b""
    with contextlib.suppress(ConnectionError):
        rest = await asyncio.wait_for(reader.read(), PATIENCE)
    assert len(rest) < 30_000_000
    assert (await service.wait("main", 1)).truncated.stdout > 0
    writer.close()


# Clients without a token

HOST = "Host: localhost\r\n"
UPGRADE = HOST + "Connection: Upgrade\r\nUpgrade: websocket\r\n"
HANDSHAKE = UPGRADE + "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
EVENTS = "GET /v1/sessions/main/events HTTP/1.1\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n\r\n"
LONG_HEADER = f"X-Long: {'x' * 9000}\r\n"

STRANGERS = {
    "a WebSocket with a body": (EVENTS + HANDSHAKE + "Content-Length: 5\r\n\r\nhello", 400),
    "a WebSocket with an empty body": (EVENTS + HANDSHAKE + "Content-Length: 0\r\n\r\n", 400),
    "a WebSocket with a body in chunks": (EVENTS + HANDSHAKE + CHUNKED + "5\r\nhello\r\n0\r\n\r\n", 400),
    "a WebSocket with a body that never comes": (EVENTS + HANDSHAKE + "Content-Length: 5\r\n\r\n", 400),
    "a WebSocket with chunks that never end": (EVENTS + HANDSHAKE + CHUNKED + "5\r\nhel", 400),
    "a WebSocket with a long header": (EVENTS + HANDSHAKE + LONG_HEADER + "\r\n", 400),
    "a WebSocket by another method": (EVENTS.replace("GET", "POST") + HANDSHAKE + "\r\n", 405),
    "a WebSocket of an old version of HTTP": (EVENTS.replace("1.1", "1.0") + HANDSHAKE + "\r\n", 401),
    "a WebSocket without a key": (EVENTS + UPGRADE + "Sec-WebSocket-Version: 13\r\n\r\n", 400),
    "a WebSocket of a wrong version": (EVENTS + HANDSHAKE.replace("13", "12") + "\r\n", 400),
    "a WebSocket without a token": (EVENTS + HANDSHAKE + "\r\n", 401),
    "a WebSocket at no path": (EVENTS.replace("/v1/sessions/main/events", "localhost:80") + HANDSHAKE + "\r\n", 400),
    "half of a handshake": (EVENTS + HANDSHAKE, 408),
    "another protocol": (EVENTS + UPGRADE.replace("websocket", "h2c") + "\r\n", 401),
    "another protocol, with a body": (EVENTS + UPGRADE.replace("websocket", "h2c") + "Content-Length: 5\r\n\r\n", 401),
    "an unknown protocol": (EVENTS + UPGRADE.replace("websocket", "\x80?!") + "\r\n", 401),
    "two protocols": (EVENTS + UPGRADE.replace("websocket", "websocket, h2c") + "\r\n", 401),
    "a tunnel": ("CONNECT example.com:443 HTTP/1.1\r\n" + HOST + "\r\n", 400),
    "a tunnel to a path": ("CONNECT /healthz HTTP/1.1\r\n" + HOST + "\r\n", 405),
    "a kept connection of HTTP/1.0": ("GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n" + HOST + "\r\n", 200),
    "a kept connection": ("GET /healthz HTTP/1.1\r\n" + HOST + "\r\n", 200),
    "a body that is announced": ("POST /v1/sessions HTTP/1.1\r\n" + HOST + "Content-Length: 5\r\n\r\n", 401),
    "a body that waits to be asked for": (
        "POST /v1/sessions HTTP/1.1\r\n" + HOST + "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n", 401
    ),
    "half of a head": ("GET /v1/sessions HTTP/1.1\r\n", 408),
    "nothing": ("", 408),
}  # fmt: skip


@pytest.mark.req("safe.input")
@pytest.mark.parametrize(("said", "status"), STRANGERS.values(), ids=STRANGERS)
async def test_whoever_shows_no_token_is_answered_and_closed(
    service: Service, monkeypatch: pytest.MonkeyPatch, said: str, status: int
) -> None:
    for name, value in (("SWEEP_SECONDS", 0.05), ("HEAD_SECONDS", 0.5), ("BODY_WINDOW_SECONDS", 0.5)):
        monkeypatch.setattr(limits, name, value)
    monkeypatch.setattr(serving, "KEEP_ALIVE_SECONDS", 0.3)
    async with open_door(service) as port:
        answer = await exchange(port, said.encode("latin-1"))
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"%d" % status]


@pytest.mark.req("safe.input")
@pytest.mark.parametrize(("said", "status"), STRANGERS.values(), ids=STRANGERS)
async def test_however_many_show_no_token_they_shut_out_nobody_who_has_one(
    service: Service, said: str, status: int
) -> None:
    limit = 4
    async with open_door(service, limit) as port, contextlib.AsyncExitStack() as stack:
        for _ in range(limit + 1):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(said.encode("latin-1"))
            # The server has dealt with the stranger before the next one comes.
            await exchange(port, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(limit)]
        for _, writer in kept:
            stack.callback(writer.close)
            writer.write(head() + b"\r\n")
        answers = [await asyncio.wait_for(reader.readline(), PATIENCE) for reader, _ in kept]
    assert answers == [b"HTTP/1.1 200 OK\r\n"] * limit


@pytest.mark.req("safe.input")
@pytest.mark.fresh_service
async def test_whoever_has_shown_a_token_stays_when_strangers_come(service: Service) -> None:
    """Both kinds of connection, while an answer is under way and after it."""
    limit = 6
    await service.create_session("main")
    options: dict[str, Any] = {"additional_headers": {"Authorization": f"Bearer {TOKEN}"}, "proxy": None}
    async with open_door(service, limit) as port:
        async with connect(f"ws://127.0.0.1:{port}/v1/sessions/main/events", **options) as watching:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head() + b"\r\n")
            assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
            body = json.dumps({"code": "input()"}).encode()
            streaming = await asyncio.open_connection("127.0.0.1", port)
            more = f"Accept: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
            streaming[1].write(head("POST /v1/sessions/main/execute", more) + body)
            await streaming[0].readuntil(b'"type":"input_wait"')
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * limit)]
            refused = [await asyncio.wait_for(each.read(), PATIENCE) for each, _ in strangers[: 2 * limit]]
            assert {told(answer) for answer in refused} == {(503, "unavailable")}
            await service.input("main", "x", wait=0)
            assert b'"type":"done"' in await asyncio.wait_for(streaming[0].readuntil(b"\r\n0\r\n\r\n"), PATIENCE)
            writer.write(head("GET /v1/sessions/main") + b"Connection: close\r\n\r\n")
            assert b'"execution_count":1' in await asyncio.wait_for(reader.read(), PATIENCE)
            assert json.loads(await asyncio.wait_for(watching.recv(), PATIENCE))["seq"] == 1
        for _, each in [*strangers, (reader, writer), streaming]:
            each.close()


# Clients that do not read


@pytest.mark.req("http.stream")
async def test_a_watcher_that_stops_reading_is_closed_with_its_number_and_loses_nothing(
    door: int, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.create_session("main")
    url = f"ws://127.0.0.1:{door}/v1/sessions/main/events"
    short = events.PATIENCE_SECONDS
    options: dict[str, Any] = {
        "additional_headers": {"Authorization": f"Bearer {TOKEN}"}, "compression": None, "proxy": None, "max_size": None
    }  # fmt: skip
    seen: list[int] = []
    # On a loaded machine also those who read are late at times.
    monkeypatch.setattr(events, "PATIENCE_SECONDS", PATIENCE)
    async with contextlib.AsyncExitStack() as watching:
        quick = await watching.enter_async_context(connect(url, **options))
        monkeypatch.setattr(events, "PATIENCE_SECONDS", short)
        slow = await watching.enter_async_context(connect(url, max_queue=1, ping_interval=None, **options))
        await service.begin("main", "for n in range(300): print(str(n) * 30_000)")
        while True:
            event = json.loads(await asyncio.wait_for(quick.recv(), PATIENCE))
            if event["type"] == "done":
                break
        # The quick one has seen all of it while the slow one reads nothing.
        last = event["seq"]
        await asyncio.sleep(2.0)
        with contextlib.suppress(ConnectionClosed):
            while True:
                seen.append(json.loads(await asyncio.wait_for(slow.recv(), PATIENCE))["seq"])
        assert slow.close_code == 4408
        assert slow.close_reason is not None
        following = int(slow.close_reason.rpartition("from=")[2])
    assert seen == list(range(1, following))
    assert following < last
    monkeypatch.setattr(events, "PATIENCE_SECONDS", PATIENCE)
    async with connect(f"{url}?from={following}", **options) as back:
        while seen[-1] < last:
            seen.append(json.loads(await asyncio.wait_for(back.recv(), PATIENCE))["seq"])
    assert seen == list(range(1, last + 1))


@pytest.mark.req("http.stream")
@pytest.mark.fresh_service
async def test_slow_watchers_cost_little_memory_and_do_not_slow_the_rest(server: Server) -> None:
    server.make_session()
    server.make_session("other")
    url = f"ws://127.0.0.1:{server.port}/v1/sessions/main/events"
    options: dict[str, Any] = {
        "additional_headers": {"Authorization": f"Bearer {server.token}"}, "compression": None, "proxy": None
    }  # fmt: skip

    def memory() -> int:
        fields = Path(f"/proc/{server.process.pid}/statm").read_text().split()
        return int(fields[1]) * resource.getpagesize()

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            watching = connect(url, max_queue=1, ping_interval=None, close_timeout=0.1, **options)
            await stack.enter_async_context(watching)
        before = memory()
        done = await asyncio.to_thread(
            server.execute, "for _ in range(1000): print('x' * 99_999)", "main", wait=PATIENCE
        )
        assert (done["status"], done["truncated"]["stdout"] > 0) == ("ok", True)
        # 100 MB went by; twenty who do not read it hold next to nothing of it.
        assert memory() - before < 80_000_000
        assert (await asyncio.to_thread(server.execute, "6 * 7", "other"))["result"] == {"text/plain": "42"}


@pytest.mark.req("safe.input")
def test_a_body_of_a_gigabyte_is_refused_early(server: Server) -> None:
    server.make_session()
    sent = 0

    def gigabyte() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(1024):
            sent += 1
            yield b" " * (1 << 20)

    before = time.monotonic()
    answer = server.client.post("/v1/sessions/main/execute", content=gigabyte())
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert sent < 50, f"{sent} MiB were sent in {time.monotonic() - before:.1f} s"
    assert server.execute("1")["status"] == "ok"


@pytest.mark.req("safe.input")
@pytest.mark.fresh_service
def test_ten_thousand_connections_leave_a_normal_client_undisturbed(server: Server) -> None:
    server.make_session()
    wanted = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted + 500:
        wanted = hard - 500
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, wanted + 500)), hard))
    stop = threading.Event()
    normal: list[tuple[str, int]] = []

    def go_on() -> None:
        while not stop.is_set():
            # On a connection that is kept, and on a new one each time.
            normal.append((server.execute("1 + 1")["status"], 0))
            with server.make_client() as new:
                normal.append(("ok", new.get("/v1/sessions/main").status_code))

    working = threading.Thread(target=go_on)
    working.start()
    crowd: list[socket.socket] = []
    refused = b""
    try:
        with selectors.DefaultSelector() as chosen:
            for number in range(wanted):
                each = socket.socket()
                each.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    each.connect(("127.0.0.1", server.port))
                crowd.append(each)
                chosen.register(each, selectors.EVENT_READ)
                if number % 100 == 0:
                    time.sleep(0.01)  # as fast as connections are taken, not as fast as they can be asked for
            closed = 0
            deadline = time.monotonic() + 30
            while closed < wanted - 1024 and time.monotonic() < deadline:
                for key, _ in chosen.select(1.0):
                    chosen.unregister(key.fileobj)
                    closed += 1
                    with contextlib.suppress(ConnectionError):
                        refused = refused or key.fileobj.recv(65536)  # type: ignore[union-attr]
        served = len(normal)
        assert wait_until(lambda: len(normal) > served + 10)
    finally:
        stop.set()
        working.join(PATIENCE)
        for each in crowd:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert closed >= wanted - 1024
    assert told(refused) == (503, "unavailable")
    assert b"retry-after: " in refused
    assert {status for status, _ in normal} == {"ok"}
    assert {code for _, code in normal} <= {0, 200}


@pytest.mark.req("safe.input")
def test_hostile_names_lead_nowhere(server: Server) -> None:
    server.make_session()
    names = ("..", "../main", "%2e%2e", "%2e%2e%2fmain", "a%00b", "%00", "%F0%9F%98%80", "%ff", "main%2F..%2Fmain")
    for name in names:
        for tail in ("", "/execute", "/cells/1", "/files/x"):
            for method in ("GET", "POST"):
                request = f"{method} /v1/sessions/{name}{tail} HTTP/1.1\r\nHost: localhost\r\n"
                request += f"Authorization: Bearer {server.token}\r\nContent-Length: 13\r\nConnection: close\r\n\r\n"
                answer = raw_exchange(server.port, request.encode() + b'{"code": "1"}')
                assert told(answer)[0] in (404, 405), (name, tail, answer)
    assert server.client.get("/v1/sessions/main").json()["execution_count"] == 0


def test_cells_that_run_may_end_within_the_grace_of_a_stop(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start("--stop-grace", "30")
    server.make_session()
    gate = tmp_path / "gate"
    answers: list[Any] = []

    def wait_on_cell() -> None:
        code = f"import os, time\nprint('on')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\n'whole'"
        with server.make_client() as client:
            answers.append(client.post("/v1/sessions/main/execute", json={"code": code, "wait": 60}).json())

    waiting = threading.Thread(target=wait_on_cell)
    waiting.start()
    assert wait_until(lambda: server.client.get("/v1/sessions/main").json()["execution_count"] == 1)
    server.process.terminate()
    assert wait_until(lambda: not accepts(server.port))
    gate.touch()
    waiting.join(PATIENCE)
    assert answers[0]["result"] == {"text/plain": "'whole'"}
    assert server.process.wait(PATIENCE) == 0


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
