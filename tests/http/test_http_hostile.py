"""Slow and hostile clients: each is refused clearly, costs little, and disturbs no normal client."""

from __future__ import annotations

import asyncio
import contextlib
import json
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

from conftest import until, wait_until
from ingle.http import limits
from ingle.http.routes import events
from ingle.service import Service
from support.local_http import TOKEN, open_door
from support.server import PATIENCE, Server, raw_exchange


@pytest.fixture
async def door(service: Service, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    """The port of a door in this process, so that its patience can be made short."""
    for name, value in (("SWEEP", 0.05), ("HEAD_PATIENCE", 0.5), ("BODY_WINDOW", 0.5)):
        monkeypatch.setattr(limits, name, value)
    monkeypatch.setattr(events, "PATIENCE", 1.0)
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
async def test_a_client_that_does_not_take_its_answer_is_cut_off(
    door: int, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ANSWER_PATIENCE", 1.0)
    await service.create_session("main")
    reader, writer = await asyncio.open_connection("127.0.0.1", door, limit=1024)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    body = json.dumps({"code": "for _ in range(400): print('x' * 99_999)"}).encode()
    more = f"Accept: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head("POST /v1/sessions/main/execute", more) + body)
    # It was cut, not ended: what was not taken by then never comes, while the cell came to its end.
    session = service._placement.manager.get("main")  # type: ignore[attr-defined]
    assert await until(lambda: session.last_cell == 1)
    await service.wait("main", 1, wait=PATIENCE)
    await asyncio.sleep(2.5)
    rest = b""
    with contextlib.suppress(ConnectionError):
        rest = await asyncio.wait_for(reader.read(), PATIENCE)
    assert len(rest) < 30_000_000
    assert (await service.wait("main", 1)).truncated.stdout > 0
    writer.close()


@pytest.mark.req("http.stream")
async def test_a_watcher_that_stops_reading_is_closed_with_its_number_and_loses_nothing(
    door: int, service: Service
) -> None:
    await service.create_session("main")
    url = f"ws://127.0.0.1:{door}/v1/sessions/main/events"
    options: dict[str, Any] = {
        "additional_headers": {"Authorization": f"Bearer {TOKEN}"}, "compression": None, "proxy": None, "max_size": None
    }  # fmt: skip
    seen: list[int] = []
    async with connect(url, max_queue=1, ping_interval=None, **options) as slow, connect(url, **options) as quick:
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
    async with connect(f"{url}?from={following}", **options) as back:
        while seen[-1] < last:
            seen.append(json.loads(await asyncio.wait_for(back.recv(), PATIENCE))["seq"])
    assert seen == list(range(1, last + 1))


@pytest.mark.req("http.stream")
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
